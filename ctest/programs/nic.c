/* Opening, querying and closing NICs (spec §3.1 to §3.3). */
#include "common.h"

static void open_and_query(const char *device)
{
    VIP_NIC_HANDLE nic = NULL, again = NULL;
    VIP_NIC_ATTRIBUTES one, two;
    char long_name[80];

    CHECK_RETURN(VipOpenNic(device, &nic), VIP_SUCCESS, "NIC-01");
    CHECK(nic != NULL, "NIC-01");
    memset(long_name, 'x', sizeof long_name);
    long_name[64] = '\0';
    CHECK_RETURN(VipOpenNic(long_name, &again), VIP_INVALID_PARAMETER, "NIC-02");
    CHECK_RETURN(VipOpenNic("", &again), VIP_INVALID_PARAMETER, "NIC-02");
    CHECK_RETURN(VipOpenNic("/dev/", &again), VIP_INVALID_PARAMETER, "NIC-02");
    CHECK_RETURN(VipOpenNic("/dev/null", &again), VIP_INVALID_PARAMETER, "NIC-02");
    CHECK(again == NULL, "R1: outputs are written on success only");

    memset(&one, 0x55, sizeof one);
    memset(&two, 0x55, sizeof two);
    MUST(VipQueryNic(nic, &one));
    MUST(VipQueryNic(nic, &two));
    CHECK(memcmp(&one, &two, sizeof one) == 0, "NIC-08");
    CHECK(memchr(one.Name, 0, sizeof one.Name) != NULL && one.Name[0] != '\0', "NIC-11");
    CHECK_EQ(one.ThreadSafe, VIP_TRUE, "NIC-07");
    CHECK(one.MaxTransferSize >= 32768, "NIC-07");
    CHECK(one.NativeMTU > 0 && one.NativeMTU <= one.MaxTransferSize, "spec §2.3");
    CHECK(one.NicAddressLen >= 1 && one.LocalNicAddress != NULL, "NIC-09");
    CHECK((one.ReliabilityLevelSupport & 7) != 0, "NIC-10");
    CHECK((one.ReliabilityLevelSupport & ~7) == 0, "NIC-10");
    CHECK((one.RDMAReadSupport & ~one.ReliabilityLevelSupport) == 0, "NIC-10");
    CHECK((one.RDMAReadSupport & VIP_SERVICE_UNRELIABLE) == 0, "NIC-10");
    CHECK(one.MaxDescriptorsPerQueue >= 300, "spec §2.3, floors");
    CHECK(one.MaxSegmentsPerDesc >= 128, "spec §2.3, floors");
    CHECK(one.MaxCQEntries >= 1024, "spec §2.3, floors");
    CHECK(one.MaxDiscriminatorLen >= 64, "spec §9.1");
    CHECK(one.MaxVI >= 1 && one.MaxCQ >= 2 && one.MaxPtags >= 1, "spec §2.3");
    CHECK(one.MaxRegisterRegions >= 1 && one.MaxRegisterBytes >= 1, "spec §2.3");
    ok("%s: %lu VIs, messages of %lu bytes", one.Name, (unsigned long)one.MaxVI,
       (unsigned long)one.MaxTransferSize);

    CHECK_RETURN(VipOpenNic(device, &again), VIP_SUCCESS, "NIC-03");
    CHECK(again != nic, "NIC-03");
    MUST(VipQueryNic(again, &two));
    CHECK_RETURN(VipCloseNic(again), VIP_SUCCESS, "NIC-03");
    MUST(VipQueryNic(nic, &two));
    CHECK_RETURN(VipQueryNic(again, &two), VIP_INVALID_PARAMETER, "NIC-06");
    CHECK_RETURN(VipCloseNic(again), VIP_INVALID_PARAMETER, "NIC-04");
    CHECK_RETURN(VipQueryNic(nic, NULL), VIP_INVALID_PARAMETER, "NIC-12");
    MUST(VipCloseNic(nic));
    ok("opened twice, closed twice");
}

/* The figures of spec §14.4, when the device is the loopback one. */
static void loopback_figures(const char *device)
{
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES n;

    if (strstr(device, "via_lo") == NULL)
        return;
    MUST(VipOpenNic(device, &nic));
    MUST(VipQueryNic(nic, &n));
    CHECK_EQ(n.NicAddressLen, 6, "spec §14.4");
    CHECK_EQ(n.MaxDiscriminatorLen, 64, "spec §14.4");
    CHECK(n.MaxVI >= 1024 && n.MaxDescriptorsPerQueue >= 1024, "spec §14.4");
    CHECK(n.MaxSegmentsPerDesc >= 252 && n.MaxCQ >= 1024 && n.MaxCQEntries >= 65536, "spec §14.4");
    CHECK(n.MaxPtags >= 1024 && n.MaxRegisterRegions >= 4096, "spec §14.4");
    CHECK_EQ(n.ReliabilityLevelSupport, 7, "spec §14.4");
    CHECK_EQ(n.RDMAReadSupport, 6, "spec §14.4");
    if (getenv("VIPL_MAX_TRANSFER_SIZE") == NULL)
        CHECK_EQ(n.MaxTransferSize, 65536, "spec §14.4");
    MUST(VipCloseNic(nic));
    ok("the figures of the loopback device");
}

/* Other spellings of the loopback device, and the first VI NIC present (spec §3.1, COMPAT-16). */
static void spellings(const char *device)
{
    static const char *const good[] = {"via_lo", "/dev/via_lo", "/etc/via_lo", "loopback:"};
    static const char *const bad[] = {"VINIC64", "VINICX", "via_lo2",
                                      "/tmp/via_lo", "no_such_plugin:", "no_such_plugin:argument"};
    VIP_NIC_HANDLE nic = NULL;
    VIP_RETURN code, zero;
    size_t i;

    if (strcmp(device, "/dev/via_lo") != 0 || getenv("VIPL_DEVICE_MAP") != NULL)
        return;
    for (i = 0; i < sizeof good / sizeof good[0]; i++) {
        check_return(__FILE__, __LINE__, "spec §3.1", good[i], (long)VipOpenNic(good[i], &nic),
                     VIP_SUCCESS);
        MUST(VipCloseNic(nic));
    }
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++)
        check_return(__FILE__, __LINE__, "NIC-02", bad[i], (long)VipOpenNic(bad[i], &nic),
                     VIP_INVALID_PARAMETER);
    for (i = 1; i <= 63; i++) {
        char vinic[16];

        snprintf(vinic, sizeof vinic, "VINIC%d", (int)i);
        check_return(__FILE__, __LINE__, "COMPAT-16", vinic, (long)VipOpenNic(vinic, &nic), VIP_INVALID_PARAMETER);
    }
    code = VipOpenNic("VINIC", &nic);
    if (code == VIP_SUCCESS)
        MUST(VipCloseNic(nic));
    zero = VipOpenNic("VINIC0", &nic);
    if (zero == VIP_SUCCESS)
        MUST(VipCloseNic(nic));
    CHECK_RETURN(zero, code, "COMPAT-16");
    MUST(VipOpenNic(device, &nic)); /* refusals leave nothing behind */
    MUST(VipCloseNic(nic));
    ok("names that open and names that do not");
}

static void close_in_use(const char *device)
{
    struct node node;
    VIP_NIC_ATTRIBUTES attributes;
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;

    open_node(&node, device, 4096);
    CHECK_RETURN(VipCloseNic(node.nic), VIP_ERROR_RESOURCE, "NIC-05");
    MUST(VipDeregisterMem(node.nic, node.memory, node.handle));
    CHECK_RETURN(VipCloseNic(node.nic), VIP_ERROR_RESOURCE, "NIC-05");
    MUST(VipCreateCQ(node.nic, 1, &cq));
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    CHECK_RETURN(VipDestroyPtag(node.nic, node.ptag), VIP_ERROR_RESOURCE, "MEM-02");
    MUST(VipDestroyCQ(cq));
    CHECK_RETURN(VipCloseNic(node.nic), VIP_ERROR_RESOURCE, "NIC-05");
    MUST(VipDestroyVi(vi));
    MUST(VipCreateCQ(node.nic, 1, &cq));
    MUST(VipDestroyPtag(node.nic, node.ptag));
    CHECK_RETURN(VipCloseNic(node.nic), VIP_ERROR_RESOURCE, "NIC-05");
    MUST(VipQueryNic(node.nic, &attributes));
    MUST(VipDestroyCQ(cq));
    CHECK_RETURN(VipCloseNic(node.nic), VIP_SUCCESS, "NIC-05");
    ok("no close while something is left");
}

struct closing {
    struct node node;
    int run;
    int calls;
};

/* VipCloseNic inside a handler of the same NIC is refused (spec §3.2). */
static void closing_handler(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d)
{
    struct closing *closing = (struct closing *)context;

    (void)vi, (void)d;
    CHECK_RETURN(VipCloseNic(nic), VIP_ERROR_RESOURCE, "spec §3.2, close in a handler");
    atomic_add(&closing->calls, 1);
}

static void *waiting(void *argument)
{
    struct closing *closing = (struct closing *)argument;
    address local = local_point(&closing->node, closing->run, "close"), remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE request;

    atomic_add(&closing->calls, 1);
    CHECK_RETURN(VipConnectWait(closing->node.nic, &local.net, VIP_INFINITE, &remote.net, &attributes,
                                &request),
                 VIP_INVALID_PARAMETER, "THR-03");
    return NULL;
}

static void close_under_others(const char *device)
{
    struct closing closing;
    VIP_DESCRIPTOR *d;
    VIP_VI_HANDLE vi;
    pthread_t thread;

    memset(&closing, 0, sizeof closing);
    closing.run = (int)getpid();
    open_node(&closing.node, device, 4096);
    vi = make_vi(&closing.node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    d = take_descriptor(&closing.node, 1);
    MUST(VipRecvNotify(vi, &closing, closing_handler));
    post_recv(&closing.node, vi, d, NULL, 0);
    MUST(VipDisconnect(vi)); /* flushes: serves the registration (NTFY-10) */
    await(&closing.calls, 1, "NTFY-10");
    MUST(VipDestroyVi(vi));

    closing.calls = 0;
    thread = start_thread(waiting, &closing);
    await(&closing.calls, 1, "THR-03");
    sleep_ms(50);
    close_node(&closing.node);
    join_thread(thread);
    ok("close in a handler, and under a waiting thread");
}

/* A request that the server holds when it closes its NIC is rejected (NIC-13); both sides see the
 * other's address as the other's VipQueryNic gives it (NIC-09). */
static void close_with_request(struct side *side)
{
    struct node node;
    address other, local, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE request;
    VIP_VI_HANDLE vi;
    VIP_RETURN code;

    open_node(&node, side->device, 4096);
    other = swap_addresses(side, &node);
    if (side->number == 0) {
        local = local_point(&node, side->run, "held");
        MUST(VipConnectWait(node.nic, &local.net, PATIENCE, &remote.net, &attributes, &request));
        CHECK_EQ(remote.net.HostAddressLen, other.net.HostAddressLen, "NIC-09");
        CHECK(memcmp(remote.bytes + 4, other.bytes + 4, other.net.HostAddressLen) == 0, "NIC-09");
        close_node(&node);
    } else {
        vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
        local = local_point(&node, side->run, "client");
        remote = remote_point(&other, side->run, "held");
        while ((code = VipConnectRequest(vi, &local.net, &remote.net, PATIENCE, &attributes)) ==
               VIP_NO_MATCH)
            sleep_ms(1);
        CHECK_RETURN(code, VIP_REJECT, "NIC-13");
        CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "NIC-13");
        MUST(VipDestroyVi(vi));
        close_node(&node);
    }
    ok("side %d: a request left unanswered at VipCloseNic", side->number);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, close_with_request);
    open_and_query(options.device);
    loopback_figures(options.device);
    spellings(options.device);
    close_in_use(options.device);
    close_under_others(options.device);
    return 0;
}
