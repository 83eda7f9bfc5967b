/* Notify (spec §3.23, §3.29, §8.2), and the descriptor of a completion queue, which is one more waiter in its line. */
#include "peer.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include "vipl_ext.h"

#define MANY 1000
#define BURST 4

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

static VIP_CQ_HANDLE events; /* the queue with a descriptor, and what it reports */
static VIP_VI_HANDLE evented;
static int descriptor, looped;

static int readable(unsigned long ms)
{
    struct epoll_event event;
    int set = epoll_create1(EPOLL_CLOEXEC), found;

    memset(&event, 0, sizeof event);
    event.events = EPOLLIN;
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, descriptor, &event) == 0, "epoll takes the descriptor");
    found = epoll_wait(set, &event, 1, (int)(ms / time_factor()));
    close(set);
    return found;
}

/* Takes the entry and its descriptor, if there are any. */
static int take_entry(VIP_DESCRIPTOR *expected)
{
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN receives;
    VIP_DESCRIPTOR *found;

    if (VipCQDone(events, &vi, &receives) != VIP_SUCCESS)
        return 0;
    CHECK(vi == evented && receives, "CQ-01");
    MUST(VipRecvDone(vi, &found));
    CHECK(found == expected, "CQ-01");
    return 1;
}

static void *poll_in_thread(void *unused)
{
    (void)unused;
    CHECK_EQ(readable(PATIENCE), 1, "all threads that poll see the event");
    return NULL;
}

static void one_event_for_one_call(void)
{
    pthread_t thread;
    int again_fd = -1;

    CHECK_RETURN(vipl_cq_fd(events, NULL), VIP_INVALID_PARAMETER, "no room for the descriptor");
    MUST(vipl_cq_fd(events, &descriptor));
    MUST(vipl_cq_fd(events, &again_fd));
    CHECK_EQ(again_fd, descriptor, "one queue, one descriptor");
    CHECK_EQ(fcntl(descriptor, F_GETFD), FD_CLOEXEC, "close-on-exec");

    post_recv(&node, evented, in[0], buffer, 64);
    send_one();
    CHECK_EQ(readable(20), 0, "no event that nobody has asked for");
    MUST(vipl_cq_arm(events));
    CHECK_EQ(readable(PATIENCE), 1, "an entry that is there already, or comes");
    while (!take_entry(in[0]))
        sleep_ms(1);
    CHECK_EQ(readable(0), 1, "readable until it is armed again");

    post_recv(&node, evented, in[1], buffer, 64);
    MUST(vipl_cq_arm(events));
    MUST(vipl_cq_arm(events)); /* changes nothing */
    CHECK_EQ(readable(20), 0, "arming makes it unreadable");
    thread = start_thread(poll_in_thread, NULL);
    send_one();
    CHECK_EQ(readable(PATIENCE), 1, "an entry that comes, while nobody calls the library");
    join_thread(thread);
    CHECK(take_entry(in[1]) && !take_entry(NULL), "the entry stays in the queue");
    ok("one event for one vipl_cq_arm");
}

/* Handlers, threads and the descriptor are served in their order. */
static void events_in_line(void)
{
    struct call call;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN receives;
    VIP_DESCRIPTOR *found;

    memset(&call, 0, sizeof call);
    calls = 0;
    post_recv(&node, evented, in[0], buffer, 64);
    post_recv(&node, evented, in[1], buffer, 64);
    MUST(VipCQNotify(events, &call, cq_handler));
    MUST(vipl_cq_arm(events));
    send_one();
    await(&calls, 1, "spec §8.2");
    MUST(VipRecvDone(evented, &found));
    CHECK_EQ(readable(20), 0, "the handler took the entry");
    send_one();
    CHECK_EQ(readable(PATIENCE), 1, "the next entry is the descriptor's");
    CHECK(take_entry(in[1]), "the entry stays in the queue");

    post_recv(&node, evented, in[0], buffer, 64);
    MUST(vipl_cq_arm(events));
    send_one();
    CHECK_RETURN(VipCQWait(events, PATIENCE, &vi, &receives), VIP_SUCCESS, "spec §8.2");
    CHECK_EQ(readable(PATIENCE), 1, "a thread behind it took the entry");
    MUST(VipRecvDone(evented, &found));
    CHECK(!take_entry(NULL), "a readable descriptor of an empty queue");
    ok("handlers, threads and the descriptor in one line");
}

/* The loop of a program, with edges; the messages come in bursts. */
static void *event_loop(void *unused)
{
    struct epoll_event event;
    int set = epoll_create1(EPOLL_CLOEXEC), next = 0;

    (void)unused;
    memset(&event, 0, sizeof event);
    event.events = EPOLLIN | EPOLLET;
    CHECK_EQ(epoll_ctl(set, EPOLL_CTL_ADD, descriptor, &event), 0, "epoll takes the descriptor");
    for (;;) {
        while (take_entry(in[next % 8])) {
            if (next + 8 < MANY)
                post_recv(&node, evented, in[next % 8], buffer, 64);
            next++;
            atomic_set(&looped, next);
        }
        if (next == MANY)
            break;
        MUST(vipl_cq_arm(events));
        CHECK_EQ(epoll_wait(set, &event, 1, (int)PATIENCE), 1, "an event is never lost");
    }
    close(set);
    return NULL;
}

static void many_events(void)
{
    pthread_t thread;
    int i;

    for (i = 0; i < 8; i++)
        post_recv(&node, evented, in[i], buffer, 64);
    thread = start_thread(event_loop, NULL);
    for (i = 0; i < MANY; i++) {
        if (i % BURST == 0)
            await(&looped, i - BURST, "events");
        send_one();
    }
    join_thread(thread);
    ok("%d messages through an event loop", MANY);
}

static void descriptor_of_queue(const char *device)
{
    VIP_CQ_HANDLE other;

    MUST(VipCreateCQ(node.nic, 64, &events));
    evented = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, events);
    peer_join(&peer, &node, evented, device);
    one_event_for_one_call();
    events_in_line();
    many_events();
    MUST(vipl_cq_arm(events));
    post_recv(&node, evented, in[0], buffer, 64);
    end_vi(evented); /* its flush is an event, and it takes the entry with it */
    CHECK_EQ(readable(PATIENCE), 1, "a flush");
    CHECK(!take_entry(NULL), "CQ-06");
    MUST(VipDestroyCQ(events));
    CHECK(fcntl(descriptor, F_GETFD) == -1 && errno == EBADF, "closed with its queue");
    MUST(VipCreateCQ(node.nic, 4, &other));
    MUST(vipl_cq_fd(other, &descriptor));
    MUST(vipl_cq_arm(other));
    MUST(VipDestroyCQ(other)); /* while it is armed */
    CHECK_RETURN(vipl_cq_arm(other), VIP_INVALID_PARAMETER, "a destroyed queue");
    CHECK_RETURN(vipl_cq_fd(other, &descriptor), VIP_INVALID_PARAMETER, "a destroyed queue");
    peer_leave(&peer);
    ok("the end of a queue with a descriptor");
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
    descriptor_of_queue(options.device);
    close_node(&node);
    peer_end(&peer);
    return 0;
}
