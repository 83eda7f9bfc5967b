/* What gdb prints: a value of each type that the printers know. */

#include <string.h>

#include <vipl.h>

static struct {
  VIP_DESCRIPTOR d;
  VIP_DESCRIPTOR_SEGMENT third;
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));
static union {
  VIP_NET_ADDRESS net;
  char room[32];
} a;
static VIP_ERROR_DESCRIPTOR error;
static VIP_RELIABILITY_LEVEL level = VIP_SERVICE_RELIABLE_DELIVERY;
static VIP_VI_STATE state = VIP_STATE_CONNECT_PENDING;
static VIP_RETURN result;
static VIP_NIC_HANDLE nic;
static VIP_VI_HANDLE none;

static void segment(int number, VIP_UINT64 address, VIP_MEM_HANDLE handle, VIP_UINT32 length) {
  m.d.DS[number].Local.Data.AddressBits = address;
  m.d.DS[number].Local.Handle = handle;
  m.d.DS[number].Local.Length = length;
}

int stop(void) { return (int)state + level + (none != NULL) + (nic != NULL) + (int)result; }

int main(int argc, char **argv) {
  if (argc != 2) return 1;
  result = VipOpenNic(argv[1], &nic);
  m.d.CS.SegCount = 3;
  m.d.CS.Control = VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE;
  m.d.CS.ImmediateData = 7;
  m.d.CS.Length = 27;
  m.d.CS.Status = VIP_STATUS_DONE | VIP_STATUS_LENGTH_ERROR | VIP_STATUS_OP_RDMA_WRITE | VIP_STATUS_IMMEDIATE;
  segment(0, 0x1000, 5, 0);
  segment(1, 0x2000, 6, 20);
  m.third.Local.Data.AddressBits = 0x3000;
  m.third.Local.Handle = 6;
  m.third.Local.Length = 7;
  a.net.HostAddressLen = 6;
  a.net.DiscriminatorLen = 5;
  memcpy(a.room + 4, "\2VIL\0\1hello", 11);
  error.NicHandle = nic;
  error.ResourceCode = VIP_RESOURCE_VI;
  error.ErrorCode = VIP_ERROR_CONN_LOST;
  return stop() < 0;
}
