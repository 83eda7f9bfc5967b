/* A thread is cancelled in any call: pending when the call begins, or while it is inside. The process lives, every call
 * after that works, and other threads that wait get what comes in the order in which they came.
 *
 *   cancel [-d DEVICE] [ROUNDS]
 *
 * The calls that are cancellation points end the thread by themselves; for the others the thread tests after each. */
#include "common.h"

static struct node node;
static VIP_VI_HANDLE vi, peer, alone;
static VIP_CQ_HANDLE cq;
static VIP_DESCRIPTOR *out, *idle;
static address here, nowhere;
static int begun, tests;

/* ---- the calls -------------------------------------------------------------------------------- */

static void recv_wait_(void) { VIP_DESCRIPTOR *d; VipRecvWait(vi, VIP_INFINITE, &d); }
static void send_wait_(void) { VIP_DESCRIPTOR *d; VipSendWait(alone, VIP_INFINITE, &d); }
static void cq_wait(void) { VIP_VI_HANDLE v; VIP_BOOLEAN b; VipCQWait(cq, VIP_INFINITE, &v, &b); }
static void connect_wait(void)
{
    address who;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE request;

    VipConnectWait(node.nic, &here.net, VIP_INFINITE, &who.net, &attributes, &request);
}
static void connect_request(void)
{
    VIP_VI_HANDLE v = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    VIP_VI_ATTRIBUTES attributes;

    for (;;) {
        VipConnectRequest(v, &here.net, &nowhere.net, 20000, &attributes);
        VipDisconnect(v);
    }
}
static void peer_wait(void)
{
    VIP_VI_HANDLE v = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    VIP_VI_ATTRIBUTES attributes;

    for (;;) {
        VipConnectPeerRequest(v, &here.net, &nowhere.net, 20000);
        VipConnectPeerWait(v, &attributes);
        VipDisconnect(v);
    }
}
static void recv_wait_briefly(void) { VIP_DESCRIPTOR *d; VipRecvWait(vi, 1, &d); }
static void connect_wait_briefly(void)
{
    address who;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE request;

    VipConnectWait(node.nic, &here.net, 5, &who.net, &attributes, &request);
}
static void polls(void)
{
    VIP_DESCRIPTOR *d;
    VIP_VI_HANDLE v;
    VIP_BOOLEAN b;

    VipRecvDone(vi, &d);
    VipCQDone(cq, &v, &b);
}
/* One message, from this thread to this thread. */
static void messages(void)
{
    VIP_DESCRIPTOR *d;
    VIP_RETURN result;

    post_recv(&node, vi, idle, NULL, 0);
    post_send(&node, peer, out, NULL, 0);
    while ((result = VipSendDone(peer, &d)) == VIP_NOT_DONE)
        ;
    CHECK_EQ(result, VIP_SUCCESS, "a send");
    while ((result = VipRecvDone(vi, &d)) == VIP_NOT_DONE)
        ;
    CHECK_EQ(result, VIP_SUCCESS, "a receive");
    idle = d;
}
static void queries(void)
{
    VIP_NIC_ATTRIBUTES nic;
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_STATE state;
    VIP_BOOLEAN a, b;

    MUST(VipQueryNic(node.nic, &nic));
    MUST(VipQueryVi(vi, &state, &attributes, &a, &b));
    VipQueryNic(NULL, &nic); /* for a line of the log */
}
static void objects(void)
{
    static unsigned char page[8192];
    VIP_VI_HANDLE v = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    VIP_CQ_HANDLE c;
    VIP_MEM_HANDLE handle = register_range(&node, page, sizeof page);

    MUST(VipCreateCQ(node.nic, 4, &c));
    MUST(VipResizeCQ(c, 8));
    MUST(VipDestroyCQ(c));
    MUST(VipDeregisterMem(node.nic, page, handle));
    MUST(VipDestroyVi(v));
}
static void nics(void)
{
    VIP_NIC_HANDLE nic;

    MUST(VipOpenNic((const VIP_CHAR *)getenv("LIFE_DEVICE"), &nic));
    MUST(VipCloseNic(nic));
}
static void names(void)
{
    address found;
    char name[] = "nobody";

    VipNSInit(node.nic, NULL);
    VipNSGetHostByName(node.nic, (VIP_CHAR *)name, &found.net, 0);
    VipNSShutdown(node.nic);
}

/* ---- threads that are cancelled --------------------------------------------------------------- */

struct kind {
    const char *name;
    void (*call)(void);
    int point, quick; /* a cancellation point; the data path, which is not for the asynchronous type */
};

static const struct kind kinds[] = {
    {"VipRecvWait", recv_wait_, 1, 0},          {"VipSendWait", send_wait_, 1, 0},
    {"VipCQWait", cq_wait, 1, 0},               {"VipConnectWait", connect_wait, 1, 0},
    {"VipConnectRequest", connect_request, 1, 0}, {"VipConnectPeerWait", peer_wait, 1, 0},
    {"VipRecvWait for 1 ms", recv_wait_briefly, 1, 0}, {"VipConnectWait for 5 ms", connect_wait_briefly, 1, 0},
    {"Done", polls, 0, 1},                      {"messages", messages, 0, 1},
    {"queries", queries, 0, 0},                 {"objects", objects, 0, 0},
    {"VipOpenNic", nics, 0, 0},                 {"names", names, 0, 0},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

struct victim {
    const struct kind *kind;
    int pending, asynchronous;
};

static void *be_cancelled(void *argument)
{
    const struct victim *v = (const struct victim *)argument;
    int old;

    if (v->asynchronous) {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
    }
    if (v->pending)
        pthread_cancel(pthread_self());
    atomic_add(&begun, 1);
    if (v->asynchronous)
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
    for (;;) {
        v->kind->call();
        if (!v->kind->point)
            pthread_testcancel();
    }
    return NULL;
}

static void cancel_in(const struct kind *kind, int pending, int asynchronous, unsigned long after_us)
{
    struct victim victim = {kind, pending, asynchronous};
    void *result = NULL;
    pthread_t thread;

    atomic_set(&begun, 0);
    thread = start_thread(be_cancelled, &victim);
    await(&begun, 1, kind->name);
    if (!pending) {
        struct timespec t;

        t.tv_sec = 0;
        t.tv_nsec = (long)after_us * 1000;
        nanosleep(&t, NULL);
        CHECK_EQ(pthread_cancel(thread), 0, "pthread_cancel");
    }
    CHECK_EQ(pthread_join(thread, &result), 0, "pthread_join");
    CHECK(result == PTHREAD_CANCELED, kind->name);
    tests++;
}

/* ---- the line of those who wait --------------------------------------------------------------- */

static VIP_DESCRIPTOR *got[3];

static void *wait_in_line(void *place)
{
    VIP_DESCRIPTOR *d = NULL;

    if (VipRecvWait(vi, VIP_INFINITE, &d) == VIP_SUCCESS)
        got[*(int *)place] = d;
    return NULL;
}

static void the_line(void)
{
    static int places[3] = {0, 1, 2};
    VIP_DESCRIPTOR *receives[2], *found;
    pthread_t threads[3];
    void *result;
    int i;

    for (i = 0; i < 2; i++) {
        receives[i] = take_descriptor(&node, 1);
        post_recv(&node, vi, receives[i], NULL, 0);
    }
    for (i = 0; i < 3; i++) {
        got[i] = NULL;
        threads[i] = start_thread(wait_in_line, &places[i]);
        sleep_ms(50); /* they stand in this order, most likely; if not, the check below says so too seldom, never too often */
    }
    pthread_cancel(threads[0]);
    pthread_join(threads[0], &result);
    CHECK(result == PTHREAD_CANCELED, "the first of the line");
    for (i = 0; i < 2; i++) {
        post_send(&node, peer, out, NULL, 0);
        CHECK_EQ(send_wait(peer, &found), VIP_SUCCESS, "a send");
    }
    for (i = 1; i < 3; i++)
        join_thread(threads[i]);
    CHECK((got[1] == receives[0] && got[2] == receives[1]) || (got[1] == receives[1] && got[2] == receives[0]),
          "the others get what comes");
    tests++;
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    int rounds = options.words > 0 ? atoi(options.word[0]) : 1, round;
    VIP_DESCRIPTOR *d = NULL;
    size_t k;

    setenv("LIFE_DEVICE", options.device, 1);
    open_node(&node, options.device, 1 << 20);
    here = local_point(&node, (int)getpid(), "here");
    nowhere = local_point(&node, (int)getpid(), "nowhere");
    MUST(VipCreateCQ(node.nic, 64, &cq));
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    peer = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    alone = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    join_vis(&node, vi, &node, peer);
    out = take_descriptor(&node, 1);
    idle = take_descriptor(&node, 1);
    /* VipSendWait finds an empty queue and returns at once: whether a send can be left waiting differs between devices. */
    for (round = 0; round < rounds; round++) {
        for (k = 0; k < KINDS; k++) {
            const struct kind *kind = &kinds[k];
            int waits = strcmp(kind->name, "VipRecvWait") == 0;

            if (waits) {
                d = take_descriptor(&node, 1);
                post_recv(&node, vi, d, NULL, 0);
            }
            cancel_in(kind, 1, 0, 0);
            cancel_in(kind, 0, 0, (unsigned long)(rand() % 3000));
            cancel_in(kind, 0, 0, 30000);
            if (!kind->quick) {
                cancel_in(kind, 0, 1, (unsigned long)(rand() % 3000));
                cancel_in(kind, 0, 1, 30000);
            }
            if (waits) { /* what was posted is there for the next one */
                VIP_DESCRIPTOR *found;

                post_send(&node, peer, out, NULL, 0);
                CHECK_EQ(recv_wait(vi, &found), VIP_SUCCESS, "after the cancelled wait");
                CHECK(found == d, "after the cancelled wait");
                CHECK_EQ(send_wait(peer, &found), VIP_SUCCESS, "a send");
            }
        }
        the_line();
    }
    messages();
    ok("%d threads were cancelled", tests);
    fflush(NULL);
    _exit(0); /* VIs of cancelled threads are left */
}
