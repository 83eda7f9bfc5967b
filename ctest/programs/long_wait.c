/* Calls that wait for another process have no limit but their own. In a library with debug assertions, and with
 * VIPL_TEST_TIME=100, what lasts a second here lasts 100 seconds there: longer than any limit for the replies of the agent.
 * Two processes, or with -1 two threads. */
#include "common.h"

/* Real time before the other side does its part. */
#define LONG 1000UL

struct world {
    struct side *side;
    struct node node;
    address other;
};

/* A server waits long for its client. */
static void server_waits(struct world *w, VIP_VI_HANDLE vi)
{
    address local = local_point(&w->node, w->side->run, w->side->number ? "client" : "server");
    address remote = remote_point(&w->other, w->side->run, "server");
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE handle;

    if (w->side->number == 0) {
        CHECK_RETURN(VipConnectWait(w->node.nic, &local.net, VIP_INFINITE, &remote.net, &attributes, &handle), VIP_SUCCESS,
                     "long_wait: VipConnectWait");
        CHECK_RETURN(VipConnectAccept(handle, vi), VIP_SUCCESS, "long_wait: VipConnectAccept");
    } else {
        sleep_ms(LONG);
        CHECK_RETURN(VipConnectRequest(vi, &local.net, &remote.net, VIP_INFINITE, &attributes), VIP_SUCCESS,
                     "long_wait: VipConnectRequest");
    }
}

/* A client waits long for its server, which has its request. */
static void client_waits(struct world *w, VIP_VI_HANDLE vi)
{
    address local = local_point(&w->node, w->side->run, w->side->number ? "client" : "slow");
    address remote = remote_point(&w->other, w->side->run, "slow");
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE handle;

    if (w->side->number == 0) {
        CHECK_RETURN(VipConnectWait(w->node.nic, &local.net, VIP_INFINITE, &remote.net, &attributes, &handle), VIP_SUCCESS,
                     "long_wait: VipConnectWait");
        sleep_ms(LONG);
        CHECK_RETURN(VipConnectAccept(handle, vi), VIP_SUCCESS, "long_wait: VipConnectAccept");
    } else {
        CHECK_RETURN(VipConnectRequest(vi, &local.net, &remote.net, VIP_INFINITE, &attributes), VIP_SUCCESS,
                     "long_wait: VipConnectRequest");
    }
}

/* A peer waits long for its peer. */
static void peer_waits(struct world *w, VIP_VI_HANDLE vi)
{
    const char *own = w->side->number ? "peer1" : "peer0", *others = w->side->number ? "peer0" : "peer1";
    address local = local_point(&w->node, w->side->run, own);
    address remote = remote_point(&w->other, w->side->run, others);
    VIP_VI_ATTRIBUTES attributes;

    if (w->side->number == 1)
        sleep_ms(LONG);
    CHECK_RETURN(VipConnectPeerRequest(vi, &local.net, &remote.net, VIP_INFINITE), VIP_SUCCESS, "long_wait: VipConnectPeerRequest");
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_SUCCESS, "long_wait: VipConnectPeerWait");
}

static void body(struct side *side)
{
    static void (*const cases[])(struct world *, VIP_VI_HANDLE) = { server_waits, client_waits, peer_waits };
    struct world *w = (struct world *)calloc(1, sizeof *w);
    VIP_VI_HANDLE vi;
    unsigned i;

    CHECK(w != NULL, "calloc");
    w->side = side;
    open_node(&w->node, side->device, 1 << 16);
    w->other = swap_addresses(side, &w->node);
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        vi = make_vi(&w->node, tested_level(side), NULL, NULL);
        meet(side);
        cases[i](w, vi);
        meet(side);
        end_vi(vi);
        meet(side);
    }
    close_node(&w->node);
    if (side->number == 0)
        ok("waits as long as they are asked to be");
    free(w);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, body);
    return 0;
}
