/* Posting and taking descriptors (spec §3.20 to §3.22, §4.3, §4.4, §5). */
#include "common.h"

static struct node node;

/* Two connected VIs of this process. */
struct pair {
    VIP_VI_HANDLE one, two;
};

static struct pair make_pair(int level)
{
    struct pair pair;

    pair.one = make_vi(&node, level, NULL, NULL);
    pair.two = make_vi(&node, level, NULL, NULL);
    join_vis(&node, pair.one, &node, pair.two);
    return pair;
}

static void end_pair(struct pair *pair)
{
    MUST(VipDisconnect(pair->one));
    MUST(VipDisconnect(pair->two));
    end_vi(pair->one);
    end_vi(pair->two);
    sleep_ms(20); /* a CONN_LOST may have been under way (spec §9.6) */
    forget_errors(&node);
}

/* What a descriptor of the send queue asks for, if it can be read. */
static VIP_UINT32 asked_for(VIP_DESCRIPTOR *d)
{
    static const VIP_UINT32 operation[] = {VIP_STATUS_OP_SEND, VIP_STATUS_OP_RDMA_WRITE, VIP_STATUS_OP_RDMA_READ};
    int ends[2];
    VIP_CONTROL_SEGMENT copy;
    ssize_t bytes;

    CHECK_EQ(pipe(ends), 0, "pipe"); /* the kernel knows whether it can be read */
    bytes = write(ends[1], control(d), sizeof copy);
    if (bytes == (ssize_t)sizeof copy)
        CHECK_EQ(read(ends[0], &copy, sizeof copy), bytes, "pipe");
    close(ends[0]);
    close(ends[1]);
    return bytes == (ssize_t)sizeof copy ? operation[copy.Control & 3] : VIP_STATUS_OP_SEND;
}

/* A refused post gives its code, an asynchronous error, and changes nothing (POST-02, -03, -06). */
static void refused_post(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d, VIP_MEM_HANDLE handle, const char *id)
{
    VIP_ERROR_DESCRIPTOR error;
    VIP_DESCRIPTOR *found;
    int recv;

    for (recv = 0; recv < 2; recv++) {
        int state = vi_state(vi);

        if (recv)
            CHECK_RETURN(VipPostRecv(vi, d, handle), VIP_INVALID_PARAMETER, id);
        else
            CHECK_RETURN(VipPostSend(vi, d, handle), VIP_INVALID_PARAMETER, id);
        error = NEXT_ERROR(&node, VIP_ERROR_POST_DESC, vi, id);
        CHECK(error.DescriptorPtr == d, id);
        CHECK_EQ(error.ResourceCode, VIP_RESOURCE_DESCRIPTOR, id);
        CHECK(error.CQHandle == NULL, id);
        CHECK_EQ(error.OpCode, recv ? VIP_STATUS_OP_RECEIVE : asked_for(d), "spec §11");
        CHECK_EQ(vi_state(vi), state, "POST-06");
        CHECK_RETURN(recv ? VipRecvDone(vi, &found) : VipSendDone(vi, &found), VIP_DESCRIPTOR_ERROR, "POST-06");
        CHECK(found == NULL, "POST-06");
    }
}

static void bad_descriptors(void)
{
    struct pair pair = make_pair(VIP_SERVICE_RELIABLE_DELIVERY);
    VIP_MEM_ATTRIBUTES foreign = mem_attributes(&node);
    unsigned char *room = take(&node, 8192);
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)room;
    VIP_MEM_HANDLE small, tagged;

    start_descriptor(d, VIP_CONTROL_OP_SENDRECV);
    refused_post(pair.one, (VIP_DESCRIPTOR *)(void *)(room + 8), node.handle, "POST-02");
    refused_post(pair.one, (VIP_DESCRIPTOR *)(void *)(room + 32), node.handle, "POST-02");
    /* the error tells the operation asked for, if that can be read */
    start_descriptor((VIP_DESCRIPTOR *)(void *)(room + 8), VIP_CONTROL_OP_RDMAWRITE);
    refused_post(pair.one, (VIP_DESCRIPTOR *)(void *)(room + 8), node.handle, "POST-02");
    start_descriptor((VIP_DESCRIPTOR *)(void *)(room + 8), VIP_CONTROL_OP_RDMAREAD | VIP_CONTROL_IMMEDIATE);
    refused_post(pair.one, (VIP_DESCRIPTOR *)(void *)(room + 8), node.handle, "POST-02");
    memset(room, 0, 128);
    refused_post(pair.one, (VIP_DESCRIPTOR *)(uintptr_t)64, node.handle, "POST-02");
    refused_post(pair.one, (VIP_DESCRIPTOR *)(uintptr_t)72, node.handle, "POST-02");
    if (strict_mode()) {
        refused_post(pair.one, d, 0, "POST-03");
        refused_post(pair.one, d, 0x7FFFFFFFu, "POST-03");
        small = register_range(&node, room + 64, 64);
        refused_post(pair.one, d, small, "POST-03");
        MUST(VipCreatePtag(node.nic, &foreign.Ptag));
        MUST(VipRegisterMem(node.nic, room, 8192, &foreign, &tagged));
        refused_post(pair.one, d, tagged, "POST-03");
        MUST(VipDeregisterMem(node.nic, room, tagged));
        MUST(VipDestroyPtag(node.nic, foreign.Ptag));
        /* room for the control segment and two segments: the third one is outside */
        d = (VIP_DESCRIPTOR *)(void *)(room + 64);
        start_descriptor(d, VIP_CONTROL_OP_SENDRECV);
        control(d)->SegCount = 3;
        refused_post(pair.one, d, small, "POST-04");
        control(d)->SegCount = 0xFFFF;
        refused_post(pair.one, d, small, "POST-04");
        /* and two fit */
        control(d)->SegCount = 2;
        MUST(VipPostRecv(pair.one, d, small));
        MUST(VipDisconnect(pair.one));
        EXPECT_RECV(pair.one, d, STATUS_FLUSHED_RECEIVE, "POST-04");
        MUST(VipDeregisterMem(node.nic, room + 64, small));
    }
    end_pair(&pair);
    ok("descriptors in bad places");
}

static void overrun(void)
{
    struct pair pair = make_pair(VIP_SERVICE_RELIABLE_DELIVERY);
    size_t i, most = node.attributes.MaxDescriptorsPerQueue;
    VIP_DESCRIPTOR **d = (VIP_DESCRIPTOR **)calloc(most + 1, sizeof *d);
    VIP_ERROR_DESCRIPTOR error;

    CHECK(d != NULL, "set-up");
    for (i = 0; i < most; i++) {
        d[i] = take_descriptor(&node, 2);
        post_recv(&node, pair.one, d[i], NULL, 0);
    }
    d[most] = take_descriptor(&node, 2);
    CHECK_RETURN(VipPostRecv(pair.one, d[most], node.handle), VIP_ERROR_RESOURCE, "POST-05");
    error = NEXT_ERROR(&node, VIP_ERROR_VI_OVERRUN, pair.one, "POST-05");
    CHECK_EQ(error.ResourceCode, VIP_RESOURCE_VI, "POST-05");
    CHECK(error.DescriptorPtr == d[most], "POST-05");
    CHECK_EQ(error.OpCode, VIP_STATUS_OP_RECEIVE, "POST-05");
    CHECK_EQ(vi_state(pair.one), VIP_STATE_CONNECTED, "POST-06");

    /* a complete one counts until it is taken */
    post_send(&node, pair.two, d[most], NULL, 0);
    EXPECT_SEND(pair.two, d[most], STATUS_SENT, "POST-05");
    CHECK_RETURN(VipPostRecv(pair.one, d[most], node.handle), VIP_ERROR_RESOURCE, "spec §5.1");
    NEXT_ERROR(&node, VIP_ERROR_VI_OVERRUN, pair.one, "POST-05");
    EXPECT_RECV(pair.one, d[0], STATUS_RECEIVED, "POST-05");
    MUST(VipPostRecv(pair.one, d[most], node.handle));

    MUST(VipDisconnect(pair.one));
    for (i = 1; i <= most; i++)
        EXPECT_RECV(pair.one, d[i], STATUS_FLUSHED_RECEIVE, "DISC-02");
    end_pair(&pair);

    /* the send queue too: here in Idle, where each post is flushed at once and stays to be taken */
    pair.one = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    for (i = 0; i < most; i++)
        post_send(&node, pair.one, d[i], NULL, 0);
    start_descriptor(d[most], VIP_CONTROL_OP_RDMAWRITE);
    CHECK_RETURN(VipPostSend(pair.one, d[most], node.handle), VIP_ERROR_RESOURCE, "POST-05");
    error = NEXT_ERROR(&node, VIP_ERROR_VI_OVERRUN, pair.one, "POST-05");
    CHECK_EQ(error.OpCode, VIP_STATUS_OP_RDMA_WRITE, "POST-05");
    for (i = 0; i < most; i++)
        EXPECT_SEND(pair.one, d[i], STATUS_FLUSHED_SEND, "POST-09");
    MUST(VipDestroyVi(pair.one));
    free(d);
    ok("%lu descriptors per queue and not one more", (unsigned long)most);
}

static void by_state(void)
{
    VIP_DESCRIPTOR *in = take_descriptor(&node, 1), *out = take_descriptor(&node, 1);
    VIP_DESCRIPTOR *kept = take_descriptor(&node, 1), *found;
    unsigned char *buffer = take(&node, 64), *sent = take(&node, 64);
    struct pair pair;

    pair.one = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    pair.two = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    post_recv(&node, pair.one, kept, buffer, 64); /* waits for the connection */
    CHECK_RETURN(VipRecvDone(pair.one, &found), VIP_NOT_DONE, "POST-08");
    CHECK(found == NULL, "spec §3.21");
    post_send(&node, pair.one, out, sent, 64);
    EXPECT_SEND(pair.one, out, STATUS_FLUSHED_SEND, "POST-09");

    join_vis(&node, pair.one, &node, pair.two);
    fill(sent, 64, 2);
    post_send(&node, pair.two, out, sent, 64);
    EXPECT_SEND(pair.two, out, STATUS_SENT, "CONN-22");
    EXPECT_RECV(pair.one, kept, STATUS_RECEIVED, "CONN-22");
    CHECK(filled(buffer, 64, 2), "CONN-22");

    post_recv(&node, pair.one, in, buffer, 64);
    MUST(VipDisconnect(pair.two));
    AWAIT_STATE(pair.one, VIP_STATE_ERROR, "DISC-05");
    EXPECT_RECV(pair.one, in, STATUS_FLUSHED_RECEIVE, "DISC-05");
    CHECK_EQ(control(in)->Length, 0, "spec §4.4");
    post_recv(&node, pair.one, in, buffer, 64);
    EXPECT_RECV(pair.one, in, STATUS_FLUSHED_RECEIVE, "POST-10");
    post_send(&node, pair.one, out, sent, 64);
    EXPECT_SEND(pair.one, out, STATUS_FLUSHED_SEND, "POST-09");
    start_descriptor(out, VIP_CONTROL_OP_RDMAWRITE);
    MUST(VipPostSend(pair.one, out, node.handle));
    EXPECT_SEND(pair.one, out,
                VIP_STATUS_DONE | VIP_STATUS_DESC_FLUSHED_ERROR | VIP_STATUS_OP_RDMA_WRITE, "spec §4.4");

    MUST(VipDisconnect(pair.one));
    CHECK_EQ(vi_state(pair.one), VIP_STATE_IDLE, "DISC-08");
    post_recv(&node, pair.one, in, buffer, 64);
    CHECK_RETURN(VipDisconnect(pair.one), VIP_SUCCESS, "DISC-09");
    EXPECT_RECV(pair.one, in, STATUS_FLUSHED_RECEIVE, "DISC-09");
    CHECK_RETURN(VipDisconnect(pair.one), VIP_SUCCESS, "DISC-09");
    end_pair(&pair);
    ok("posting in every state");
}

static void done_rules(void)
{
    struct pair pair = make_pair(VIP_SERVICE_RELIABLE_DELIVERY);
    VIP_DESCRIPTOR *in[8], *out[8], *found;
    unsigned char *buffer = take(&node, 8 * 64);
    int i;

    found = (VIP_DESCRIPTOR *)&pair;
    CHECK_RETURN(VipRecvDone(pair.one, &found), VIP_DESCRIPTOR_ERROR, "DONE-01");
    CHECK(found == NULL, "DONE-01");
    found = (VIP_DESCRIPTOR *)&pair;
    CHECK_RETURN(VipSendDone(pair.one, &found), VIP_DESCRIPTOR_ERROR, "DONE-01");
    CHECK(found == NULL, "DONE-01");
    CHECK_RETURN(VipRecvWait(pair.one, VIP_INFINITE, &found), VIP_DESCRIPTOR_ERROR, "WAIT-05");
    CHECK(found == NULL, "WAIT-05");
    CHECK_RETURN(VipSendWait(pair.one, VIP_INFINITE, &found), VIP_DESCRIPTOR_ERROR, "WAIT-05");

    for (i = 0; i < 8; i++) {
        in[i] = take_descriptor(&node, 1);
        out[i] = take_descriptor(&node, 1);
        post_recv(&node, pair.one, in[i], buffer + 64 * i, 64);
    }
    found = (VIP_DESCRIPTOR *)&pair;
    CHECK_RETURN(VipRecvDone(pair.one, &found), VIP_NOT_DONE, "DONE-02");
    CHECK(found == NULL, "DONE-02");
    for (i = 0; i < 4; i++) {
        CHECK_EQ(control(in[i])->Status, 0, "spec §3.20: posting clears Status");
        control(out[i])->Length = (VIP_UINT32)i; /* made anew by the next line */
        post_send(&node, pair.two, out[i], buffer, (size_t)i + 1);
    }
    for (i = 0; i < 4; i++) {
        EXPECT_SEND(pair.two, out[i], STATUS_SENT, "XFER-14");
        EXPECT_RECV(pair.one, in[i], STATUS_RECEIVED, "DONE-05");
        CHECK_EQ(control(in[i])->Length, i + 1, "DONE-05");
    }

    /* posted again with the old status: not complete until the next message (POST-07) */
    CHECK(control(in[0])->Status & VIP_STATUS_DONE, "POST-07");
    MUST(VipPostRecv(pair.one, in[0], node.handle));
    CHECK_EQ(__atomic_load_n(&control(in[0])->Status, __ATOMIC_ACQUIRE), 0, "POST-07");

    /* one is complete but not taken when the VI disconnects: it keeps its status (DISC-04) */
    post_send(&node, pair.two, out[0], buffer, 3);
    EXPECT_SEND(pair.two, out[0], STATUS_SENT, "DISC-04");
    MUST(VipDisconnect(pair.two)); /* what was sent is delivered before the loss is told (DISC-12) */
    AWAIT_STATE(pair.one, VIP_STATE_ERROR, "DISC-05");
    MUST(VipDisconnect(pair.one));
    CHECK_RETURN(VipRecvDone(pair.one, &found), VIP_SUCCESS, "DISC-04");
    CHECK(found == in[4] && control(in[4])->Length == 3, "DISC-04");
    for (i = 5; i < 8; i++)
        EXPECT_RECV(pair.one, in[i], STATUS_FLUSHED_RECEIVE, "DISC-02");
    EXPECT_RECV(pair.one, in[0], STATUS_FLUSHED_RECEIVE, "DISC-02");
    CHECK_RETURN(VipRecvDone(pair.one, &found), VIP_DESCRIPTOR_ERROR, "DONE-01");
    CHECK(found == NULL, "DONE-01");
    end_pair(&pair);
    ok("Done: order, once each, empty and incomplete queues");
}

/* Sends that were complete before VipDisconnect arrive before the flush (DISC-12). */
static void last_messages(void)
{
    enum { N = 100 };
    struct pair pair = make_pair(VIP_SERVICE_RELIABLE_DELIVERY);
    VIP_DESCRIPTOR *in[N + 1], *out = take_descriptor(&node, 1);
    unsigned char *sent = take(&node, 300), *buffer = take(&node, (N + 1) * 320);
    int i;

    for (i = 0; i <= N; i++) {
        in[i] = take_descriptor(&node, 1);
        post_recv(&node, pair.one, in[i], buffer + 320 * i, 300);
    }
    for (i = 0; i < N; i++) {
        fill(sent, 300, (unsigned long)i);
        post_send(&node, pair.two, out, sent, 300);
        EXPECT_SEND(pair.two, out, STATUS_SENT, "DISC-12");
    }
    MUST(VipDisconnect(pair.two));
    for (i = 0; i < N; i++) {
        EXPECT_RECV(pair.one, in[i], STATUS_RECEIVED, "DISC-12");
        CHECK(filled(buffer + 320 * i, 300, (unsigned long)i), "DISC-12");
    }
    EXPECT_RECV(pair.one, in[N], STATUS_FLUSHED_RECEIVE, "DISC-12");
    CHECK_EQ(vi_state(pair.one), VIP_STATE_ERROR, "DISC-05");
    end_pair(&pair);
    ok("the last messages before a disconnect");
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    open_node(&node, options.device, 4 << 20);
    bad_descriptors();
    overrun();
    by_state();
    done_rules();
    last_messages();
    close_node(&node);
    return 0;
}
