/* Notify (spec §3.23, §3.29, §8.2). */
#include "peer.h"

#define MANY 1000

static struct node node;
static struct peer peer; /* who sends */
static VIP_VI_HANDLE one;      /* connected with the peer */
static VIP_DESCRIPTOR *in[8], *out;
static unsigned char *buffer;
static pthread_t main_thread;

static int inside;  /* handlers running now */
static int calls;   /* handlers called so far */
static int overlap; /* more than one at once was seen */

struct call {
    int number; /* in the order of calls, from 1 */
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *descriptor;
    VIP_BOOLEAN recv_queue;
};

static void enter(VIP_NIC_HANDLE nic)
{
    if (atomic_add(&inside, 1) != 0)
        atomic_set(&overlap, 1);
    CHECK(nic == node.nic, "NTFY-01");
    CHECK(!pthread_equal(pthread_self(), main_thread), "NTFY-06");
}

/* Stored last: a thread that waits for `calls` reads the rest. */
static void leave(int *number)
{
    *number = atomic_get(&calls) + 1;
    atomic_add(&inside, -1);
    atomic_add(&calls, 1);
}

static void handler(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor)
{
    struct call *call = (struct call *)context;

    enter(nic);
    sleep_ms(2); /* time for another one to overlap (NTFY-12) */
    call->vi = vi;
    call->descriptor = descriptor;
    leave(&call->number);
}

static void cq_handler(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_BOOLEAN recv_queue)
{
    struct call *call = (struct call *)context;

    enter(nic);
    call->vi = vi;
    call->recv_queue = recv_queue;
    leave(&call->number);
}

static void send_one(void)
{
    peer_send(&peer, -1);
}

static void once(void)
{
    VIP_DESCRIPTOR *found;
    struct call call, second;

    memset(&call, 0, sizeof call);
    memset(&second, 0, sizeof second);
    calls = 0;
    post_recv(&node, one, in[0], buffer, 64);
    post_recv(&node, one, in[1], buffer, 64);
    CHECK_RETURN(VipRecvNotify(one, &call, handler), VIP_SUCCESS, "NTFY-01");
    sleep_ms(20);
    CHECK_EQ(atomic_get(&calls), 0, "NTFY-01");
    send_one();
    await(&calls, 1, "NTFY-01");
    CHECK(call.vi == one && call.descriptor == in[0], "NTFY-01");
    CHECK_STATUS(control(in[0])->Status, STATUS_RECEIVED, "NTFY-01");
    CHECK_RETURN(VipRecvDone(one, &found), VIP_NOT_DONE, "NTFY-04");

    send_one();
    EXPECT_RECV(one, in[1], STATUS_RECEIVED, "NTFY-02");
    CHECK_EQ(atomic_get(&calls), 1, "NTFY-02");

    /* the completion is there before the registration (NTFY-03); the send queue has its own */
    post_recv(&node, one, in[0], buffer, 64);
    send_one();
    sleep_ms(20);
    MUST(VipRecvNotify(one, &second, handler));
    await(&calls, 2, "NTFY-03");
    CHECK(second.descriptor == in[0], "NTFY-03");
    MUST(VipSendNotify(one, &second, handler));
    post_send(&node, one, out, NULL, 0);
    await(&calls, 3, "NTFY-01");
    CHECK(second.vi == one && second.descriptor == out, "NTFY-01");
    ok("one registration, one call");
}

static void in_order(void)
{
    struct call call[3];
    int i;

    memset(call, 0, sizeof call);
    calls = 0;
    for (i = 0; i < 3; i++)
        MUST(VipRecvNotify(one, &call[i], handler)); /* on an empty queue: kept (spec §8.2) */
    for (i = 0; i < 3; i++)
        post_recv(&node, one, in[i], buffer, 64);
    for (i = 0; i < 3; i++)
        send_one();
    await(&calls, 3, "NTFY-05");
    for (i = 0; i < 3; i++) {
        CHECK_EQ(call[i].number, i + 1, "NTFY-05");
        CHECK(call[i].descriptor == in[i], "NTFY-05");
    }
    CHECK_EQ(atomic_get(&overlap), 0, "NTFY-12");
    ok("three registrations, in order");
}

/* A Notify and a Wait on one queue are one line of waiters (spec §8.2). */
static void notify_before_wait(void)
{
    struct call call;
    VIP_DESCRIPTOR *found;
    int i;

    memset(&call, 0, sizeof call);
    calls = 0;
    for (i = 0; i < 2; i++)
        post_recv(&node, one, in[i], buffer, 64);
    MUST(VipRecvNotify(one, &call, handler));
    send_one();
    send_one();
    CHECK_RETURN(VipRecvWait(one, PATIENCE, &found), VIP_SUCCESS, "spec §8.2");
    CHECK(found == in[1], "spec §8.2");
    await(&calls, 1, "spec §8.2");
    CHECK(call.descriptor == in[0], "spec §8.2");
    ok("Notify and Wait are one queue");
}

static VIP_DESCRIPTOR *ring[8];
static int again;

/* Handles a message, posts it again, registers again (NTFY-07). */
static void repeating(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor)
{
    int ignored;
    int number = atomic_get(&again);

    enter(nic);
    CHECK(context == &again && vi == one, "NTFY-07");
    CHECK(descriptor == ring[number % 8], "NTFY-07");
    CHECK_EQ(control(descriptor)->ImmediateData, number, "NTFY-07");
    MUST(VipPostRecv(one, descriptor, node.handle));
    if (number + 1 < MANY)
        MUST(VipRecvNotify(one, &again, repeating));
    leave(&ignored);
    atomic_add(&again, 1);
}

static void many(void)
{
    int i;

    for (i = 0; i < 8; i++) {
        ring[i] = in[i];
        post_recv(&node, one, in[i], buffer, 64);
    }
    MUST(VipRecvNotify(one, &again, repeating));
    for (i = 0; i < MANY; i++) {
        await(&again, i < 4 ? 0 : i - 4, "NTFY-07"); /* never more under way than are posted */
        peer_send(&peer, i);
    }
    await(&again, MANY, "NTFY-07");
    sleep_ms(20);
    CHECK_EQ(atomic_get(&again), MANY, "NTFY-07");
    CHECK_EQ(atomic_get(&overlap), 0, "NTFY-12");
    ok("%d messages, registered again in the handler", MANY);
}

/* A flush serves registrations (NTFY-10), a destruction cancels them (NTFY-09). */
static void flush_and_cancel(void)
{
    VIP_VI_HANDLE vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    struct call call[2];
    VIP_CQ_HANDLE cq;

    memset(call, 0, sizeof call);
    calls = 0;
    post_recv(&node, vi, in[0], buffer, 64);
    MUST(VipRecvNotify(vi, &call[0], handler));
    MUST(VipRecvNotify(vi, &call[1], handler));
    MUST(VipDisconnect(vi));
    await(&calls, 1, "NTFY-10");
    CHECK(call[0].descriptor == in[0], "NTFY-10");
    CHECK_STATUS(control(in[0])->Status, STATUS_FLUSHED_RECEIVE, "NTFY-10");
    MUST(VipDestroyVi(vi));
    MUST(VipCreateCQ(node.nic, 4, &cq));
    MUST(VipCQNotify(cq, &call[1], cq_handler));
    MUST(VipDestroyCQ(cq));
    sleep_ms(50);
    CHECK_EQ(atomic_get(&calls), 1, "NTFY-09");
    ok("flushed and cancelled");
}

/* NTFY-08, NTFY-11. */
static void completion_queue(const char *device)
{
    VIP_VI_HANDLE vi;
    struct call call[3];
    VIP_DESCRIPTOR *found;
    VIP_CQ_HANDLE cq;
    int i;

    memset(call, 0, sizeof call);
    calls = 0;
    MUST(VipCreateCQ(node.nic, 8, &cq));
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, cq);
    peer_join(&peer, &node, vi, device);
    CHECK_RETURN(VipRecvNotify(vi, &call[0], handler), VIP_INVALID_PARAMETER, "NTFY-11");
    CHECK_RETURN(VipSendNotify(vi, &call[0], NULL), VIP_INVALID_PARAMETER, "NTFY-11");
    CHECK_RETURN(VipCQNotify(cq, &call[0], NULL), VIP_INVALID_PARAMETER, "NTFY-11");
    for (i = 0; i < 3; i++)
        post_recv(&node, vi, in[i], buffer, 64);
    MUST(VipCQNotify(cq, &call[0], cq_handler));
    MUST(VipCQNotify(cq, &call[1], cq_handler));
    for (i = 0; i < 3; i++)
        send_one();
    await(&calls, 2, "NTFY-08");
    MUST(VipCQNotify(cq, &call[2], cq_handler)); /* the third entry is there already, or comes */
    await(&calls, 3, "NTFY-08");
    for (i = 0; i < 3; i++) {
        CHECK_EQ(call[i].number, i + 1, "NTFY-08");
        CHECK(call[i].vi == vi && call[i].recv_queue, "NTFY-08");
        CHECK_RETURN(VipRecvDone(vi, &found), VIP_SUCCESS, "NTFY-08");
        CHECK(found == in[i], "NTFY-08");
    }
    end_vi(vi);
    peer_leave(&peer);
    MUST(VipDestroyCQ(cq));
    ok("Notify on a completion queue");
}

/* A handler may block; Waits of other threads and Done go on meanwhile (spec §8.2). */
static void blocking(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor)
{
    VIP_DESCRIPTOR *found = NULL;

    (void)nic, (void)vi, (void)descriptor;
    atomic_add((int *)context, 1);
    CHECK_RETURN(VipRecvWait(one, PATIENCE, &found), VIP_SUCCESS, "spec §8.2");
    CHECK(found == in[1], "spec §8.2");
    atomic_add((int *)context, 1);
}

static void wait_in_handler(void)
{
    int steps = 0;

    post_recv(&node, one, in[0], buffer, 64);
    post_recv(&node, one, in[1], buffer, 64);
    MUST(VipRecvNotify(one, &steps, blocking));
    send_one();
    await(&steps, 1, "spec §8.2");
    send_one();
    await(&steps, 2, "spec §8.2");
    ok("a wait inside a handler");
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    int i;

    main_thread = pthread_self();
    peer_start(&peer, &options);
    open_node(&node, options.device, 65536);
    for (i = 0; i < 8; i++)
        in[i] = take_descriptor(&node, 1);
    out = take_descriptor(&node, 1);
    buffer = take(&node, 64);
    one = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    peer_join(&peer, &node, one, options.device);
    once();
    in_order();
    notify_before_wait();
    wait_in_handler();
    flush_and_cancel();
    many();
    end_vi(one);
    peer_leave(&peer);
    completion_queue(options.device);
    close_node(&node);
    peer_end(&peer);
    return 0;
}
