/* Completion queues (spec §3.24 to §3.29, §7). */
#include "common.h"

#define VIS 16

static struct node node;
static unsigned char *buffer; /* what all messages carry; no one reads it */

static void nothing_there(VIP_CQ_HANDLE cq, const char *id)
{
    VIP_VI_HANDLE vi = &node;
    VIP_BOOLEAN recv = 77;

    CHECK_RETURN(VipCQDone(cq, &vi, &recv), VIP_NOT_DONE, id);
    CHECK(vi == &node && recv == 77, "spec §3.27: outputs unchanged");
}

static void next_entry(VIP_CQ_HANDLE cq, VIP_VI_HANDLE vi, int recv, const char *id)
{
    VIP_VI_HANDLE found = NULL;
    VIP_BOOLEAN which = 77;

    CHECK_RETURN(VipCQWait(cq, PATIENCE, &found, &which), VIP_SUCCESS, id);
    CHECK(found == vi, id);
    CHECK_EQ(which != 0, recv, id);
}

static void make(void)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&node, VIP_SERVICE_RELIABLE_DELIVERY);
    VIP_CQ_HANDLE cq, refused = NULL;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    double start;

    CHECK_RETURN(VipCreateCQ(node.nic, 0, &refused), VIP_INVALID_PARAMETER, "CQ-01");
    CHECK_RETURN(VipCreateCQ(node.nic, 1, NULL), VIP_INVALID_PARAMETER, "CQ-01");
    CHECK_RETURN(VipCreateCQ(node.nic, node.attributes.MaxCQEntries + 1, &refused), VIP_ERROR_RESOURCE, "CQ-01");
    CHECK(refused == NULL, "R1: outputs are written on success only");
    MUST(VipCreateCQ(node.nic, node.attributes.MaxCQEntries, &cq));
    nothing_there(cq, "CQ-02");
    start = now_ms();
    CHECK_RETURN(VipCQWait(cq, 0, &vi, &recv), VIP_TIMEOUT, "CQ-07");
    CHECK_TOOK(start, 0, "CQ-07");
    start = now_ms();
    CHECK_RETURN(VipCQWait(cq, 60, &vi, &recv), VIP_TIMEOUT, "CQ-07");
    CHECK_TOOK(start, 60, "R7");

    attributes.MaxTransferSize = 64;
    MUST(VipCreateVi(node.nic, &attributes, NULL, cq, &vi));
    CHECK_RETURN(VipDestroyCQ(cq), VIP_ERROR_RESOURCE, "CQ-08");
    MUST(VipDestroyVi(vi));
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS, "CQ-08");
    CHECK_RETURN(VipDestroyCQ(cq), VIP_INVALID_PARAMETER, "CQ-08");
    CHECK_RETURN(VipCreateVi(node.nic, &attributes, NULL, cq, &vi), VIP_INVALID_PARAMETER, "VI-08");
    ok("creating and destroying");
}

static void as_many_as_there_are(void)
{
    static VIP_CQ_HANDLE cq[65536];
    VIP_CQ_HANDLE more;
    size_t i, most = node.attributes.MaxCQ;

    CHECK(most <= 65536, "MaxCQ that this test can hold");
    for (i = 0; i < most; i++)
        MUST(VipCreateCQ(node.nic, 1, &cq[i]));
    CHECK_RETURN(VipCreateCQ(node.nic, 1, &more), VIP_ERROR_RESOURCE, "spec §3.24");
    MUST(VipDestroyCQ(cq[0]));
    MUST(VipCreateCQ(node.nic, 1, &cq[0]));
    for (i = 0; i < most; i++)
        MUST(VipDestroyCQ(cq[i]));
    ok("%lu completion queues and not one more", (unsigned long)most);
}

/* One CQ for both queues of 16 VIs: each completion gives one entry, in order per queue. */
static void many_queues(void)
{
    enum { EACH = 10 };
    static VIP_DESCRIPTOR *in[VIS][EACH], *out[VIS][EACH];
    VIP_VI_HANDLE vi[VIS], peer[VIS], found;
    int sends[VIS] = {0}, receives[VIS] = {0}, i, k, entries;
    VIP_DESCRIPTOR *d;
    VIP_BOOLEAN recv;
    VIP_CQ_HANDLE cq;

    MUST(VipCreateCQ(node.nic, 2 * VIS * EACH, &cq));
    for (i = 0; i < VIS; i++) {
        vi[i] = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, cq, cq);
        peer[i] = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
        join_vis(&node, vi[i], &node, peer[i]);
        for (k = 0; k < EACH; k++) {
            in[i][k] = take_descriptor(&node, 1);
            out[i][k] = take_descriptor(&node, 1);
            post_recv(&node, vi[i], in[i][k], buffer, 64);
        }
    }
    nothing_there(cq, "CQ-02");
    for (k = 0; k < EACH; k++) {
        VIP_DESCRIPTOR *mine[VIS], *theirs[VIS];

        for (i = 0; i < VIS; i++) {
            /* this VI sends, which makes an entry; its peer has no CQ and makes none (CQ-06) */
            theirs[i] = take_descriptor(&node, 1);
            mine[i] = take_descriptor(&node, 1);
            post_recv(&node, peer[i], theirs[i], buffer, 64);
            post_send(&node, vi[i], out[i][k], buffer, (size_t)i);
            post_send(&node, peer[i], mine[i], buffer, (size_t)k);
        }
        for (i = 0; i < VIS; i++) {
            EXPECT_SEND(peer[i], mine[i], STATUS_SENT, "CQ-06");
            EXPECT_RECV(peer[i], theirs[i], STATUS_RECEIVED, "CQ-06");
        }
    }
    for (entries = 0; entries < 2 * VIS * EACH; entries++) {
        CHECK_RETURN(VipCQWait(cq, PATIENCE, &found, &recv), VIP_SUCCESS, "CQ-05");
        for (i = 0; i < VIS && vi[i] != found; i++)
            ;
        CHECK(i < VIS, "CQ-03");
        if (recv) {
            CHECK_RETURN(VipRecvDone(found, &d), VIP_SUCCESS, "CQ-04");
            CHECK(receives[i] < EACH && d == in[i][receives[i]++], "CQ-05");
        } else {
            CHECK_RETURN(VipSendDone(found, &d), VIP_SUCCESS, "CQ-04");
            CHECK(sends[i] < EACH && d == out[i][sends[i]++], "CQ-05");
        }
    }
    nothing_there(cq, "CQ-05");
    for (i = 0; i < VIS; i++) {
        MUST(VipDisconnect(vi[i]));
        end_vi(peer[i]);
        MUST(VipDestroyVi(vi[i]));
    }
    nothing_there(cq, "CQ-12");
    MUST(VipDestroyCQ(cq));
    forget_errors(&node);
    ok("one CQ for the queues of %d VIs", VIS);
}

/* Flushes, direct draining, destruction: what becomes of the entries. */
static void stale_entries(void)
{
    VIP_DESCRIPTOR *d[4], *found;
    VIP_VI_HANDLE vi, keeper;
    VIP_CQ_HANDLE cq;
    int i;

    MUST(VipCreateCQ(node.nic, 16, &cq));
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, cq, cq);
    keeper = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, cq);
    for (i = 0; i < 4; i++)
        d[i] = take_descriptor(&node, 1);
    post_recv(&node, vi, d[0], buffer, 64);
    post_recv(&node, vi, d[1], buffer, 64);
    nothing_there(cq, "CQ-02");
    post_send(&node, vi, d[2], buffer, 64); /* flushed at once: the VI is Idle */
    next_entry(cq, vi, 0, "CQ-11");
    CHECK_RETURN(VipSendDone(vi, &found), VIP_DESCRIPTOR_ERROR, "CQ-11");
    CHECK(found == d[2], "CQ-11");
    MUST(VipDisconnect(vi));
    next_entry(cq, vi, 1, "CQ-11");
    CHECK_RETURN(VipRecvDone(vi, &found), VIP_DESCRIPTOR_ERROR, "CQ-11");
    CHECK(found == d[0], "CQ-11");

    drain(vi); /* takes d[1] without its entry */
    next_entry(cq, vi, 1, "CQ-13");
    CHECK_RETURN(VipRecvDone(vi, &found), VIP_DESCRIPTOR_ERROR, "CQ-13");
    CHECK(found == NULL, "CQ-13");

    post_recv(&node, vi, d[0], buffer, 64);
    post_recv(&node, keeper, d[1], buffer, 64);
    post_recv(&node, vi, d[2], buffer, 64);
    MUST(VipDisconnect(vi));
    MUST(VipDisconnect(keeper));
    drain(vi);
    MUST(VipDestroyVi(vi));
    next_entry(cq, keeper, 1, "CQ-12");
    nothing_there(cq, "CQ-12");
    CHECK_RETURN(VipRecvDone(keeper, &found), VIP_DESCRIPTOR_ERROR, "CQ-12");

    /* entries that no thread fetches do not hold up the destruction (COMPAT-09) */
    post_recv(&node, keeper, d[1], buffer, 64);
    MUST(VipDisconnect(keeper));
    drain(keeper);
    MUST(VipDestroyVi(keeper));
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS, "COMPAT-09");
    ok("entries of flushed, drained and destroyed queues");
}

static void resize(void)
{
    enum { N = 20 };
    VIP_DESCRIPTOR *d[N], *found;
    VIP_VI_HANDLE vi;
    VIP_CQ_HANDLE cq;
    int i;

    MUST(VipCreateCQ(node.nic, N, &cq));
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, cq);
    for (i = 0; i < N; i++) {
        d[i] = take_descriptor(&node, 1);
        post_recv(&node, vi, d[i], buffer, 64);
    }
    MUST(VipDisconnect(vi));
    CHECK_RETURN(VipResizeCQ(cq, 0), VIP_INVALID_PARAMETER, "spec §3.26");
    CHECK_RETURN(VipResizeCQ(cq, node.attributes.MaxCQEntries + 1), VIP_ERROR_RESOURCE, "spec §3.26");
    CHECK_RETURN(VipResizeCQ(cq, N - 1), VIP_ERROR_RESOURCE, "CQ-09");
    CHECK_RETURN(VipResizeCQ(cq, N + 32), VIP_SUCCESS, "CQ-09");
    for (i = 0; i < N / 2; i++) {
        next_entry(cq, vi, 1, "CQ-09");
        CHECK_RETURN(VipRecvDone(vi, &found), VIP_DESCRIPTOR_ERROR, "CQ-09");
        CHECK(found == d[i], "CQ-09");
    }
    CHECK_RETURN(VipResizeCQ(cq, N / 2), VIP_SUCCESS, "CQ-09");
    for (; i < N; i++) {
        next_entry(cq, vi, 1, "CQ-09");
        CHECK_RETURN(VipRecvDone(vi, &found), VIP_DESCRIPTOR_ERROR, "CQ-09");
        CHECK(found == d[i], "CQ-09");
    }
    nothing_there(cq, "CQ-09");
    MUST(VipResizeCQ(cq, 1));
    NO_ERROR(&node, 20, "no overflow so far");
    MUST(VipDestroyVi(vi));
    MUST(VipDestroyCQ(cq));
    ok("resizing with entries inside");
}

static void overflow(void)
{
    enum { N = 10, ROOM = 3 };
    int room, k;
    VIP_DESCRIPTOR *d[N], *found;
    VIP_ERROR_DESCRIPTOR error;
    VIP_VI_HANDLE vi;
    VIP_CQ_HANDLE cq;
    int i, round;

    for (i = 0; i < N; i++)
        d[i] = take_descriptor(&node, 1);

    /* exactly full is not too full, again and again (COMPAT-17) */
    for (room = 1; room <= ROOM; room++) {
        MUST(VipCreateCQ(node.nic, (VIP_ULONG)room, &cq));
        vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, cq);
        for (k = 0; k < 5; k++) {
            for (i = 0; i < room; i++)
                post_recv(&node, vi, d[i], buffer, 64);
            MUST(VipDisconnect(vi));
            for (i = 0; i < room; i++)
                next_entry(cq, vi, 1, "COMPAT-17");
            nothing_there(cq, "COMPAT-17");
            drain(vi);
        }
        NO_ERROR(&node, 20, "COMPAT-17");
        MUST(VipDestroyVi(vi));
        MUST(VipDestroyCQ(cq));
    }

    MUST(VipCreateCQ(node.nic, ROOM, &cq));
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, cq);

    for (round = 0; round < 2; round++) {
        for (i = 0; i < N; i++)
            post_recv(&node, vi, d[i], buffer, 64);
        MUST(VipDisconnect(vi));
        error = NEXT_ERROR(&node, VIP_ERROR_VI_OVERRUN, NULL, "CQ-10");
        CHECK(error.CQHandle == cq, "CQ-10");
        CHECK_EQ(error.ResourceCode, VIP_RESOURCE_CQ, "CQ-10");
        for (i = 0; i < N; i++) {
            next_entry(cq, vi, 1, "CQ-10");
            CHECK_RETURN(VipRecvDone(vi, &found), VIP_DESCRIPTOR_ERROR, "CQ-10");
            CHECK(found == d[i], "CQ-10");
        }
        nothing_there(cq, "CQ-10"); /* empty again: the next overflow is told again */
        NO_ERROR(&node, 20, "CQ-10");
    }
    MUST(VipDestroyVi(vi));
    MUST(VipDestroyCQ(cq));
    ok("overflow loses nothing and is told once");
}

struct waiters {
    VIP_CQ_HANDLE cq;
    int started, entries, gone;
};

static void *cq_waiter(void *argument)
{
    struct waiters *w = (struct waiters *)argument;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    VIP_RETURN code;

    atomic_add(&w->started, 1);
    for (;;) {
        code = VipCQWait(w->cq, VIP_INFINITE, &vi, &recv);
        if (code != VIP_SUCCESS)
            break;
        atomic_add(&w->entries, 1);
    }
    CHECK_RETURN(code, VIP_INVALID_PARAMETER, "COMPAT-09");
    atomic_add(&w->gone, 1);
    return NULL;
}

/* Four threads wait while entries come and the CQ changes its size: each entry wakes one of them; the
 * destruction wakes them all. */
static void waiters(void)
{
    enum { THREADS = 4, N = 200 };
    struct waiters w;
    pthread_t thread[THREADS];
    VIP_DESCRIPTOR *d = take_descriptor(&node, 1);
    VIP_VI_HANDLE vi;
    int i;

    memset(&w, 0, sizeof w);
    MUST(VipCreateCQ(node.nic, 8, &w.cq));
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, w.cq);
    for (i = 0; i < THREADS; i++)
        thread[i] = start_thread(cq_waiter, &w);
    await(&w.started, THREADS, "CQ-07");
    for (i = 0; i < N; i++) {
        post_recv(&node, vi, d, buffer, 64);
        MUST(VipDisconnect(vi));
        drain(vi);
        await(&w.entries, i + 1, "CQ-07");
        MUST(VipResizeCQ(w.cq, (VIP_ULONG)(8 + i % 7)));
    }
    sleep_ms(20);
    CHECK_EQ(atomic_get(&w.entries), N, "CQ-14");
    MUST(VipDestroyVi(vi));
    CHECK_RETURN(VipDestroyCQ(w.cq), VIP_SUCCESS, "COMPAT-09");
    await(&w.gone, THREADS, "COMPAT-09");
    for (i = 0; i < THREADS; i++)
        join_thread(thread[i]);
    ok("%d threads wait, %d entries, one wake-up each", THREADS, N);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    open_node(&node, options.device, 1 << 20);
    buffer = take(&node, 64);
    make();
    as_many_as_there_are();
    many_queues();
    stale_entries();
    resize();
    overflow();
    waiters();
    close_node(&node);
    return 0;
}
