/* A peer that is stopped (SIGSTOP) holds up no call: posts return at once (POST-11), waits keep their time,
 * VipDisconnect and VipDeregisterMem come to their end (spec §3.12, §3.18). Two processes only. */
#include "common.h"

#define SMALL 400
#define LARGE 20
#define WRITERS 12
#define BYTES 32000 /* every device takes that much (NIC-07) */

struct world {
    struct side *side;
    struct node node;
    address other;
    pid_t peer; /* side 0: the process to stop */
};

static void stop(struct world *w)
{
    int status;

    CHECK_EQ(kill(w->peer, SIGSTOP), 0, "kill");
    CHECK_EQ(waitpid(w->peer, &status, WUNTRACED), w->peer, "waitpid");
    CHECK(WIFSTOPPED(status), "a stopped peer");
}

static void go_on(struct world *w)
{
    CHECK_EQ(kill(w->peer, SIGCONT), 0, "kill");
}

/* Side 0 sends while side 1 is stopped; afterwards everything arrives. */
static void posts(struct world *w, int level)
{
    static VIP_DESCRIPTOR *d[SMALL + LARGE];
    VIP_VI_HANDLE vi = make_vi(&w->node, level, NULL, NULL);
    size_t mark = w->node.used;
    unsigned char *buffer = take(&w->node, BYTES), *received[LARGE];
    VIP_DESCRIPTOR *found;
    double start, slowest = 0;
    char name[24];
    int i;

    snprintf(name, sizeof name, "posts%d", level);
    join_sides(w->side, &w->node, vi, &w->other, name);
    for (i = 0; i < SMALL + LARGE; i++)
        d[i] = take_descriptor(&w->node, 1);
    if (w->side->number == 1) {
        for (i = 0; i < LARGE; i++)
            received[i] = take(&w->node, BYTES);
        for (i = 0; i < SMALL + LARGE; i++)
            post_recv(&w->node, vi, d[i], i < SMALL ? buffer : received[i - SMALL], i < SMALL ? 100 : BYTES);
        meet(w->side);
        for (i = 0; i < SMALL + LARGE; i++)
            EXPECT_RECV(vi, d[i], STATUS_RECEIVED, "POST-11");
        for (i = 0; i < LARGE; i++)
            CHECK(filled(received[i], BYTES, 9), "POST-11");
    } else {
        fill(buffer, BYTES, 9);
        meet(w->side);
        stop(w);
        for (i = 0; i < SMALL + LARGE; i++) {
            start = now_ms();
            post_send(&w->node, vi, d[i], buffer, i < SMALL ? 100 : BYTES);
            if (now_ms() - start > slowest)
                slowest = now_ms() - start;
        }
        CHECK(slowest < (double)PATIENCE, "POST-11"); /* the peer does nothing until go_on() */
        start = now_ms();
        CHECK_RETURN(VipRecvWait(vi, 100, &found), VIP_DESCRIPTOR_ERROR, "WAIT-05");
        CHECK(now_ms() - start < (double)PATIENCE, "R7");
        CHECK_EQ(vi_state(vi), VIP_STATE_CONNECTED, "POST-11");
        go_on(w);
        for (i = 0; i < SMALL + LARGE; i++)
            EXPECT_SEND(vi, d[i], STATUS_SENT, "POST-11");
        ok("level %d: %d posts to a stopped peer, the slowest took %.2f ms", level, SMALL + LARGE, slowest);
    }
    meet(w->side);
    end_vi(vi);
    w->node.used = mark;
    meet(w->side);
}

/* Side 0 leaves a connection, and gives up a request, while side 1 is stopped. */
static void teardown(struct world *w)
{
    const int level = VIP_SERVICE_RELIABLE_DELIVERY;
    VIP_VI_HANDLE vi = make_vi(&w->node, level, NULL, NULL);
    VIP_DESCRIPTOR *in = take_descriptor(&w->node, 1);
    unsigned char *buffer = take(&w->node, BYTES);
    double start;
    int i;

    join_sides(w->side, &w->node, vi, &w->other, "teardown");
    post_recv(&w->node, vi, in, buffer, BYTES);
    for (i = 1; i < LARGE && w->side->number == 1; i++)
        post_recv(&w->node, vi, take_descriptor(&w->node, 1), buffer, BYTES);
    meet(w->side);
    if (w->side->number == 0) {
        VIP_DESCRIPTOR *out[LARGE];

        stop(w);
        for (i = 0; i < LARGE; i++) {
            out[i] = take_descriptor(&w->node, 1);
            post_send(&w->node, vi, out[i], buffer, BYTES);
        }
        start = now_ms();
        MUST(VipDisconnect(vi));
        CHECK(now_ms() - start < (double)PATIENCE, "spec §3.12: bounded");
        CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "DISC-01");
        EXPECT_RECV(vi, in, STATUS_FLUSHED_RECEIVE, "DISC-02");
        for (i = 0; i < LARGE; i++) { /* sent or flushed, and in posting order */
            VIP_DESCRIPTOR *found = NULL;

            CHECK(VipSendDone(vi, &found) != VIP_NOT_DONE && found == out[i], "DISC-02");
            if (control(found)->Status != STATUS_SENT)
                CHECK_STATUS(control(found)->Status, STATUS_FLUSHED_SEND, "DISC-02");
        }
        MUST(VipDestroyVi(vi));
        memset(buffer, 0, BYTES); /* is ours again */
        go_on(w);
        ok("a disconnect from a stopped peer");
    } else {
        AWAIT_STATE(vi, VIP_STATE_ERROR, "DISC-05");
        end_vi(vi);
    }
    meet(w->side);
}

struct writer {
    struct world *w;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *d;
    unsigned char *from;
    uint64_t to;
    VIP_MEM_HANDLE handle;
    size_t bytes;
};

/* Writes to one place of the peer's memory again and again, until it may no longer. */
static void *keep_writing(void *argument)
{
    struct writer *writer = (struct writer *)argument;
    VIP_DESCRIPTOR *found;

    do {
        start_descriptor(writer->d, VIP_CONTROL_OP_RDMAWRITE);
        add_remote(writer->d, writer->to, writer->handle);
        add_data(writer->d, writer->from, writer->w->node.handle, writer->bytes);
        MUST(VipPostSend(writer->vi, writer->d, writer->w->node.handle));
        send_wait(writer->vi, &found);
        CHECK(found == writer->d, "spec §3.18");
    } while (control(found)->Status == STATUS_WRITTEN);
    return NULL;
}

/* Side 0 takes back the memory that side 1 is writing on many connections while it is stopped: the one second
 * that a peer gets to come to an end is not for each of them, nor for each call. */
static void regions(struct world *w)
{
    const int level = VIP_SERVICE_RELIABLE_DELIVERY;
    struct writer writer[WRITERS];
    pthread_t thread[WRITERS];
    unsigned char *memory = NULL;
    VIP_MEM_HANDLE handle = 0, more[WRITERS];
    size_t bytes = 1 << 20;
    uint64_t at;
    double start;
    char name[24];
    int i;

    if (bytes > w->node.attributes.MaxTransferSize)
        bytes = w->node.attributes.MaxTransferSize;
    if (w->side->number == 0) {
        memory = get_memory(WRITERS * bytes);
        handle = register_range(&w->node, memory, WRITERS * bytes);
        for (i = 0; i < WRITERS; i++)
            more[i] = register_range(&w->node, memory, bytes);
        at = (uint64_t)(uintptr_t)memory;
        side_send(w->side, &at, sizeof at);
        side_send(w->side, &handle, sizeof handle);
    } else {
        memory = take(&w->node, bytes);
        memset(memory, 9, bytes);
        side_receive(w->side, &at, sizeof at);
        side_receive(w->side, &handle, sizeof handle);
    }
    for (i = 0; i < WRITERS; i++) {
        writer[i].w = w;
        writer[i].vi = make_vi(&w->node, level, NULL, NULL);
        writer[i].d = take_descriptor(&w->node, 1);
        writer[i].from = memory;
        writer[i].to = at + (size_t)i * bytes;
        writer[i].handle = handle;
        writer[i].bytes = bytes;
        snprintf(name, sizeof name, "regions%d", i);
        join_sides(w->side, &w->node, writer[i].vi, &w->other, name);
    }
    meet(w->side);
    if (w->side->number == 0) {
        for (i = 0; i < WRITERS; i++) { /* all are at it */
            start = now_ms();
            while (__atomic_load_n(memory + ((size_t)i + 1) * bytes - 1, __ATOMIC_ACQUIRE) != 9) {
                CHECK(now_ms() - start < (double)PATIENCE, "RDMA Writes on all connections");
                sleep_ms(1);
            }
        }
        stop(w);
        start = now_ms();
        MUST(VipDeregisterMem(w->node.nic, memory, handle));
        for (i = 0; i < WRITERS; i++) {
            CHECK(now_ms() - start < WRITERS * 500.0, "spec §3.18: one wait for all");
            MUST(VipDeregisterMem(w->node.nic, memory, more[i]));
        }
        start = now_ms() - start;
        go_on(w);
        ok("memory taken back from %d connections of a stopped peer in %.0f ms", WRITERS, start);
    } else {
        for (i = 0; i < WRITERS; i++)
            thread[i] = start_thread(keep_writing, &writer[i]);
        for (i = 0; i < WRITERS; i++)
            join_thread(thread[i]);
    }
    meet(w->side);
    for (i = 0; i < WRITERS; i++)
        end_vi(writer[i].vi);
    if (w->side->number == 0)
        give_back(memory, WRITERS * bytes);
    meet(w->side);
}

static void stopped(struct side *side)
{
    struct world w;
    pid_t self = getpid();
    int level;

    memset(&w, 0, sizeof w);
    w.side = side;
    side_send(side, &self, sizeof self);
    side_receive(side, &w.peer, sizeof w.peer);
    open_node(&w.node, side->device, 4 << 20);
    w.other = swap_addresses(side, &w.node);
    for (level = 1; level <= 4; level *= 2)
        if (level_chosen(side, &w.node, level))
            posts(&w, level);
    teardown(&w);
    if (!device_lacks("RDMA Write") && (side->level == 0 || side->level == VIP_SERVICE_RELIABLE_DELIVERY))
        regions(&w);
    close_node(&w.node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    options.one_process = 0;
    both_sides(&options, stopped);
    return 0;
}
