/* RDMA (spec §5.3 to §5.5, §10.2). One-sided means one-sided: while side 1 writes and reads, side 0 makes
 * no VIPL call at all; it looks at its memory and sleeps. */
#include "common.h"

struct world {
    struct side *side;
    struct node node;
    address other;
    VIP_VI_HANDLE vi;
    int level;
    VIP_DESCRIPTOR *d, *e;
    unsigned char *buffer; /* `largest` + 64 bytes at each side; side 0's is the target */
    size_t largest;
    uint64_t target; /* side 1: the address of side 0's buffer */
    VIP_MEM_HANDLE handle;
};

static void start_rdma(struct world *w, int operation, size_t offset)
{
    start_descriptor(w->d, operation);
    add_remote(w->d, w->target + offset, w->handle);
}

static void write_some(struct world *w, size_t offset, size_t bytes, unsigned long seed, const char *id)
{
    fill(w->buffer, bytes, seed);
    start_rdma(w, VIP_CONTROL_OP_RDMAWRITE, offset);
    if (bytes != 0)
        add_data(w->d, w->buffer, w->node.handle, bytes);
    MUST(VipPostSend(w->vi, w->d, w->node.handle));
    EXPECT_SEND(w->vi, w->d, STATUS_WRITTEN, id);
    CHECK_EQ(control(w->d)->Length, bytes, id);
}

/* Waits for a byte to change, without a call of VIPL. */
static void watch(struct world *w, size_t at, int old, const char *id)
{
    volatile unsigned char *byte = w->buffer + at;
    double start = now_ms();

    while (__atomic_load_n(byte, __ATOMIC_ACQUIRE) == old) {
        CHECK(now_ms() - start < (double)PATIENCE, id);
        sleep_ms(1);
    }
}

static void writes(struct world *w)
{
    const size_t size[] = {1, 4, 63, 64, 100, 4095, 4096, 4097, 32768, w->largest};
    VIP_DESCRIPTOR *found;
    size_t i, n;

    if (w->side->number == 0) /* which no write uses */
        post_recv(&w->node, w->vi, w->e, NULL, 0);
    for (i = 0; i < sizeof size / sizeof size[0]; i++) {
        n = size[i];
        if (w->side->number == 0) {
            memset(w->buffer, 0xEE, w->largest + 64);
            w->buffer[17 + n - 1] = (unsigned char)~pattern_at(n, n - 1); /* certain to change */
            meet(w->side);
            watch(w, 17 + n - 1, (unsigned char)~pattern_at(n, n - 1), "RDMA-01");
            CHECK(filled(w->buffer + 17, n, n), "COMPAT-15");
            CHECK(all_bytes(w->buffer, 17, 0xEE), "RDMA-01");
            CHECK(all_bytes(w->buffer + 17 + n, w->largest + 64 - 17 - n, 0xEE), "RDMA-01");
        } else {
            meet(w->side);
            write_some(w, 17, n, n, "RDMA-01 RDMA-17");
        }
        meet(w->side);
    }
    ok("level %d, side %d: writes of up to %lu bytes", w->level, w->side->number, (unsigned long)w->largest);

    if (w->side->number == 1) { /* gather (RDMA-02) */
        meet(w->side);
        fill(w->buffer, 9000, 4);
        start_rdma(w, VIP_CONTROL_OP_RDMAWRITE, 0);
        add_data(w->d, w->buffer, w->node.handle, 1);
        add_data(w->d, w->buffer + 1, w->node.handle, 0);
        add_data(w->d, w->buffer + 1, w->node.handle, 5999);
        add_data(w->d, w->buffer + 6000, w->node.handle, 3000);
        MUST(VipPostSend(w->vi, w->d, w->node.handle));
        EXPECT_SEND(w->vi, w->d, STATUS_WRITTEN, "RDMA-02");
        /* an empty one, with and without segments, to nowhere (RDMA-16) */
        start_descriptor(w->d, VIP_CONTROL_OP_RDMAWRITE);
        add_remote(w->d, 0x1000, 0x7FFFFFFFu);
        MUST(VipPostSend(w->vi, w->d, w->node.handle));
        EXPECT_SEND(w->vi, w->d, STATUS_WRITTEN, "RDMA-16");
        start_descriptor(w->d, VIP_CONTROL_OP_RDMAWRITE);
        add_remote(w->d, 0, 0);
        add_data(w->d, NULL, 0, 0);
        MUST(VipPostSend(w->vi, w->d, w->node.handle));
        EXPECT_SEND(w->vi, w->d, STATUS_WRITTEN, "RDMA-16");
    } else {
        memset(w->buffer, pattern_at(4, 8999) ^ 0xFF, 9000);
        meet(w->side);
        watch(w, 8999, pattern_at(4, 8999) ^ 0xFF, "RDMA-02");
        CHECK(filled(w->buffer, 9000, 4), "RDMA-02");
    }
    meet(w->side);
    if (w->side->number == 0) {
        CHECK_RETURN(VipRecvDone(w->vi, &found), VIP_NOT_DONE, "RDMA-01");
        meet(w->side);
        EXPECT_RECV(w->vi, w->e, STATUS_RECEIVED, "RDMA-01"); /* a send does use it */
    } else {
        meet(w->side);
        post_send(&w->node, w->vi, w->e, NULL, 0);
        EXPECT_SEND(w->vi, w->e, STATUS_SENT, "RDMA-01");
    }
    meet(w->side);
    ok("level %d, side %d: gathering and empty writes", w->level, w->side->number);
}

static void with_immediate(struct world *w)
{
    static const size_t size[] = {0, 100, 20000};
    size_t i;

    for (i = 0; i < 3; i++) {
        if (w->side->number == 0) {
            unsigned char *untouched = w->buffer + 30000;

            memset(w->buffer, 0, 31000);
            memset(untouched, 0xEE, 1000);
            post_recv(&w->node, w->vi, w->e, untouched, 1000);
            meet(w->side);
            EXPECT_RECV(w->vi, w->e,
                        VIP_STATUS_DONE | VIP_STATUS_OP_REMOTE_RDMA_WRITE | VIP_STATUS_IMMEDIATE, "RDMA-03");
            CHECK_EQ(control(w->e)->ImmediateData, 0xDEAD0000u + i, "RDMA-03");
            CHECK_EQ(control(w->e)->Length, size[i], "RDMA-03");
            CHECK(filled(w->buffer, size[i], i), "RDMA-05");
            CHECK(all_bytes(untouched, 1000, 0xEE), "RDMA-04");
        } else {
            meet(w->side);
            fill(w->buffer, size[i], i);
            start_rdma(w, VIP_CONTROL_OP_RDMAWRITE, 0);
            if (size[i] != 0)
                add_data(w->d, w->buffer, w->node.handle, size[i]);
            set_immediate(w->d, (VIP_UINT32)(0xDEAD0000u + i));
            MUST(VipPostSend(w->vi, w->d, w->node.handle));
            EXPECT_SEND(w->vi, w->d, STATUS_WRITTEN, "RDMA-03");
        }
        meet(w->side);
    }
    ok("level %d, side %d: writes with immediate data", w->level, w->side->number);
}

/* A write, then a send: when the receive is complete the write is in place (RDMA-06). */
static void write_then_send(struct world *w)
{
    enum { N = 300 };
    size_t bytes;
    int i;

    for (i = 0; i < N; i++) {
        bytes = i % 3 == 0 ? 30000 : i % 3 == 1 ? 64 : 3000;
        if (w->side->number == 0) {
            memset(w->buffer, 0, bytes);
            post_recv(&w->node, w->vi, w->e, NULL, 0);
            meet(w->side);
            EXPECT_RECV(w->vi, w->e, STATUS_RECEIVED, "RDMA-06");
            CHECK(filled(w->buffer, bytes, (unsigned long)i), "RDMA-06");
        } else {
            fill(w->buffer, bytes, (unsigned long)i);
            start_rdma(w, VIP_CONTROL_OP_RDMAWRITE, 0);
            add_data(w->d, w->buffer, w->node.handle, bytes);
            meet(w->side);
            MUST(VipPostSend(w->vi, w->d, w->node.handle));
            post_send(&w->node, w->vi, w->e, NULL, 0);
            EXPECT_SEND(w->vi, w->d, STATUS_WRITTEN, "RDMA-06");
            EXPECT_SEND(w->vi, w->e, STATUS_SENT, "RDMA-06");
        }
        meet(w->side);
    }
    ok("level %d, side %d: a write before a send, %d times", w->level, w->side->number, N);
}

static void reads(struct world *w)
{
    const size_t size[] = {1, 64, 100, 4096, 4097, 32768, w->largest};
    size_t i, n;

    if (!rdma_read_supported(&w->node, w->level))
        return;
    for (i = 0; i < sizeof size / sizeof size[0]; i++) {
        n = size[i];
        if (w->side->number == 0) {
            fill(w->buffer, n + 9, n);
            meet(w->side);
            meet(w->side); /* not a single call until it is over */
        } else {
            meet(w->side);
            memset(w->buffer, 0xEE, w->largest + 64);
            start_rdma(w, VIP_CONTROL_OP_RDMAREAD, 0);
            if (n > 60) {
                add_data(w->d, w->buffer, w->node.handle, 33);
                add_data(w->d, NULL, 0, 0);
                add_data(w->d, w->buffer + 33, w->node.handle, n - 33);
            } else {
                add_data(w->d, w->buffer, w->node.handle, n);
            }
            MUST(VipPostSend(w->vi, w->d, w->node.handle));
            EXPECT_SEND(w->vi, w->d, STATUS_READ, "RDMA-17 RDMA-18");
            CHECK(filled(w->buffer, n, n), "RDMA-18");
            CHECK(all_bytes(w->buffer + n, w->largest + 64 - n, 0xEE), "RDMA-18");
            meet(w->side);
        }
    }

    /* a fenced send carries what the read before it fetched (RDMA-21) */
    for (n = 100; n <= 20000; n += 19900) {
        if (w->side->number == 0) {
            fill(w->buffer, n, 50 + n);
            post_recv(&w->node, w->vi, w->e, w->buffer + 32768, 20000);
            meet(w->side);
            EXPECT_RECV(w->vi, w->e, STATUS_RECEIVED, "RDMA-21");
            CHECK(filled(w->buffer + 32768, n, 50 + n), "RDMA-21");
        } else {
            memset(w->buffer, 0, n);
            meet(w->side);
            start_rdma(w, VIP_CONTROL_OP_RDMAREAD, 0);
            add_data(w->d, w->buffer, w->node.handle, n);
            MUST(VipPostSend(w->vi, w->d, w->node.handle));
            start_descriptor(w->e, VIP_CONTROL_OP_SENDRECV);
            control(w->e)->Control |= VIP_CONTROL_QFENCE;
            add_data(w->e, w->buffer, w->node.handle, n);
            MUST(VipPostSend(w->vi, w->e, w->node.handle));
            EXPECT_SEND(w->vi, w->d, STATUS_READ, "RDMA-21");
            EXPECT_SEND(w->vi, w->e, STATUS_SENT, "RDMA-21");
        }
        meet(w->side);
    }
    ok("level %d, side %d: reads of up to %lu bytes, and a fence", w->level, w->side->number,
       (unsigned long)w->largest);
}

/* The target spins on the last 4 or 8 bytes; when they change, all others must be there (COMPAT-15). */
static void last_bytes_last(struct world *w)
{
    size_t n, limit = w->largest;
    int round, rounds;

    for (n = 4; n <= limit; n *= 4) {
        rounds = n <= 65536 ? 60 : 15;
        for (round = 1; round <= rounds; round++) {
            size_t flag = round % 2 == 0 && n >= 8 ? n - 8 : n - 4; /* the last 8 or the last 4 bytes */

            if (w->side->number == 0) {
                volatile uint32_t *last = (volatile uint32_t *)(void *)(w->buffer + flag);
                volatile uint64_t *last8 = (volatile uint64_t *)(void *)(w->buffer + flag);
                double start = now_ms();

                memset(w->buffer, 0, n);
                meet(w->side);
                while (flag == n - 4 ? __atomic_load_n(last, __ATOMIC_ACQUIRE) != (uint32_t)round
                                     : __atomic_load_n(last8, __ATOMIC_ACQUIRE) != (uint64_t)round)
                    CHECK(now_ms() - start < (double)PATIENCE, "COMPAT-15");
                CHECK(all_bytes(w->buffer, flag, round), "COMPAT-15");
            } else {
                uint64_t value = (uint64_t)round;

                memset(w->buffer, round, n);
                memcpy(w->buffer + flag, &value, n - flag);
                meet(w->side);
                start_rdma(w, VIP_CONTROL_OP_RDMAWRITE, 0);
                add_data(w->d, w->buffer, w->node.handle, n);
                MUST(VipPostSend(w->vi, w->d, w->node.handle));
                EXPECT_SEND(w->vi, w->d, STATUS_WRITTEN, "COMPAT-15");
            }
            meet(w->side);
        }
    }
    ok("level %d, side %d: the last bytes come last, up to %lu bytes", w->level, w->side->number,
       (unsigned long)limit);
}

/* Writes of n bytes, one after the other, whose end lies at a multiple of 8. The target spins on the last 8 bytes, which hold
 * the same number twice: they change together (COMPAT-15). */
static void watch_the_end(struct world *w, size_t n, uint32_t rounds)
{
    size_t offset = 8 - n % 8, last;
    uint32_t round = 0, half[2];
    uint64_t found;
    double start = now_ms();

    if (w->side->number == 0) {
        volatile uint64_t *flag = (volatile uint64_t *)(void *)(w->buffer + offset + n - 8);

        *flag = 0;
        meet(w->side);
        while (round != rounds) {
            found = __atomic_load_n(flag, __ATOMIC_ACQUIRE);
            memcpy(half, &found, 8);
            CHECK_EQ(half[0], half[1], "COMPAT-15");
            CHECK(half[0] >= round, "COMPAT-15");
            if (half[0] != round)
                start = now_ms();
            round = half[0];
            CHECK(now_ms() - start < (double)PATIENCE, "COMPAT-15");
        }
    } else {
        meet(w->side);
        while (++round <= rounds) {
            half[0] = half[1] = round;
            memcpy(w->buffer + n - 8, half, 8);
            last = round % 16; /* a segment of its own */
            start_rdma(w, VIP_CONTROL_OP_RDMAWRITE, offset);
            add_data(w->d, w->buffer, w->node.handle, n - last);
            add_data(w->d, w->buffer + n - last, w->node.handle, last);
            MUST(VipPostSend(w->vi, w->d, w->node.handle));
            EXPECT_SEND(w->vi, w->d, STATUS_WRITTEN, "COMPAT-15");
        }
    }
    meet(w->side);
}

/* Lengths at which a frame of Ethernet or of UDP ends, at MTU 1500 and 9000, and a little more. */
static void last_bytes_together(struct world *w)
{
    static const size_t size[] = {16, 1408, 4216, 7024, 9832, 8936, 26800, 44664, 62528};
    size_t i, n;

    for (i = 0; i < sizeof size / sizeof size[0]; i++)
        if (size[i] <= w->largest)
            watch_the_end(w, size[i], 200);
    for (n = 1380; n < 1440; n++)
        watch_the_end(w, n, 10);
    ok("level %d, side %d: the last eight bytes change together", w->level, w->side->number);
}

static void rdma(struct side *side)
{
    VIP_VI_ATTRIBUTES attributes;
    struct world w;
    char name[24];

    memset(&w, 0, sizeof w);
    w.side = side;
    open_node(&w.node, side->device, 4 << 20);
    w.other = swap_addresses(side, &w.node);
    w.largest = w.node.attributes.MaxTransferSize < (1 << 20) ? w.node.attributes.MaxTransferSize : 1 << 20;
    w.d = take_descriptor(&w.node, 8);
    w.e = take_descriptor(&w.node, 8);
    w.buffer = take(&w.node, w.largest + 64);
    if (side->number == 0) {
        w.target = (uint64_t)(uintptr_t)w.buffer;
        side_send(side, &w.target, sizeof w.target);
        side_send(side, &w.node.handle, sizeof w.node.handle);
    } else {
        side_receive(side, &w.target, sizeof w.target);
        side_receive(side, &w.handle, sizeof w.handle);
    }
    for (w.level = 1; w.level <= 4; w.level *= 2) {
        if (!level_chosen(side, &w.node, w.level))
            continue;
        attributes = vi_attributes(&w.node, w.level);
        if (side->number == 1) /* the initiator's own flags do not matter (RDMA-17) */
            attributes.EnableRdmaWrite = attributes.EnableRdmaRead = VIP_FALSE;
        MUST(VipCreateVi(w.node.nic, &attributes, NULL, NULL, &w.vi));
        snprintf(name, sizeof name, "rdma%d", w.level);
        join_sides(side, &w.node, w.vi, &w.other, name);
        writes(&w);
        with_immediate(&w);
        if (w.level != VIP_SERVICE_UNRELIABLE)
            write_then_send(&w);
        reads(&w);
        last_bytes_last(&w);
        if (w.level != VIP_SERVICE_UNRELIABLE)
            last_bytes_together(&w);
        NO_ERROR(&w.node, 0, "no asynchronous error so far");
        meet(side);
        end_vi(w.vi);
        meet(side);
        sleep_ms(20);
        forget_errors(&w.node);
    }
    close_node(&w.node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, rdma);
    return 0;
}
