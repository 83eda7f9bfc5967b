/* A tour of everything: both connection models between two processes, and every kind of transfer over
 * them, each byte checked. If this runs, a VIPL program runs.
 *
 * It uses nothing but the documented interface, so it works linked with libvipl, under LD_PRELOAD over
 * another libvipl, and with any device name that VIPL_DEVICE_MAP sends to some plug-in. */
#include "common.h"

#define SIZES 12
#define MESSAGES 24 /* over the completion queue */

struct tour {
    struct side *side;
    struct node node;
    address other; /* the other side's host address */
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *out, *in;
    unsigned char *sent, *received;
    size_t largest;
};

/* Side 1 sends, side 0 checks and sends something else back. */
static void sizes(struct tour *t)
{
    const size_t size[SIZES] = {
        0, 1, 63, 64, 1499, 1500, 1501, 4095, 4096, 4097, 32768, t->largest,
    };
    int i;

    for (i = 0; i < SIZES; i++) {
        unsigned long seed = 100 + 2 * (unsigned long)i;

        memset(t->received, 0xEE, t->largest);
        post_recv(&t->node, t->vi, t->in, t->received, t->largest);
        meet(t->side);
        if (t->side->number == 1) {
            fill(t->sent, size[i], seed);
            post_send(&t->node, t->vi, t->out, t->sent, size[i]);
            EXPECT_SEND(t->vi, t->out, STATUS_SENT, "XFER-02");
            CHECK_EQ(control(t->out)->Length, size[i], "XFER-10");
            EXPECT_RECV(t->vi, t->in, STATUS_RECEIVED, "XFER-02");
            CHECK(filled(t->received, size[i], seed + 1), "XFER-01");
        } else {
            EXPECT_RECV(t->vi, t->in, STATUS_RECEIVED, "XFER-02");
            CHECK(filled(t->received, size[i], seed), "XFER-01");
            fill(t->sent, size[i], seed + 1);
            post_send(&t->node, t->vi, t->out, t->sent, size[i]);
            EXPECT_SEND(t->vi, t->out, STATUS_SENT, "XFER-02");
        }
        CHECK_EQ(control(t->in)->Length, size[i], "XFER-01");
        CHECK(all_bytes(t->received + size[i], t->largest - size[i], 0xEE), "XFER-06");
        meet(t->side);
    }
    ok("side %d: messages of %d sizes up to %lu bytes", t->side->number, SIZES,
       (unsigned long)t->largest);
}

/* Five pieces out, three pieces in. */
static void gather_and_scatter(struct tour *t)
{
    static const size_t out[5] = {1, 700, 0, 64, 3333}, in[3] = {97, 2000, 2001};
    size_t at = 0;
    int i;

    if (t->side->number == 1) {
        fill(t->sent, 4098, 7);
        start_descriptor(t->out, VIP_CONTROL_OP_SENDRECV);
        for (i = 0; i < 5; i++) {
            add_data(t->out, t->sent + at, t->node.handle, out[i]);
            at += out[i];
        }
        meet(t->side);
        MUST(VipPostSend(t->vi, t->out, t->node.handle));
        EXPECT_SEND(t->vi, t->out, STATUS_SENT, "XFER-03");
    } else {
        memset(t->received, 0xEE, 5000);
        start_descriptor(t->in, VIP_CONTROL_OP_SENDRECV);
        for (i = 0; i < 3; i++) {
            add_data(t->in, t->received + at + 10 * (size_t)i, t->node.handle, in[i]);
            at += in[i];
        }
        MUST(VipPostRecv(t->vi, t->in, t->node.handle));
        meet(t->side);
        EXPECT_RECV(t->vi, t->in, STATUS_RECEIVED, "XFER-03");
        CHECK_EQ(control(t->in)->Length, 4098, "XFER-03");
        memmove(t->received + 97, t->received + 107, 2000);
        memmove(t->received + 2097, t->received + 2117, 2001);
        CHECK(filled(t->received, 4098, 7), "XFER-03");
    }
    meet(t->side);
    ok("side %d: gather and scatter", t->side->number);
}

static void immediate_data(struct tour *t)
{
    if (t->side->number == 1) {
        meet(t->side);
        start_descriptor(t->out, VIP_CONTROL_OP_SENDRECV);
        set_immediate(t->out, 0xFEEDF00D);
        MUST(VipPostSend(t->vi, t->out, t->node.handle));
        EXPECT_SEND(t->vi, t->out, STATUS_SENT, "XFER-07");
    } else {
        post_recv(&t->node, t->vi, t->in, t->received, 64);
        meet(t->side);
        EXPECT_RECV(t->vi, t->in, STATUS_RECEIVED | VIP_STATUS_IMMEDIATE, "XFER-07");
        CHECK_EQ(control(t->in)->ImmediateData, 0xFEEDF00D, "XFER-07");
        CHECK_EQ(control(t->in)->Length, 0, "XFER-07");
    }
    meet(t->side);
    ok("side %d: immediate data", t->side->number);
}

/* Side 1 works in side 0's memory, whose address and handle side 0 told it. */
static void rdma(struct tour *t)
{
    struct {
        uint64_t address;
        VIP_MEM_HANDLE handle;
        uint32_t reserved; /* as many bytes on either side, whatever their word sizes */
    } target;
    size_t n = t->largest;

    if (t->side->number == 0) {
        memset(t->received, 0xEE, n);
        memset(&target, 0, sizeof target);
        target.address = (uint64_t)(uintptr_t)t->received;
        target.handle = t->node.handle;
        side_send(t->side, &target, sizeof target);

        meet(t->side); /* written */
        CHECK(filled(t->received, n - 5, 11), "RDMA-01");
        CHECK(all_bytes(t->received + n - 5, 5, 0xEE), "RDMA-01");

        post_recv(&t->node, t->vi, t->in, t->sent, 64);
        meet(t->side);
        EXPECT_RECV(t->vi, t->in,
                    VIP_STATUS_DONE | VIP_STATUS_OP_REMOTE_RDMA_WRITE | VIP_STATUS_IMMEDIATE,
                    "RDMA-03");
        CHECK_EQ(control(t->in)->ImmediateData, 4711, "RDMA-03");
        CHECK_EQ(control(t->in)->Length, 1000, "RDMA-03");
        CHECK(filled(t->received, 1000, 12), "RDMA-05");

        fill(t->received, n, 13);
        meet(t->side);
    } else {
        side_receive(t->side, &target, sizeof target);

        fill(t->sent, n, 11);
        start_descriptor(t->out, VIP_CONTROL_OP_RDMAWRITE);
        add_remote(t->out, target.address, target.handle);
        add_data(t->out, t->sent, t->node.handle, n - 5);
        MUST(VipPostSend(t->vi, t->out, t->node.handle));
        EXPECT_SEND(t->vi, t->out, STATUS_WRITTEN, "RDMA-01");
        meet(t->side);

        meet(t->side);
        fill(t->sent, 1000, 12);
        start_descriptor(t->out, VIP_CONTROL_OP_RDMAWRITE);
        add_remote(t->out, target.address, target.handle);
        add_data(t->out, t->sent, t->node.handle, 1000);
        set_immediate(t->out, 4711);
        MUST(VipPostSend(t->vi, t->out, t->node.handle));
        EXPECT_SEND(t->vi, t->out, STATUS_WRITTEN, "RDMA-03");

        meet(t->side);
        if (rdma_read_supported(&t->node, VIP_SERVICE_RELIABLE_RECEPTION)) {
            memset(t->received, 0, n);
            start_descriptor(t->out, VIP_CONTROL_OP_RDMAREAD);
            add_remote(t->out, target.address, target.handle);
            add_data(t->out, t->received, t->node.handle, 33);
            add_data(t->out, t->received + 33, t->node.handle, n - 33);
            MUST(VipPostSend(t->vi, t->out, t->node.handle));
            EXPECT_SEND(t->vi, t->out, STATUS_READ, "RDMA-18");
            CHECK(filled(t->received, n, 13), "RDMA-18");
        } else {
            ok("side 1: no RDMA Read on this device");
        }
    }
    meet(t->side);
    ok("side %d: RDMA", t->side->number);
}

/* The disconnect that side 1 makes is an event for side 0. */
static void part(struct tour *t)
{
    if (t->side->number == 0) {
        VIP_ERROR_DESCRIPTOR error;

        post_recv(&t->node, t->vi, t->in, t->received, 64);
        meet(t->side);
        error = NEXT_ERROR(&t->node, VIP_ERROR_CONN_LOST, t->vi, "DISC-06");
        CHECK_EQ(error.ResourceCode, VIP_RESOURCE_VI, "DISC-06");
        CHECK_EQ(vi_state(t->vi), VIP_STATE_ERROR, "DISC-05");
        EXPECT_RECV(t->vi, t->in, STATUS_FLUSHED_RECEIVE, "DISC-05");
        meet(t->side);
    } else {
        meet(t->side);
        MUST(VipDisconnect(t->vi));
        CHECK_EQ(vi_state(t->vi), VIP_STATE_IDLE, "DISC-01");
        meet(t->side);
        NO_ERROR(&t->node, 0, "DISC-07");
    }
    ok("side %d: disconnect and the error callback", t->side->number);
}

/* Peer to peer, both queues of both VIs on one completion queue each. */
static void peers_and_completion_queues(struct tour *t)
{
    VIP_DESCRIPTOR *out[MESSAGES], *in[MESSAGES], *done;
    unsigned char *sent[MESSAGES], *received[MESSAGES];
    address local = local_point(&t->node, t->side->run, t->side->number ? "peer1" : "peer0");
    address remote = remote_point(&t->other, t->side->run, t->side->number ? "peer0" : "peer1");
    VIP_VI_ATTRIBUTES attributes;
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi, found;
    VIP_BOOLEAN recv_queue;
    VIP_RETURN code;
    int i, sends = 0, receives = 0;

    MUST(VipCreateCQ(t->node.nic, 2 * MESSAGES, &cq));
    vi = make_vi(&t->node, VIP_SERVICE_RELIABLE_DELIVERY, cq, cq);
    for (i = 0; i < MESSAGES; i++) {
        out[i] = take_descriptor(&t->node, 1);
        in[i] = take_descriptor(&t->node, 1);
        sent[i] = take(&t->node, 256);
        received[i] = take(&t->node, 256);
        post_recv(&t->node, vi, in[i], received[i], 256);
    }
    MUST(VipConnectPeerRequest(vi, &local.net, &remote.net, PATIENCE));
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_SUCCESS, "PEER-01");
    CHECK_EQ(attributes.ReliabilityLevel, VIP_SERVICE_RELIABLE_DELIVERY, "PEER-01");
    ok("side %d: peer-to-peer connection", t->side->number);

    for (i = 0; i < MESSAGES; i++) {
        fill(sent[i], 256, (unsigned long)i);
        post_send(&t->node, vi, out[i], sent[i], 256);
    }
    while (sends < MESSAGES || receives < MESSAGES) {
        double start = now_ms();

        if (receives % 2 == 0) { /* now and then polled, now and then waited for */
            while ((code = VipCQDone(cq, &found, &recv_queue)) == VIP_NOT_DONE)
                CHECK(now_ms() - start < (double)PATIENCE, "CQ-03");
        } else {
            code = VipCQWait(cq, PATIENCE, &found, &recv_queue);
        }
        CHECK_RETURN(code, VIP_SUCCESS, "CQ-03");
        CHECK(found == vi, "CQ-03");
        if (recv_queue) {
            CHECK_RETURN(VipRecvDone(vi, &done), VIP_SUCCESS, "CQ-04");
            CHECK(done == in[receives], "XFER-13");
            CHECK(filled(received[receives], 256, (unsigned long)receives), "XFER-11");
            receives++;
        } else {
            CHECK_RETURN(VipSendDone(vi, &done), VIP_SUCCESS, "CQ-04");
            CHECK(done == out[sends], "XFER-14");
            sends++;
        }
    }
    ok("side %d: completion queue", t->side->number);
    NO_ERROR(&t->node, 0, "no asynchronous error so far");
    meet(t->side);
    end_vi(vi);
    MUST(VipDestroyCQ(cq));
    meet(t->side);
    sleep_ms(20);
    forget_errors(&t->node); /* whose disconnect was second may have seen a loss */
}

struct notice {
    int calls;
    VIP_NIC_HANDLE nic;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *descriptor;
    pthread_t thread;
};

static void notified(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor)
{
    struct notice *notice = (struct notice *)context;

    notice->nic = nic;
    notice->vi = vi;
    notice->descriptor = descriptor;
    notice->thread = pthread_self();
    atomic_add(&notice->calls, 1);
}

static void notification(struct tour *t)
{
    struct notice notice;

    if (t->side->number == 0) {
        memset(&notice, 0, sizeof notice);
        post_recv(&t->node, t->vi, t->in, t->received, 64);
        MUST(VipRecvNotify(t->vi, &notice, notified));
        meet(t->side);
        await(&notice.calls, 1, "NTFY-01");
        CHECK(notice.nic == t->node.nic && notice.vi == t->vi, "NTFY-01");
        CHECK(notice.descriptor == t->in, "NTFY-01");
        CHECK(!pthread_equal(notice.thread, pthread_self()), "NTFY-06");
        CHECK(filled(t->received, 20, 3), "NTFY-01");
    } else {
        meet(t->side);
        fill(t->sent, 20, 3);
        post_send(&t->node, t->vi, t->out, t->sent, 20);
        EXPECT_SEND(t->vi, t->out, STATUS_SENT, "NTFY-01");
    }
    meet(t->side);
    ok("side %d: notify", t->side->number);
}

static void tour(struct side *side)
{
    struct tour t;

    memset(&t, 0, sizeof t);
    t.side = side;
    open_node(&t.node, side->device, 4 << 20);
    t.largest = t.node.attributes.MaxTransferSize < (1 << 20) ? t.node.attributes.MaxTransferSize : 1 << 20;
    CHECK(t.largest >= 32768, "NIC-07");
    t.other = swap_addresses(side, &t.node);
    t.out = take_descriptor(&t.node, 5);
    t.in = take_descriptor(&t.node, 5);
    t.sent = take(&t.node, t.largest);
    t.received = take(&t.node, t.largest);
    t.vi = make_vi(&t.node, VIP_SERVICE_RELIABLE_RECEPTION, NULL, NULL);
    join_sides(side, &t.node, t.vi, &t.other, "tour");
    CHECK_EQ(vi_state(t.vi), VIP_STATE_CONNECTED, "CONN-01");
    ok("side %d: client/server connection on %s", side->number, t.node.attributes.Name);

    sizes(&t);
    gather_and_scatter(&t);
    immediate_data(&t);
    rdma(&t);
    notification(&t);
    peers_and_completion_queues(&t);
    part(&t);

    end_vi(t.vi);
    close_node(&t.node);
    ok("side %d: everything closed", side->number);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, tour);
    return 0;
}
