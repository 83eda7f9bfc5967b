/* pingpong: latency of RDMA Writes whose arrival a completion queue reports.
 *
 * Each side writes 64 bytes into the other's memory, with immediate data: that consumes a receive
 * descriptor there, and the completion queue tells of it. An RDMA Write names the target's memory, so
 * the two sides first exchange address and handle in a message. */

#define _POSIX_C_SOURCE 200809L
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "example.h"

enum { ROUNDS = 10000, BYTES = 64 };

static struct {
    VIP_DESCRIPTOR invited, written, send;
    window mine, theirs;
    char source[BYTES], target[BYTES];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

/* Waits until the completion queue reports the receive, and takes its descriptor. */
static VIP_DESCRIPTOR *received(VIP_VI_HANDLE vi, VIP_CQ_HANDLE cq)
{
    VIP_VI_HANDLE which;
    VIP_BOOLEAN is_receive;
    VIP_DESCRIPTOR *done;
    MUST(VipCQWait(cq, VIP_INFINITE, &which, &is_receive));
    MUST(VipRecvDone(vi, &done));
    return done;
}

static void write_to_peer(VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory, VIP_UINT32 round)
{
    describe_rdma(&m.send, VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE, &m.theirs, m.source, memory, BYTES);
    m.send.CS.ImmediateData = round;
    post_and_wait(vi, &m.send, memory);
}

/* A receive without a buffer: the data of an RDMA Write goes to the target. */
static void expect_write(VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    memset(&m.written, 0, sizeof m.written);
    MUST(VipPostRecv(vi, &m.written, memory));
}

static void take_write(VIP_VI_HANDLE vi, VIP_CQ_HANDLE cq, VIP_MEM_HANDLE memory, VIP_UINT32 round)
{
    VIP_DESCRIPTOR *done = received(vi, cq);
    if (done->CS.ImmediateData != round) {
        fprintf(stderr, "round %u came as %u\n", (unsigned)round, (unsigned)done->CS.ImmediateData);
        exit(1);
    }
    if (round + 1 < ROUNDS)
        expect_write(vi, memory);
}

/* Connects; the two sides exchange the places to write to. */
static void meet(device *opened, VIP_VI_HANDLE vi, VIP_CQ_HANDLE cq, VIP_MEM_HANDLE memory, int is_server)
{
    /* Before the connection: the peer may send at once, and write once it knows where. */
    describe(&m.invited, &m.theirs, memory, sizeof m.theirs);
    MUST(VipPostRecv(vi, &m.invited, memory));
    expect_write(vi, memory);
    if (is_server)
        accept_client(opened, vi, "pingpong");
    else
        connect_server(opened, vi, "pingpong");
    m.mine = window_of(m.target, memory, BYTES);
    describe(&m.send, &m.mine, memory, sizeof m.mine);
    post_and_wait(vi, &m.send, memory);
    received(vi, cq);
}

int main(int argc, char **argv)
{
    pid_t child = fork();
    int is_server = child != 0, failed = 0;
    device opened = open_device(device_name(argc, argv));
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, WRITABLE);
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;
    struct timespec begin, end;
    VIP_UINT32 round;

    MUST(VipCreateCQ(opened.nic, 16, &cq));
    vi = create_vi(&opened, cq);
    meet(&opened, vi, cq, memory, is_server);

    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (round = 0; round < ROUNDS; round++) {
        if (!is_server)
            write_to_peer(vi, memory, round);
        take_write(vi, cq, memory, round);
        if (is_server)
            write_to_peer(vi, memory, round);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (!is_server) {
        double ns = (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
        printf("%d bytes by RDMA Write: %.2f us one way on average\n", BYTES, ns / 2000.0 / ROUNDS);
    }

    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
    MUST(VipDestroyCQ(cq));
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    if (child > 0) {
        int status;
        waitpid(child, &status, 0);
        failed = status != 0;
    }
    return failed;
}
