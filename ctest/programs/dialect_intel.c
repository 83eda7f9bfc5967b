/* Messages and RDMA with the descriptors of the Intel header: members CS and DS. */
#include "dialect.h"

static void build(VIP_DESCRIPTOR *d, void *data, VIP_MEM_HANDLE handle, unsigned bytes)
{
    memset(d, 0, sizeof *d);
    d->CS.Control = VIP_CONTROL_OP_SENDRECV;
    d->CS.SegCount = bytes != 0;
    d->CS.Length = bytes;
    d->DS[0].Local.Data.Address = data;
    d->DS[0].Local.Handle = handle;
    d->DS[0].Local.Length = bytes;
}

static void build_write(VIP_DESCRIPTOR *d, uint64_t target, VIP_MEM_HANDLE target_handle, void *data,
                        VIP_MEM_HANDLE handle, unsigned bytes)
{
    memset(d, 0, sizeof *d);
    d->CS.Control = VIP_CONTROL_OP_RDMAWRITE;
    d->CS.SegCount = 2;
    d->CS.Length = bytes;
    d->DS[0].Remote.Data.AddressBits = target;
    d->DS[0].Remote.Handle = target_handle;
    d->DS[1].Local.Data.Address = data;
    d->DS[1].Local.Handle = handle;
    d->DS[1].Local.Length = bytes;
}

static unsigned length_of(const VIP_DESCRIPTOR *d) { return d->CS.Length; }
static unsigned status_of(const VIP_DESCRIPTOR *d) { return d->CS.Status; }

int main(int argc, char **argv)
{
    CHECK_EQ(sizeof(VIP_DESCRIPTOR), 64, "ABI-01");
    return run_dialect(argc, argv, "Intel");
}
