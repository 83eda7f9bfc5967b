/* RDMA between this process and the homes of the pages: pages are read from there, and what has changed is written there.
 *
 * Each pair of ranks has a VI for it, besides the one for messages, which only the program's thread uses: no lock is between a fault and its
 * page. Its level is Reliable Reception, so an RDMA Write that is complete is in the home's memory, and any rank that reads the page from
 * now on gets it. */

#include <stdlib.h>
#include <string.h>
#include <vipl_ext.h>
#include "state.h"

enum { DEPTH = 32 }; /* operations with one rank at a time */

typedef struct {
    _Alignas(VIP_DESCRIPTOR_ALIGNMENT) VIP_DESCRIPTOR ring[DEPTH];
    VIP_VI_HANDLE vi;
    place copy; /* of the shared memory, at that rank */
    unsigned begun, done;
} channel;

static channel channels[RANKS_MAX];
static VIP_MEM_HANDLE ring_memory;
static int opened;

int transfer_can_read(void)
{
    const char *wanted = getenv("DSM_FETCH");
    return (job.attributes.RDMAReadSupport & VIP_SERVICE_RELIABLE_RECEPTION) != 0 && (wanted == NULL || strcmp(wanted, "request") != 0);
}

void transfer_open(int rank)
{
    channel *c = &channels[rank];

    if (opened++ == 0)
        ring_memory = register_memory(channels, sizeof channels, 0);
    c->vi = create_vi(NULL, transfer_can_read());
    job_call(c->vi, rank, 1);
}

void transfer_meet(int rank)
{
    job_meet(channels[rank].vi, rank);
}

void transfer_close(int rank)
{
    MUST(VipDisconnect(channels[rank].vi));
    MUST(VipDestroyVi(channels[rank].vi));
    if (--opened == 0)
        MUST(VipDeregisterMem(job.nic, channels, ring_memory));
}

void transfer_know(int rank, place copy)
{
    channels[rank].copy = copy;
}

/* Waits until no more than `left` operations with this rank are in progress. */
static void wait_until(channel *c, unsigned left)
{
    VIP_DESCRIPTOR *d;
    VIP_RETURN result;
    char status[128];

    while (c->begun - c->done > left) {
        result = VipSendDone(c->vi, &d);
        if (result == VIP_NOT_DONE)
            continue;
        if (result != VIP_SUCCESS) {
            vipl_status_text(result == VIP_DESCRIPTOR_ERROR ? d->CS.Status : 0, status, sizeof status);
            job_fail("rank %d has gone: RDMA with it ends with %s", (int)(c - channels), status);
        }
        c->done++;
    }
}

/* Begins an operation between the same range of both copies. */
static void begin(channel *c, int operation, size_t offset, uint32_t bytes)
{
    VIP_DESCRIPTOR *d = &c->ring[c->begun % DEPTH];

    wait_until(c, DEPTH - 1);
    d->CS.Control = (VIP_UINT16)operation;
    d->CS.SegCount = 2;
    d->CS.Length = bytes;
    d->CS.Status = 0;
    d->DS[0].Remote.Data.AddressBits = c->copy.at + offset;
    d->DS[0].Remote.Handle = c->copy.memory;
    d->DS[1].Local.Data.AddressBits = (uintptr_t)(memory.wire + offset);
    d->DS[1].Local.Handle = memory.handle;
    d->DS[1].Local.Length = bytes;
    MUST(VipPostSend(c->vi, d, ring_memory));
    c->begun++;
}

void transfer_read(int home, uint32_t page)
{
    channel *c = &channels[home];
    begin(c, VIP_CONTROL_OP_RDMAREAD, (size_t)page * DSM_PAGE, DSM_PAGE);
    wait_until(c, 0);
}

void transfer_write(int home, size_t offset, uint32_t bytes)
{
    begin(&channels[home], VIP_CONTROL_OP_RDMAWRITE, offset, bytes);
}

void transfer_finish(void)
{
    int rank;
    for (rank = 0; rank < job.size; rank++)
        wait_until(&channels[rank], 0);
}
