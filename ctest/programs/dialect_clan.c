/* Messages and RDMA with the descriptors of the cLAN header: members Control and Data, and the first data
 * segment of an RDMA descriptor is its address segment. */
#define VIPL_CLAN_DIALECT
#include "dialect.h"

static void build(VIP_DESCRIPTOR *d, void *data, VIP_MEM_HANDLE handle, unsigned bytes)
{
    memset(d, 0, sizeof *d);
    d->Control.Control = VIP_CONTROL_OP_SENDRECV;
    d->Control.SegCount = bytes != 0;
    d->Control.Length = bytes;
    d->Data[0].Data.Address = data;
    d->Data[0].Handle = handle;
    d->Data[0].Length = bytes;
}

static void build_write(VIP_DESCRIPTOR *d, uint64_t target, VIP_MEM_HANDLE target_handle, void *data,
                        VIP_MEM_HANDLE handle, unsigned bytes)
{
    VIP_DATA_SEGMENT *piece = d->Data;

    memset(d, 0, sizeof *d);
    d->Control.Control = VIP_CONTROL_OP_RDMAWRITE;
    d->Control.SegCount = 2;
    d->Control.Length = bytes;
    piece->Data.AddressBits = target;
    piece->Handle = target_handle;
    piece->Length = 0;
    piece++; /* lies behind the structure, in the room the program has made for it */
    piece->Data.Address = data;
    piece->Handle = handle;
    piece->Length = bytes;
}

static unsigned length_of(const VIP_DESCRIPTOR *d) { return d->Control.Length; }
static unsigned status_of(const VIP_DESCRIPTOR *d) { return d->Control.Status; }

int main(int argc, char **argv)
{
    CHECK_EQ(sizeof(VIP_DESCRIPTOR), 48, "ABI-11");
    return run_dialect(argc, argv, "cLAN");
}
