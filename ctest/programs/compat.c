/* The compatible mode, which is the default (spec §17, group COMPAT of §15): what surviving VIPL programs
 * do although the Guide does not allow it. */
#include "common.h"

#define RD VIP_SERVICE_RELIABLE_DELIVERY
#define BYTES 5000

struct world {
    struct side *side;
    struct node node;
    address other;
    VIP_DESCRIPTOR *in, *out;
    unsigned char *received, *sent;
    int number;
};

static VIP_VI_HANDLE connect_new(struct world *w, VIP_VI_ATTRIBUTES *attributes)
{
    VIP_VI_HANDLE vi;
    char name[24];

    CHECK_RETURN(VipCreateVi(w->node.nic, attributes, NULL, NULL, &vi), VIP_SUCCESS, "COMPAT-01");
    snprintf(name, sizeof name, "compat%d", w->number++);
    join_sides(w->side, &w->node, vi, &w->other, name);
    return vi;
}

/* A message from `data` at side 1 into `data` at side 0, each under its own handle. */
static void message(struct world *w, VIP_VI_HANDLE vi, void *data, VIP_MEM_HANDLE handle, const char *id)
{
    VIP_DESCRIPTOR *d = w->side->number ? w->out : w->in;

    start_descriptor(d, VIP_CONTROL_OP_SENDRECV);
    add_data(d, data, handle, BYTES);
    if (w->side->number == 0) {
        memset(data, 0, BYTES);
        MUST(VipPostRecv(vi, d, w->node.handle));
        meet(w->side);
        EXPECT_RECV(vi, d, STATUS_RECEIVED, id);
        CHECK(filled(data, BYTES, 42), id);
    } else {
        fill(data, BYTES, 42);
        meet(w->side);
        MUST(VipPostSend(vi, d, w->node.handle));
        EXPECT_SEND(vi, d, STATUS_SENT, id);
    }
    meet(w->side);
}

/* COMPAT-01: a VI without a tag works with memory of every tag, also as RDMA target. COMPAT-02: memory
 * without attributes works with every VI, but not for RDMA. */
static void without_tags(struct world *w)
{
    static unsigned char room[2][BYTES];
    unsigned char *data = room[w->side->number];
    VIP_VI_ATTRIBUTES tagless = vi_attributes(&w->node, RD), tagged = tagless;
    VIP_MEM_ATTRIBUTES memory = mem_attributes(&w->node), found;
    VIP_PROTECTION_HANDLE other_tag;
    VIP_MEM_HANDLE handle, bare, theirs;
    VIP_VI_HANDLE vi;
    uint64_t target = (uint64_t)(uintptr_t)data;
    double start;

    tagless.Ptag = NULL;
    MUST(VipCreatePtag(w->node.nic, &other_tag));
    memory.Ptag = other_tag;
    MUST(VipRegisterMem(w->node.nic, data, BYTES, &memory, &handle));
    CHECK_RETURN(VipRegisterMem(w->node.nic, data, BYTES, NULL, &bare), VIP_SUCCESS, "COMPAT-02");
    MUST(VipQueryMem(w->node.nic, data, bare, &found));
    CHECK(found.Ptag == NULL && !found.EnableRdmaWrite && !found.EnableRdmaRead, "COMPAT-02");

    vi = connect_new(w, &tagless);
    message(w, vi, data, handle, "COMPAT-01");
    message(w, vi, data, bare, "COMPAT-02");
    message(w, vi, w->received, w->node.handle, "COMPAT-01");
    if (device_lacks("RDMA Write")) {
        ok("a device without RDMA Write");
    } else if (w->side->number == 0) { /* as RDMA target */
        memset(data, 0, BYTES);
        side_send(w->side, &target, sizeof target);
        side_send(w->side, &handle, sizeof handle);
        start = now_ms();
        while (!filled(data, BYTES, 7)) { /* nothing else tells that it has come */
            CHECK(now_ms() - start < (double)PATIENCE, "COMPAT-01");
            sleep_ms(1);
        }
        meet(w->side);
    } else {
        side_receive(w->side, &target, sizeof target);
        side_receive(w->side, &theirs, sizeof theirs);
        fill(w->sent, BYTES, 7);
        start_descriptor(w->out, VIP_CONTROL_OP_RDMAWRITE);
        add_remote(w->out, target, theirs);
        add_data(w->out, w->sent, w->node.handle, BYTES);
        MUST(VipPostSend(vi, w->out, w->node.handle));
        EXPECT_SEND(vi, w->out, STATUS_WRITTEN, "COMPAT-01");
        meet(w->side);
    }
    message(w, vi, data, handle, "COMPAT-01");
    end_vi(vi);
    meet(w->side);

    vi = connect_new(w, &tagged);
    message(w, vi, data, bare, "COMPAT-02");
    if (device_lacks("RDMA Write")) {
        ok("a device without RDMA Write");
    } else if (w->side->number == 0) { /* a region without attributes is no RDMA target */
        post_recv(&w->node, vi, w->in, w->received, 64);
        memset(data, 0xEE, BYTES);
        side_send(w->side, &target, sizeof target);
        side_send(w->side, &bare, sizeof bare);
        EXPECT_RECV(vi, w->in, VIP_STATUS_DONE | VIP_STATUS_RDMA_PROT_ERROR | VIP_STATUS_OP_REMOTE_RDMA_WRITE,
                    "COMPAT-02");
        CHECK(all_bytes(data, BYTES, 0xEE), "COMPAT-02");
    } else {
        VIP_DESCRIPTOR *done;

        side_receive(w->side, &target, sizeof target);
        side_receive(w->side, &theirs, sizeof theirs);
        start_descriptor(w->out, VIP_CONTROL_OP_RDMAWRITE);
        add_remote(w->out, target, theirs);
        add_data(w->out, w->sent, w->node.handle, BYTES);
        set_immediate(w->out, 1);
        MUST(VipPostSend(vi, w->out, w->node.handle));
        AWAIT_STATE(vi, VIP_STATE_ERROR, "COMPAT-02");
        VipSendDone(vi, &done);
        CHECK(done == w->out, "COMPAT-02");
    }
    meet(w->side);
    end_vi(vi);
    MUST(VipDeregisterMem(w->node.nic, data, bare));
    MUST(VipDeregisterMem(w->node.nic, data, handle));
    MUST(VipDestroyPtag(w->node.nic, other_tag));
    sleep_ms(20);
    forget_errors(&w->node);
    ok("side %d: VIs and memory without a tag", w->side->number);
}

/* COMPAT-03: the memory handle of the descriptor is not looked at; its address and alignment are. */
static void descriptor_handles(struct world *w)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&w->node, RD);
    VIP_VI_HANDLE vi = connect_new(w, &attributes);
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)map_pages(4096); /* not registered at all */
    static const VIP_MEM_HANDLE wrong[] = {0, 0xFFFFFFFFu, 12345};
    size_t i;

    for (i = 0; i < 3; i++) {
        start_descriptor(d, VIP_CONTROL_OP_SENDRECV);
        add_data(d, w->side->number ? w->sent : w->received, w->node.handle, 100);
        if (w->side->number == 0) {
            CHECK_RETURN(VipPostRecv(vi, d, wrong[i]), VIP_SUCCESS, "COMPAT-03");
            meet(w->side);
            EXPECT_RECV(vi, d, STATUS_RECEIVED, "COMPAT-03");
        } else {
            meet(w->side);
            CHECK_RETURN(VipPostSend(vi, d, wrong[i]), VIP_SUCCESS, "COMPAT-03");
            EXPECT_SEND(vi, d, STATUS_SENT, "COMPAT-03");
        }
        meet(w->side);
    }
    CHECK_RETURN(VipPostRecv(vi, (VIP_DESCRIPTOR *)(void *)((char *)d + 16), w->node.handle), VIP_INVALID_PARAMETER,
                 "POST-02");
    NEXT_ERROR(&w->node, VIP_ERROR_POST_DESC, vi, "POST-02");
    meet(w->side);
    end_vi(vi);
    munmap(d, 4096);
    meet(w->side);
    ok("side %d: wrong memory handles of descriptors", w->side->number);
}

/* COMPAT-04: an Idle VI goes with all that is on its queues; the memory may go too. */
static void destroy_as_it_is(struct world *w)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&w->node, RD);
    unsigned char *pages = (unsigned char *)map_pages(400 * 64);
    VIP_MEM_HANDLE handle = register_range(&w->node, pages, 400 * 64);
    VIP_VI_HANDLE vi;
    int i, connected;

    for (connected = 0; connected < 2; connected++) {
        if (connected)
            vi = connect_new(w, &attributes);
        else
            MUST(VipCreateVi(w->node.nic, &attributes, NULL, NULL, &vi));
        for (i = 0; i < 200; i++) {
            VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)(pages + 128 * i);

            start_descriptor(d, VIP_CONTROL_OP_SENDRECV);
            add_data(d, pages + 128 * i + 64, handle, 64);
            MUST(VipPostRecv(vi, d, handle));
        }
        if (connected) {
            meet(w->side);
            CHECK_RETURN(VipDestroyVi(vi), VIP_INVALID_STATE, "VI-10");
            meet(w->side);
            MUST(VipDisconnect(vi));
        }
        CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS, "COMPAT-04");
        CHECK_RETURN(VipDestroyVi(vi), VIP_INVALID_PARAMETER, "VI-13");
        memset(pages, 0x77, 400 * 64);
    }
    MUST(VipDeregisterMem(w->node.nic, pages, handle));
    munmap(pages, 400 * 64);
    meet(w->side);
    sleep_ms(50);
    forget_errors(&w->node);
    ok("side %d: VIs destroyed with 200 descriptors", w->side->number);
}

/* The agent's clock goes on while a loaded machine lets a side of the test wait. What has to happen within a
 * second or two is tried until it did. */
#define TRIES 20

/* Side 0 says whether the attempt counts; both sides know. */
static int counts(struct world *w, int yes)
{
    if (w->side->number == 0)
        side_send(w->side, &yes, sizeof yes);
    else
        side_receive(w->side, &yes, sizeof yes);
    return yes;
}

/* COMPAT-05: a request waits for its waiter, for at most two seconds. */
static void early_requests(struct world *w)
{
    VIP_VI_HANDLE vi = make_vi(&w->node, RD, NULL, NULL);
    address local = local_point(&w->node, w->side->run, "client");
    address late = w->side->number ? remote_point(&w->other, w->side->run, "late")
                                   : local_point(&w->node, w->side->run, "late");
    address never = remote_point(&w->other, w->side->run, "never");
    VIP_VI_ATTRIBUTES attributes;
    VIP_RETURN code;
    double start;
    int tries, good = 0;

    for (tries = 0; tries < TRIES && !good; tries++) {
        meet(w->side);
        if (w->side->number == 0) {
            sleep_ms(300);
            serve(&w->node, vi, late);
            side_receive(w->side, &good, sizeof good);
        } else {
            start = now_ms();
            code = VipConnectRequest(vi, &local.net, &late.net, PATIENCE, &attributes);
            good = code == VIP_SUCCESS && now_ms() - start > 200; /* it did wait */
            if (code == VIP_NO_MATCH) { /* the server came too late */
                CHECK(now_ms() - start >= 1990, "COMPAT-05");
                ask(vi, local, late);
            } else {
                CHECK_RETURN(code, VIP_SUCCESS, "COMPAT-05");
            }
            side_send(w->side, &good, sizeof good);
        }
        MUST(VipDisconnect(vi));
        meet(w->side);
    }
    CHECK(good, "COMPAT-05");
    if (w->side->number == 1) {
        start = now_ms();
        CHECK_RETURN(VipConnectRequest(vi, &local.net, &never.net, 60000, &attributes), VIP_NO_MATCH, "COMPAT-05");
        CHECK_TOOK(start, 1990, "COMPAT-05");
        start = now_ms();
        CHECK_RETURN(VipConnectRequest(vi, &local.net, &never.net, 300 * time_factor(), &attributes), VIP_NO_MATCH, "COMPAT-05");
        CHECK_TOOK(start, 300, "COMPAT-05");
    }
    meet(w->side);
    end_vi(vi);
    forget_errors(&w->node);
    ok("side %d: requests before the wait", w->side->number);
}

/* COMPAT-06: an orderly disconnect is an error only for a side that stays in Error for a second. */
static void orderly_end(struct world *w)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&w->node, RD);
    int tries, good = 0;
    VIP_VI_HANDLE vi;
    double start;

    for (tries = 0; tries < TRIES && !good; tries++) {
        vi = connect_new(w, &attributes);
        start = now_ms();
        meet(w->side);
        if (w->side->number == 1)
            MUST(VipDisconnect(vi));
        AWAIT_STATE(vi, w->side->number ? VIP_STATE_IDLE : VIP_STATE_ERROR, "COMPAT-06");
        sleep_ms(300);
        MUST(VipDisconnect(vi)); /* within the second, if all goes well */
        good = counts(w, now_ms() - start < 1000);
        if (good)
            NO_ERROR(&w->node, 1500, "COMPAT-06");
        else
            forget_errors(&w->node);
        MUST(VipDestroyVi(vi));
        meet(w->side);
    }
    CHECK(good, "COMPAT-06");

    vi = connect_new(w, &attributes);
    post_recv(&w->node, vi, w->in, w->received, 64);
    start = now_ms();
    meet(w->side);
    if (w->side->number == 1) {
        end_vi(vi);
        NO_ERROR(&w->node, 2500, "COMPAT-06");
    } else {
        EXPECT_RECV(vi, w->in, STATUS_FLUSHED_RECEIVE, "COMPAT-06: flushed at once");
        CHECK_EQ(vi_state(vi), VIP_STATE_ERROR, "COMPAT-06");
        NEXT_ERROR(&w->node, VIP_ERROR_CONN_LOST, vi, "COMPAT-06");
        CHECK_TOOK(start, 1000, "COMPAT-06");
        NO_ERROR(&w->node, 1300, "COMPAT-06: exactly one");
        end_vi(vi);
    }
    meet(w->side);
    ok("side %d: an orderly end is no error", w->side->number);
}

/* COMPAT-07: immediate data travels without its flag. */
static void unflagged_immediate(struct world *w)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&w->node, RD);
    VIP_VI_HANDLE vi = connect_new(w, &attributes);
    size_t bytes;

    for (bytes = 0; bytes <= BYTES; bytes += BYTES) {
        if (w->side->number == 0) {
            post_recv(&w->node, vi, w->in, w->received, BYTES);
            meet(w->side);
            EXPECT_RECV(vi, w->in, STATUS_RECEIVED, "COMPAT-07");
            CHECK_EQ(control(w->in)->ImmediateData, 0xCAFE0000u + bytes, "COMPAT-07");
            CHECK_EQ(control(w->in)->Length, bytes, "COMPAT-07");
        } else {
            start_descriptor(w->out, VIP_CONTROL_OP_SENDRECV);
            if (bytes)
                add_data(w->out, w->sent, w->node.handle, bytes);
            control(w->out)->ImmediateData = (VIP_UINT32)(0xCAFE0000u + bytes);
            meet(w->side);
            MUST(VipPostSend(vi, w->out, w->node.handle));
            EXPECT_SEND(vi, w->out, STATUS_SENT, "COMPAT-07");
        }
        meet(w->side);
    }
    end_vi(vi);
    meet(w->side);
    ok("side %d: immediate data without the flag", w->side->number);
}

/* COMPAT-08: a send that the peer took just before it disconnected was a success. */
static void taken_and_gone(struct world *w)
{
    enum { N = 1000 };
    const int rr = VIP_SERVICE_RELIABLE_RECEPTION;
    VIP_VI_HANDLE vi = make_vi(&w->node, level_chosen(w->side, &w->node, rr) ? rr : RD, NULL, NULL);
    double start, slowest = 0;
    int i;

    for (i = 0; i < N; i++) {
        if (w->side->number == 0)
            post_recv(&w->node, vi, w->in, w->received, BYTES);
        join_sides(w->side, &w->node, vi, &w->other, "taken");
        start = now_ms();
        if (w->side->number == 0) {
            EXPECT_RECV(vi, w->in, STATUS_RECEIVED, "COMPAT-08");
            MUST(VipDisconnect(vi));
            meet(w->side);
        } else {
            post_send(&w->node, vi, w->out, w->sent, i % 2 ? BYTES : 40);
            if (i % 3 == 0)
                sched_yield();
            EXPECT_SEND(vi, w->out, STATUS_SENT, "COMPAT-08");
            meet(w->side);
            MUST(VipDisconnect(vi));
        }
        if (now_ms() - start > slowest)
            slowest = now_ms() - start;
    }
    MUST(VipDestroyVi(vi));
    if (!strict_mode() && slowest < 1000) /* all of them within a second of each other */
        NO_ERROR(&w->node, 100, "COMPAT-06");
    meet(w->side);
    ok("side %d: %d sends taken before a disconnect", w->side->number, N);
}

/* COMPAT-10: addresses at odd alignment. */
static void odd_addresses(struct world *w)
{
    struct {
        unsigned char pad[64 + sizeof(address)];
    } room[2];
    VIP_NET_ADDRESS *local, *remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE vi = make_vi(&w->node, RD, NULL, NULL);
    VIP_CONN_HANDLE request;
    address here = local_point(&w->node, w->side->run, w->side->number ? "odd1" : "odd0");
    address there = remote_point(&w->other, w->side->run, w->side->number ? "odd0" : "odd1");
    int odd;

    for (odd = 1; odd < 8; odd += 2) {
        VIP_RETURN code;

        local = (VIP_NET_ADDRESS *)(void *)(room[0].pad + odd);
        remote = (VIP_NET_ADDRESS *)(void *)(room[1].pad + odd);
        memcpy(local, &here, sizeof here);
        memcpy(remote, &there, sizeof there);
        if (w->side->number == 0) {
            MUST(VipConnectWait(w->node.nic, local, PATIENCE, remote, &attributes, &request));
            CHECK(memcmp(remote, &there, 4 + there.net.HostAddressLen + 16u) == 0, "COMPAT-10");
            MUST(VipConnectAccept(request, vi));
        } else {
            while ((code = VipConnectRequest(vi, local, remote, PATIENCE, &attributes)) == VIP_NO_MATCH)
                ;
            CHECK_RETURN(code, VIP_SUCCESS, "COMPAT-10");
        }
        meet(w->side);
        MUST(VipDisconnect(vi));
        meet(w->side);
        memcpy(remote, &there, sizeof there);
        MUST(VipConnectPeerRequest(vi, local, remote, PATIENCE));
        CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_SUCCESS, "COMPAT-10");
        meet(w->side);
        MUST(VipDisconnect(vi));
        MUST(VipNSInit(w->node.nic, NULL));
        if (VipNSGetHostByName(w->node.nic, (VIP_CHAR *)"localhost", remote, 0) == VIP_SUCCESS) {
            char name[300];
            VIP_ULONG length = sizeof name;

            CHECK_RETURN(VipNSGetHostByAddr(w->node.nic, remote, name, &length), VIP_SUCCESS, "COMPAT-10");
        }
        MUST(VipNSShutdown(w->node.nic));
        meet(w->side);
    }
    MUST(VipDestroyVi(vi));
    ok("side %d: addresses at odd alignment", w->side->number);
}

static void compat(struct side *side)
{
    struct world w;

    memset(&w, 0, sizeof w);
    w.side = side;
    open_node(&w.node, side->device, 1 << 20);
    w.other = swap_addresses(side, &w.node);
    w.in = take_descriptor(&w.node, 2);
    w.out = take_descriptor(&w.node, 2);
    w.received = take(&w.node, BYTES);
    w.sent = take(&w.node, BYTES);
    if (!strict_mode()) {
        without_tags(&w);
        descriptor_handles(&w);
        destroy_as_it_is(&w);
        early_requests(&w);
        unflagged_immediate(&w);
        orderly_end(&w);
    }
    taken_and_gone(&w); /* these hold in both modes */
    odd_addresses(&w);
    close_node(&w.node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, compat);
    return 0;
}
