/* Disconnecting and losing connections (spec §3.12, §4.2, §9.6), and the error callback (§3.31, §11).
 * What happens when a peer is killed is in kill.c. */
#include "common.h"

#include <poll.h>

struct world {
    struct side *side;
    struct node node;
    address other;
    int number; /* of connections made so far */
};

static VIP_VI_HANDLE connect_new(struct world *w, int level)
{
    VIP_VI_HANDLE vi = make_vi(&w->node, level, NULL, NULL);
    char name[24];

    snprintf(name, sizeof name, "disc%d", w->number++);
    join_sides(w->side, &w->node, vi, &w->other, name);
    return vi;
}

/* DISC-01 to 03, 05 to 08, 14 on every level: side 1 disconnects, side 0 finds out. */
static void one_side(struct world *w)
{
    VIP_DESCRIPTOR *d[5];
    unsigned char *buffer = take(&w->node, 64);
    int i, level;

    for (i = 0; i < 5; i++)
        d[i] = take_descriptor(&w->node, 1);
    for (level = 1; level <= 4; level *= 2) {
        VIP_VI_HANDLE vi;

        if (!level_chosen(w->side, &w->node, level))
            continue;
        vi = connect_new(w, level);
        for (i = 0; i < 5; i++)
            post_recv(&w->node, vi, d[i], buffer, 64);
        meet(w->side);
        if (w->side->number == 1) {
            MUST(VipDisconnect(vi));
            CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "DISC-01");
            NO_ERROR(&w->node, 50, "DISC-07");
        } else {
            VIP_ERROR_DESCRIPTOR error;

            AWAIT_STATE(vi, VIP_STATE_ERROR, "DISC-14"); /* by VipQueryVi alone */
            error = NEXT_ERROR(&w->node, VIP_ERROR_CONN_LOST, vi, "DISC-06");
            CHECK_EQ(error.ResourceCode, VIP_RESOURCE_VI, "DISC-06");
            CHECK(error.CQHandle == NULL && error.DescriptorPtr == NULL && error.OpCode == 0, "spec §11");
            NO_ERROR(&w->node, 50, "DISC-06");
        }
        for (i = 0; i < 5; i++)
            EXPECT_RECV(vi, d[i], STATUS_FLUSHED_RECEIVE, w->side->number ? "DISC-02" : "DISC-05");
        meet(w->side);
        CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS, "DISC-08");
        CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "DISC-08");
        join_sides(w->side, &w->node, vi, &w->other, "rejoin");
        CHECK_EQ(vi_state(vi), VIP_STATE_CONNECTED, "DISC-08");
        meet(w->side);
        MUST(VipDisconnect(vi)); /* both at once (DISC-10) */
        CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "DISC-10");
        MUST(VipDestroyVi(vi));
        meet(w->side);
        sleep_ms(20);
        forget_errors(&w->node); /* one of the two may have seen a loss (spec §9.6) */
    }
    ok("side %d: one side disconnects, both disconnect", w->side->number);
}

struct waiting {
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *expected;
    int started;
};

static void *wait_for_flush(void *argument)
{
    struct waiting *waiting = (struct waiting *)argument;
    VIP_DESCRIPTOR *found = NULL;

    atomic_set(&waiting->started, 1);
    CHECK_RETURN(VipRecvWait(waiting->vi, VIP_INFINITE, &found), VIP_DESCRIPTOR_ERROR, "DISC-13");
    CHECK(found == waiting->expected, "DISC-13");
    CHECK_STATUS(control(found)->Status, STATUS_FLUSHED_RECEIVE, "DISC-13");
    return NULL;
}

/* A waiter is woken by its own side's disconnect and by the other's (DISC-13). */
static void wake_waiters(struct world *w)
{
    VIP_VI_HANDLE vi = connect_new(w, VIP_SERVICE_RELIABLE_DELIVERY);
    struct waiting waiting;
    pthread_t thread;

    waiting.vi = vi;
    waiting.expected = take_descriptor(&w->node, 1);
    waiting.started = 0;
    post_recv(&w->node, vi, waiting.expected, NULL, 0);
    thread = start_thread(wait_for_flush, &waiting);
    await(&waiting.started, 1, "DISC-13");
    sleep_ms(50); /* asleep by now */
    meet(w->side);
    if (w->side->number == 1)
        MUST(VipDisconnect(vi));
    join_thread(thread);
    meet(w->side);
    end_vi(vi);
    sleep_ms(20);
    forget_errors(&w->node);
    ok("side %d: waiters woken by a disconnect", w->side->number);
}

struct handler {
    struct world *w;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *d;
    int calls, late;
};

/* ERR-01, 05, 06: inside the handler the VI is in Error and flushed, and may be disconnected and
 * destroyed. */
static void handle_loss(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    struct handler *h = (struct handler *)context;
    VIP_DESCRIPTOR *found = NULL;

    CHECK(error->NicHandle == h->w->node.nic && error->ViHandle == h->vi, "ERR-01");
    CHECK_EQ(error->ErrorCode, VIP_ERROR_CONN_LOST, "ERR-01");
    CHECK_EQ(vi_state(h->vi), VIP_STATE_ERROR, "ERR-05");
    CHECK_RETURN(VipRecvDone(h->vi, &found), VIP_DESCRIPTOR_ERROR, "ERR-05");
    CHECK(found == h->d && (control(found)->Status & VIP_STATUS_DESC_FLUSHED_ERROR), "ERR-05");
    CHECK_RETURN(VipDisconnect(h->vi), VIP_SUCCESS, "ERR-06");
    CHECK_RETURN(VipDestroyVi(h->vi), VIP_SUCCESS, "spec §11: the handler may destroy the VI");
    atomic_add(&h->calls, 1);
}

static void replaced_handler(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    struct handler *h = (struct handler *)context;

    (void)error;
    atomic_add(&h->late, 1);
}

static void in_the_handler(struct world *w)
{
    struct handler h;

    memset(&h, 0, sizeof h);
    h.w = w;
    h.vi = connect_new(w, VIP_SERVICE_RELIABLE_DELIVERY);
    h.d = take_descriptor(&w->node, 1);
    post_recv(&w->node, h.vi, h.d, NULL, 0);
    if (w->side->number == 0) {
        MUST(VipErrorCallback(w->node.nic, &h, replaced_handler));
        MUST(VipErrorCallback(w->node.nic, &h, handle_loss));
        meet(w->side);
        await(&h.calls, 1, "ERR-01");
        CHECK_EQ(h.late, 0, "ERR-03");
        MUST(VipErrorCallback(w->node.nic, &w->node.errors, note_error)); /* waits for the old handler */
    } else {
        meet(w->side);
        end_vi(h.vi);
    }
    meet(w->side);
    ok("side %d: what a handler may do", w->side->number);
}

/* Waits until the library has written a line with this text to the standard error stream, which is a pipe
 * meanwhile; passes on what came. */
static void await_log(int from, int to, const char *text)
{
    static char log[8192];
    size_t n = 0;

    while (strstr(log, text) == NULL || log[n - 1] != '\n') {
        struct pollfd poll_for = {from, POLLIN, 0};
        ssize_t got;

        CHECK_EQ(poll(&poll_for, 1, (int)PATIENCE), 1, "ERR-02");
        got = read(from, log + n, sizeof log - 1 - n);
        CHECK(got > 0, "ERR-02");
        n += (size_t)got;
    }
    CHECK_EQ(write(to, log, n), n, "ERR-02");
}

/* ERR-02, 04: the default handler logs and the program lives; each NIC handle has its own handler. */
static void default_handler(struct world *w)
{
    struct node second;
    VIP_VI_HANDLE vi, other_vi;

    open_node(&second, w->side->device, 65536);
    other_vi = make_vi(&second, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    vi = connect_new(w, VIP_SERVICE_RELIABLE_DELIVERY);
    join_sides(w->side, &second, other_vi, &w->other, "second");
    meet(w->side);
    if (w->side->number == 0) {
        int ends[2], terminal = dup(2);

        CHECK(terminal >= 0 && pipe(ends) == 0 && dup2(ends[1], 2) == 2, "pipe");
        MUST(VipErrorCallback(w->node.nic, NULL, NULL));
        meet(w->side);
        AWAIT_STATE(vi, VIP_STATE_ERROR, "ERR-02");
        NEXT_ERROR(&second, VIP_ERROR_CONN_LOST, other_vi, "ERR-04");
        await_log(ends[0], terminal, "VIP_ERROR_CONN_LOST");
        CHECK_EQ(dup2(terminal, 2), 2, "pipe");
        close(ends[0]), close(ends[1]), close(terminal);
        MUST(VipErrorCallback(w->node.nic, &w->node.errors, note_error));
        NO_ERROR(&w->node, 50, "spec §11: errors are not stored for a later handler");
        NO_ERROR(&second, 0, "ERR-04");
    } else {
        meet(w->side);
        MUST(VipDisconnect(vi));
        MUST(VipDisconnect(other_vi));
    }
    meet(w->side);
    end_vi(vi);
    end_vi(other_vi);
    close_node(&second);
    ok("side %d: the default handler", w->side->number);
}

static void disc(struct side *side)
{
    struct world w;

    memset(&w, 0, sizeof w);
    w.side = side;
    open_node(&w.node, side->device, 1 << 20);
    w.other = swap_addresses(side, &w.node);
    one_side(&w);
    wake_waiters(&w);
    in_the_handler(&w);
    default_handler(&w);
    close_node(&w.node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, disc);
    return 0;
}
