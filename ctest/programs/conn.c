/* Client/server connections (spec §3.8 to §3.11, §9). Side 0 serves, side 1 asks. */
#include "common.h"

#define RD VIP_SERVICE_RELIABLE_DELIVERY
#define GRACE (strict_mode() ? 0.0 : 2000.0) /* how long a request waits for a waiter, at most (spec §17) */

struct world {
    struct side *side;
    struct node node;
    address other;
};

static address here(struct world *w, const char *name)
{
    return local_point(&w->node, w->side->run, name);
}

static address there(struct world *w, const char *name)
{
    return remote_point(&w->other, w->side->run, name);
}

static VIP_RETURN wait_at(struct world *w, const char *name, unsigned long timeout, address *remote,
                          VIP_VI_ATTRIBUTES *attributes, VIP_CONN_HANDLE *request)
{
    address local = here(w, name);

    return VipConnectWait(w->node.nic, &local.net, timeout, &remote->net, attributes, request);
}

/* Asks until somebody waits; gives any other result. */
static VIP_RETURN ask_for(struct world *w, VIP_VI_HANDLE vi, const char *name, unsigned long timeout)
{
    address local = here(w, "client"), remote = there(w, name);
    VIP_VI_ATTRIBUTES attributes;
    VIP_RETURN code;
    double start = now_ms();

    while ((code = VipConnectRequest(vi, &local.net, &remote.net, timeout, &attributes)) == VIP_NO_MATCH) {
        CHECK(now_ms() - start < (double)PATIENCE, "a partner that waits");
        sleep_ms(1);
    }
    return code;
}

/* One message from side 1 to side 0 over these VIs. */
static void exchange(struct world *w, VIP_VI_HANDLE vi, const char *id)
{
    size_t mark = w->node.used;
    VIP_DESCRIPTOR *d = take_descriptor(&w->node, 1);
    unsigned char *buffer = take(&w->node, 100);

    if (w->side->number == 0) {
        post_recv(&w->node, vi, d, buffer, 100);
        meet(w->side);
        EXPECT_RECV(vi, d, STATUS_RECEIVED, id);
        CHECK(filled(buffer, 100, 1), id);
    } else {
        fill(buffer, 100, 1);
        meet(w->side);
        post_send(&w->node, vi, d, buffer, 100);
        EXPECT_SEND(vi, d, STATUS_SENT, id);
    }
    meet(w->side);
    w->node.used = mark;
}

/* CONN-01 to 05, 15, 19, 32: what both sides learn, and what is written where. */
static void what_is_told(struct world *w)
{
    VIP_VI_ATTRIBUTES mine = vi_attributes(&w->node, RD), theirs;
    VIP_VI_HANDLE vi;

    mine.MaxTransferSize = 4000;
    mine.EnableRdmaRead = VIP_FALSE;
    mine.EnableRdmaWrite = w->side->number == 0; /* need not agree (CONN-19) */
    MUST(VipCreateVi(w->node.nic, &mine, NULL, NULL, &vi));
    memset(&theirs, 0x55, sizeof theirs);
    if (w->side->number == 0) {
        struct {
            unsigned char before[8];
            address remote;
            unsigned char after[8];
        } room;
        address local = here(w, "told");
        size_t host = w->other.net.HostAddressLen, length = 4 + host + 16;
        VIP_CONN_HANDLE request = NULL;

        memset(&room, 0xEE, sizeof room); /* its lengths are nonsense, and are not read (CONN-05) */
        memset(local.bytes + 4, 0x99, local.net.HostAddressLen); /* neither are our own host bytes */
        CHECK_RETURN(VipConnectWait(w->node.nic, &local.net, PATIENCE, &room.remote.net, &theirs, &request),
                     VIP_SUCCESS, "CONN-01");
        CHECK(request != NULL, "CONN-01");
        CHECK_EQ(room.remote.net.HostAddressLen, host, "CONN-03");
        CHECK_EQ(room.remote.net.DiscriminatorLen, 16, "CONN-03");
        CHECK(memcmp(room.remote.bytes + 4, w->other.bytes + 4, host) == 0, "CONN-03");
        CHECK(memcmp(room.remote.bytes + 4 + host + 4, "client", 6) == 0, "CONN-03");
        CHECK(all_bytes(room.before, 8, 0xEE), "CONN-04");
        CHECK(all_bytes(room.remote.bytes + length, sizeof room.remote - length, 0xEE), "CONN-04");
        CHECK_RETURN(VipConnectAccept(request, vi), VIP_SUCCESS, "CONN-01");
        CHECK_RETURN(VipConnectAccept(request, vi), VIP_INVALID_PARAMETER, "CONN-21");
        CHECK_RETURN(VipConnectReject(request), VIP_INVALID_PARAMETER, "CONN-21");
    } else {
        address local = here(w, "client"), remote = there(w, "told");
        address local_before = local, remote_before = remote;
        VIP_RETURN code;

        while ((code = VipConnectRequest(vi, &local.net, &remote.net, PATIENCE, &theirs)) == VIP_NO_MATCH)
            sleep_ms(1);
        CHECK_RETURN(code, VIP_SUCCESS, "CONN-01");
        CHECK(memcmp(&local, &local_before, sizeof local) == 0, "CONN-32");
        CHECK(memcmp(&remote, &remote_before, sizeof remote) == 0, "CONN-32");
    }
    CHECK_EQ(vi_state(vi), VIP_STATE_CONNECTED, "CONN-01");
    CHECK_EQ(theirs.ReliabilityLevel, RD, "CONN-02");
    CHECK_EQ(theirs.MaxTransferSize, 4000, "CONN-02");
    CHECK_EQ(theirs.EnableRdmaWrite != 0, w->side->number == 1, "CONN-02");
    CHECK_EQ(theirs.EnableRdmaRead, VIP_FALSE, "CONN-02");
    CHECK(theirs.QoS == NULL, "CONN-02");
    CHECK(theirs.Ptag == NULL, "spec §3.8: the tag means nothing here");
    exchange(w, vi, "CONN-01");
    end_vi(vi);
    meet(w->side);
    ok("side %d: what both sides learn", w->side->number);
}

/* CONN-06 to 10: nobody there, nonsense, the wrong state. */
static void refusals(struct world *w)
{
    VIP_VI_HANDLE vi = make_vi(&w->node, RD, NULL, NULL);
    address local = here(w, "client"), nobody = there(w, "nobody"), remote, bad;
    size_t host = w->other.net.HostAddressLen;
    unsigned char discriminator[72] = {0};
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE request;
    VIP_RETURN code;
    double start;

    start = now_ms();
    CHECK_RETURN(wait_at(w, "nobody0", 80, &remote, &attributes, &request), VIP_TIMEOUT, "CONN-06");
    CHECK_TOOK(start, 80, "CONN-06");
    start = now_ms();
    CHECK_RETURN(wait_at(w, "nobody0", 0, &remote, &attributes, &request), VIP_TIMEOUT, "spec §3.8");
    CHECK_TOOK(start, 0, "spec §3.8");

    start = now_ms();
    CHECK_RETURN(VipConnectRequest(vi, &local.net, &nobody.net, 30000, &attributes), VIP_NO_MATCH, "CONN-07");
    CHECK(now_ms() - start < GRACE + 10000, "CONN-07");
    start = now_ms();
    CHECK_RETURN(VipConnectRequest(vi, &local.net, &nobody.net, 0, &attributes), VIP_INVALID_PARAMETER, "CONN-09");
    CHECK(now_ms() - start < 5000, "CONN-09");
    CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "spec §3.11");

    /* a node that does not exist */
    bad = nobody;
    memset(bad.bytes + 4, 0x5B, host);
    start = now_ms();
    code = VipConnectRequest(vi, &local.net, &bad.net, 300, &attributes);
    CHECK(code == VIP_TIMEOUT || code == VIP_NOT_REACHABLE, "CONN-08");
    CHECK(now_ms() - start < 300 + 5000, "CONN-08");
    CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "CONN-08");

    /* lengths */
    set_address(&bad, w->other.bytes + 4, host - 1, "x", 1);
    CHECK_RETURN(VipConnectRequest(vi, &local.net, &bad.net, 100, &attributes), VIP_INVALID_PARAMETER, "spec §3.11");
    CHECK_RETURN(VipConnectPeerRequest(vi, &local.net, &bad.net, 100), VIP_INVALID_PARAMETER, "spec §3.13");
    if (w->node.attributes.MaxDiscriminatorLen < sizeof discriminator) {
        set_address(&bad, w->other.bytes + 4, host, discriminator, w->node.attributes.MaxDiscriminatorLen + 1u);
        CHECK_RETURN(VipConnectRequest(vi, &local.net, &bad.net, 100, &attributes), VIP_INVALID_PARAMETER, "CONN-27");
        CHECK_RETURN(VipConnectRequest(vi, &bad.net, &nobody.net, 100, &attributes), VIP_INVALID_PARAMETER, "CONN-27");
        CHECK_RETURN(VipConnectPeerRequest(vi, &local.net, &bad.net, 100), VIP_INVALID_PARAMETER, "CONN-27");
        CHECK_RETURN(VipConnectPeerRequest(vi, &bad.net, &nobody.net, 100), VIP_INVALID_PARAMETER, "CONN-27");
        CHECK_RETURN(VipConnectWait(w->node.nic, &bad.net, 1, &remote.net, &attributes, &request),
                     VIP_INVALID_PARAMETER, "CONN-27");
    }
    CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "spec §3.11");
    MUST(VipDestroyVi(vi));
    meet(w->side);
    ok("side %d: requests and waits that come to nothing", w->side->number);
}

/* CONN-11 to 13, 20: a request rejected; held until it times out; accepted too late. */
static void answers(struct world *w)
{
    VIP_VI_HANDLE vi = make_vi(&w->node, RD, NULL, NULL);
    VIP_DESCRIPTOR *d = take_descriptor(&w->node, 1);
    unsigned char *buffer = take(&w->node, 100);
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE request;
    address remote;
    double start;

    if (w->side->number == 0) {
        MUST(wait_at(w, "reject", PATIENCE, &remote, &attributes, &request));
        CHECK_RETURN(VipConnectReject(request), VIP_SUCCESS, "CONN-11");
        CHECK_RETURN(VipConnectReject(request), VIP_INVALID_PARAMETER, "CONN-21");
        meet(w->side);
        MUST(wait_at(w, "held", PATIENCE, &remote, &attributes, &request));
        post_recv(&w->node, vi, d, buffer, 100);
        meet(w->side); /* it has timed out */
        start = now_ms();
        CHECK_RETURN(VipConnectAccept(request, vi), VIP_TIMEOUT, "CONN-13");
        CHECK(now_ms() - start < 10000, "CONN-13");
        CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "CONN-13");
        CHECK_RETURN(VipConnectAccept(request, vi), VIP_INVALID_PARAMETER, "CONN-13: the handle is gone");
        MUST(wait_at(w, "held2", PATIENCE, &remote, &attributes, &request));
        meet(w->side);
        CHECK_RETURN(VipConnectReject(request), VIP_SUCCESS, "spec §3.10: the requester has given up");
        meet(w->side);
        serve(&w->node, vi, here(w, "again"));
        EXPECT_RECV(vi, d, STATUS_RECEIVED, "CONN-23"); /* was posted all the time */
        CHECK(filled(buffer, 100, 6), "CONN-23");
        post_send(&w->node, vi, d, buffer, 100);
        EXPECT_SEND(vi, d, STATUS_SENT, "CONN-23");
    } else {
        VIP_DESCRIPTOR *out = take_descriptor(&w->node, 1);
        unsigned char *sent = take(&w->node, 100);

        post_recv(&w->node, vi, d, buffer, 100);
        CHECK_RETURN(ask_for(w, vi, "reject", PATIENCE), VIP_REJECT, "CONN-11");
        CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "CONN-11");
        meet(w->side);
        start = now_ms();
        CHECK_RETURN(ask_for(w, vi, "held", 400), VIP_TIMEOUT, "CONN-12");
        CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "CONN-12");
        CHECK(now_ms() - start >= 400, "CONN-12");
        meet(w->side);
        CHECK_RETURN(ask_for(w, vi, "held2", 400), VIP_TIMEOUT, "CONN-12");
        meet(w->side);
        meet(w->side);
        MUST(ask_for(w, vi, "again", PATIENCE));
        fill(sent, 100, 6);
        post_send(&w->node, vi, out, sent, 100);
        EXPECT_SEND(vi, out, STATUS_SENT, "CONN-23");
        EXPECT_RECV(vi, d, STATUS_RECEIVED, "CONN-23"); /* was posted before the first request */
        CHECK(filled(buffer, 100, 6), "CONN-23");
    }
    meet(w->side);
    end_vi(vi);
    ok("side %d: rejected, held, accepted too late", w->side->number);
}

/* CONN-16 to 18: conflicts of attributes, mended one by one while the client goes on waiting. */
static void conflicts(struct world *w)
{
    VIP_VI_ATTRIBUTES mine = vi_attributes(&w->node, RD), theirs;
    VIP_VI_HANDLE vi, busy[2];
    VIP_CONN_HANDLE request;
    address remote;

    mine.MaxTransferSize = 5000;
    if (w->side->number == 1) {
        MUST(VipCreateVi(w->node.nic, &mine, NULL, NULL, &vi));
        CHECK_RETURN(ask_for(w, vi, "conflict", PATIENCE), VIP_SUCCESS, "CONN-18");
    } else {
        VIP_VI_ATTRIBUTES wrong = mine;

        MUST(VipCreateVi(w->node.nic, &mine, NULL, NULL, &busy[0]));
        MUST(VipCreateVi(w->node.nic, &mine, NULL, NULL, &busy[1]));
        join_vis(&w->node, busy[0], &w->node, busy[1]); /* CONN-30, by the way */
        wrong.ReliabilityLevel = VIP_SERVICE_UNRELIABLE;
        wrong.EnableRdmaRead = VIP_FALSE;
        wrong.MaxTransferSize = 5001;
        MUST(VipCreateVi(w->node.nic, &wrong, NULL, NULL, &vi));
        MUST(wait_at(w, "conflict", PATIENCE, &remote, &theirs, &request));
        CHECK_EQ(theirs.MaxTransferSize, 5000, "CONN-02");
        CHECK_RETURN(VipConnectAccept(request, busy[0]), VIP_INVALID_STATE, "CONN-20");
        CHECK_RETURN(VipConnectAccept(request, vi), VIP_INVALID_RELIABILITY_LEVEL, "CONN-16");
        CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "CONN-16");
        wrong.ReliabilityLevel = RD;
        MUST(VipSetViAttributes(vi, &wrong));
        CHECK_RETURN(VipConnectAccept(request, vi), VIP_INVALID_MTU, "CONN-17");
        theirs.Ptag = w->node.ptag; /* what came has no tag */
        MUST(VipSetViAttributes(vi, &theirs));
        CHECK_RETURN(VipConnectAccept(request, vi), VIP_SUCCESS, "CONN-18");
        end_vi(busy[0]);
        end_vi(busy[1]);
        sleep_ms(20);
        forget_errors(&w->node);
    }
    exchange(w, vi, "CONN-18");
    end_vi(vi);
    meet(w->side);
    ok("side %d: conflicting attributes", w->side->number);
}

struct waiting {
    struct world *w;
    const unsigned char *discriminator;
    size_t length;
    int *got;
    unsigned long timeout;
    VIP_RETURN expected;
};

static void *wait_thread(void *argument)
{
    struct waiting *waiting = (struct waiting *)argument;
    struct world *w = waiting->w;
    address local, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE request;
    VIP_VI_HANDLE vi;
    VIP_RETURN code;

    set_address(&local, w->node.attributes.LocalNicAddress, w->node.attributes.NicAddressLen,
                waiting->discriminator, waiting->length);
    code = VipConnectWait(w->node.nic, &local.net, waiting->timeout, &remote.net, &attributes, &request);
    CHECK_RETURN(code, waiting->expected, "CONN-14");
    if (code == VIP_SUCCESS) {
        vi = make_vi(&w->node, RD, NULL, NULL);
        MUST(VipConnectAccept(request, vi));
        atomic_add(waiting->got, 1);
        AWAIT_STATE(vi, VIP_STATE_ERROR, "DISC-05");
        end_vi(vi);
    }
    return NULL;
}

/* CONN-14, 24 to 28: which request goes to which wait. */
static void matching(struct world *w)
{
    static unsigned char zero[64];
    unsigned char base[16] = {0};
    struct waiting waiting[4];
    pthread_t thread[4];
    address local = here(w, "client"), remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE vi;
    VIP_RETURN code;
    int got = 0, i;
    size_t host = w->other.net.HostAddressLen;

    memcpy(base, &w->side->run, sizeof w->side->run);
    memcpy(base + 4, "abc", 3);
    if (w->side->number == 0) {
        /* "ab" and "abc"; all zero, as long as can be; and "abcd" for which nobody asks */
        static const size_t length[4] = {6, 7, 64, 8};

        for (i = 0; i < 4; i++) {
            waiting[i].w = w;
            waiting[i].discriminator = i == 2 ? zero : base;
            waiting[i].length = length[i];
            waiting[i].got = &got;
            waiting[i].timeout = i == 3 ? 1000 : PATIENCE;
            waiting[i].expected = i == 3 ? VIP_TIMEOUT : VIP_SUCCESS;
            thread[i] = start_thread(wait_thread, &waiting[i]);
        }
        await(&got, 3, "CONN-26");
        for (i = 0; i < 4; i++)
            join_thread(thread[i]);
        meet(w->side);

        /* two waits at one point, two requests (CONN-24) */
        for (got = 0, i = 0; i < 2; i++)
            thread[i] = start_thread(wait_thread, &waiting[1]);
        await(&got, 2, "CONN-24");
        for (i = 0; i < 2; i++)
            join_thread(thread[i]);
    } else {
        vi = make_vi(&w->node, RD, NULL, NULL);
        for (i = 0; i < 3; i++) {
            set_address(&remote, w->other.bytes + 4, host, i == 2 ? zero : base, i == 2 ? 64 : 6 + (size_t)i);
            while ((code = VipConnectRequest(vi, &local.net, &remote.net, PATIENCE, &attributes)) == VIP_NO_MATCH)
                sleep_ms(1);
            CHECK_RETURN(code, VIP_SUCCESS, i == 2 ? "CONN-28" : "CONN-14");
            MUST(VipDisconnect(vi));
        }
        set_address(&remote, w->other.bytes + 4, host, base, 5);
        CHECK_RETURN(VipConnectRequest(vi, &local.net, &remote.net, 1000, &attributes),
                     VIP_NO_MATCH, "CONN-14");
        meet(w->side);
        set_address(&remote, w->other.bytes + 4, host, base, 7);
        for (i = 0; i < 2; i++) {
            while ((code = VipConnectRequest(vi, &local.net, &remote.net, PATIENCE, &attributes)) == VIP_NO_MATCH)
                sleep_ms(1);
            CHECK_RETURN(code, VIP_SUCCESS, "CONN-24");
            MUST(VipDisconnect(vi));
        }
        MUST(VipDestroyVi(vi));
    }
    meet(w->side);
    sleep_ms(20);
    forget_errors(&w->node);
    ok("side %d: which request goes to which wait", w->side->number);
}

struct rivals {
    struct world *w;
    int *won;
};

static void *rival(void *argument)
{
    struct rivals *rivals = (struct rivals *)argument;
    struct world *w = rivals->w;
    VIP_VI_HANDLE vi = make_vi(&w->node, RD, NULL, NULL);
    address local = here(w, "client"), remote = there(w, "one");
    VIP_VI_ATTRIBUTES attributes;
    VIP_RETURN code;

    do
        code = VipConnectRequest(vi, &local.net, &remote.net, PATIENCE, &attributes);
    while (code == VIP_NO_MATCH && atomic_get(rivals->won) == 0);
    if (code == VIP_SUCCESS)
        atomic_add(rivals->won, 1);
    else
        CHECK_RETURN(code, VIP_NO_MATCH, "CONN-25");
    end_vi(vi);
    return NULL;
}

/* CONN-25: two requests for one wait. */
static void two_for_one(struct world *w)
{
    struct rivals rivals;
    pthread_t thread[2];
    VIP_VI_HANDLE vi;
    int won = 0;

    if (w->side->number == 0) {
        vi = make_vi(&w->node, RD, NULL, NULL);
        serve(&w->node, vi, here(w, "one"));
        meet(w->side);
        end_vi(vi);
    } else {
        rivals.w = w;
        rivals.won = &won;
        thread[0] = start_thread(rival, &rivals);
        thread[1] = start_thread(rival, &rivals);
        join_thread(thread[0]);
        join_thread(thread[1]);
        CHECK_EQ(won, 1, "CONN-25");
        meet(w->side);
    }
    meet(w->side);
    sleep_ms(20);
    forget_errors(&w->node);
    ok("side %d: two requests for one wait", w->side->number);
}

struct asking {
    struct world *w;
    VIP_VI_HANDLE vi;
    VIP_RETURN code;
    int done;
};

static void *ask_thread(void *argument)
{
    struct asking *asking = (struct asking *)argument;

    asking->code = ask_for(asking->w, asking->vi, "abort", VIP_INFINITE);
    atomic_set(&asking->done, 1);
    return NULL;
}

/* CONN-31: VipDisconnect by another thread ends a request that the server holds. */
static void aborted(struct world *w)
{
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE request;
    address remote;

    if (w->side->number == 0) {
        VIP_VI_HANDLE vi = make_vi(&w->node, RD, NULL, NULL);

        MUST(wait_at(w, "abort", PATIENCE, &remote, &attributes, &request));
        meet(w->side);
        meet(w->side); /* aborted */
        CHECK_RETURN(VipConnectAccept(request, vi), VIP_TIMEOUT, "spec §3.9: the requester disconnected");
        CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "spec §3.9");
        MUST(VipDestroyVi(vi));
    } else {
        struct asking asking;
        pthread_t thread;

        memset(&asking, 0, sizeof asking);
        asking.w = w;
        asking.vi = make_vi(&w->node, RD, NULL, NULL);
        thread = start_thread(ask_thread, &asking);
        meet(w->side); /* the server has the request */
        CHECK_EQ(vi_state(asking.vi), VIP_STATE_CONNECT_PENDING, "VI-15");
        CHECK_EQ(atomic_get(&asking.done), 0, "CONN-31");
        MUST(VipDisconnect(asking.vi));
        join_thread(thread);
        CHECK_RETURN(asking.code, VIP_TIMEOUT, "CONN-31");
        CHECK_EQ(vi_state(asking.vi), VIP_STATE_IDLE, "CONN-31");
        MUST(VipDestroyVi(asking.vi));
        meet(w->side);
    }
    meet(w->side);
    ok("side %d: a request ended by a disconnect", w->side->number);
}

/* CONN-29: connected, disconnected and connected again. */
static void again_and_again(struct world *w)
{
    enum { N = 200 };
    VIP_VI_HANDLE vi = make_vi(&w->node, RD, NULL, NULL);
    double start = now_ms();
    int i;

    for (i = 0; i < N; i++) {
        join_sides(w->side, &w->node, vi, &w->other, "again");
        if (i % 20 == 0)
            exchange(w, vi, "CONN-29");
        if (w->side->number == i % 2) {
            MUST(VipDisconnect(vi));
            meet(w->side);
        } else {
            meet(w->side);
            AWAIT_STATE(vi, VIP_STATE_ERROR, "DISC-05");
            MUST(VipDisconnect(vi));
        }
        CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "DISC-08");
    }
    MUST(VipDestroyVi(vi));
    meet(w->side);
    sleep_ms(20);
    forget_errors(&w->node);
    ok("side %d: one VI connected %d times, %.2f ms each", w->side->number, N, (now_ms() - start) / N);
}

#define THREADS 8
#define EACH 32

struct crowd {
    struct world *w;
    int number;
    VIP_VI_HANDLE vi[EACH];
};

static void *crowd_thread(void *argument)
{
    struct crowd *c = (struct crowd *)argument;
    struct world *w = c->w;
    char name[24], mine[24];
    int k;

    for (k = 0; k < EACH; k++) {
        snprintf(name, sizeof name, "p%d.%d", c->number, k);
        snprintf(mine, sizeof mine, "c%d.%d", c->number, k);
        c->vi[k] = make_vi(&w->node, RD, NULL, NULL);
        if (w->side->number == 0) {
            VIP_VI_ATTRIBUTES attributes;
            VIP_CONN_HANDLE request;
            address remote;

            MUST(wait_at(w, name, PATIENCE, &remote, &attributes, &request));
            CHECK(memcmp(remote.bytes + 4 + remote.net.HostAddressLen + 4, mine, strlen(mine)) == 0, "CONN-33");
            MUST(VipConnectAccept(request, c->vi[k]));
        } else {
            ask(c->vi[k], here(w, mine), there(w, name));
        }
    }
    return NULL;
}

/* CONN-33: 256 connections by 8 threads, each paired with the right partner. */
static void a_crowd(struct world *w)
{
    static struct crowd crowds[2][THREADS];
    struct crowd *crowd = crowds[w->side->number];
    VIP_DESCRIPTOR *d = take_descriptor(&w->node, 1);
    int *number = (int *)(void *)take(&w->node, sizeof(int));
    pthread_t thread[THREADS];
    int i, k;

    for (i = 0; i < THREADS; i++) {
        crowd[i].w = w;
        crowd[i].number = i;
        thread[i] = start_thread(crowd_thread, &crowd[i]);
    }
    for (i = 0; i < THREADS; i++)
        join_thread(thread[i]);
    for (i = 0; i < THREADS; i++) {
        for (k = 0; k < EACH; k++) {
            VIP_VI_HANDLE vi = crowd[i].vi[k];

            if (w->side->number == 0) {
                *number = -1;
                post_recv(&w->node, vi, d, number, sizeof *number);
                meet(w->side);
                EXPECT_RECV(vi, d, STATUS_RECEIVED, "CONN-33");
                CHECK_EQ(*number, i * EACH + k, "CONN-33");
            } else {
                *number = i * EACH + k;
                meet(w->side);
                post_send(&w->node, vi, d, number, sizeof *number);
                EXPECT_SEND(vi, d, STATUS_SENT, "CONN-33");
            }
        }
    }
    meet(w->side);
    for (i = 0; i < THREADS; i++)
        for (k = 0; k < EACH; k++)
            end_vi(crowd[i].vi[k]);
    meet(w->side);
    ok("side %d: %d connections by %d threads", w->side->number, THREADS * EACH, THREADS);
}

static void conn(struct side *side)
{
    struct world w;

    memset(&w, 0, sizeof w);
    w.side = side;
    open_node(&w.node, side->device, 1 << 20);
    w.other = swap_addresses(side, &w.node);
    what_is_told(&w);
    refusals(&w);
    answers(&w);
    conflicts(&w);
    matching(&w);
    two_for_one(&w);
    aborted(&w);
    again_and_again(&w);
    a_crowd(&w);
    close_node(&w.node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, conn);
    return 0;
}
