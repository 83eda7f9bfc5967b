/* Send and receive on all three levels (spec §5, §6.1). Side 1 sends, side 0 receives. */
#include "common.h"

#include <sched.h>

struct world {
    struct side *side;
    struct node node;
    address other;
    VIP_VI_HANDLE vi;
    int level;
    VIP_DESCRIPTOR *out, *in;
    unsigned char *buffer; /* `room` bytes */
    size_t largest, room;
};

static void one_message(struct world *w, size_t bytes)
{
    const size_t more = bytes < w->largest ? 32 : 0; /* a buffer larger than the message (XFER-06) */

    if (w->side->number == 0) {
        memset(w->buffer, 0xEE, bytes + more + 1);
        start_descriptor(w->in, VIP_CONTROL_OP_SENDRECV);
        add_data(w->in, w->buffer, w->node.handle, bytes + more);
        control(w->in)->Length = 12345; /* means nothing here (XFER-18) */
        control(w->in)->Reserved = 0x87654321; /* is not looked at (DERR-21) */
        control(w->in)->ImmediateData = 0xAAAAAAAA;
        control(w->in)->Status = 0xFFFFFFFF;
        MUST(VipPostRecv(w->vi, w->in, w->node.handle));
        meet(w->side);
        EXPECT_RECV(w->vi, w->in, STATUS_RECEIVED, "XFER-02 DERR-21");
        CHECK_EQ(control(w->in)->Length, bytes, "XFER-01 XFER-18");
        CHECK_EQ(control(w->in)->ImmediateData, 0, "XFER-08");
        CHECK(filled(w->buffer, bytes, bytes), "XFER-01");
        CHECK(all_bytes(w->buffer + bytes, more + 1, 0xEE), "XFER-06");
    } else {
        fill(w->buffer, bytes, bytes);
        start_descriptor(w->out, VIP_CONTROL_OP_SENDRECV);
        if (bytes != 0)
            add_data(w->out, w->buffer, w->node.handle, bytes);
        control(w->out)->Reserved = 0x12345678; /* is not looked at (DERR-21) */
        control(w->out)->Status = 0xFFFFFFFF;
        meet(w->side);
        MUST(VipPostSend(w->vi, w->out, w->node.handle));
        EXPECT_SEND(w->vi, w->out, STATUS_SENT, "XFER-02 DERR-21");
        CHECK_EQ(control(w->out)->Length, bytes, "XFER-10");
    }
}

static void sizes(struct world *w)
{
    const size_t size[] = {0, 1, 63, 64, 65, 1499, 1500, 1501, 4095, 4096, 4097, 32768, w->largest};
    size_t i;

    for (i = 0; i < sizeof size / sizeof size[0]; i++)
        one_message(w, size[i]);
    meet(w->side);
    ok("level %d, side %d: sizes up to %lu", w->level, w->side->number, (unsigned long)w->largest);
}

/* As many segments as there can be, of unequal lengths, some of length 0 with invalid addresses. */
static void segments(struct world *w)
{
    const unsigned most = (unsigned)w->node.attributes.MaxSegmentsPerDesc;
    VIP_DESCRIPTOR *d = take_descriptor(&w->node, most);
    size_t at = 0, total = 0, piece;
    unsigned i, count = most;

    for (i = 0; i < count; i++)
        total += i % 5 == 4 ? 0 : i % 250;
    CHECK(2 * total <= w->room, "a buffer for so many segments");
    start_descriptor(d, VIP_CONTROL_OP_SENDRECV);
    memset(w->buffer, 0xEE, 2 * total);
    if (w->side->number == 1)
        fill(w->buffer, total, 1);
    for (i = 0; i < count; i++) {
        /* the receiver's segments have the same lengths in reverse */
        unsigned k = w->side->number == 1 ? i : count - 1 - i;

        piece = k % 5 == 4 ? 0 : k % 250;
        if (piece == 0)
            add_data(d, (void *)(uintptr_t)0x1234, 0x7777u, 0); /* XFER-04 */
        else
            add_data(d, w->buffer + at, w->node.handle, piece);
        at += piece;
    }
    if (w->side->number == 0) {
        MUST(VipPostRecv(w->vi, d, w->node.handle));
        meet(w->side);
        EXPECT_RECV(w->vi, d, STATUS_RECEIVED, "XFER-03 XFER-04");
        CHECK_EQ(control(d)->Length, total, "XFER-03");
        CHECK(filled(w->buffer, total, 1), "XFER-03");
        CHECK(all_bytes(w->buffer + total, total, 0xEE), "XFER-06");
    } else {
        meet(w->side);
        MUST(VipPostSend(w->vi, d, w->node.handle));
        EXPECT_SEND(w->vi, d, STATUS_SENT, "XFER-03 XFER-04");
    }
    meet(w->side);

    /* a message of no data takes a receive descriptor: without segments, and with empty ones */
    for (i = 0; i < 3; i++) {
        VIP_DESCRIPTOR *empty = w->side->number == 0 ? w->in : w->out;

        start_descriptor(empty, VIP_CONTROL_OP_SENDRECV);
        if (i == 1)
            add_data(empty, NULL, 0, 0);
        if (i == 2 && w->side->number == 0)
            add_data(empty, w->buffer, w->node.handle, 100);
        if (w->side->number == 0) {
            MUST(VipPostRecv(w->vi, empty, w->node.handle));
            meet(w->side);
            EXPECT_RECV(w->vi, empty, STATUS_RECEIVED, "XFER-05");
            CHECK_EQ(control(empty)->Length, 0, "XFER-05");
        } else {
            meet(w->side);
            MUST(VipPostSend(w->vi, empty, w->node.handle));
            EXPECT_SEND(w->vi, empty, STATUS_SENT, "XFER-05");
        }
        meet(w->side);
    }
    ok("level %d, side %d: %u segments, and none", w->level, w->side->number, count);
}

static void immediate(struct world *w)
{
    static const size_t size[] = {0, 4, 5000};
    size_t i;

    for (i = 0; i < 3; i++) {
        if (w->side->number == 0) {
            start_descriptor(w->in, VIP_CONTROL_OP_SENDRECV);
            add_data(w->in, w->buffer, w->node.handle, 5000);
            control(w->in)->Control |= VIP_CONTROL_IMMEDIATE | VIP_CONTROL_QFENCE; /* ignored (XFER-09) */
            MUST(VipPostRecv(w->vi, w->in, w->node.handle));
            meet(w->side);
            EXPECT_RECV(w->vi, w->in, STATUS_RECEIVED | VIP_STATUS_IMMEDIATE, "XFER-07 XFER-09");
            CHECK_EQ(control(w->in)->ImmediateData, 0x80000000u + i, "XFER-07");
            CHECK_EQ(control(w->in)->Length, size[i], "XFER-07");
            CHECK(filled(w->buffer, size[i], i), "XFER-07");

            MUST(VipPostRecv(w->vi, w->in, w->node.handle)); /* again, and now without */
            meet(w->side);
            EXPECT_RECV(w->vi, w->in, STATUS_RECEIVED, "XFER-08 XFER-09");
            CHECK_EQ(control(w->in)->ImmediateData, 0, "XFER-08");
        } else {
            fill(w->buffer, size[i], i);
            start_descriptor(w->out, VIP_CONTROL_OP_SENDRECV);
            if (size[i] != 0)
                add_data(w->out, w->buffer, w->node.handle, size[i]);
            set_immediate(w->out, (VIP_UINT32)(0x80000000u + i));
            meet(w->side);
            MUST(VipPostSend(w->vi, w->out, w->node.handle));
            EXPECT_SEND(w->vi, w->out, STATUS_SENT, "XFER-07");

            control(w->out)->Control = VIP_CONTROL_OP_SENDRECV;
            if (!strict_mode())
                control(w->out)->ImmediateData = 0; /* in the compatible mode it would travel (COMPAT-07) */
            meet(w->side);
            MUST(VipPostSend(w->vi, w->out, w->node.handle));
            EXPECT_SEND(w->vi, w->out, STATUS_SENT, "XFER-08");
        }
        meet(w->side);
    }
    ok("level %d, side %d: immediate data", w->level, w->side->number);
}

/* A stream of numbered messages, both ways at once if asked for. There is no flow control in VIA: each
 * window of messages goes out when the receiver has posted for all of it. */
#define WINDOW 128

struct stream {
    VIP_DESCRIPTOR *in[WINDOW], *out[WINDOW];
    unsigned char *received[WINDOW], *sent[WINDOW];
};

static size_t stream_size(unsigned long number)
{
    return 8 + number * 37 % 1200;
}

static void stream_messages(struct world *w, unsigned long count, int both)
{
    struct stream s;
    int sends = both || w->side->number == 1, receives = both || w->side->number == 0;
    unsigned long done_out = 0, done_in = 0, window;
    VIP_DESCRIPTOR *found;
    VIP_RETURN code;
    size_t mark = w->node.used;
    int i;

    for (i = 0; i < WINDOW; i++) {
        s.in[i] = take_descriptor(&w->node, 1);
        s.out[i] = take_descriptor(&w->node, 1);
        s.received[i] = take(&w->node, 1280);
        s.sent[i] = take(&w->node, 1280);
    }
    for (window = 0; window < count; window += WINDOW) {
        double start = now_ms();

        if (receives)
            for (i = 0; i < WINDOW; i++)
                post_recv(&w->node, w->vi, s.in[i], s.received[i], 1280);
        meet(w->side);
        if (sends)
            for (i = 0; i < WINDOW; i++) {
                fill(s.sent[i], stream_size(window + (unsigned long)i), window + (unsigned long)i);
                post_send(&w->node, w->vi, s.out[i], s.sent[i], stream_size(window + (unsigned long)i));
            }
        while ((sends && done_out < window + WINDOW) || (receives && done_in < window + WINDOW)) {
            if (sends && done_out < window + WINDOW) {
                code = VipSendDone(w->vi, &found);
                if (code != VIP_NOT_DONE) {
                    CHECK_RETURN(code, VIP_SUCCESS, "XFER-11");
                    CHECK(found == s.out[done_out % WINDOW], "XFER-14");
                    memset(s.sent[done_out % WINDOW], 0xDD, 1280); /* may be overwritten now (XFER-16) */
                    done_out++;
                }
            }
            if (receives && done_in < window + WINDOW) {
                code = VipRecvDone(w->vi, &found);
                if (code != VIP_NOT_DONE) {
                    CHECK_RETURN(code, VIP_SUCCESS, "XFER-11");
                    CHECK(found == s.in[done_in % WINDOW], "XFER-13");
                    CHECK_EQ(control(found)->Length, stream_size(done_in), "XFER-11");
                    CHECK(filled(s.received[done_in % WINDOW], stream_size(done_in), done_in), "XFER-11 XFER-16");
                    done_in++;
                }
            }
            CHECK(now_ms() - start < (double)PATIENCE, "no standstill");
        }
    }
    if (both)
        shows("XFER-15"); /* both directions have come to their end, and every message was looked at */
    meet(w->side);
    w->node.used = mark;
    ok("level %d, side %d: %lu messages %s", w->level, w->side->number, count,
       both ? "both ways at once" : "one way");
}

/* Unreliable: at most once each, in order on this device, none corrupt; what finds no descriptor is lost
 * (XFER-12). */
static void unreliable(struct world *w)
{
    enum { N = 1000 }; /* fewer than the errors that are kept for a slow handler (spec §11) */
    VIP_DESCRIPTOR *found, *in[64];
    unsigned char *received[64];
    uint64_t number, last = 0; /* it travels, to a side that may have another word size */
    int i, got = 0;
    char c = 'e';

    if (w->side->number == 1) {
        meet(w->side);
        for (number = 1; number <= N; number++) {
            fill(w->buffer + 8, 200, number);
            memcpy(w->buffer, &number, sizeof number);
            post_send(&w->node, w->vi, w->out, w->buffer, 208);
            EXPECT_SEND(w->vi, w->out, STATUS_SENT, "XFER-12");
        }
        side_send(w->side, &c, 1);
        meet(w->side);
        CHECK_EQ(vi_state(w->vi), VIP_STATE_CONNECTED, "XFER-12");
        meet(w->side);
        return;
    }
    for (i = 0; i < 64; i++) {
        in[i] = take_descriptor(&w->node, 1);
        received[i] = take(&w->node, 208);
        post_recv(&w->node, w->vi, in[i], received[i], 208);
    }
    meet(w->side);
    for (;;) {
        VIP_RETURN code = VipRecvWait(w->vi, 300, &found);

        if (code == VIP_TIMEOUT) {
            if (recv(w->side->link, &c, 1, MSG_DONTWAIT) == 1)
                break; /* the sender has ended, and nothing came for a while */
            continue;
        }
        CHECK_RETURN(code, VIP_SUCCESS, "XFER-12");
        for (i = 0; in[i] != found; i++)
            ;
        memcpy(&number, received[i], sizeof number);
        CHECK(number > last && number <= N, "XFER-12");
        CHECK(filled(received[i] + 8, 200, number), "XFER-12");
        last = number;
        got++;
        post_recv(&w->node, w->vi, in[i], received[i], 208);
    }
    meet(w->side);
    CHECK_EQ(vi_state(w->vi), VIP_STATE_CONNECTED, "XFER-12");
    CHECK(got > 0, "XFER-12");
    sleep_ms(20);
    pthread_mutex_lock(&w->node.errors.lock);
    for (i = 0; i < w->node.errors.count; i++)
        CHECK_EQ(w->node.errors.list[i].ErrorCode, VIP_ERROR_RECVQ_EMPTY, "DERR-17");
    pthread_mutex_unlock(&w->node.errors.lock);
    forget_errors(&w->node);
    meet(w->side);
    MUST(VipDisconnect(w->vi));
    ok("Unreliable: %d of %d messages arrived, each once and whole", got, N);
}

/* Reliable Reception: when the send is complete, the data is in place (XFER-17). */
static void in_place(struct world *w)
{
    static const size_t size[] = {32, 4096, 32768};
    size_t i;

    for (i = 0; i < 3; i++) {
        if (w->side->number == 0) {
            VIP_DESCRIPTOR *found;
            VIP_RETURN code;
            double start;
            char c;

            memset(w->buffer, 0, size[i]);
            post_recv(&w->node, w->vi, w->in, w->buffer, size[i]);
            meet(w->side);
            start = now_ms();
            do {
                if (recv(w->side->link, &c, 1, MSG_DONTWAIT) == 1) {
                    CHECK(filled(w->buffer, size[i], i), "XFER-17"); /* before any further call */
                    EXPECT_RECV(w->vi, w->in, STATUS_RECEIVED, "XFER-17");
                    break;
                }
                code = VipRecvDone(w->vi, &found);
                if (code == VIP_SUCCESS)
                    side_receive(w->side, &c, 1);
                CHECK(now_ms() - start < (double)PATIENCE, "XFER-17");
            } while (code == VIP_NOT_DONE);
            CHECK(filled(w->buffer, size[i], i), "XFER-17");
        } else {
            char c = 'd';

            meet(w->side);
            fill(w->buffer, size[i], i);
            post_send(&w->node, w->vi, w->out, w->buffer, size[i]);
            EXPECT_SEND(w->vi, w->out, STATUS_SENT, "XFER-17");
            side_send(w->side, &c, 1);
        }
        meet(w->side);
    }
    ok("Reliable Reception, side %d: complete means in place", w->side->number);
}

/* What a thread sees that only looks at the descriptor: with DONE, everything else is there (XFER-19). */
struct looking {
    struct world *w;
    int round, seen;
};

#define LOOKS 400

static void *look(void *argument)
{
    struct looking *l = (struct looking *)argument;
    struct world *w = l->w;
    size_t bytes;
    int round;

    for (round = 1; round <= LOOKS; round++) {
        double start = now_ms();

        await(&l->round, round, "XFER-19");
        while (!(__atomic_load_n(&control(w->in)->Status, __ATOMIC_ACQUIRE) & VIP_STATUS_DONE)) {
            CHECK(now_ms() - start < (double)PATIENCE, "XFER-19");
            sched_yield();
        }
        bytes = 1 + (size_t)round * 67 % 20000;
        CHECK_STATUS(control(w->in)->Status, STATUS_RECEIVED | VIP_STATUS_IMMEDIATE, "XFER-19");
        CHECK_EQ(control(w->in)->Length, bytes, "XFER-19");
        CHECK_EQ(control(w->in)->ImmediateData, round, "XFER-19");
        CHECK(filled(w->buffer, bytes, (unsigned long)round), "XFER-19");
        atomic_set(&l->seen, round);
    }
    return NULL;
}

static void seen_by_another_thread(struct world *w)
{
    struct looking looking;
    pthread_t thread = pthread_self();
    int round;

    memset(&looking, 0, sizeof looking);
    looking.w = w;
    if (w->side->number == 0)
        thread = start_thread(look, &looking);
    for (round = 1; round <= LOOKS; round++) {
        size_t bytes = 1 + (size_t)round * 67 % 20000;

        if (w->side->number == 0) {
            memset(w->buffer, 0, bytes);
            post_recv(&w->node, w->vi, w->in, w->buffer, 20000);
            atomic_set(&looking.round, round); /* posted: DONE is clear from now on */
            meet(w->side);
            EXPECT_RECV(w->vi, w->in, STATUS_RECEIVED | VIP_STATUS_IMMEDIATE, "XFER-07");
            await(&looking.seen, round, "XFER-19");
        } else {
            fill(w->buffer, bytes, (unsigned long)round);
            start_descriptor(w->out, VIP_CONTROL_OP_SENDRECV);
            add_data(w->out, w->buffer, w->node.handle, bytes);
            set_immediate(w->out, (VIP_UINT32)round);
            meet(w->side);
            MUST(VipPostSend(w->vi, w->out, w->node.handle));
            EXPECT_SEND(w->vi, w->out, STATUS_SENT, "XFER-02");
        }
    }
    if (w->side->number == 0)
        join_thread(thread);
    meet(w->side);
    ok("level %d, side %d: %d messages seen by a thread that only looks", w->level, w->side->number, LOOKS);
}

static void xfer(struct side *side)
{
    struct world w;
    char name[24];

    memset(&w, 0, sizeof w);
    w.side = side;
    open_node(&w.node, side->device, 4 << 20);
    w.other = swap_addresses(side, &w.node);
    w.largest = w.node.attributes.MaxTransferSize < (1 << 20) ? w.node.attributes.MaxTransferSize : 1 << 20;
    w.out = take_descriptor(&w.node, 4);
    w.in = take_descriptor(&w.node, 4);
    w.room = w.largest < 131072 ? 131072 : w.largest + 64;
    w.buffer = take(&w.node, w.room);
    for (w.level = 1; w.level <= 4; w.level *= 2) {
        size_t mark = w.node.used;

        if (!level_chosen(side, &w.node, w.level))
            continue;
        w.vi = make_vi(&w.node, w.level, NULL, NULL);
        snprintf(name, sizeof name, "level%d", w.level);
        join_sides(side, &w.node, w.vi, &w.other, name);
        sizes(&w);
        segments(&w);
        immediate(&w);
        seen_by_another_thread(&w);
        if (w.level == VIP_SERVICE_UNRELIABLE) {
            NO_ERROR(&w.node, 0, "no asynchronous error so far");
            unreliable(&w);
        } else {
            stream_messages(&w, 100096, 0);
            stream_messages(&w, 10112, 1);
            if (w.level == VIP_SERVICE_RELIABLE_RECEPTION)
                in_place(&w);
            NO_ERROR(&w.node, 0, "no asynchronous error so far");
        }
        meet(side);
        end_vi(w.vi);
        w.node.used = mark;
        meet(side);
        sleep_ms(20);
        forget_errors(&w.node);
    }
    close_node(&w.node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, xfer);
    return 0;
}
