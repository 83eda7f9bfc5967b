/* COMPAT-13: a process that never closes anything, with threads inside every kind of wait, ends cleanly
 * when main returns. */
#include "common.h"

static struct node node;
static VIP_VI_HANDLE one, two, lonely;
static VIP_CQ_HANDLE cq;
static int inside;

static void *in_recv_wait(void *argument)
{
    VIP_DESCRIPTOR *found;

    (void)argument;
    atomic_add(&inside, 1);
    VipRecvWait(one, VIP_INFINITE, &found);
    return NULL;
}

static void *in_cq_wait(void *argument)
{
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv_queue;

    (void)argument;
    atomic_add(&inside, 1);
    VipCQWait(cq, VIP_INFINITE, &vi, &recv_queue);
    return NULL;
}

static void *in_connect_wait(void *argument)
{
    address local = local_point(&node, (int)getpid(), "nobody"), remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE request;

    (void)argument;
    atomic_add(&inside, 1);
    VipConnectWait(node.nic, &local.net, VIP_INFINITE, &remote.net, &attributes, &request);
    return NULL;
}

static void *in_peer_wait(void *argument)
{
    address point = local_point(&node, (int)getpid(), "lonely");
    VIP_VI_ATTRIBUTES attributes;

    (void)argument;
    MUST(VipConnectPeerRequest(lonely, &point.net, &point.net, VIP_INFINITE));
    atomic_add(&inside, 1);
    VipConnectPeerWait(lonely, &attributes);
    return NULL;
}

static void never(VIP_PVOID c, VIP_NIC_HANDLE n, VIP_VI_HANDLE v, VIP_DESCRIPTOR *d)
{
    (void)c, (void)n, (void)v, (void)d;
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    open_node(&node, options.device, 65536);
    MUST(VipCreateCQ(node.nic, 4, &cq));
    one = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    two = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    lonely = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    post_recv(&node, one, take_descriptor(&node, 1), NULL, 0);
    post_recv(&node, two, take_descriptor(&node, 1), NULL, 0);
    join_vis(&node, one, &node, two);
    MUST(VipRecvNotify(two, NULL, never));
    start_thread(in_recv_wait, NULL);
    start_thread(in_cq_wait, NULL);
    start_thread(in_connect_wait, NULL);
    start_thread(in_peer_wait, NULL);
    await(&inside, 4, "COMPAT-13");
    sleep_ms(100);
    ok("four threads wait, nothing is closed, main returns");
    return 0;
}
