/* mp_bench: what mp costs above VIPL, measured in one run of two ranks, in turns.
 *
 *   - 8 bytes one way: a message back and forth by VipPostSend and VipRecvDone alone, and by mp
 *   - 1 MiB: RDMA Writes into the peer's memory as fast as they complete, and messages of mp
 *
 *     mprun mp_bench [ROUNDS]
 *
 * Each figure is the median of so many turns. The plain side has a VI of its own, on a NIC handle of its own. */

#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "../example.h"
#include "mp.h"

enum { ROUNDS_MAX = 100, SMALL = 20000, LARGE = 60, BYTES = 8, MIB = 1 << 20, WRITES = 4, AHEAD = 4 };

typedef struct {
    VIP_DESCRIPTOR d;
    char data[64];
} message;

static struct {
    message in[2], out;
    VIP_DESCRIPTOR writes[WRITES];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static device opened;
static VIP_VI_HANDLE vi;
static VIP_MEM_HANDLE memory, buffer_memory;
static window there; /* the other rank's buffer */
static char *buffer;
static int rank, rounds = 9;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- plain VIPL --------------------------------------------------------------------------------------------- */

static void post_receive(int which)
{
    m.in[which].d.CS.Length = BYTES;
    m.in[which].d.CS.Status = 0;
    MUST(VipPostRecv(vi, &m.in[which].d, memory));
}

static void open_plain(const char *name)
{
    VIP_VI_ATTRIBUTES attributes;
    address here, other;
    char at[32];
    int i;

    opened = open_device(name);
    memory = register_memory(&opened, &m, sizeof m, LOCAL);
    buffer_memory = register_memory(&opened, buffer, MIB, WRITABLE);
    memset(&attributes, 0, sizeof attributes);
    attributes.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    attributes.MaxTransferSize = opened.attributes.MaxTransferSize;
    attributes.Ptag = opened.tag;
    attributes.EnableRdmaWrite = VIP_TRUE;
    MUST(VipCreateVi(opened.nic, &attributes, NULL, NULL, &vi));
    for (i = 0; i < 2; i++) {
        describe(&m.in[i].d, m.in[i].data, memory, BYTES);
        post_receive(i);
    }
    describe(&m.out.d, m.out.data, memory, BYTES);
    snprintf(at, sizeof at, "bench%.8s%d", getenv("MP_JOB"), rank);
    here = address_of(opened.nic, at);
    at[strlen(at) - 1] ^= 1; /* '0' and '1' */
    other = address_of(opened.nic, at);
    MUST(VipConnectPeerRequest(vi, &here.net, &other.net, 20000));
    MUST(VipConnectPeerWait(vi, &attributes));
}

static void close_plain(void)
{
    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened.nic, buffer, buffer_memory));
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
}

static void send_plain(void)
{
    VIP_DESCRIPTOR *done;
    m.out.d.CS.Status = 0;
    MUST(VipPostSend(vi, &m.out.d, memory));
    while (VipSendDone(vi, &done) == VIP_NOT_DONE)
        continue;
}

static void receive_plain(void)
{
    VIP_DESCRIPTOR *done;
    VIP_RETURN result;
    while ((result = VipRecvDone(vi, &done)) == VIP_NOT_DONE)
        continue;
    MUST(result);
    post_receive(done == &m.in[1].d);
}

static void bounce_plain(void)
{
    if (rank == 0) {
        send_plain();
        receive_plain();
    } else {
        receive_plain();
        send_plain();
    }
}

/* Waits until no more than `left` writes are in progress. */
static void finish_writes(unsigned *in_progress, unsigned left)
{
    VIP_DESCRIPTOR *done;
    VIP_RETURN result;

    while (*in_progress > left) {
        while ((result = VipSendDone(vi, &done)) == VIP_NOT_DONE)
            continue;
        MUST(result);
        --*in_progress;
    }
}

/* Rank 0 writes 1 MiB so many times, in pieces of MaxTransferSize, and waits until the other has all of it. */
static void write_plain(int times)
{
    size_t most = opened.attributes.MaxTransferSize, at, bytes;
    unsigned posted = 0, in_progress = 0;

    for (; rank == 0 && times > 0; times--)
        for (at = 0; at < MIB; at += bytes) {
            VIP_DESCRIPTOR *d = &m.writes[posted++ % WRITES];
            window to = there;
            to.at += at;
            bytes = MIB - at < most ? MIB - at : most;
            finish_writes(&in_progress, WRITES - 1);
            describe_rdma(d, VIP_CONTROL_OP_RDMAWRITE, &to, buffer + at, buffer_memory, bytes);
            MUST(VipPostSend(vi, d, memory));
            in_progress++;
        }
    finish_writes(&in_progress, 0);
    bounce_plain();
}

/* ---- mp ----------------------------------------------------------------------------------------------------- */

static void bounce_mp(void)
{
    char bytes[BYTES] = {0};
    if (rank == 0) {
        mp_send(bytes, BYTES, 1, 0);
        mp_receive(bytes, BYTES, 1, 0, NULL);
    } else {
        mp_receive(bytes, BYTES, 0, 0, NULL);
        mp_send(bytes, BYTES, 0, 0);
    }
}

/* The same megabyte so many times, some of them ahead. */
static void send_mp(int times)
{
    mp_request *ahead[AHEAD] = {NULL};
    int i;

    for (i = 0; i < times + AHEAD; i++) {
        mp_request **place = &ahead[i % AHEAD];
        if (*place != NULL)
            mp_wait(*place, NULL);
        *place = i >= times  ? NULL
                 : rank == 0 ? mp_start_send(buffer, MIB, 1, 1)
                             : mp_start_receive(buffer, MIB, 0, 1);
    }
    bounce_mp();
}

/* ---- figures ------------------------------------------------------------------------------------------------ */

static double time_bounces(void (*bounce)(void))
{
    double begin = now();
    int i;
    for (i = 0; i < SMALL; i++)
        bounce();
    return (now() - begin) / SMALL / 2 * 1e6; /* us, one way */
}

static double rate(void (*move)(int))
{
    double begin = now();
    move(LARGE);
    return (double)MIB * LARGE / (now() - begin) / 1e6; /* MB/s */
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, (size_t)rounds, sizeof *values, compare);
    return values[rounds / 2];
}

int main(int argc, char **argv)
{
    double plain_us[ROUNDS_MAX], mp_us[ROUNDS_MAX], plain_rate[ROUNDS_MAX], mp_rate[ROUNDS_MAX];
    double a, b, c, d;
    window here;
    int i;

    mp_start();
    rank = mp_rank();
    if (argc > 1)
        rounds = atoi(argv[1]);
    if (mp_size() != 2 || rounds < 1 || rounds > ROUNDS_MAX)
        mp_fail("mp_bench needs two ranks, and 1 to %d rounds", (int)ROUNDS_MAX);
    buffer = aligned_alloc(4096, MIB);
    if (buffer == NULL)
        mp_fail("no memory");
    memset(buffer, 1, MIB);
    open_plain(getenv("MP_DEVICE"));
    here = window_of(buffer, buffer_memory, MIB);
    mp_exchange(&here, 1 - rank, &there, 1 - rank, sizeof here, 2);
    time_bounces(bounce_plain); /* once for nothing */
    time_bounces(bounce_mp);
    for (i = 0; i < rounds; i++) {
        plain_us[i] = time_bounces(bounce_plain);
        mp_us[i] = time_bounces(bounce_mp);
        plain_rate[i] = rate(write_plain);
        mp_rate[i] = rate(send_mp);
    }
    a = median(plain_us), b = median(mp_us), c = median(plain_rate), d = median(mp_rate);
    if (rank == 0) {
        printf("8 bytes one way:  VIPL %.3f us, mp %.3f us, ratio %.2f\n", a, b, b / a);
        printf("1 MiB:            RDMA Write %.0f MB/s, mp %.0f MB/s, ratio %.2f\n", c, d, d / c);
    }
    close_plain();
    mp_finish();
    free(buffer);
    return 0;
}
