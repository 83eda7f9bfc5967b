/* Every function with every pointer NULL and with every kind of bad handle: the codes of spec §3, and
 * never a crash. The same in both modes, but for the points of spec §17. */
#include "common.h"

static struct node a, b;                /* two openings of one device */
static VIP_VI_HANDLE vi, vi_b, vi_gone; /* live; of the other opening; destroyed */
static VIP_VI_HANDLE vi_cq;             /* both queues attached */
static VIP_CQ_HANDLE cq, cq_b, cq_gone;
static VIP_PROTECTION_HANDLE ptag_gone;
static VIP_NIC_HANDLE nic_gone;
static VIP_MEM_HANDLE mem_gone;
static VIP_CONN_HANDLE request_gone;

static VIP_DESCRIPTOR *descriptor;
static address here, there;

static void nothing_vi(VIP_PVOID c, VIP_NIC_HANDLE n, VIP_VI_HANDLE v, VIP_DESCRIPTOR *d)
{
    (void)c, (void)n, (void)v, (void)d;
    fail(__FILE__, __LINE__, "Notify", "a refused registration", "no call", "a call");
}

static void nothing_cq(VIP_PVOID c, VIP_NIC_HANDLE n, VIP_VI_HANDLE v, VIP_BOOLEAN r)
{
    (void)c, (void)n, (void)v, (void)r;
    fail(__FILE__, __LINE__, "Notify", "a refused registration", "no call", "a call");
}

/* ---- set-up ---------------------------------------------------------------------------------- */

/* A connection handle that was rejected, and is dead since. */
static void *waiter(void *argument)
{
    address remote;
    VIP_VI_ATTRIBUTES attributes;

    (void)argument;
    MUST(VipConnectWait(a.nic, &here.net, PATIENCE, &remote.net, &attributes, &request_gone));
    MUST(VipConnectReject(request_gone));
    return NULL;
}

static void make_dead_request(void)
{
    VIP_VI_ATTRIBUTES attributes;
    VIP_RETURN code;
    pthread_t thread = start_thread(waiter, NULL);

    while ((code = VipConnectRequest(vi, &there.net, &here.net, PATIENCE, &attributes)) == VIP_NO_MATCH)
        sleep_ms(1);
    CHECK_RETURN(code, VIP_REJECT, "CONN-11");
    join_thread(thread);
}

static void set_up(const char *device)
{
    static unsigned char spare[64];

    open_node(&a, device, 1 << 20);
    open_node(&b, device, 1 << 20);
    here = local_point(&a, (int)getpid(), "nulls");
    there = local_point(&a, (int)getpid(), "client");
    descriptor = take_descriptor(&a, 2);
    MUST(VipCreateCQ(a.nic, 8, &cq));
    MUST(VipCreateCQ(b.nic, 8, &cq_b));
    MUST(VipCreateCQ(a.nic, 8, &cq_gone));
    MUST(VipDestroyCQ(cq_gone));
    vi = make_vi(&a, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    vi_cq = make_vi(&a, VIP_SERVICE_RELIABLE_DELIVERY, cq, cq);
    vi_b = make_vi(&b, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    vi_gone = make_vi(&a, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    MUST(VipDestroyVi(vi_gone));
    MUST(VipCreatePtag(a.nic, &ptag_gone));
    MUST(VipDestroyPtag(a.nic, ptag_gone));
    MUST(VipOpenNic(device, &nic_gone));
    MUST(VipCloseNic(nic_gone));
    mem_gone = register_range(&a, spare, sizeof spare);
    MUST(VipDeregisterMem(a.nic, spare, mem_gone));
    make_dead_request();
}

/* ---- bad handles ----------------------------------------------------------------------------- */

enum kind { NIC, VI, CQ, CONN };

struct handle_test {
    const char *name;
    enum kind kind;
    VIP_RETURN (*call)(VIP_PVOID bad); /* everything but `bad` is in order */
};

static VIP_NIC_HANDLE new_nic;
static VIP_NIC_ATTRIBUTES nic_attributes;
static VIP_VI_ATTRIBUTES vi_attribs;
static VIP_MEM_ATTRIBUTES mem_attribs;
static VIP_PROTECTION_HANDLE new_ptag;
static VIP_MEM_HANDLE new_mem;
static VIP_VI_HANDLE new_vi;
static VIP_CQ_HANDLE new_cq;
static VIP_CONN_HANDLE new_request;
static VIP_VI_STATE state;
static VIP_BOOLEAN yes1, yes2;
static VIP_DESCRIPTOR *found;
static address remote;
static char name[64] = "localhost";
static VIP_ULONG name_len = sizeof name;
static VIP_AUTODISCOVERY_LIST list;

#define HANDLE_TEST(label, expression) \
    static VIP_RETURN label(VIP_PVOID bad) { return expression; }

HANDLE_TEST(close_nic, VipCloseNic(bad))
HANDLE_TEST(query_nic, VipQueryNic(bad, &nic_attributes))
HANDLE_TEST(create_vi, VipCreateVi(bad, &vi_attribs, NULL, NULL, &new_vi))
HANDLE_TEST(connect_wait,
            VipConnectWait(bad, &here.net, 1, &remote.net, &vi_attribs, &new_request))
HANDLE_TEST(create_ptag, VipCreatePtag(bad, &new_ptag))
HANDLE_TEST(destroy_ptag, VipDestroyPtag(bad, a.ptag))
HANDLE_TEST(register_mem, VipRegisterMem(bad, a.memory, 64, &mem_attribs, &new_mem))
HANDLE_TEST(deregister_mem, VipDeregisterMem(bad, a.memory, a.handle))
HANDLE_TEST(query_mem, VipQueryMem(bad, a.memory, a.handle, &mem_attribs))
HANDLE_TEST(set_mem, VipSetMemAttributes(bad, a.memory, a.handle, &mem_attribs))
HANDLE_TEST(create_cq, VipCreateCQ(bad, 8, &new_cq))
HANDLE_TEST(query_system, VipQuerySystemManagementInfo(bad, VIP_SMI_AUTODISCOVERY, &list))
HANDLE_TEST(error_callback, VipErrorCallback(bad, NULL, NULL))
HANDLE_TEST(ns_init, VipNSInit(bad, NULL))
HANDLE_TEST(ns_shutdown, VipNSShutdown(bad))
HANDLE_TEST(ns_by_name, VipNSGetHostByName(bad, name, &remote.net, 0))
HANDLE_TEST(ns_by_addr, VipNSGetHostByAddr(bad, &here.net, name, &name_len))

HANDLE_TEST(destroy_vi, VipDestroyVi(bad))
HANDLE_TEST(query_vi, VipQueryVi(bad, &state, &vi_attribs, &yes1, &yes2))
HANDLE_TEST(set_vi, VipSetViAttributes(bad, &vi_attribs))
HANDLE_TEST(connect_request, VipConnectRequest(bad, &there.net, &here.net, 1, &vi_attribs))
HANDLE_TEST(disconnect, VipDisconnect(bad))
HANDLE_TEST(peer_request, VipConnectPeerRequest(bad, &there.net, &here.net, 1))
HANDLE_TEST(peer_done, VipConnectPeerDone(bad, &vi_attribs))
HANDLE_TEST(peer_wait, VipConnectPeerWait(bad, &vi_attribs))
HANDLE_TEST(post_send_to, VipPostSend(bad, descriptor, a.handle))
HANDLE_TEST(post_recv_to, VipPostRecv(bad, descriptor, a.handle))
HANDLE_TEST(send_done, VipSendDone(bad, &found))
HANDLE_TEST(recv_done, VipRecvDone(bad, &found))
HANDLE_TEST(send_wait_on, VipSendWait(bad, 1, &found))
HANDLE_TEST(recv_wait_on, VipRecvWait(bad, 1, &found))
HANDLE_TEST(send_notify, VipSendNotify(bad, NULL, nothing_vi))
HANDLE_TEST(recv_notify, VipRecvNotify(bad, NULL, nothing_vi))
HANDLE_TEST(accept_with, VipConnectAccept(request_gone, bad))

HANDLE_TEST(destroy_cq, VipDestroyCQ(bad))
HANDLE_TEST(resize_cq, VipResizeCQ(bad, 16))
HANDLE_TEST(cq_done, VipCQDone(bad, &new_vi, &yes1))
HANDLE_TEST(cq_wait, VipCQWait(bad, 1, &new_vi, &yes1))
HANDLE_TEST(cq_notify, VipCQNotify(bad, NULL, nothing_cq))

HANDLE_TEST(accept_it, VipConnectAccept(bad, vi))
HANDLE_TEST(reject_it, VipConnectReject(bad))

static const struct handle_test handle_tests[] = {
    {"VipCloseNic", NIC, close_nic},
    {"VipQueryNic", NIC, query_nic},
    {"VipCreateVi", NIC, create_vi},
    {"VipConnectWait", NIC, connect_wait},
    {"VipCreatePtag", NIC, create_ptag},
    {"VipDestroyPtag", NIC, destroy_ptag},
    {"VipRegisterMem", NIC, register_mem},
    {"VipDeregisterMem", NIC, deregister_mem},
    {"VipQueryMem", NIC, query_mem},
    {"VipSetMemAttributes", NIC, set_mem},
    {"VipCreateCQ", NIC, create_cq},
    {"VipQuerySystemManagementInfo", NIC, query_system},
    {"VipErrorCallback", NIC, error_callback},
    {"VipNSInit", NIC, ns_init},
    {"VipNSShutdown", NIC, ns_shutdown},
    {"VipNSGetHostByName", NIC, ns_by_name},
    {"VipNSGetHostByAddr", NIC, ns_by_addr},
    {"VipDestroyVi", VI, destroy_vi},
    {"VipQueryVi", VI, query_vi},
    {"VipSetViAttributes", VI, set_vi},
    {"VipConnectRequest", VI, connect_request},
    {"VipDisconnect", VI, disconnect},
    {"VipConnectPeerRequest", VI, peer_request},
    {"VipConnectPeerDone", VI, peer_done},
    {"VipConnectPeerWait", VI, peer_wait},
    {"VipPostSend", VI, post_send_to},
    {"VipPostRecv", VI, post_recv_to},
    {"VipSendDone", VI, send_done},
    {"VipRecvDone", VI, recv_done},
    {"VipSendWait", VI, send_wait_on},
    {"VipRecvWait", VI, recv_wait_on},
    {"VipSendNotify", VI, send_notify},
    {"VipRecvNotify", VI, recv_notify},
    {"VipConnectAccept, VI", VI, accept_with},
    {"VipDestroyCQ", CQ, destroy_cq},
    {"VipResizeCQ", CQ, resize_cq},
    {"VipCQDone", CQ, cq_done},
    {"VipCQWait", CQ, cq_wait},
    {"VipCQNotify", CQ, cq_notify},
    {"VipConnectAccept", CONN, accept_it},
    {"VipConnectReject", CONN, reject_it},
};

/* The assertion about bad handles of a function. */
static const char *handle_id(const struct handle_test *test)
{
    if (strncmp(test->name, "VipPost", 7) == 0)
        return "POST-01";
    if (strcmp(test->name, "VipSendDone") == 0 || strcmp(test->name, "VipRecvDone") == 0)
        return "DONE-03";
    return test->kind == CONN ? "CONN-21" : "bad handle";
}

/* Handles that are wrong for every kind, and live ones that are right for one kind only. */
static void bad_handles(void)
{
    const VIP_PVOID bad[] = {
        NULL,
        (VIP_PVOID)1,
        (VIP_PVOID)-1,
        (VIP_PVOID)(uintptr_t)0x10000,
        (VIP_PVOID)(uintptr_t)0x7fffffffffffffff,
        (VIP_PVOID)&a, /* a pointer to something real */
        nic_gone, vi_gone, cq_gone, ptag_gone, request_gone,
        a.ptag, (VIP_PVOID)(uintptr_t)a.handle,
    };
    const struct {
        enum kind kind;
        VIP_PVOID handle;
    } live[] = {{NIC, a.nic}, {VI, vi}, {CQ, cq}};
    const size_t tests = sizeof handle_tests / sizeof handle_tests[0];
    size_t i, k;

    for (i = 0; i < tests; i++) {
        const struct handle_test *test = &handle_tests[i];

        for (k = 0; k < sizeof bad / sizeof bad[0]; k++)
            check_return(__FILE__, __LINE__, test->kind == NIC && bad[k] == nic_gone ? "NIC-06" : handle_id(test),
                         test->name, (long)test->call(bad[k]), VIP_INVALID_PARAMETER);
        for (k = 0; k < sizeof live / sizeof live[0]; k++)
            if (live[k].kind != test->kind)
                check_return(__FILE__, __LINE__, "handle of another kind", test->name,
                             (long)test->call(live[k].handle), VIP_INVALID_PARAMETER);
    }
    for (k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        VipSetUserData(bad[k], &a);
        CHECK(VipGetUserData(bad[k]) == NULL, "VI-19");
    }
    ok("%d functions with %d bad handles each", (int)tests, (int)(sizeof bad / sizeof bad[0]) + 2);
}

/* ---- NULL pointers --------------------------------------------------------------------------- */

#define REFUSED(call, id) CHECK_RETURN(call, VIP_INVALID_PARAMETER, id)

static void null_pointers(void)
{
    REFUSED(VipOpenNic(NULL, &new_nic), "NIC-02");
    REFUSED(VipOpenNic("/dev/via_lo", NULL), "NIC-02");
    REFUSED(VipOpenNic(NULL, NULL), "NIC-02");
    REFUSED(VipOpenNic("", &new_nic), "NIC-02");
    REFUSED(VipOpenNic("no such device at all", &new_nic), "NIC-02");
    REFUSED(VipQueryNic(a.nic, NULL), "NIC-12");
    REFUSED(VipCreateVi(a.nic, NULL, NULL, NULL, &new_vi), "R2");
    REFUSED(VipCreateVi(a.nic, &vi_attribs, NULL, NULL, NULL), "R2");
    REFUSED(VipQueryVi(vi, NULL, &vi_attribs, &yes1, &yes2), "R2");
    REFUSED(VipQueryVi(vi, &state, NULL, &yes1, &yes2), "R2");
    REFUSED(VipQueryVi(vi, &state, &vi_attribs, NULL, &yes2), "R2");
    REFUSED(VipQueryVi(vi, &state, &vi_attribs, &yes1, NULL), "R2");
    REFUSED(VipSetViAttributes(vi, NULL), "R2");
    REFUSED(VipConnectWait(a.nic, NULL, 1, &remote.net, &vi_attribs, &new_request), "R2");
    REFUSED(VipConnectWait(a.nic, &here.net, 1, NULL, &vi_attribs, &new_request), "R2");
    REFUSED(VipConnectWait(a.nic, &here.net, 1, &remote.net, NULL, &new_request), "R2");
    REFUSED(VipConnectWait(a.nic, &here.net, 1, &remote.net, &vi_attribs, NULL), "R2");
    REFUSED(VipConnectRequest(vi, NULL, &here.net, 1, &vi_attribs), "R2");
    REFUSED(VipConnectRequest(vi, &there.net, NULL, 1, &vi_attribs), "R2");
    REFUSED(VipConnectRequest(vi, &there.net, &here.net, 1, NULL), "R2");
    REFUSED(VipConnectPeerRequest(vi, NULL, &here.net, 1), "R2");
    REFUSED(VipConnectPeerRequest(vi, &there.net, NULL, 1), "R2");
    REFUSED(VipConnectPeerDone(vi, NULL), "R2");
    REFUSED(VipConnectPeerWait(vi, NULL), "R2");
    REFUSED(VipCreatePtag(a.nic, NULL), "R2");
    CHECK_RETURN(VipDestroyPtag(a.nic, NULL), VIP_INVALID_PTAG, "MEM-03");
    REFUSED(VipRegisterMem(a.nic, NULL, 64, &mem_attribs, &new_mem), "MEM-05");
    REFUSED(VipRegisterMem(a.nic, a.memory, 64, &mem_attribs, NULL), "MEM-05");
    REFUSED(VipDeregisterMem(a.nic, NULL, a.handle), "R2");
    REFUSED(VipQueryMem(a.nic, NULL, a.handle, &mem_attribs), "R2");
    REFUSED(VipQueryMem(a.nic, a.memory, a.handle, NULL), "R2");
    REFUSED(VipSetMemAttributes(a.nic, NULL, a.handle, &mem_attribs), "R2");
    if (strict_mode()) {
        REFUSED(VipRegisterMem(a.nic, a.memory, 64, NULL, &new_mem), "MEM-05");
        REFUSED(VipSetMemAttributes(a.nic, a.memory, a.handle, NULL), "R2");
    }
    REFUSED(VipPostSend(vi, NULL, a.handle), "POST-01");
    REFUSED(VipPostRecv(vi, NULL, a.handle), "POST-01");
    REFUSED(VipSendDone(vi, NULL), "DONE-03");
    REFUSED(VipRecvDone(vi, NULL), "DONE-03");
    REFUSED(VipSendWait(vi, 1, NULL), "R2");
    REFUSED(VipRecvWait(vi, 1, NULL), "R2");
    REFUSED(VipSendNotify(vi, NULL, NULL), "NTFY-11");
    REFUSED(VipRecvNotify(vi, NULL, NULL), "NTFY-11");
    REFUSED(VipCreateCQ(a.nic, 8, NULL), "CQ-01");
    REFUSED(VipCQDone(cq, NULL, &yes1), "R2");
    REFUSED(VipCQDone(cq, &new_vi, NULL), "R2");
    REFUSED(VipCQWait(cq, 1, NULL, &yes1), "R2");
    REFUSED(VipCQWait(cq, 1, &new_vi, NULL), "R2");
    REFUSED(VipCQNotify(cq, NULL, NULL), "NTFY-11");
    REFUSED(VipQuerySystemManagementInfo(a.nic, VIP_SMI_AUTODISCOVERY, NULL), "SMI-01");
    REFUSED(VipQuerySystemManagementInfo(a.nic, 2, &list), "SMI-01");
    MUST(VipNSInit(a.nic, NULL));
    REFUSED(VipNSGetHostByName(a.nic, NULL, &remote.net, 0), "R2");
    REFUSED(VipNSGetHostByName(a.nic, name, NULL, 0), "R2");
    REFUSED(VipNSGetHostByAddr(a.nic, NULL, name, &name_len), "R2");
    REFUSED(VipNSGetHostByAddr(a.nic, &here.net, NULL, &name_len), "R2");
    REFUSED(VipNSGetHostByAddr(a.nic, &here.net, name, NULL), "R2");
    MUST(VipNSShutdown(a.nic));
    ok("every pointer NULL");
}

/* ---- objects of another NIC handle ----------------------------------------------------------- */

static void foreign_objects(void)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&a, VIP_SERVICE_RELIABLE_DELIVERY);
    VIP_MEM_ATTRIBUTES memory = mem_attributes(&a);

    REFUSED(VipCreateVi(a.nic, &attributes, cq_b, NULL, &new_vi), "VI-08 NIC-14");
    REFUSED(VipCreateVi(a.nic, &attributes, NULL, cq_b, &new_vi), "VI-08 NIC-14");
    REFUSED(VipCreateVi(a.nic, &attributes, cq_gone, NULL, &new_vi), "VI-08");
    REFUSED(VipCreateVi(a.nic, &attributes, vi, NULL, &new_vi), "VI-08");
    attributes.Ptag = b.ptag;
    CHECK_RETURN(VipCreateVi(a.nic, &attributes, NULL, NULL, &new_vi), VIP_INVALID_PTAG, "VI-05 NIC-14");
    CHECK_RETURN(VipSetViAttributes(vi, &attributes), VIP_INVALID_PTAG, "NIC-14");
    attributes.Ptag = ptag_gone;
    CHECK_RETURN(VipCreateVi(a.nic, &attributes, NULL, NULL, &new_vi), VIP_INVALID_PTAG, "VI-05");
    attributes.Ptag = a.nic;
    CHECK_RETURN(VipCreateVi(a.nic, &attributes, NULL, NULL, &new_vi), VIP_INVALID_PTAG, "VI-05");
    attributes.Ptag = NULL;
    if (strict_mode())
        CHECK_RETURN(VipCreateVi(a.nic, &attributes, NULL, NULL, &new_vi), VIP_INVALID_PTAG, "VI-05");

    memory.Ptag = b.ptag;
    CHECK_RETURN(VipRegisterMem(a.nic, a.memory, 64, &memory, &new_mem), VIP_INVALID_PTAG, "MEM-07");
    CHECK_RETURN(VipSetMemAttributes(a.nic, a.memory, a.handle, &memory), VIP_INVALID_PTAG, "MEM-17");
    memory.Ptag = ptag_gone;
    CHECK_RETURN(VipRegisterMem(a.nic, a.memory, 64, &memory, &new_mem), VIP_INVALID_PTAG, "MEM-07");
    CHECK_RETURN(VipDestroyPtag(a.nic, b.ptag), VIP_INVALID_PTAG, "MEM-03 NIC-14");
    CHECK_RETURN(VipDestroyPtag(a.nic, ptag_gone), VIP_INVALID_PTAG, "MEM-03");
    CHECK_RETURN(VipDestroyPtag(a.nic, (VIP_PVOID)-1), VIP_INVALID_PTAG, "MEM-03");
    CHECK_RETURN(VipDestroyPtag(a.nic, vi), VIP_INVALID_PTAG, "MEM-03");

    REFUSED(VipDeregisterMem(a.nic, b.memory, b.handle), "NIC-14");
    REFUSED(VipDeregisterMem(a.nic, a.memory, mem_gone), "MEM-12");
    REFUSED(VipDeregisterMem(a.nic, a.memory, 0), "MEM-12");
    REFUSED(VipDeregisterMem(a.nic, a.memory, 0xFFFFFFFFu), "MEM-12");
    REFUSED(VipQueryMem(a.nic, b.memory, b.handle, &memory), "NIC-14");
    REFUSED(VipQueryMem(a.nic, a.memory, mem_gone, &memory), "spec §3.19");
    REFUSED(VipQueryMem(a.nic, a.memory, 0, &memory), "spec §3.19");
    memory.Ptag = a.ptag;
    REFUSED(VipSetMemAttributes(a.nic, b.memory, b.handle, &memory), "NIC-14");
    REFUSED(VipSetMemAttributes(a.nic, a.memory, mem_gone, &memory), "spec §3.19");

    REFUSED(VipSendWait(vi_cq, 1, &found), "WAIT-07");
    REFUSED(VipRecvWait(vi_cq, 1, &found), "WAIT-07");
    REFUSED(VipSendNotify(vi_cq, NULL, nothing_vi), "NTFY-11");
    REFUSED(VipRecvNotify(vi_cq, NULL, nothing_vi), "NTFY-11");
    ok("objects of another NIC handle, and destroyed ones");
}

/* Every function that names a NIC, after it was closed (NIC-06), is in bad_handles(); here the rest. */
static void tear_down(void)
{
    CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "nothing has happened to the VI");
    NO_ERROR(&a, 50, "refusals raise no asynchronous error");
    NO_ERROR(&b, 0, "refusals raise no asynchronous error");
    MUST(VipDestroyVi(vi));
    MUST(VipDestroyVi(vi_cq));
    MUST(VipDestroyVi(vi_b));
    CHECK_RETURN(VipDestroyVi(vi), VIP_INVALID_PARAMETER, "VI-13");
    MUST(VipDestroyCQ(cq));
    MUST(VipDestroyCQ(cq_b));
    close_node(&a);
    close_node(&b);
    CHECK_RETURN(VipCloseNic(a.nic), VIP_INVALID_PARAMETER, "NIC-04");
    REFUSED(VipQueryVi(vi, &state, &vi_attribs, &yes1, &yes2), "NIC-06");
    REFUSED(VipCQDone(cq, &new_vi, &yes1), "NIC-06");
    REFUSED(VipDeregisterMem(a.nic, a.memory, a.handle), "NIC-06");
    ok("everything closed");
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    set_up(options.device);
    vi_attribs = vi_attributes(&a, VIP_SERVICE_RELIABLE_DELIVERY);
    mem_attribs = mem_attributes(&a);
    bad_handles();
    null_pointers();
    foreign_objects();
    tear_down();
    return 0;
}
