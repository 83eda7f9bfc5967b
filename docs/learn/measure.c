/* measure: how long a message takes, and how fast memory is filled. Lesson 10. */

#define _POSIX_C_SOURCE 200809L
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "example.h"

enum { ROUNDS = 5000, DEPTH = 16, LARGEST = 32768, WRITES = 2000 };

static struct {
    VIP_DESCRIPTOR receive[2], send, write[DEPTH];
    window place;
    VIP_UINT64 in[2], out;
    char source[LARGEST], target[LARGEST];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static VIP_VI_HANDLE vi;
static VIP_MEM_HANDLE memory;
static int waits; /* sleep until something completes, instead of polling */

static double now(void) /* in seconds */
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void post_receive(int i)
{
    describe(&m.receive[i], &m.in[i], memory, sizeof m.in[i]);
    MUST(VipPostRecv(vi, &m.receive[i], memory));
}

static VIP_DESCRIPTOR *take(VIP_RETURN (*done_of)(VIP_VI_HANDLE, VIP_DESCRIPTOR **),
                            VIP_RETURN (*wait_for)(VIP_VI_HANDLE, VIP_ULONG, VIP_DESCRIPTOR **))
{
    VIP_DESCRIPTOR *done;
    VIP_RETURN result = VIP_NOT_DONE;

    if (waits)
        result = wait_for(vi, VIP_INFINITE, &done);
    while (result == VIP_NOT_DONE)
        result = done_of(vi, &done);
    MUST(result);
    return done;
}

static void ping(void)
{
    describe(&m.send, &m.out, memory, sizeof m.out);
    MUST(VipPostSend(vi, &m.send, memory));
    take(VipSendDone, VipSendWait);
}

/* Two receives take turns: one is posted again while the peer may use the other. */
static void pong(void)
{
    VIP_DESCRIPTOR *done = take(VipRecvDone, VipRecvWait);

    post_receive((int)(done - m.receive));
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Half of a round trip, as many times as ROUNDS says. */
static void latency(int is_server)
{
    static double times[ROUNDS];
    int i;

    for (i = 0; i < ROUNDS; i++) {
        double begin = now();
        if (!is_server)
            ping();
        pong();
        if (is_server)
            ping();
        times[i] = (now() - begin) / 2 * 1e6;
    }
    qsort(times, ROUNDS, sizeof times[0], ascending);
    if (!is_server)
        printf("8 bytes, %s: half are below %.2f us, 99 of 100 below %.2f us\n", waits ? "waiting" : "polling",
               times[ROUNDS / 2], times[ROUNDS * 99 / 100]);
}

/* Bandwidth of RDMA Writes of this size, with so many of them on the queue at a time. */
static double write_all(size_t bytes, int depth)
{
    double begin = now();
    int i;

    for (i = 0; i < WRITES; i++) {
        VIP_DESCRIPTOR *d = &m.write[i % depth];
        if (i >= depth)
            take(VipSendDone, VipSendWait); /* the oldest: its descriptor is used again */
        describe_rdma(d, VIP_CONTROL_OP_RDMAWRITE, &m.place, m.source, memory, bytes);
        MUST(VipPostSend(vi, d, memory));
    }
    for (i = 0; i < depth; i++)
        take(VipSendDone, VipSendWait);
    ping(); /* behind the data, on the same VI; the answer says that all of it is there */
    pong();
    return (double)bytes * WRITES / (now() - begin) / 1e6;
}

static void bandwidth(int is_server)
{
    static const size_t sizes[] = {64, 1024, 8192, LARGEST};
    size_t i;

    if (!is_server)
        printf("RDMA Write, MB/s\n%9s  %8s  %8s\n", "bytes", "1 posted", "16 posted");
    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (is_server) {
            pong(), ping();
            pong(), ping();
            continue;
        }
        double one = write_all(sizes[i], 1), many = write_all(sizes[i], DEPTH);
        printf("%9zu  %8.1f  %8.1f\n", sizes[i], one, many);
    }
}

int main(int argc, char **argv)
{
    int is_server = fork() != 0;
    device opened = open_device(device_name(argc, argv));
    VIP_VI_ATTRIBUTES wanted = {
        .ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY,
        .MaxTransferSize = LARGEST,
        .Ptag = opened.tag,
        .EnableRdmaWrite = VIP_TRUE,
    };
    VIP_DESCRIPTOR *done;

    memory = register_memory(&opened, &m, sizeof m, WRITABLE);
    MUST(VipCreateVi(opened.nic, &wanted, NULL, NULL, &vi));
    describe(&m.receive[0], &m.place, memory, sizeof m.place);
    MUST(VipPostRecv(vi, &m.receive[0], memory));
    post_receive(1);
    if (is_server)
        accept_client(&opened, vi, "measure");
    else
        connect_server(&opened, vi, "measure");
    window mine = window_of(m.target, memory, sizeof m.target);
    memcpy(m.source, &mine, sizeof mine);
    describe(&m.send, m.source, memory, sizeof mine);
    post_and_wait(vi, &m.send, memory);
    MUST(VipRecvWait(vi, VIP_INFINITE, &done)); /* the place where the peer wants the data */
    post_receive(0);

    for (waits = 0; waits < 2; waits++)
        latency(is_server);
    waits = 0;
    bandwidth(is_server);

    MUST(VipDisconnect(vi));
    drain(vi);
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    if (is_server)
        wait(NULL);
    return 0;
}
