/* Client/server connections, one at a time (spec §3.8 to §3.11, §9). */
#include "conn.h"

/* CONN-01 to 05, 15, 19, 32: what both sides learn, and what is written where. */
static void what_is_reported(struct world *w)
{
    VIP_VI_ATTRIBUTES mine = vi_attributes(&w->node, LEVEL(w)), theirs;
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

        memset(&room, 0xEE, sizeof room); /* its lengths are invalid, and are not read (CONN-05) */
        memset(local.bytes + 4, 0x99, local.net.HostAddressLen); /* neither are our own host bytes */
        CHECK_RETURN(VipConnectWait(w->node.nic, &local.net, PATIENCE, &room.remote.net, &theirs, &request),
                     VIP_SUCCESS, "CONN-01 CONN-05");
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
    CHECK_EQ(vi_state(vi), VIP_STATE_CONNECTED, "CONN-01 CONN-19"); /* tags and RDMA flags differ */
    CHECK_EQ(theirs.ReliabilityLevel, LEVEL(w), "CONN-02");
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

/* CONN-06 to 10: no server, invalid arguments, the wrong state. */
static void refusals(struct world *w)
{
    VIP_VI_HANDLE vi = make_vi(&w->node, LEVEL(w), NULL, NULL);
    address local = here(w, "client"), no_server = there(w, "nobody"), remote, bad;
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
    CHECK_RETURN(VipConnectRequest(vi, &local.net, &no_server.net, 60000, &attributes), VIP_NO_MATCH, "CONN-07");
    CHECK(now_ms() - start < GRACE + (double)PATIENCE, "CONN-07"); /* long before the 60 s are over */
    start = now_ms();
    CHECK_RETURN(VipConnectRequest(vi, &local.net, &no_server.net, 0, &attributes), VIP_INVALID_PARAMETER, "CONN-09");
    CHECK(now_ms() - start < (double)PATIENCE, "CONN-09");
    CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "spec §3.11");

    /* a node that does not exist */
    bad = no_server;
    memset(bad.bytes + 4, 0x5B, host);
    start = now_ms();
    code = VipConnectRequest(vi, &local.net, &bad.net, 300, &attributes);
    CHECK(code == VIP_TIMEOUT || code == VIP_NOT_REACHABLE, "CONN-08");
    CHECK(now_ms() - start < 300 + (double)PATIENCE, "CONN-08");
    CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "CONN-08");

    /* lengths */
    set_address(&bad, w->other.bytes + 4, host - 1, "x", 1);
    CHECK_RETURN(VipConnectRequest(vi, &local.net, &bad.net, 100, &attributes), VIP_INVALID_PARAMETER, "spec §3.11");
    CHECK_RETURN(VipConnectPeerRequest(vi, &local.net, &bad.net, 100), VIP_INVALID_PARAMETER, "spec §3.13");
    if (w->node.attributes.MaxDiscriminatorLen < sizeof discriminator) {
        set_address(&bad, w->other.bytes + 4, host, discriminator, w->node.attributes.MaxDiscriminatorLen + 1u);
        CHECK_RETURN(VipConnectRequest(vi, &local.net, &bad.net, 100, &attributes), VIP_INVALID_PARAMETER, "CONN-27");
        CHECK_RETURN(VipConnectRequest(vi, &bad.net, &no_server.net, 100, &attributes), VIP_INVALID_PARAMETER, "CONN-27");
        CHECK_RETURN(VipConnectPeerRequest(vi, &local.net, &bad.net, 100), VIP_INVALID_PARAMETER, "CONN-27");
        CHECK_RETURN(VipConnectPeerRequest(vi, &bad.net, &no_server.net, 100), VIP_INVALID_PARAMETER, "CONN-27");
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
    VIP_VI_HANDLE vi = make_vi(&w->node, LEVEL(w), NULL, NULL);
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
        CHECK(now_ms() - start < (double)PATIENCE, "CONN-13");
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
    VIP_VI_ATTRIBUTES mine = vi_attributes(&w->node, LEVEL(w)), theirs;
    VIP_VI_HANDLE vi, busy[2];
    VIP_CONN_HANDLE request;
    address remote;

    mine.MaxTransferSize = 5000;
    if (w->side->number == 1) {
        MUST(VipCreateVi(w->node.nic, &mine, NULL, NULL, &vi));
        CHECK_RETURN(ask_for(w, vi, "conflict", PATIENCE), VIP_SUCCESS, "CONN-18");
    } else {
        const int level = other_level(&w->node, LEVEL(w));
        VIP_VI_ATTRIBUTES wrong = mine;
        VIP_VI_HANDLE foreign;
        struct node second;

        MUST(VipCreateVi(w->node.nic, &mine, NULL, NULL, &busy[0]));
        MUST(VipCreateVi(w->node.nic, &mine, NULL, NULL, &busy[1]));
        join_vis(&w->node, busy[0], &w->node, busy[1]);
        if (level != 0)
            wrong.ReliabilityLevel = (VIP_RELIABILITY_LEVEL)level;
        wrong.EnableRdmaRead = VIP_FALSE;
        wrong.MaxTransferSize = 5001;
        MUST(VipCreateVi(w->node.nic, &wrong, NULL, NULL, &vi));
        MUST(wait_at(w, "conflict", PATIENCE, &remote, &theirs, &request));
        CHECK_EQ(theirs.MaxTransferSize, 5000, "CONN-02");
        open_node(&second, w->side->device, 4096); /* a VI of another NIC handle is none of this request's */
        foreign = make_vi(&second, LEVEL(w), NULL, NULL);
        CHECK_RETURN(VipConnectAccept(request, foreign), VIP_INVALID_PARAMETER, "NIC-14");
        MUST(VipDestroyVi(foreign));
        close_node(&second);
        CHECK_RETURN(VipConnectAccept(request, busy[0]), VIP_INVALID_STATE, "CONN-20");
        if (level != 0) {
            CHECK_RETURN(VipConnectAccept(request, vi), VIP_INVALID_RELIABILITY_LEVEL, "CONN-16");
            CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "CONN-16");
        }
        wrong.ReliabilityLevel = (VIP_RELIABILITY_LEVEL)LEVEL(w);
        MUST(VipSetViAttributes(vi, &wrong));
        CHECK_RETURN(VipConnectAccept(request, vi), VIP_INVALID_MTU, "CONN-17");
        CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "CONN-17");
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

/* CONN-15: the client's own discriminator plays no part, be it the server's, another one or none.
 * CONN-30: the peer may be a VI of the same process and NIC handle. */
static void own_discriminators(struct world *w)
{
    VIP_VI_HANDLE vi = make_vi(&w->node, LEVEL(w), NULL, NULL), one, two;
    VIP_DESCRIPTOR *in = take_descriptor(&w->node, 1), *out = take_descriptor(&w->node, 1);
    unsigned char *received = take(&w->node, 100), *sent = take(&w->node, 100);
    address local[3], remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_RETURN code;
    int i;

    local[0] = here(w, "mine");
    local[1] = here(w, "other");
    set_address(&local[2], w->node.attributes.LocalNicAddress, w->node.attributes.NicAddressLen, "", 0);
    for (i = 0; i < 3; i++) {
        if (w->side->number == 0) {
            VIP_CONN_HANDLE request;

            MUST(wait_at(w, "mine", PATIENCE, &remote, &attributes, &request));
            CHECK_EQ(remote.net.DiscriminatorLen, i == 2 ? 0 : 16, "CONN-03");
            CHECK_RETURN(VipConnectAccept(request, vi), VIP_SUCCESS, "CONN-15");
        } else {
            address asked = there(w, "mine"), elsewhere = there(w, "elsewhere");

            /* the server's name as one's own name does not lead to the server */
            CHECK_RETURN(VipConnectRequest(vi, &local[i].net, &elsewhere.net, 150 * time_factor(), &attributes), VIP_NO_MATCH,
                         "CONN-15");
            while ((code = VipConnectRequest(vi, &local[i].net, &asked.net, PATIENCE, &attributes)) == VIP_NO_MATCH)
                sleep_ms(1);
            CHECK_RETURN(code, VIP_SUCCESS, "CONN-15");
        }
        CHECK_EQ(vi_state(vi), VIP_STATE_CONNECTED, "CONN-15");
        meet(w->side);
        MUST(VipDisconnect(vi));
        meet(w->side);
    }
    MUST(VipDestroyVi(vi));

    one = make_vi(&w->node, LEVEL(w), NULL, NULL);
    two = make_vi(&w->node, LEVEL(w), NULL, NULL);
    join_vis(&w->node, one, &w->node, two);
    CHECK(vi_state(one) == VIP_STATE_CONNECTED && vi_state(two) == VIP_STATE_CONNECTED, "CONN-30");
    fill(sent, 100, 12);
    post_recv(&w->node, one, in, received, 100);
    post_send(&w->node, two, out, sent, 100);
    EXPECT_SEND(two, out, STATUS_SENT, "CONN-30");
    EXPECT_RECV(one, in, STATUS_RECEIVED, "CONN-30");
    CHECK(filled(received, 100, 12), "CONN-30");
    MUST(VipDisconnect(one));
    end_vi(two);
    MUST(VipDestroyVi(one));
    meet(w->side);
    sleep_ms(20);
    forget_errors(&w->node);
    ok("side %d: one's own discriminator, and peers in one process", w->side->number);
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
        VIP_VI_HANDLE vi = make_vi(&w->node, LEVEL(w), NULL, NULL);

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
        asking.vi = make_vi(&w->node, LEVEL(w), NULL, NULL);
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

static void conn(struct side *side)
{
    struct world w;

    open_world(&w, side);
    what_is_reported(&w);
    refusals(&w);
    answers(&w);
    conflicts(&w);
    own_discriminators(&w);
    aborted(&w);
    close_node(&w.node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, conn);
    return 0;
}
