/* fork and exec in a program that uses VIPL (spec §10.4). Side 1 is an ordinary peer; side 0 forks. */
#include "common.h"

#define BYTES 30000

struct world {
    struct side *side;
    struct node node;
    address other;
    VIP_VI_HANDLE vi;
    VIP_CQ_HANDLE cq;
    VIP_DESCRIPTOR *in, *out;
    unsigned char *received, *sent;
};

/* Side 1 sends `seed`, side 0 answers with `seed + 1`, all bytes checked. */
static void exchange(struct world *w, unsigned long seed, const char *id)
{
    memset(w->received, 0, BYTES);
    post_recv(&w->node, w->vi, w->in, w->received, BYTES);
    meet(w->side);
    fill(w->sent, BYTES, seed + (unsigned long)w->side->number);
    post_send(&w->node, w->vi, w->out, w->sent, BYTES);
    EXPECT_SEND(w->vi, w->out, STATUS_SENT, id);
    EXPECT_RECV(w->vi, w->in, STATUS_RECEIVED, id);
    CHECK(filled(w->received, BYTES, seed + 1 - (unsigned long)w->side->number), id);
    meet(w->side);
}

/* What the child finds: its parent's handles are nothing to it (MEM-25). */
static void inherited_handles(struct world *w)
{
    VIP_NIC_ATTRIBUTES nic;
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&w->node, VIP_SERVICE_RELIABLE_DELIVERY);
    VIP_MEM_ATTRIBUTES memory = mem_attributes(&w->node);
    address here = local_point(&w->node, w->side->run, "child"), remote;
    VIP_VI_STATE state;
    VIP_BOOLEAN yes, no;
    VIP_DESCRIPTOR *found;
    VIP_MEM_HANDLE handle;
    VIP_CONN_HANDLE request;
    VIP_VI_HANDLE vi;
    VIP_CQ_HANDLE cq;
    VIP_PROTECTION_HANDLE tag;

#define REFUSED(call) CHECK_RETURN(call, VIP_INVALID_PARAMETER, "MEM-25")
    REFUSED(VipQueryNic(w->node.nic, &nic));
    REFUSED(VipCreateVi(w->node.nic, &attributes, NULL, NULL, &vi));
    REFUSED(VipQueryVi(w->vi, &state, &attributes, &yes, &no));
    REFUSED(VipPostSend(w->vi, w->out, w->node.handle));
    REFUSED(VipPostRecv(w->vi, w->in, w->node.handle));
    REFUSED(VipSendDone(w->vi, &found));
    REFUSED(VipRecvDone(w->vi, &found));
    REFUSED(VipRecvWait(w->vi, 10, &found));
    REFUSED(VipCQDone(w->cq, &vi, &yes));
    REFUSED(VipCQWait(w->cq, 10, &vi, &yes));
    REFUSED(VipCreateCQ(w->node.nic, 4, &cq));
    REFUSED(VipRegisterMem(w->node.nic, w->sent, 64, &memory, &handle));
    REFUSED(VipQueryMem(w->node.nic, w->sent, w->node.handle, &memory));
    REFUSED(VipDeregisterMem(w->node.nic, w->node.memory, w->node.handle));
    REFUSED(VipCreatePtag(w->node.nic, &tag));
    REFUSED(VipDestroyPtag(w->node.nic, w->node.ptag));
    REFUSED(VipConnectWait(w->node.nic, &here.net, 10, &remote.net, &attributes, &request));
    REFUSED(VipConnectRequest(w->vi, &here.net, &here.net, 10, &attributes));
    REFUSED(VipErrorCallback(w->node.nic, NULL, NULL));
    REFUSED(VipNSInit(w->node.nic, NULL));
    REFUSED(VipDisconnect(w->vi));
    REFUSED(VipDestroyVi(w->vi));
    REFUSED(VipDestroyCQ(w->cq));
    REFUSED(VipCloseNic(w->node.nic));
    CHECK(VipGetUserData(w->vi) == NULL, "MEM-25");
}

/* The child opens a NIC of its own and talks to its parent. */
static void child(struct world *w, int link)
{
    struct world own;
    struct side side;

    memset(&own, 0, sizeof own);
    side = *w->side;
    side.number = 1;
    side.link = link;
    own.side = &side;
    inherited_handles(w);
    open_node(&own.node, side.device, 1 << 20);
    own.other = swap_addresses(&side, &own.node);
    own.in = take_descriptor(&own.node, 1);
    own.out = take_descriptor(&own.node, 1);
    own.received = take(&own.node, BYTES);
    own.sent = take(&own.node, BYTES);
    own.vi = make_vi(&own.node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    join_sides(&side, &own.node, own.vi, &own.other, "child");
    exchange(&own, 500, "spec §10.4: the child's own NIC");
    inherited_handles(w); /* still nothing */
    end_vi(own.vi);
    close_node(&own.node);
    printf("ok: the child refused its parent's handles and used its own\n");
    fflush(NULL);
    _exit(0);
}

/* Side 0 in its role towards the child. The node stays where it is: its handler may write to it. */
static void talk_to_child(struct world *w, int link)
{
    struct side *const peer = w->side;
    const address other = w->other;
    const VIP_VI_HANDLE vi = w->vi;
    struct side to_child = *peer;

    to_child.link = link;
    w->side = &to_child;
    w->other = swap_addresses(w->side, &w->node);
    w->vi = make_vi(&w->node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    join_sides(w->side, &w->node, w->vi, &w->other, "child");
    exchange(w, 500, "spec §10.4: the child's own NIC");
    AWAIT_STATE(w->vi, VIP_STATE_ERROR, "the child has ended");
    end_vi(w->vi);
    w->side = peer;
    w->other = other;
    w->vi = vi;
}

static void run_true(int times)
{
    int i, status;

    for (i = 0; i < times; i++) {
        pid_t pid = fork();

        CHECK(pid >= 0, "fork");
        if (pid == 0) {
            execl("/bin/true", "true", (char *)NULL);
            _exit(99);
        }
        CHECK_EQ(waitpid(pid, &status, 0), pid, "waitpid");
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "COMPAT-14");
    }
    CHECK_EQ(system("exit 7") >> 8, 7, "COMPAT-14: system()");
}

static void forked(struct side *side)
{
    struct world w;
    int round;

    memset(&w, 0, sizeof w);
    w.side = side;
    open_node(&w.node, side->device, 1 << 20);
    w.other = swap_addresses(side, &w.node);
    w.in = take_descriptor(&w.node, 1);
    w.out = take_descriptor(&w.node, 1);
    w.received = take(&w.node, BYTES);
    w.sent = take(&w.node, BYTES);
    w.vi = make_vi(&w.node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    MUST(VipCreateCQ(w.node.nic, 4, &w.cq));
    join_sides(side, &w.node, w.vi, &w.other, "forked");
    exchange(&w, 10, "before the fork");

    for (round = 0; round < 3; round++) {
        if (side->number == 0) {
            int ends[2], status;
            pid_t pid;

            /* posted before the fork, filled after it (MEM-24: no copy-on-write trap) */
            memset(w.received, 0, BYTES);
            post_recv(&w.node, w.vi, w.in, w.received, BYTES);
            fill(w.sent, BYTES, 20);
            CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0, "socketpair");
            fflush(NULL);
            pid = fork();
            CHECK(pid >= 0, "fork");
            if (pid == 0) {
                close(ends[0]);
                child(&w, ends[1]);
            }
            close(ends[1]);
            memset(w.received, 1, BYTES); /* the parent's pages are written to, and copied */
            memset(w.sent, 1, BYTES);
            meet(side);
            EXPECT_RECV(w.vi, w.in, STATUS_RECEIVED, "MEM-24");
            CHECK(filled(w.received, BYTES, 31), "MEM-24");
            fill(w.sent, BYTES, 32);
            post_send(&w.node, w.vi, w.out, w.sent, BYTES);
            EXPECT_SEND(w.vi, w.out, STATUS_SENT, "MEM-24");
            talk_to_child(&w, ends[0]);
            CHECK_EQ(waitpid(pid, &status, 0), pid, "waitpid");
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's end");
            close(ends[0]);
        } else {
            post_recv(&w.node, w.vi, w.in, w.received, BYTES);
            meet(side);
            fill(w.sent, BYTES, 31);
            post_send(&w.node, w.vi, w.out, w.sent, BYTES);
            EXPECT_SEND(w.vi, w.out, STATUS_SENT, "MEM-24");
            EXPECT_RECV(w.vi, w.in, STATUS_RECEIVED, "MEM-24");
            CHECK(filled(w.received, BYTES, 32), "MEM-24");
        }
        exchange(&w, 40, "after the fork");
        CHECK_EQ(vi_state(w.vi), VIP_STATE_CONNECTED, "spec §10.4: the child's end is not the parent's");
    }
    sleep_ms(20);
    forget_errors(&w.node); /* the children's ends */
    ok("side %d: three forks, transfers before, during and after", side->number);

    if (side->number == 0)
        run_true(5);
    exchange(&w, 60, "COMPAT-14");
    NO_ERROR(&w.node, 0, "COMPAT-14");
    meet(side);
    ok("side %d: fork and exec", side->number);
    end_vi(w.vi);
    MUST(VipDestroyCQ(w.cq));
    close_node(&w.node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, forked);
    return 0;
}
