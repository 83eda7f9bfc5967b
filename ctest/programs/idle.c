/* What may last, lasts: every kind of wait, connection and request is left alone for so many seconds, and works afterwards.
 *
 *   idle [-d DEVICE] SECONDS
 *
 * The seconds are the library's, so that with VIPL_TEST_TIME an hour takes a minute. Side 0 serves, side 1 asks. */
#include "common.h"

#define BYTES 64UL

static unsigned long idle_ms;

/* A call that lasts, on a thread of its own. */
struct call {
    const char *what;
    struct side *side;
    struct node *node;
    VIP_VI_HANDLE vi;
    VIP_CQ_HANDLE cq;
    address local, remote;
    VIP_DESCRIPTOR *descriptor;
    pthread_t thread;
    int returned;
    double begun;
};

static void begin(struct call *call, const char *what, void *(*body)(void *))
{
    call->what = what;
    call->returned = 0;
    call->begun = now_ms();
    call->thread = start_thread(body, call);
}

/* It has waited as long as this side has idled, and comes to its end now. */
static void end(struct call *call)
{
    join_thread(call->thread);
    ok("%s: %.2f h", call->what, (now_ms() - call->begun) / 3600e3);
}

static void still_waits(struct call *call)
{
    if (atomic_get(&call->returned))
        fail(__FILE__, __LINE__, "a wait without limit", call->what, "still waiting", "returned");
}

static void *wait_for_client(void *argument)
{
    struct call *call = (struct call *)argument;
    VIP_CONN_HANDLE request = NULL;
    VIP_VI_ATTRIBUTES attributes;
    address remote;

    MUST(VipConnectWait(call->node->nic, &call->local.net, VIP_INFINITE, &remote.net, &attributes, &request));
    atomic_set(&call->returned, 1);
    MUST(VipConnectAccept(request, call->vi));
    return NULL;
}

static void *wait_for_no_client(void *argument)
{
    struct call *call = (struct call *)argument;
    VIP_CONN_HANDLE request = NULL;
    VIP_VI_ATTRIBUTES attributes;
    address remote;

    CHECK_RETURN(VipConnectWait(call->node->nic, &call->local.net, idle_ms, &remote.net, &attributes, &request),
                 VIP_TIMEOUT, "CONN-02");
    CHECK_TOOK(call->begun, idle_ms, "CONN-02");
    return NULL;
}

static void *wait_for_answer(void *argument)
{
    struct call *call = (struct call *)argument;
    VIP_VI_ATTRIBUTES attributes;
    VIP_RETURN code;

    do
        code = VipConnectRequest(call->vi, &call->local.net, &call->remote.net, VIP_INFINITE, &attributes);
    while (code == VIP_NO_MATCH);
    MUST(code);
    atomic_set(&call->returned, 1);
    return NULL;
}

static void *wait_for_peer(void *argument)
{
    struct call *call = (struct call *)argument;
    VIP_VI_ATTRIBUTES attributes;

    MUST(VipConnectPeerRequest(call->vi, &call->local.net, &call->remote.net, VIP_INFINITE));
    MUST(VipConnectPeerWait(call->vi, &attributes));
    atomic_set(&call->returned, 1);
    return NULL;
}

static void *wait_for_message(void *argument)
{
    struct call *call = (struct call *)argument;
    VIP_DESCRIPTOR *found = NULL;

    MUST(VipRecvWait(call->vi, VIP_INFINITE, &found));
    atomic_set(&call->returned, 1);
    CHECK(found == call->descriptor, "WAIT-01");
    return NULL;
}

static void *wait_for_no_message(void *argument)
{
    struct call *call = (struct call *)argument;
    VIP_DESCRIPTOR *found = NULL;

    CHECK_RETURN(VipRecvWait(call->vi, idle_ms, &found), VIP_TIMEOUT, "WAIT-02");
    CHECK_TOOK(call->begun, idle_ms, "WAIT-02");
    return NULL;
}

static void *wait_for_completion(void *argument)
{
    struct call *call = (struct call *)argument;
    VIP_VI_HANDLE vi = NULL;
    VIP_BOOLEAN receive = VIP_FALSE;

    /* 49.7 days, the longest that is not without limit. */
    MUST(VipCQWait(call->cq, 0xFFFFFFFEUL, &vi, &receive));
    atomic_set(&call->returned, 1);
    CHECK(vi == call->vi && receive, "CQ-01");
    return NULL;
}

/* One message from this side to the other, and one back. */
static void exchange(struct side *side, struct node *node, VIP_VI_HANDLE vi)
{
    size_t mark = node->used;
    VIP_DESCRIPTOR *in = take_descriptor(node, 1), *out = take_descriptor(node, 1);
    unsigned char *room = take(node, BYTES), *data = take(node, BYTES);

    fill(data, BYTES, (unsigned long)side->number);
    post_recv(node, vi, in, room, BYTES);
    meet(side);
    post_send(node, vi, out, data, BYTES);
    EXPECT_RECV(vi, in, STATUS_RECEIVED, "XFER-01");
    CHECK(filled(room, BYTES, (unsigned long)(side->number ^ 1)), "XFER-01");
    EXPECT_SEND(vi, out, STATUS_SENT, "XFER-01");
    meet(side);
    node->used = mark;
}

/* A disconnect right behind messages: the closing goes on without the program. */
static void leave_at_once(struct side *side, struct node *node, VIP_VI_HANDLE vi)
{
    size_t mark = node->used;
    VIP_DESCRIPTOR *descriptor = take_descriptor(node, 1);
    unsigned char *data = take(node, BYTES);

    if (side->number == 0)
        post_recv(node, vi, descriptor, data, BYTES);
    meet(side);
    if (side->number == 1)
        post_send(node, vi, descriptor, data, BYTES);
    MUST(VipDisconnect(vi));
    /* The other side may have been the first. */
    forget_errors(node);
    drain(vi);
    node->used = mark;
}

static void sit(struct side *side)
{
    static const int levels[] = {VIP_SERVICE_UNRELIABLE, VIP_SERVICE_RELIABLE_DELIVERY,
                                 VIP_SERVICE_RELIABLE_RECEPTION};
    const int level = tested_level(side);
    struct node node, unused;
    struct call server, no_client, request, peer, message, no_message, completion;
    VIP_VI_HANDLE pair[3] = {NULL, NULL, NULL}, left, held, fresh;
    VIP_CONN_HANDLE handle = NULL;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CQ_HANDLE cq;
    VIP_DESCRIPTOR *in[3], *out;
    unsigned char *data;
    address other, from;
    double begun;
    char name[16];
    int i, run = side->run;

    open_node(&node, side->device, 1 << 16);
    open_node(&unused, side->device, 1 << 16);
    other = swap_addresses(side, &node);
    for (i = 0; i < 3; i++) {
        if (!level_chosen(side, &node, levels[i]))
            continue;
        pair[i] = make_vi(&node, levels[i], NULL, NULL);
        snprintf(name, sizeof name, "pair%d", i);
        join_sides(side, &node, pair[i], &other, name);
        exchange(side, &node, pair[i]);
    }
    left = make_vi(&node, level, NULL, NULL);
    join_sides(side, &node, left, &other, "left");
    leave_at_once(side, &node, left);

    /* Side 0 waits for what side 1 sends after the time. */
    message.node = completion.node = no_message.node = peer.node = server.node = no_client.node = request.node = &node;
    message.vi = make_vi(&node, level, NULL, NULL);
    join_sides(side, &node, message.vi, &other, "message");
    MUST(VipCreateCQ(node.nic, 4, &cq));
    completion.cq = cq;
    completion.vi = make_vi(&node, level, NULL, cq);
    join_sides(side, &node, completion.vi, &other, "completion");
    no_message.vi = make_vi(&node, level, NULL, NULL);
    join_sides(side, &node, no_message.vi, &other, "silence");
    in[0] = take_descriptor(&node, 1);
    in[1] = take_descriptor(&node, 1);
    in[2] = take_descriptor(&node, 1);
    out = take_descriptor(&node, 1);
    data = take(&node, 3 * BYTES);
    message.descriptor = in[0];
    peer.vi = make_vi(&node, level, NULL, NULL);
    peer.local = local_point(&node, run, side->number == 0 ? "peer0" : "peer1");
    peer.remote = remote_point(&other, run, side->number == 0 ? "peer1" : "peer0");
    server.vi = make_vi(&node, level, NULL, NULL);
    server.local = local_point(&node, run, "server");
    no_client.local = local_point(&node, run, "nobody");
    held = request.vi = make_vi(&node, level, NULL, NULL);
    request.local = local_point(&node, run, "client");
    request.remote = remote_point(&other, run, "held");
    if (side->number == 0) {
        post_recv(&node, message.vi, in[0], data, BYTES);
        post_recv(&node, completion.vi, in[1], data + BYTES, BYTES);
        post_recv(&node, no_message.vi, in[2], data + 2 * BYTES, BYTES);
        begin(&message, "VipRecvWait without limit", wait_for_message);
        begin(&completion, "VipCQWait of 49 days", wait_for_completion);
        begin(&no_message, "VipRecvWait for as long as it idles", wait_for_no_message);
        begin(&peer, "VipConnectPeerWait without limit", wait_for_peer);
        begin(&server, "VipConnectWait without limit", wait_for_client);
        begin(&no_client, "VipConnectWait for as long as it idles", wait_for_no_client);
    } else {
        begin(&request, "VipConnectRequest without limit, its request held", wait_for_answer);
    }
    if (side->number == 0) {
        address local = local_point(&node, run, "held");

        MUST(VipConnectWait(node.nic, &local.net, PATIENCE, &from.net, &attributes, &handle));
    }
    meet(side);

    begun = now_ms();
    sleep_ms(idle_ms);

    if (side->number == 0) {
        still_waits(&message);
        still_waits(&completion);
        still_waits(&peer);
        still_waits(&server);
        end(&no_message);
        end(&no_client);
    } else {
        still_waits(&request);
    }
    meet(side);
    for (i = 0; i < 3; i++) {
        if (pair[i] != NULL) {
            CHECK_EQ(vi_state(pair[i]), VIP_STATE_CONNECTED, "a connection that idles");
            exchange(side, &node, pair[i]);
        }
    }
    if (side->number == 0) {
        MUST(VipConnectAccept(handle, held));
        end(&message);
        end(&completion);
        end(&peer);
        end(&server);
    } else {
        end(&request);
        post_send(&node, message.vi, out, data, BYTES);
        EXPECT_SEND(message.vi, out, STATUS_SENT, "XFER-01");
        post_send(&node, completion.vi, out, data, BYTES);
        EXPECT_SEND(completion.vi, out, STATUS_SENT, "XFER-01");
        wait_for_peer(&peer);
        ask(server.vi, local_point(&node, run, "client"), remote_point(&other, run, "server"));
    }
    exchange(side, &node, held);
    exchange(side, &node, peer.vi);
    exchange(side, &node, server.vi);
    join_sides(side, &node, left, &other, "again");
    exchange(side, &node, left);
    fresh = make_vi(&unused, level, NULL, NULL);
    join_sides(side, &unused, fresh, &other, "fresh");
    exchange(side, &unused, fresh);
    NO_ERROR(&node, 0, "a connection that idles");
    if (side->number == 0)
        ok("an idle pair of each level, an open NIC, a connection left behind its last message: %.2f h",
           (now_ms() - begun) / 3600e3);

    meet(side);
    forget_errors(&node);
    for (i = 0; i < 3; i++)
        if (pair[i] != NULL)
            end_vi(pair[i]);
    end_vi(left);
    if (side->number == 0) {
        VIP_DESCRIPTOR *found;

        MUST(VipRecvDone(completion.vi, &found));
        CHECK(found == in[1], "CQ-01");
    }
    end_vi(message.vi);
    end_vi(completion.vi);
    end_vi(no_message.vi);
    end_vi(peer.vi);
    end_vi(server.vi);
    end_vi(held);
    end_vi(fresh);
    MUST(VipDestroyCQ(cq));
    close_node(&unused);
    close_node(&node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    CHECK(options.words == 1, "idle SECONDS");
    idle_ms = strtoul(options.word[0], NULL, 10) * 1000;
    both_sides(&options, sit);
    return 0;
}
