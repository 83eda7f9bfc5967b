/* Name service and autodiscovery (spec §12, §3.30 to §3.34). */
#include "common.h"

static struct node node;
static address own; /* the device's address, no discriminator */

static const char *write_table(const char *text)
{
    static char path[64];
    FILE *file;
    int fd;

    strcpy(path, "/tmp/vip_hosts_XXXXXX");
    fd = mkstemp(path);
    CHECK(fd >= 0, "mkstemp");
    file = fdopen(fd, "w");
    CHECK(file != NULL && fputs(text, file) >= 0, "write the table");
    fclose(file);
    return path;
}

/* The address of a name, or NULL; checks that nothing else is written (NS-03). */
static const unsigned char *lookup(const char *name, unsigned long index, VIP_RETURN expected, const char *id)
{
    static address found;
    VIP_CHAR asked[300];

    snprintf(asked, sizeof asked, "%s", name);
    memset(&found, 0xEE, sizeof found);
    found.net.DiscriminatorLen = 3;
    check_return(__FILE__, __LINE__, id, name, (long)VipNSGetHostByName(node.nic, asked, &found.net, index),
                 (long)expected);
    CHECK_EQ(found.net.DiscriminatorLen, 3, "NS-03");
    if (expected != VIP_SUCCESS) {
        CHECK(all_bytes(found.bytes + 4, sizeof found - 4, 0xEE), "R1");
        return NULL;
    }
    CHECK_EQ(found.net.HostAddressLen, node.attributes.NicAddressLen, "NS-03");
    CHECK(all_bytes(found.bytes + 4 + found.net.HostAddressLen, sizeof found - 4 - found.net.HostAddressLen, 0xEE),
          "NS-03");
    return found.bytes + 4;
}

static void not_initialised(const char *id)
{
    VIP_CHAR name[64] = "localhost";
    VIP_ULONG length = sizeof name;
    address a = own;

    CHECK_RETURN(VipNSGetHostByName(node.nic, name, &a.net, 0), VIP_ERROR_NAMESERVICE, id);
    CHECK_RETURN(VipNSGetHostByAddr(node.nic, &a.net, name, &length), VIP_ERROR_NAMESERVICE, id);
    CHECK_RETURN(VipNSShutdown(node.nic), VIP_ERROR_NAMESERVICE, "spec §3.32");
}

static void start_and_stop(void)
{
    char host[256];

    not_initialised("NS-02");
    CHECK_RETURN(VipNSInit(node.nic, NULL), VIP_SUCCESS, "NS-01");
    CHECK_RETURN(VipNSInit(node.nic, NULL), VIP_SUCCESS, "NS-01");
    CHECK(memcmp(lookup("localhost", 0, VIP_SUCCESS, "NS-08"), own.bytes + 4, own.net.HostAddressLen) == 0, "NS-08");
    CHECK_EQ(gethostname(host, sizeof host), 0, "gethostname");
    CHECK(memcmp(lookup(host, 0, VIP_SUCCESS, "spec §12"), own.bytes + 4, own.net.HostAddressLen) == 0, "spec §12");
    lookup("localhost", 1, VIP_ERROR_NAMESERVICE, "NS-04");
    lookup("no.such.host.anywhere", 0, VIP_ERROR_NAMESERVICE, "NS-04");
    lookup("", 0, VIP_ERROR_NAMESERVICE, "NS-04");
    CHECK_RETURN(VipNSShutdown(node.nic), VIP_SUCCESS, "NS-02");
    not_initialised("NS-02");
    ok("start and stop; localhost and this host");
}

static void table(void)
{
    static const unsigned char one[6] = {0x02, 0, 0, 0, 0, 1}, two[6] = {0x02, 0, 0, 0, 0, 0xAB};
    static const unsigned char three[6] = {0xAA, 0xBB, 0xCC, 0xDD, 0xEE, 0x0F};
    const char *path = write_table("# a comment\n"
                                   "\n"
                                   "   \t \n"
                                   "02:00:00:00:00:01  alpha  first   # more\n"
                                   "2-0-0-0-0-aB\tbeta\n"
                                   "nonsense in this line\n"
                                   "02:00:00:00:00 short\n"
                                   "02:00:00:00:00:01:02 long\n"
                                   "02:00:00:00:00:GG bad\n"
                                   "AA:bb:CC:dd:EE:f alpha Gamma.Example.Org\n"
                                   "02:00:00:00:00:01 later\n"
                                   "02:00:00:00:00:77\n"
                                   "aa:bb:cc:dd:ee:0f delta"); /* no newline at the end */
    VIP_CHAR name[64], given[] = "/tmp/no/such/table";
    VIP_CHAR where[64];
    VIP_ULONG length;
    address a;

    snprintf(where, sizeof where, "%s", path);
    CHECK_RETURN(VipNSInit(node.nic, where), VIP_SUCCESS, "spec §3.32");
    unlink(path); /* was read at VipNSInit (spec §12) */
    CHECK(memcmp(lookup("alpha", 0, VIP_SUCCESS, "NS-05"), one, 6) == 0, "NS-05");
    CHECK(memcmp(lookup("alpha", 1, VIP_SUCCESS, "NS-05"), three, 6) == 0, "NS-05");
    lookup("alpha", 2, VIP_ERROR_NAMESERVICE, "NS-04");
    CHECK(memcmp(lookup("ALPHA", 0, VIP_SUCCESS, "NS-07"), one, 6) == 0, "NS-07");
    CHECK(memcmp(lookup("first", 0, VIP_SUCCESS, "NS-07"), one, 6) == 0, "NS-07");
    CHECK(memcmp(lookup("beta", 0, VIP_SUCCESS, "NS-07"), two, 6) == 0, "NS-07");
    CHECK(memcmp(lookup("delta", 0, VIP_SUCCESS, "NS-07"), three, 6) == 0, "NS-07");
    CHECK(memcmp(lookup("gamma.example.org", 0, VIP_SUCCESS, "NS-07"), three, 6) == 0, "NS-07");
    CHECK(memcmp(lookup("beta.example.org", 0, VIP_SUCCESS, "spec §12: without its domain"), two, 6) == 0, "spec §12");
    lookup("short", 0, VIP_ERROR_NAMESERVICE, "NS-07");
    lookup("long", 0, VIP_ERROR_NAMESERVICE, "NS-07");
    lookup("bad", 0, VIP_ERROR_NAMESERVICE, "NS-07");
    lookup("#", 0, VIP_ERROR_NAMESERVICE, "NS-07");
    lookup("more", 0, VIP_ERROR_NAMESERVICE, "NS-07");
    CHECK(memcmp(lookup("localhost", 0, VIP_SUCCESS, "NS-08"), own.bytes + 4, own.net.HostAddressLen) == 0, "NS-08");

    set_address(&a, one, 6, "ignored", 7);
    memset(name, 0x55, sizeof name);
    length = sizeof name;
    CHECK_RETURN(VipNSGetHostByAddr(node.nic, &a.net, name, &length), VIP_SUCCESS, "NS-06");
    CHECK_EQ(length, 6, "NS-06");
    CHECK(strcmp(name, "alpha") == 0, "NS-06");
    CHECK(name[6] == 0x55, "NS-06");
    length = 6;
    CHECK_RETURN(VipNSGetHostByAddr(node.nic, &a.net, name, &length), VIP_SUCCESS, "NS-06");
    memset(name, 0x55, sizeof name);
    length = 5;
    CHECK_RETURN(VipNSGetHostByAddr(node.nic, &a.net, name, &length), VIP_ERROR_RESOURCE, "NS-06");
    CHECK_EQ(length, 6, "NS-06");
    CHECK(all_bytes(name, sizeof name, 0x55), "NS-06");
    length = 0;
    CHECK_RETURN(VipNSGetHostByAddr(node.nic, &a.net, name, &length), VIP_ERROR_RESOURCE, "NS-06");
    CHECK_EQ(length, 6, "NS-06");
    a.bytes[4] = 0x42;
    length = sizeof name;
    CHECK_RETURN(VipNSGetHostByAddr(node.nic, &a.net, name, &length), VIP_ERROR_NAMESERVICE, "spec §3.34");

    /* initialised again with a table that was named and is not there (spec §12) */
    CHECK_RETURN(VipNSShutdown(node.nic), VIP_SUCCESS, "spec §3.32");
    CHECK_RETURN(VipNSInit(node.nic, given), VIP_ERROR_NAMESERVICE, "spec §12");
    lookup("alpha", 0, VIP_ERROR_NAMESERVICE, "NS-02");
    CHECK_RETURN(VipNSInit(node.nic, "/dev/null"), VIP_SUCCESS, "spec §12");
    lookup("alpha", 0, VIP_ERROR_NAMESERVICE, "NS-02");
    lookup("localhost", 0, VIP_SUCCESS, "NS-08");
    CHECK_RETURN(VipNSShutdown(node.nic), VIP_SUCCESS, "spec §3.32");
    ok("a table of hosts");
}

/* NS-09: the address serves after the name service was shut down. */
static void *serve_it(void *argument)
{
    serve(&node, argument, local_point(&node, (int)getpid(), "named"));
    return NULL;
}

static void connect_by_name(void)
{
    VIP_VI_HANDLE one = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    VIP_VI_HANDLE two = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    pthread_t thread = start_thread(serve_it, one);
    char line[128], where[64];
    address remote;
    size_t i, n = 0;

    for (i = 0; i < own.net.HostAddressLen; i++)
        n += (size_t)snprintf(line + n, sizeof line - n, i ? ":%02x" : "%02x", own.bytes[4 + i]);
    snprintf(line + n, sizeof line - n, " this.host\n");
    snprintf(where, sizeof where, "%s", write_table(line));
    MUST(VipNSInit(node.nic, where));
    unlink(where);
    remote = point(lookup("this.host", 0, VIP_SUCCESS, "NS-09"), node.attributes.NicAddressLen, (int)getpid(), "named");
    MUST(VipNSShutdown(node.nic));
    ask(two, local_point(&node, (int)getpid(), "client"), remote);
    join_thread(thread);
    CHECK_EQ(vi_state(two), VIP_STATE_CONNECTED, "NS-09");
    MUST(VipDisconnect(one));
    end_vi(two);
    MUST(VipDestroyVi(one));
    ok("a connection to a name");
}

static void autodiscovery(void)
{
    VIP_AUTODISCOVERY_LIST list;
    VIP_NET_ADDRESS *array[8];
    address room[8];
    VIP_RETURN code;
    VIP_ULONG count;
    int i;

    for (i = 0; i < 8; i++)
        array[i] = &room[i].net;
    list.NumberOfHops = 0;
    list.ADAddrArray = NULL;
    list.NumAdAddrs = 0;
    code = VipQuerySystemManagementInfo(node.nic, VIP_SMI_AUTODISCOVERY, &list);
    CHECK_RETURN(VipQuerySystemManagementInfo(node.nic, 0, &list), VIP_INVALID_PARAMETER, "SMI-01");
    CHECK_RETURN(VipQuerySystemManagementInfo(node.nic, 99, &list), VIP_INVALID_PARAMETER, "SMI-01");
    CHECK_RETURN(VipQuerySystemManagementInfo(node.nic, VIP_SMI_AUTODISCOVERY, NULL), VIP_INVALID_PARAMETER, "SMI-01");
    if (code == VIP_ERROR_NOT_SUPPORTED) {
        ok("this device discovers nothing");
        return;
    }
    CHECK_RETURN(code, VIP_SUCCESS, "SMI-02");
    CHECK_EQ(list.NumAdAddrs, 1, "SMI-02");
    list.ADAddrArray = array;
    list.NumAdAddrs = 8;
    memset(room, 0xEE, sizeof room);
    CHECK_RETURN(VipQuerySystemManagementInfo(node.nic, VIP_SMI_AUTODISCOVERY, &list), VIP_SUCCESS, "SMI-02");
    CHECK_EQ(list.NumAdAddrs, 1, "SMI-02");
    CHECK_EQ(room[0].net.HostAddressLen, own.net.HostAddressLen, "SMI-02");
    CHECK_EQ(room[0].net.DiscriminatorLen, 0, "spec §3.30");
    CHECK(memcmp(room[0].bytes + 4, own.bytes + 4, own.net.HostAddressLen) == 0, "SMI-02");
    CHECK(all_bytes(room[0].bytes + 4 + own.net.HostAddressLen, 8, 0xEE), "spec §3.30");
    CHECK(all_bytes(&room[1], sizeof room[1], 0xEE), "SMI-02");

    list.NumberOfHops = 1;
    list.ADAddrArray = NULL;
    list.NumAdAddrs = 0;
    CHECK_RETURN(VipQuerySystemManagementInfo(node.nic, VIP_SMI_AUTODISCOVERY, &list), VIP_SUCCESS, "spec §3.30");
    count = list.NumAdAddrs;
    CHECK(count >= 1, "spec §3.30");

    list.NumberOfHops = 0;
    list.ADAddrArray = array;
    list.NumAdAddrs = 0;
    CHECK_RETURN(VipQuerySystemManagementInfo(node.nic, VIP_SMI_AUTODISCOVERY, &list), VIP_ERROR_RESOURCE, "SMI-03");
    CHECK_EQ(list.NumAdAddrs, 1, "SMI-03");
    ok("autodiscovery: %lu addresses on the link", (unsigned long)count);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    open_node(&node, options.device, 65536);
    set_address(&own, node.attributes.LocalNicAddress, node.attributes.NicAddressLen, "", 0);
    start_and_stop();
    table();
    connect_by_name();
    autodiscovery();
    close_node(&node);
    return 0;
}
