/* The device of a NIC fails for good (spec §6.4 E18, §11): every connected VI dies, its queues are flushed, and
 * the program is told once. Runs with the plug-in `failing`, whose device fails when the file
 * `$FAILING_WHEN.PID` appears; side 0 makes it. */
#include "common.h"

#include <fcntl.h>

#define VIS 3

struct world {
    struct side *side;
    struct node node;
    address other;
    VIP_VI_HANDLE vi[VIS], idle;
    VIP_DESCRIPTOR *d[VIS][2];
};

static void break_device(void)
{
    char path[512];

    snprintf(path, sizeof path, "%s.%d", getenv("FAILING_WHEN"), (int)getpid());
    CHECK(creat(path, 0600) >= 0, "the file that says so");
}

static void *wait_for_a_message(void *argument)
{
    struct world *w = (struct world *)argument;

    /* the thread sleeps when the device fails; it is woken and gets its descriptor */
    EXPECT_RECV(w->vi[0], w->d[0][0], STATUS_FLUSHED_RECEIVE, "E18");
    return NULL;
}

/* No VI of the NIC can do anything any more, but everything can be taken down in good order. */
static void after_the_end(struct world *w)
{
    VIP_DESCRIPTOR *send = take_descriptor(&w->node, 1);
    address local = local_point(&w->node, w->side->run, "never");
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE request;
    address from;
    int i;

    post_send(&w->node, w->vi[1], send, w->node.memory, 8);
    EXPECT_SEND(w->vi[1], send, STATUS_FLUSHED_SEND, "E18");
    for (i = 0; i < VIS; i++) {
        MUST(VipDisconnect(w->vi[i]));
        CHECK_EQ(vi_state(w->vi[i]), VIP_STATE_IDLE, "E18");
    }
    CHECK_RETURN(VipConnectRequest(w->idle, &local.net, &local.net, 5000, &attributes), VIP_ERROR_RESOURCE, "E18");
    /* No client is accepted here, so no call waits for one. */
    CHECK_RETURN(VipConnectWait(w->node.nic, &local.net, VIP_INFINITE, &from.net, &attributes, &request),
                 VIP_ERROR_RESOURCE, "E18");
    CHECK_EQ(vi_state(w->idle), VIP_STATE_IDLE, "E18");
}

static void failing_side(struct world *w)
{
    pthread_t waiting = start_thread(wait_for_a_message, w);
    VIP_ERROR_DESCRIPTOR error;
    int i;

    break_device();
    error = NEXT_ERROR(&w->node, VIP_ERROR_CATASTROPHIC, NULL, "E18");
    CHECK_EQ(error.ResourceCode, VIP_RESOURCE_NIC, "E18");
    CHECK(error.NicHandle == w->node.nic && error.CQHandle == NULL, "E18");
    CHECK(error.DescriptorPtr == NULL && error.OpCode == 0, "E18");
    join_thread(waiting);
    for (i = 0; i < VIS; i++) {
        CHECK_EQ(vi_state(w->vi[i]), VIP_STATE_ERROR, "E18");
        if (i > 0)
            EXPECT_RECV(w->vi[i], w->d[i][0], STATUS_FLUSHED_RECEIVE, "E18");
        EXPECT_RECV(w->vi[i], w->d[i][1], STATUS_FLUSHED_RECEIVE, "E18");
    }
    CHECK_EQ(vi_state(w->idle), VIP_STATE_IDLE, "E18");
    after_the_end(w);
    NO_ERROR(&w->node, 50, "E18"); /* one error for the NIC, none for its VIs */
    ok("side 0: every VI died, and one error told it");
}

static void other_side(struct world *w)
{
    int i;

    for (i = 0; i < VIS; i++) {
        AWAIT_STATE(w->vi[i], VIP_STATE_ERROR, "E18");
        EXPECT_RECV(w->vi[i], w->d[i][0], STATUS_FLUSHED_RECEIVE, "E18");
        EXPECT_RECV(w->vi[i], w->d[i][1], STATUS_FLUSHED_RECEIVE, "E18");
        MUST(VipDisconnect(w->vi[i]));
    }
    ok("side 1: its peers have gone");
}

static void body(struct side *side)
{
    static struct world worlds[2];
    struct world *w = &worlds[side->number];
    unsigned char *buffer;
    int i, k;

    w->side = side;
    open_node(&w->node, side->device, 1 << 16);
    w->other = swap_addresses(side, &w->node);
    buffer = take(&w->node, 64);
    for (i = 0; i < VIS; i++) {
        char name[24];

        w->vi[i] = make_vi(&w->node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
        for (k = 0; k < 2; k++) {
            w->d[i][k] = take_descriptor(&w->node, 1);
            post_recv(&w->node, w->vi[i], w->d[i][k], buffer, 64);
        }
        snprintf(name, sizeof name, "end%d", i);
        join_sides(side, &w->node, w->vi[i], &w->other, name);
    }
    w->idle = make_vi(&w->node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    meet(side);
    if (side->number == 0)
        failing_side(w);
    else
        other_side(w);
    meet(side);
    for (i = 0; i < VIS; i++)
        end_vi(w->vi[i]);
    end_vi(w->idle);
    close_node(&w->node);
    ok("side %d: everything closed", side->number);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, body);
    return 0;
}
