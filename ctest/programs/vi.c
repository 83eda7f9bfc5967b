/* Creating, querying, changing and destroying VIs (spec §3.4 to §3.7). */
#include "common.h"

static struct node node, other;

static int same(const VIP_VI_ATTRIBUTES *x, const VIP_VI_ATTRIBUTES *y)
{
    return x->ReliabilityLevel == y->ReliabilityLevel && x->MaxTransferSize == y->MaxTransferSize &&
           x->QoS == y->QoS && x->Ptag == y->Ptag && !x->EnableRdmaWrite == !y->EnableRdmaWrite &&
           !x->EnableRdmaRead == !y->EnableRdmaRead;
}

static void check_vi(VIP_VI_HANDLE vi, int state, const VIP_VI_ATTRIBUTES *attributes, int send_empty,
                     int recv_empty, const char *id)
{
    VIP_VI_STATE s = (VIP_VI_STATE)77;
    VIP_VI_ATTRIBUTES a;
    VIP_BOOLEAN send = 77, recv = 77;

    memset(&a, 0x55, sizeof a);
    CHECK_RETURN(VipQueryVi(vi, &s, &a, &send, &recv), VIP_SUCCESS, id);
    CHECK_EQ(s, state, id);
    CHECK(same(&a, attributes), id);
    CHECK_EQ(send != 0, send_empty, id);
    CHECK_EQ(recv != 0, recv_empty, id);
}

static void create(void)
{
    int level;

    for (level = 1; level <= 4; level *= 2) {
        VIP_VI_ATTRIBUTES a = vi_attributes(&node, level);
        VIP_VI_HANDLE vi;

        if (!level_supported(&node, level))
            continue;
        a.MaxTransferSize = 1234;
        a.EnableRdmaWrite = VIP_FALSE;
        CHECK_RETURN(VipCreateVi(node.nic, &a, NULL, NULL, &vi), VIP_SUCCESS, "VI-01");
        check_vi(vi, VIP_STATE_IDLE, &a, 1, 1, "VI-01");
        MUST(VipDestroyVi(vi));
        CHECK_RETURN(VipDestroyVi(vi), VIP_INVALID_PARAMETER, "VI-13");
    }
    ok("a new VI is Idle, empty and as asked for");
}

/* One attribute after the other is put right: the first wrong one decides (VI-07). */
static void bad_attributes(void)
{
    /* a level without RDMA Read, if there is one */
    const int levels = node.attributes.ReliabilityLevelSupport, without = levels & ~node.attributes.RDMAReadSupport;
    const int level = without != 0 ? without & -without : levels & -levels;
    VIP_VI_ATTRIBUTES a, before = vi_attributes(&node, level);
    VIP_VI_HANDLE vi, none = NULL;
    int set, bit;

    MUST(VipCreateVi(node.nic, &before, NULL, NULL, &vi));
#define BOTH(expected, id)                                                                      \
    for (set = 0; set < 2; set++)                                                               \
        CHECK_RETURN(set ? VipSetViAttributes(vi, &a) : VipCreateVi(node.nic, &a, NULL, NULL, &none), \
                     expected, id)
    a = before;
    a.ReliabilityLevel = 0;
    a.MaxTransferSize = 0;
    a.QoS = &a;
    a.Ptag = other.ptag;
    a.EnableRdmaRead = VIP_TRUE;
    BOTH(VIP_INVALID_RELIABILITY_LEVEL, "VI-02 VI-07");
    a.ReliabilityLevel = 3;
    BOTH(VIP_INVALID_RELIABILITY_LEVEL, "VI-02");
    a.ReliabilityLevel = 8;
    BOTH(VIP_INVALID_RELIABILITY_LEVEL, "VI-02");
    a.ReliabilityLevel = (VIP_RELIABILITY_LEVEL)(VIP_SERVICE_DFC | level);
    BOTH(VIP_INVALID_RELIABILITY_LEVEL, "VI-02");
    for (bit = 1; bit <= 0x8000; bit *= 2) {
        a.ReliabilityLevel = (VIP_RELIABILITY_LEVEL)bit;
        if ((levels & bit) == 0)
            BOTH(VIP_INVALID_RELIABILITY_LEVEL, "VI-02");
    }
    a.ReliabilityLevel = (VIP_RELIABILITY_LEVEL)level;
    BOTH(VIP_INVALID_MTU, "VI-03 VI-07");
    a.MaxTransferSize = node.attributes.MaxTransferSize + 1;
    BOTH(VIP_INVALID_MTU, "VI-03");
    a.MaxTransferSize = 4096;
    BOTH(VIP_INVALID_QOS, "VI-04 VI-07");
    a.QoS = NULL;
    BOTH(VIP_INVALID_PTAG, "VI-05 VI-07");
    if (strict_mode()) {
        a.Ptag = NULL;
        BOTH(VIP_INVALID_PTAG, "VI-05");
    }
    a.Ptag = node.ptag;
    if (without != 0)
        BOTH(VIP_INVALID_RDMAREAD, "VI-06");
    check_vi(vi, VIP_STATE_IDLE, &before, 1, 1, "VI-18");
    a.EnableRdmaRead = VIP_FALSE;
    if (other_level(&node, level) != 0) /* a change of level, too */
        a.ReliabilityLevel = (VIP_RELIABILITY_LEVEL)other_level(&node, level);
    a.EnableRdmaWrite = VIP_FALSE;
    CHECK_RETURN(VipSetViAttributes(vi, &a), VIP_SUCCESS, "VI-16");
    check_vi(vi, VIP_STATE_IDLE, &a, 1, 1, "VI-16");
    CHECK(none == NULL, "R1: outputs are written on success only");
    MUST(VipDestroyVi(vi));
    ok("bad attributes, in order, and none of them taken");
}

static void user_data(void)
{
    VIP_VI_HANDLE one = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    VIP_VI_HANDLE two = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    int x, y;

    CHECK(VipGetUserData(one) == NULL && VipGetUserData(two) == NULL, "VI-19");
    VipSetUserData(one, &x);
    VipSetUserData(two, &y);
    CHECK(VipGetUserData(one) == &x && VipGetUserData(two) == &y, "VI-19");
    VipSetUserData(one, NULL);
    CHECK(VipGetUserData(one) == NULL && VipGetUserData(two) == &y, "VI-19");
    MUST(VipDestroyVi(one));
    CHECK(VipGetUserData(one) == NULL, "VI-19");
    MUST(VipDestroyVi(two));
    one = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    CHECK(VipGetUserData(one) == NULL, "VI-19");
    MUST(VipDestroyVi(one));
    ok("user data");
}

static void as_many_as_there_are(void)
{
    static VIP_VI_HANDLE vi[65536];
    VIP_VI_ATTRIBUTES a = vi_attributes(&node, VIP_SERVICE_RELIABLE_DELIVERY);
    VIP_VI_HANDLE more, first;
    size_t i, most = node.attributes.MaxVI;

    CHECK(most <= 65536, "MaxVI that this test can hold");
    for (i = 0; i < most; i++)
        CHECK_RETURN(VipCreateVi(node.nic, &a, NULL, NULL, &vi[i]), VIP_SUCCESS, "VI-09");
    CHECK_RETURN(VipCreateVi(node.nic, &a, NULL, NULL, &more), VIP_ERROR_RESOURCE, "VI-09");
    first = vi[0];
    MUST(VipDestroyVi(vi[0]));
    CHECK_RETURN(VipCreateVi(node.nic, &a, NULL, NULL, &vi[0]), VIP_SUCCESS, "VI-09");
    CHECK(vi[0] != first, "spec §2.1: handles are not reused at once");
    CHECK_RETURN(VipQueryNic(first, &node.attributes), VIP_INVALID_PARAMETER, "stale handle");
    CHECK_RETURN(VipDisconnect(first), VIP_INVALID_PARAMETER, "stale handle");
    for (i = 0; i < most; i++)
        MUST(VipDestroyVi(vi[i]));
    ok("%lu VIs and not one more", (unsigned long)most);
}

/* What a Connected, an Error and an occupied VI refuse. */
static void states(void)
{
    VIP_VI_ATTRIBUTES a = vi_attributes(&node, VIP_SERVICE_RELIABLE_DELIVERY), b;
    VIP_VI_HANDLE one = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    VIP_VI_HANDLE two = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    VIP_DESCRIPTOR *out = take_descriptor(&node, 1), *in = take_descriptor(&node, 1), *found;
    address here = local_point(&node, (int)getpid(), "states");

    post_recv(&node, two, in, node.memory, 64);
    check_vi(two, VIP_STATE_IDLE, &a, 1, 0, "VI-14");
    join_vis(&node, one, &node, two);
    check_vi(one, VIP_STATE_CONNECTED, &a, 1, 1, "CONN-01");
    check_vi(two, VIP_STATE_CONNECTED, &a, 1, 0, "VI-14");
    CHECK_RETURN(VipSetViAttributes(one, &a), VIP_INVALID_STATE, "VI-17");
    CHECK_RETURN(VipDestroyVi(one), VIP_INVALID_STATE, "VI-10");
    CHECK_RETURN(VipConnectRequest(one, &here.net, &here.net, 100, &b), VIP_INVALID_STATE, "CONN-10");
    CHECK_RETURN(VipConnectPeerRequest(one, &here.net, &here.net, 100), VIP_INVALID_STATE, "spec §4.3");

    post_send(&node, one, out, node.memory, 8);
    check_vi(one, VIP_STATE_CONNECTED, &a, 0, 1, "VI-14"); /* complete or not, it is there */
    check_vi(two, VIP_STATE_CONNECTED, &a, 1, 0, "VI-14");
    EXPECT_SEND(one, out, STATUS_SENT, "VI-14");
    EXPECT_RECV(two, in, STATUS_RECEIVED, "VI-14");
    check_vi(one, VIP_STATE_CONNECTED, &a, 1, 1, "VI-14");
    check_vi(two, VIP_STATE_CONNECTED, &a, 1, 1, "VI-14");

    post_recv(&node, two, in, node.memory, 64);
    MUST(VipDisconnect(one));
    AWAIT_STATE(two, VIP_STATE_ERROR, "DISC-05");
    CHECK_RETURN(VipSetViAttributes(two, &a), VIP_INVALID_STATE, "VI-17");
    CHECK_RETURN(VipDestroyVi(two), VIP_INVALID_STATE, "VI-10");
    CHECK_RETURN(VipConnectRequest(two, &here.net, &here.net, 100, &b), VIP_INVALID_STATE, "CONN-10");
    check_vi(two, VIP_STATE_ERROR, &a, 1, 0, "VI-14");
    MUST(VipDisconnect(two));
    check_vi(two, VIP_STATE_IDLE, &a, 1, 0, "DISC-08");
    if (strict_mode())
        CHECK_RETURN(VipDestroyVi(two), VIP_ERROR_RESOURCE, "VI-11");
    CHECK_RETURN(VipRecvDone(two, &found), VIP_DESCRIPTOR_ERROR, "DISC-03");
    CHECK(found == in, "DISC-03");
    CHECK_RETURN(VipDestroyVi(two), VIP_SUCCESS, "VI-12");

    /* a descriptor that waits for a connection keeps its VI */
    if (strict_mode()) {
        post_recv(&node, one, in, node.memory, 64);
        CHECK_RETURN(VipDestroyVi(one), VIP_ERROR_RESOURCE, "VI-11");
        MUST(VipDisconnect(one));
        CHECK_RETURN(VipDestroyVi(one), VIP_ERROR_RESOURCE, "VI-11");
        drain(one);
    }
    CHECK_RETURN(VipDestroyVi(one), VIP_SUCCESS, "VI-12");
    ok("what a VI refuses in which state");
}

static void *blocked_request(void *argument)
{
    VIP_VI_HANDLE vi = argument;
    address here = local_point(&node, (int)getpid(), "client");
    address there = local_point(&node, (int)getpid(), "held");
    VIP_VI_ATTRIBUTES a;
    VIP_RETURN code;

    while ((code = VipConnectRequest(vi, &here.net, &there.net, PATIENCE, &a)) == VIP_NO_MATCH)
        sleep_ms(1);
    CHECK_RETURN(code, VIP_REJECT, "CONN-11");
    return NULL;
}

/* The client is Connect Pending as long as the server holds its request. */
static void pending(void)
{
    VIP_VI_ATTRIBUTES a = vi_attributes(&node, VIP_SERVICE_RELIABLE_DELIVERY), b;
    VIP_VI_HANDLE vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    VIP_DESCRIPTOR *in = take_descriptor(&node, 1), *out = take_descriptor(&node, 1);
    address here = local_point(&node, (int)getpid(), "held"), there;
    pthread_t thread = start_thread(blocked_request, vi);
    VIP_CONN_HANDLE request;

    MUST(VipConnectWait(node.nic, &here.net, PATIENCE, &there.net, &b, &request));
    check_vi(vi, VIP_STATE_CONNECT_PENDING, &a, 1, 1, "VI-15");
    CHECK_RETURN(VipDestroyVi(vi), VIP_INVALID_STATE, "VI-10");
    CHECK_RETURN(VipSetViAttributes(vi, &a), VIP_INVALID_STATE, "spec §4.3");
    CHECK_RETURN(VipConnectAccept(request, vi), VIP_INVALID_STATE, "CONN-20");
    CHECK_RETURN(VipConnectRequest(vi, &here.net, &here.net, 100, &b), VIP_INVALID_STATE, "CONN-10");
    post_recv(&node, vi, in, node.memory, 64);
    check_vi(vi, VIP_STATE_CONNECT_PENDING, &a, 1, 0, "POST-08");
    post_send(&node, vi, out, node.memory, 64);
    EXPECT_SEND(vi, out, STATUS_FLUSHED_SEND, "POST-09");
    MUST(VipConnectReject(request));
    join_thread(thread);
    check_vi(vi, VIP_STATE_IDLE, &a, 1, 0, "CONN-23");
    end_vi(vi);
    ok("Connect Pending");
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    open_node(&node, options.device, 1 << 20);
    open_node(&other, options.device, 4096);
    create();
    bad_attributes();
    user_data();
    as_many_as_there_are();
    states();
    pending();
    close_node(&node);
    close_node(&other);
    return 0;
}
