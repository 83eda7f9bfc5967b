/* alloc: the same RDMA Writes into ordinary memory and into memory of vipl_alloc. */

#define _POSIX_C_SOURCE 200809L
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "../example.h"

enum { WRITES = 20000, BYTES = 64 };

static struct {
    VIP_DESCRIPTOR receive, send;
    window places[2];
    char source[BYTES], ordinary[BYTES];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static void serve(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;
    VIP_PVOID allocated;

    MUST(vipl_alloc(BYTES, &allocated));
    VIP_MEM_HANDLE its_memory = register_memory(opened, allocated, BYTES, WRITABLE);
    m.places[0] = window_of(m.ordinary, memory, BYTES);
    m.places[1] = window_of(allocated, its_memory, BYTES);
    memset(&m.receive, 0, sizeof m.receive);
    MUST(VipPostRecv(vi, &m.receive, memory));
    accept_client(opened, vi, "alloc");
    describe(&m.send, m.places, memory, sizeof m.places);
    post_and_wait(vi, &m.send, memory);
    MUST(VipRecvWait(vi, VIP_INFINITE, &done)); /* behind all data */
    if (memcmp(m.ordinary, allocated, BYTES) != 0 || m.ordinary[BYTES - 1] != 'x')
        fprintf(stderr, "the two windows differ\n");
    MUST(VipDeregisterMem(opened->nic, allocated, its_memory));
    MUST(vipl_free(allocated));
}

static void call(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    static const char *kinds[2] = {"ordinary memory", "memory of vipl_alloc"};
    struct timespec begin, end;
    VIP_DESCRIPTOR *done;
    int kind, i;

    describe(&m.receive, m.places, memory, sizeof m.places);
    MUST(VipPostRecv(vi, &m.receive, memory));
    connect_server(opened, vi, "alloc");
    MUST(VipRecvWait(vi, VIP_INFINITE, &done));
    memset(m.source, 'x', BYTES);
    for (kind = 0; kind < 2; kind++) {
        clock_gettime(CLOCK_MONOTONIC, &begin);
        for (i = 0; i < WRITES; i++) {
            describe_rdma(&m.send, VIP_CONTROL_OP_RDMAWRITE, &m.places[kind], m.source, memory, BYTES);
            post_and_wait(vi, &m.send, memory);
        }
        clock_gettime(CLOCK_MONOTONIC, &end);
        double us = (double)(end.tv_sec - begin.tv_sec) * 1e6 + (double)(end.tv_nsec - begin.tv_nsec) / 1e3;
        printf("%s: %.2f us for each Write of %d bytes\n", kinds[kind], us / WRITES, BYTES);
    }
    memset(&m.send, 0, sizeof m.send);
    post_and_wait(vi, &m.send, memory);
}

int main(int argc, char **argv)
{
    int is_server = fork() != 0;
    device opened = open_device(device_name(argc, argv));
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, is_server ? WRITABLE : LOCAL);
    VIP_VI_HANDLE vi = create_vi(&opened, NULL);

    if (is_server)
        serve(&opened, vi, memory);
    else
        call(&opened, vi, memory);

    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    if (is_server)
        wait(NULL);
    return 0;
}
