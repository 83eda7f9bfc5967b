/* Peer-to-peer connections (spec §3.13 to §3.15, §9.3). */
#include "common.h"

#define LEVEL(w) tested_level((w)->side)
#define CROWD 64

struct world {
    struct side *side;
    struct node node;
    address other;
};

/* This side's point `name`, and the mirrored one of the other side. */
static address mine(struct world *w, const char *name)
{
    char full[24];

    snprintf(full, sizeof full, "%d%s", w->side->number, name);
    return local_point(&w->node, w->side->run, full);
}

static address theirs(struct world *w, const char *name)
{
    char full[24];

    snprintf(full, sizeof full, "%d%s", 1 - w->side->number, name);
    return remote_point(&w->other, w->side->run, full);
}

static VIP_RETURN request(struct world *w, VIP_VI_HANDLE vi, const char *name, unsigned long timeout)
{
    address local = mine(w, name), remote = theirs(w, name);
    VIP_RETURN code = VipConnectPeerRequest(vi, &local.net, &remote.net, timeout);

    memset(&local, 0x77, sizeof local); /* were copied (PEER-12) */
    memset(&remote, 0x77, sizeof remote);
    return code;
}

static void exchange(struct world *w, VIP_VI_HANDLE vi, unsigned long seed, const char *id)
{
    size_t mark = w->node.used;
    VIP_DESCRIPTOR *in = take_descriptor(&w->node, 1), *out = take_descriptor(&w->node, 1);
    unsigned char *received = take(&w->node, 100), *sent = take(&w->node, 100);

    post_recv(&w->node, vi, in, received, 100);
    meet(w->side);
    fill(sent, 100, seed + (unsigned long)w->side->number);
    post_send(&w->node, vi, out, sent, 100);
    EXPECT_SEND(vi, out, STATUS_SENT, id);
    EXPECT_RECV(vi, in, STATUS_RECEIVED, id);
    CHECK(filled(received, 100, seed + 1 - (unsigned long)w->side->number), id);
    meet(w->side);
    w->node.used = mark;
}

/* PEER-01, 02, 06, 07, 12. */
static void meet_as_peers(struct world *w)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&w->node, LEVEL(w)), remote;
    VIP_VI_HANDLE vi;
    VIP_RETURN code;
    double start;

    attributes.EnableRdmaWrite = w->side->number;
    attributes.EnableRdmaRead = VIP_FALSE;
    MUST(VipCreateVi(w->node.nic, &attributes, NULL, NULL, &vi));
    CHECK_RETURN(VipConnectPeerDone(vi, &remote), VIP_INVALID_STATE, "PEER-06");
    CHECK_RETURN(VipConnectPeerWait(vi, &remote), VIP_INVALID_STATE, "PEER-06");
    CHECK_RETURN(request(w, vi, "peers", 0), VIP_INVALID_PARAMETER, "PEER-08");
    if (w->side->number == 0) {
        start = now_ms();
        CHECK_RETURN(request(w, vi, "peers", VIP_INFINITE), VIP_SUCCESS, "PEER-02");
        CHECK(now_ms() - start < (double)PATIENCE, "PEER-02");
        CHECK_RETURN(VipConnectPeerDone(vi, &remote), VIP_NOT_DONE, "PEER-02");
        CHECK_EQ(vi_state(vi), VIP_STATE_CONNECT_PENDING, "PEER-02");
        CHECK_RETURN(request(w, vi, "peers", PATIENCE), VIP_INVALID_STATE, "spec §3.13");
        meet(w->side);
        start = now_ms();
        while ((code = VipConnectPeerDone(vi, &remote)) == VIP_NOT_DONE) {
            CHECK(now_ms() - start < (double)PATIENCE, "PEER-01");
            sleep_ms(1);
        }
        CHECK_RETURN(code, VIP_SUCCESS, "PEER-01");
    } else {
        meet(w->side);
        MUST(request(w, vi, "peers", PATIENCE));
        CHECK_RETURN(VipConnectPeerWait(vi, &remote), VIP_SUCCESS, "PEER-01");
    }
    CHECK_EQ(remote.ReliabilityLevel, LEVEL(w), "PEER-01");
    CHECK_EQ(remote.EnableRdmaWrite != 0, 1 - w->side->number, "PEER-01");
    CHECK_EQ(vi_state(vi), VIP_STATE_CONNECTED, "PEER-01");
    CHECK_RETURN(VipConnectPeerDone(vi, &remote), VIP_INVALID_STATE, "PEER-07");
    exchange(w, vi, 3, "PEER-01 PEER-12"); /* request() has overwritten the addresses */
    end_vi(vi);
    meet(w->side);

    /* the result need not be fetched (spec §3.14) */
    vi = make_vi(&w->node, LEVEL(w), NULL, NULL);
    MUST(request(w, vi, "unfetched", PATIENCE));
    AWAIT_STATE(vi, VIP_STATE_CONNECTED, "spec §3.14");
    exchange(w, vi, 4, "spec §3.14");
    end_vi(vi);
    meet(w->side);
    ok("side %d: peers meet", w->side->number);
}

/* PEER-03, 04, 09, 11: no peer comes. */
static void no_peer(struct world *w)
{
    VIP_VI_HANDLE vi = make_vi(&w->node, LEVEL(w), NULL, NULL), client = make_vi(&w->node, LEVEL(w), NULL, NULL);
    VIP_DESCRIPTOR *d = take_descriptor(&w->node, 1), *found;
    address local = mine(w, "nobody"), remote = theirs(w, "nobody"), from;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE handle;
    VIP_RETURN code;
    double start;

    post_recv(&w->node, vi, d, NULL, 0);
    start = now_ms();
    MUST(request(w, vi, w->side->number ? "nobodyA" : "nobodyB", 150));
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_TIMEOUT, "PEER-03");
    CHECK_TOOK(start, 150, "PEER-03");
    CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "PEER-03");

    start = now_ms();
    MUST(request(w, vi, w->side->number ? "nobodyA" : "nobodyB", 150));
    while ((code = VipConnectPeerDone(vi, &attributes)) == VIP_NOT_DONE)
        sleep_ms(1);
    CHECK_RETURN(code, VIP_TIMEOUT, "PEER-04");
    CHECK_TOOK(start, 150, "PEER-04");
    CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "PEER-04");
    CHECK_RETURN(VipConnectPeerDone(vi, &attributes), VIP_INVALID_STATE, "PEER-07");
    CHECK_RETURN(VipRecvDone(vi, &found), VIP_NOT_DONE, "spec §4.2: the receive queue is untouched");

    /* cancelled */
    MUST(request(w, vi, w->side->number ? "nobodyA" : "nobodyB", PATIENCE));
    MUST(VipDisconnect(vi));
    CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "PEER-11");
    code = VipConnectPeerDone(vi, &attributes);
    CHECK(code == VIP_TIMEOUT || code == VIP_INVALID_STATE, "PEER-11");
    EXPECT_RECV(vi, d, STATUS_FLUSHED_RECEIVE, "PEER-11");

    /* the two models do not meet (PEER-09) */
    MUST(VipConnectPeerRequest(vi, &local.net, &remote.net, PATIENCE));
    meet(w->side);
    CHECK_RETURN(VipConnectWait(w->node.nic, &local.net, 50, &from.net, &attributes, &handle), VIP_TIMEOUT, "PEER-09");
    meet(w->side); /* no call waits any more */
    CHECK_RETURN(VipConnectRequest(client, &local.net, &remote.net, 300 * time_factor(), &attributes), VIP_NO_MATCH, "PEER-09");
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_SUCCESS, "PEER-09: but the two peers do");
    meet(w->side);
    end_vi(vi);
    MUST(VipDestroyVi(client));
    meet(w->side);
    sleep_ms(20);
    forget_errors(&w->node);
    ok("side %d: peers without a peer", w->side->number);
}

/* PEER-05. */
static void conflicts(struct world *w)
{
    int what;

    for (what = 0; what < 3; what++) {
        const int clash = other_level(&w->node, LEVEL(w));
        VIP_VI_ATTRIBUTES attributes = vi_attributes(&w->node, LEVEL(w)), remote;
        VIP_VI_HANDLE vi;
        char name[24];

        if (what != 1 && clash == 0)
            continue; /* a device of one level */
        attributes.EnableRdmaRead = VIP_FALSE;
        if (w->side->number == 1 && what != 1) /* 0: level; 1: size; 2: both */
            attributes.ReliabilityLevel = (VIP_RELIABILITY_LEVEL)clash;
        if (w->side->number == 1 && what != 0)
            attributes.MaxTransferSize -= 1;
        MUST(VipCreateVi(w->node.nic, &attributes, NULL, NULL, &vi));
        snprintf(name, sizeof name, "clash%d", what);
        MUST(request(w, vi, name, PATIENCE));
        CHECK_RETURN(VipConnectPeerWait(vi, &remote),
                     what == 1 ? VIP_INVALID_MTU : VIP_INVALID_RELIABILITY_LEVEL, "spec §9.3");
        CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "spec §9.3");
        if (what == 2)
            shows("PEER-05"); /* both conflicts, and both at once, on a device that can have them */
        MUST(VipDestroyVi(vi));
        meet(w->side);
    }
    ok("side %d: peers that do not fit", w->side->number);
}

static void *disconnect_later(void *argument)
{
    sleep_ms(100);
    MUST(VipDisconnect(argument));
    return NULL;
}

/* VipDisconnect by another thread ends VipConnectPeerWait (spec §3.15). */
static void wait_ended(struct world *w)
{
    VIP_VI_HANDLE vi = make_vi(&w->node, LEVEL(w), NULL, NULL);
    VIP_VI_ATTRIBUTES attributes;
    pthread_t thread;
    double start = now_ms();

    MUST(request(w, vi, w->side->number ? "endA" : "endB", VIP_INFINITE));
    thread = start_thread(disconnect_later, vi);
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_TIMEOUT, "spec §3.15");
    CHECK_TOOK(start, 100, "spec §3.15");
    join_thread(thread);
    CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "PEER-11");
    MUST(VipDestroyVi(vi));
    ok("side %d: a wait ended by a disconnect", w->side->number);
}

/* A VI never connects to itself; two VIs with the same request on one NIC do (spec §9.3). */
static void own_point(struct world *w)
{
    char name[24];
    VIP_VI_HANDLE one = make_vi(&w->node, LEVEL(w), NULL, NULL), two = make_vi(&w->node, LEVEL(w), NULL, NULL);
    VIP_VI_ATTRIBUTES attributes;
    address self;

    snprintf(name, sizeof name, "self%d", w->side->number);
    self = local_point(&w->node, w->side->run, name);
    MUST(VipConnectPeerRequest(one, &self.net, &self.net, PATIENCE));
    sleep_ms(50);
    CHECK_RETURN(VipConnectPeerDone(one, &attributes), VIP_NOT_DONE, "spec §9.3");
    MUST(VipConnectPeerRequest(two, &self.net, &self.net, PATIENCE));
    CHECK_RETURN(VipConnectPeerWait(two, &attributes), VIP_SUCCESS, "spec §9.3");
    CHECK_RETURN(VipConnectPeerWait(one, &attributes), VIP_SUCCESS, "spec §9.3");
    MUST(VipDisconnect(one));
    end_vi(two);
    end_vi(one);
    sleep_ms(20);
    forget_errors(&w->node);
    ok("side %d: one's own connection point", w->side->number);
}

/* PEER-10: all requests first, then all waits, in opposite order on the two sides. */
static void many(struct world *w)
{
    VIP_VI_HANDLE vi[CROWD];
    VIP_VI_ATTRIBUTES attributes;
    char name[24];
    int i, k;

    for (i = 0; i < CROWD; i++)
        vi[i] = make_vi(&w->node, LEVEL(w), NULL, NULL);
    for (i = 0; i < CROWD; i++) {
        k = w->side->number ? CROWD - 1 - i : i;
        snprintf(name, sizeof name, "many%d", k);
        MUST(request(w, vi[k], name, PATIENCE));
    }
    for (i = 0; i < CROWD; i++) {
        k = w->side->number ? CROWD - 1 - i : i;
        CHECK_RETURN(VipConnectPeerWait(vi[k], &attributes), VIP_SUCCESS, "PEER-10");
    }
    for (i = 0; i < CROWD; i++)
        exchange(w, vi[i], (unsigned long)(2 * i), "PEER-10");
    for (i = 0; i < CROWD; i++)
        end_vi(vi[i]);
    meet(w->side);
    ok("side %d: %d peers at once", w->side->number, CROWD);
}

static void peer(struct side *side)
{
    struct world w;

    memset(&w, 0, sizeof w);
    w.side = side;
    open_node(&w.node, side->device, 1 << 20);
    w.other = swap_addresses(side, &w.node);
    meet_as_peers(&w);
    no_peer(&w);
    conflicts(&w);
    wait_ended(&w);
    own_point(&w);
    many(&w);
    close_node(&w.node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, peer);
    return 0;
}
