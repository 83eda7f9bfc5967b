/* Waiting (spec §3.22, §3.28, §8.1, rules R5 to R7): never too early, never for ever. */
#include "peer.h"

static struct node node;
static struct peer peer; /* who sends */
static VIP_VI_HANDLE one;      /* connected with the peer */
static VIP_DESCRIPTOR *in[4];
static unsigned char *buffer;

static void send_one(void)
{
    peer_send(&peer, -1);
}

static void timeouts(void)
{
    static const unsigned long time[] = {0, 1, 10, 100, 350};
    VIP_DESCRIPTOR *found;
    double start;
    size_t i;

    post_recv(&node, one, in[0], buffer, 64);
    for (i = 0; i < sizeof time / sizeof time[0]; i++) {
        found = in[1];
        start = now_ms();
        CHECK_RETURN(VipRecvWait(one, time[i], &found), VIP_TIMEOUT, time[i] ? "WAIT-02" : "WAIT-03");
        CHECK_TOOK(start, time[i], "R7");
        CHECK(found == NULL, "WAIT-02");
    }
    send_one();
    start = now_ms();
    EXPECT_RECV(one, in[0], STATUS_RECEIVED, "WAIT-01");
    CHECK(now_ms() - start < (double)PATIENCE, "WAIT-01");

    /* complete already: Timeout 0 is enough (WAIT-01) */
    post_recv(&node, one, in[0], buffer, 64);
    send_one();
    start = now_ms();
    while (VipRecvWait(one, 0, &found) == VIP_TIMEOUT)
        CHECK(now_ms() - start < (double)PATIENCE, "WAIT-03");
    CHECK(found == in[0], "WAIT-03");
    ok("timeouts from 0 to 350 ms");
}

struct later {
    unsigned long ms;
    int messages;
};

static void *send_later(void *argument)
{
    struct later *later = (struct later *)argument;

    sleep_ms(later->ms);
    while (later->messages-- > 0)
        send_one();
    return NULL;
}

/* A message that comes after 3 s ends a wait without limit, also the one spelled 0xFFFFFFFF (WAIT-04). */
static void infinite(void)
{
    struct later later;
    pthread_t thread;
    VIP_DESCRIPTOR *found;
    double start = now_ms();

    post_recv(&node, one, in[0], buffer, 64);
    post_recv(&node, one, in[1], buffer, 64);
    later.ms = 3000;
    later.messages = 1;
    thread = start_thread(send_later, &later);
    CHECK_RETURN(VipRecvWait(one, VIP_INFINITE, &found), VIP_SUCCESS, "WAIT-04");
    CHECK(found == in[0], "WAIT-04");
    CHECK_TOOK(start, 2990, "WAIT-04");
    join_thread(thread);

    later.ms = 200;
    later.messages = 1;
    thread = start_thread(send_later, &later);
    CHECK_RETURN(VipRecvWait(one, 0xFFFFFFFFul, &found), VIP_SUCCESS, "spec §2.8");
    CHECK(found == in[1], "WAIT-04");
    join_thread(thread);
    ok("waits without limit");
}

struct waiter {
    VIP_DESCRIPTOR *found;
    int *started, *got;
};

static void *wait_once(void *argument)
{
    struct waiter *waiter = (struct waiter *)argument;

    atomic_add(waiter->started, 1);
    CHECK_RETURN(VipRecvWait(one, PATIENCE, &waiter->found), VIP_SUCCESS, "WAIT-06");
    atomic_add(waiter->got, 1);
    return NULL;
}

/* Two threads wait: two messages, one each. Meanwhile Done of a third thread does not block, and the
 * send queue is free (DONE-04, WAIT-06). */
static void two_waiters(void)
{
    struct waiter waiter[2];
    pthread_t thread[2];
    VIP_DESCRIPTOR *found;
    int i, started = 0, got = 0;
    double start;

    for (i = 0; i < 2; i++) {
        post_recv(&node, one, in[i], buffer, 64);
        waiter[i].started = &started;
        waiter[i].got = &got;
        waiter[i].found = NULL;
        thread[i] = start_thread(wait_once, &waiter[i]);
    }
    await(&started, 2, "WAIT-06");
    sleep_ms(100); /* both are asleep */
    start = now_ms();
    CHECK_RETURN(VipRecvDone(one, &found), VIP_NOT_DONE, "DONE-04");
    CHECK_RETURN(VipSendDone(one, &found), VIP_DESCRIPTOR_ERROR, "DONE-04");
    CHECK(now_ms() - start < (double)PATIENCE, "DONE-04");
    send_one();
    await(&got, 1, "WAIT-06");
    sleep_ms(50);
    CHECK_EQ(atomic_get(&got), 1, "WAIT-06");
    send_one();
    await(&got, 2, "WAIT-06");
    for (i = 0; i < 2; i++)
        join_thread(thread[i]);
    CHECK(waiter[0].found != waiter[1].found, "WAIT-06");
    CHECK(waiter[0].found == in[0] || waiter[0].found == in[1], "WAIT-06");
    CHECK(waiter[1].found == in[0] || waiter[1].found == in[1], "WAIT-06");
    ok("two waiters, two messages");
}

static int signals;

static void on_signal(int number)
{
    (void)number;
    atomic_add(&signals, 1);
}

static void *shoot(void *argument)
{
    pthread_t victim = *(pthread_t *)argument;
    int i;

    for (i = 0; i < 20; i++) {
        sleep_ms(10);
        pthread_kill(victim, SIGUSR1);
    }
    return NULL;
}

/* Twenty signals, and the wait goes on: to its timeout, and to its message (WAIT-08). */
static void interrupted(void)
{
    struct sigaction action;
    pthread_t self = pthread_self(), thread, sender;
    VIP_DESCRIPTOR *found;
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv_queue;
    struct later later;
    double start;

    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal; /* no SA_RESTART */
    sigaction(SIGUSR1, &action, NULL);
    post_recv(&node, one, in[0], buffer, 64);
    thread = start_thread(shoot, &self);
    start = now_ms();
    CHECK_RETURN(VipRecvWait(one, 300, &found), VIP_TIMEOUT, "WAIT-08");
    CHECK_TOOK(start, 300, "WAIT-08");
    join_thread(thread);
    CHECK(atomic_get(&signals) > 0, "WAIT-08");

    thread = start_thread(shoot, &self);
    later.ms = 250;
    later.messages = 1;
    sender = start_thread(send_later, &later);
    CHECK_RETURN(VipRecvWait(one, VIP_INFINITE, &found), VIP_SUCCESS, "WAIT-08");
    join_thread(sender);
    join_thread(thread);

    MUST(VipCreateCQ(node.nic, 4, &cq));
    thread = start_thread(shoot, &self);
    start = now_ms();
    CHECK_RETURN(VipCQWait(cq, 300, &vi, &recv_queue), VIP_TIMEOUT, "R6");
    CHECK_TOOK(start, 300, "R6");
    join_thread(thread);
    MUST(VipDestroyCQ(cq));
    ok("waits under %d signals", atomic_get(&signals));
}

/* Connection calls too are not ended by signals, and keep their time. */
static void interrupted_connections(void)
{
    pthread_t self = pthread_self(), thread;
    address here = local_point(&node, (int)getpid(), "nobody"), remote;
    VIP_VI_HANDLE vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE request;
    double start = now_ms();

    thread = start_thread(shoot, &self);
    CHECK_RETURN(VipConnectWait(node.nic, &here.net, 300, &remote.net, &attributes, &request), VIP_TIMEOUT, "R6");
    CHECK_TOOK(start, 300, "R6");
    join_thread(thread);
    thread = start_thread(shoot, &self);
    start = now_ms();
    MUST(VipConnectPeerRequest(vi, &here.net, &here.net, 300));
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_TIMEOUT, "R6");
    CHECK_TOOK(start, 300, "R6");
    join_thread(thread);
    MUST(VipDestroyVi(vi));
    ok("connection calls under signals");
}

/* A wait on an attached queue belongs to the CQ (WAIT-07); a CQ wait is woken by a message. */
static void attached(const char *device)
{
    VIP_VI_HANDLE vi, found_vi;
    VIP_DESCRIPTOR *found;
    VIP_BOOLEAN recv_queue;
    VIP_CQ_HANDLE cq;
    struct later later;
    pthread_t thread;

    MUST(VipCreateCQ(node.nic, 4, &cq));
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, cq);
    peer_join(&peer, &node, vi, device);
    CHECK_RETURN(VipRecvWait(vi, 1, &found), VIP_INVALID_PARAMETER, "WAIT-07");
    CHECK_RETURN(VipSendWait(vi, 1, &found), VIP_DESCRIPTOR_ERROR, "WAIT-05");
    post_recv(&node, vi, in[3], buffer, 64);
    later.ms = 150;
    later.messages = 1;
    thread = start_thread(send_later, &later);
    CHECK_RETURN(VipCQWait(cq, VIP_INFINITE, &found_vi, &recv_queue), VIP_SUCCESS, "CQ-07");
    CHECK(found_vi == vi && recv_queue, "CQ-07");
    CHECK_RETURN(VipRecvDone(vi, &found), VIP_SUCCESS, "CQ-04");
    CHECK(found == in[3], "CQ-04");
    join_thread(thread);
    end_vi(vi);
    peer_leave(&peer);
    MUST(VipDestroyCQ(cq));
    ok("waiting on a completion queue");
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    int i;

    peer_start(&peer, &options);
    open_node(&node, options.device, 65536);
    for (i = 0; i < 4; i++)
        in[i] = take_descriptor(&node, 1);
    buffer = take(&node, 64);
    one = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    peer_join(&peer, &node, one, options.device);
    timeouts();
    infinite();
    two_waiters();
    interrupted();
    interrupted_connections();
    end_vi(one);
    peer_leave(&peer);
    attached(options.device);
    close_node(&node);
    peer_end(&peer);
    return 0;
}
