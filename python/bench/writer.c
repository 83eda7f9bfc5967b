/* writer: RDMA Writes to the target of compare.py, as vipl_writer() there in Python.
 *
 *     writer DEVICE NAME BYTES COUNT WINDOW BUFFERS       prints the seconds */

#define _GNU_SOURCE
#include <time.h>
#include "../../examples/example.h"

enum { MOST = 64 };

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static VIP_DESCRIPTOR *take(VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *done;
    VIP_RETURN result;
    while ((result = VipSendDone(vi, &done)) == VIP_NOT_DONE)
        ;
    MUST(result);
    return done;
}

int main(int argc, char **argv)
{
    static struct {
        VIP_DESCRIPTOR receive, last, send[MOST];
        window place;
    } m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));
    device opened;
    VIP_VI_ATTRIBUTES attributes, theirs;
    VIP_MEM_HANDLE memory, of_data;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *done;
    void *data;
    address target;
    double begun;
    int at, count, outstanding, buffers;
    size_t bytes;

    if (argc != 7)
        return 2;
    bytes = strtoul(argv[3], NULL, 0);
    count = atoi(argv[4]);
    outstanding = atoi(argv[5]);
    buffers = atoi(argv[6]);
    if (outstanding > MOST || outstanding > count || buffers < 1)
        return 2;
    opened = open_device(argv[1]);
    memory = register_memory(&opened, &m, sizeof m, LOCAL);
    MUST(vipl_alloc(bytes * (size_t)buffers, &data));
    of_data = register_memory(&opened, data, bytes * (size_t)buffers, LOCAL);
    memset(data, 1, bytes * (size_t)buffers);
    memset(&attributes, 0, sizeof attributes);
    attributes.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    attributes.MaxTransferSize = opened.attributes.MaxTransferSize;
    attributes.Ptag = opened.tag;
    attributes.EnableRdmaWrite = VIP_TRUE;
    MUST(VipCreateVi(opened.nic, &attributes, NULL, NULL, &vi));
    describe(&m.receive, &m.place, memory, sizeof m.place);
    MUST(VipPostRecv(vi, &m.receive, memory));
    target = address_of(opened.nic, argv[2]);
    while (VipConnectRequest(vi, &target.net, &target.net, 5000, &theirs) == VIP_NO_MATCH)
        ;
    MUST(VipRecvWait(vi, VIP_INFINITE, &done));
    for (at = 0; at < outstanding; at++) {
        window part = m.place;
        size_t offset = bytes * (size_t)(at % buffers);
        part.at += offset;
        describe_rdma(&m.send[at], VIP_CONTROL_OP_RDMAWRITE, &part, (char *)data + offset, of_data, bytes);
    }
    begun = seconds();
    for (at = 0; at < outstanding; at++)
        MUST(VipPostSend(vi, &m.send[at], memory));
    for (at = outstanding; at < count; at++)
        MUST(VipPostSend(vi, take(vi), memory));
    for (at = 0; at < outstanding; at++)
        (void)take(vi);
    printf("%.9f\n", seconds() - begun);
    memset(&m.last, 0, sizeof m.last);
    post_and_wait(vi, &m.last, memory);
    return 0;
}
