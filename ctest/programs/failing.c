/* Makes calls that cannot work, each named by an argument, so that its caller can look at the log:
 *
 *   failing WHAT...
 *
 * Nothing is checked but the return code; what the log must say is in tests/words.rs and tests/mistakes.rs. */
#include "common.h"
#include "vipl_ext.h"

static VIP_NIC_HANDLE nic, other;
static VIP_VI_HANDLE vi, served; /* the latter after `connect_both` */
static VIP_CQ_HANDLE cq;
static VIP_PROTECTION_HANDLE tag;
static VIP_RELIABILITY_LEVEL level = VIP_SERVICE_RELIABLE_DELIVERY; /* of the VI that is served */
static VIP_MEM_HANDLE region;
static struct {
    VIP_DESCRIPTOR d;
    char bytes[4096 - sizeof(VIP_DESCRIPTOR)];
} *m;

static void set_up(void)
{
    VIP_VI_ATTRIBUTES attributes = {VIP_SERVICE_RELIABLE_DELIVERY, 4096, NULL, NULL, VIP_FALSE, VIP_FALSE};
    VIP_MEM_ATTRIBUTES rights = {NULL, VIP_FALSE, VIP_FALSE};
    const char *device = getenv("VIPL_DEVICE") != NULL ? getenv("VIPL_DEVICE") : "/dev/via_lo";

    MUST(VipOpenNic(device, &nic));
    MUST(VipOpenNic(device, &other));
    MUST(VipCreatePtag(nic, &tag));
    attributes.Ptag = rights.Ptag = tag;
    m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(m != MAP_FAILED, "memory");
    MUST(VipRegisterMem(nic, m, sizeof *m, &rights, &region));
    MUST(VipCreateVi(nic, &attributes, NULL, NULL, &vi));
    MUST(VipCreateCQ(nic, 16, &cq));
}

/* The last byte of the address becomes `host`, unless that is negative. */
static VIP_RETURN connect_to(int host, const char *point)
{
    union {
        VIP_NET_ADDRESS net;
        unsigned char bytes[4 + 6 + 16];
    } a;
    VIP_NIC_ATTRIBUTES self;
    VIP_VI_ATTRIBUTES peer;

    MUST(VipQueryNic(nic, &self));
    a.net.HostAddressLen = self.NicAddressLen;
    a.net.DiscriminatorLen = (VIP_UINT16)strlen(point);
    memcpy(a.bytes + 4, self.LocalNicAddress, self.NicAddressLen);
    if (host >= 0)
        a.bytes[9] = (unsigned char)host;
    memcpy(a.bytes + 10, point, strlen(point));
    return VipConnectRequest(vi, &a.net, &a.net, host < 0 ? PATIENCE : 1, &peer);
}

/* Accepts one connection, for `connect_both`. */
static void *accept_one(void *point)
{
    union {
        VIP_NET_ADDRESS net;
        unsigned char bytes[4 + 6 + 64];
    } here, there;
    VIP_NIC_ATTRIBUTES self;
    VIP_VI_ATTRIBUTES attributes = {VIP_SERVICE_RELIABLE_DELIVERY, 4096, NULL, tag, VIP_FALSE, VIP_FALSE};
    VIP_VI_ATTRIBUTES peer;
    VIP_CONN_HANDLE request;
    VIP_RETURN code;

    attributes.ReliabilityLevel = level;
    MUST(VipQueryNic(nic, &self));
    here.net.HostAddressLen = self.NicAddressLen;
    here.net.DiscriminatorLen = (VIP_UINT16)strlen(point);
    memcpy(here.bytes + 4, self.LocalNicAddress, self.NicAddressLen);
    memcpy(here.bytes + 10, point, strlen(point));
    MUST(VipCreateVi(nic, &attributes, NULL, NULL, &served));
    MUST(VipConnectWait(nic, &here.net, PATIENCE, &there.net, &peer, &request));
    code = VipConnectAccept(request, served);
    if (level != VIP_SERVICE_RELIABLE_DELIVERY)
        MUST(VipConnectReject(request));
    else
        MUST(code);
    return NULL;
}

/* Connects `vi` with a second VI of this process. */
static void connect_both(void)
{
    pthread_t server;
    VIP_RETURN code;
    char point[] = "failing";

    CHECK_EQ(pthread_create(&server, NULL, accept_one, point), 0, "a thread");
    do
        code = connect_to(-1, point);
    while (code == VIP_NO_MATCH);
    MUST(code);
    CHECK_EQ(pthread_join(server, NULL), 0, "a thread");
}

/* Posts a send whose second segment is outside of its region. */
static void post_outside(void)
{
    VIP_DESCRIPTOR *done;

    connect_both();
    m->d.CS.SegCount = 2;
    m->d.CS.Length = 80;
    m->d.DS[0].Local.Data.Address = m->bytes;
    m->d.DS[0].Local.Handle = region;
    m->d.DS[0].Local.Length = 16;
    m->d.DS[1].Local.Data.Address = m + 1;
    m->d.DS[1].Local.Handle = region;
    m->d.DS[1].Local.Length = 64;
    MUST(VipPostSend(vi, &m->d, region));
    CHECK_RETURN(VipSendWait(vi, PATIENCE, &done), VIP_DESCRIPTOR_ERROR, "outside");
}

/* A send of `vi` with one segment, and what comes of it: also what the peer's receive has to say. */
static void send_one(void *from, VIP_UINT32 handle, VIP_UINT32 length, VIP_UINT32 total)
{
    VIP_DESCRIPTOR *done;

    m->d.CS.SegCount = 1;
    m->d.CS.Length = total;
    m->d.DS[0].Local.Data.Address = from;
    m->d.DS[0].Local.Handle = handle;
    m->d.DS[0].Local.Length = length;
    MUST(VipPostSend(vi, &m->d, region));
    VipSendWait(vi, PATIENCE, &done);
}

/* A receive of `served` for messages of `bytes`; the descriptor lies in a region of its own. */
static void post_receive(VIP_UINT32 bytes)
{
    VIP_MEM_ATTRIBUTES rights = {NULL, VIP_FALSE, VIP_FALSE};
    VIP_MEM_HANDLE handle;
    VIP_DESCRIPTOR *d = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    rights.Ptag = tag;
    MUST(VipRegisterMem(nic, d, 8192, &rights, &handle));
    d->CS.SegCount = 1;
    d->CS.Length = bytes;
    d->DS[0].Local.Data.Address = (char *)d + 4096;
    d->DS[0].Local.Handle = handle;
    d->DS[0].Local.Length = bytes;
    MUST(VipPostRecv(served, d, handle));
}

/* The mistakes with a descriptor; false: it is another one. */
static int mistake(const char *what)
{
    VIP_MEM_ATTRIBUTES rights = {NULL, VIP_FALSE, VIP_FALSE};
    VIP_DESCRIPTOR *done;
    VIP_MEM_HANDLE handle;
    char *more = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    rights.Ptag = tag;
    if (strcmp(what, "not-connected") == 0) {
        send_one(m->bytes, region, 64, 64);
        return 1;
    }
    if (strcmp(what, "not-aligned") == 0) {
        VipPostSend(vi, (VIP_DESCRIPTOR *)(void *)((char *)m + 32), region);
        return 1;
    }
    if (strncmp(what, "send-", 5) != 0)
        return 0;
    connect_both();
    if (strcmp(what, "send-no-receive") == 0) {
        send_one(m->bytes, region, 64, 64);
        VipRecvDone(served, &done); /* takes what has come */
        sleep_ms(100); /* the handler thread's line */
        return 1;
    }
    post_receive(strcmp(what, "send-too-long") == 0 ? 16 : 1024);
    if (strcmp(what, "send-unregistered") == 0)
        send_one(more, 0, 64, 64);
    else if (strcmp(what, "send-wrong-handle") == 0)
        send_one(more, region, 64, 64);
    else if (strcmp(what, "send-deregistered") == 0) {
        MUST(VipRegisterMem(nic, more, 4096, &rights, &handle));
        MUST(VipDeregisterMem(nic, more, handle));
        send_one(more, handle, 64, 64);
    } else if (strcmp(what, "send-other-tag") == 0) {
        MUST(VipCreatePtag(nic, &rights.Ptag));
        MUST(VipRegisterMem(nic, more, 4096, &rights, &handle));
        send_one(more, handle, 64, 64);
    } else if (strcmp(what, "send-freed") == 0) {
        MUST(VipRegisterMem(nic, more, 4096, &rights, &handle));
        CHECK_EQ(munmap(more, 4096), 0, "munmap");
        send_one(more, handle, 64, 64);
    } else if (strcmp(what, "send-length") == 0)
        send_one(m->bytes, region, 64, 80);
    else if (strcmp(what, "send-too-long") == 0) {
        send_one(m->bytes, region, 64, 64);
        VipRecvWait(served, PATIENCE, &done);
    } else if (strcmp(what, "send-segments") == 0) {
        m->d.CS.Control = 0;
        m->d.CS.SegCount = 60000;
        m->d.CS.Length = 0;
        MUST(VipPostSend(vi, &m->d, region));
        VipSendWait(vi, PATIENCE, &done);
    } else if (strcmp(what, "send-rdma") == 0) {
        m->d.CS.Control = VIP_CONTROL_OP_RDMAWRITE;
        m->d.CS.SegCount = 2;
        m->d.CS.Length = 8;
        m->d.DS[0].Remote.Data.Address = m->bytes + 512;
        m->d.DS[0].Remote.Handle = region;
        m->d.DS[1].Local.Data.Address = m->bytes;
        m->d.DS[1].Local.Handle = region;
        m->d.DS[1].Local.Length = 8;
        MUST(VipPostSend(vi, &m->d, region));
        VipSendWait(vi, PATIENCE, &done);
        VipRecvWait(served, PATIENCE, &done); /* flushed */
        sleep_ms(100); /* the line of the thread that has no handler to call */
    } else if (strcmp(what, "send-destroy") == 0)
        VipDestroyVi(vi);
    else
        CHECK(0, what);
    return 1;
}

static int errors;

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context;
    if (error->ViHandle != vi)
        return; /* the peer has lost its connection */
    CHECK_EQ(error->ErrorCode, VIP_ERROR_COMP_PROT, "an asynchronous error");
    __atomic_store_n(&errors, 1, __ATOMIC_RELEASE);
}

/* A descriptor becomes read-only after it was posted. The message is taken by a thread of the plug-in: this one
 * makes no call until the error has come. */
static void read_only(void)
{
    VIP_MEM_ATTRIBUTES rights = {NULL, VIP_FALSE, VIP_FALSE};
    VIP_MEM_HANDLE handle;
    VIP_DESCRIPTOR *d = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int i;

    rights.Ptag = tag;
    MUST(VipErrorCallback(nic, NULL, on_error));
    MUST(VipRegisterMem(nic, d, 4096, &rights, &handle));
    connect_both();
    MUST(VipPostRecv(vi, d, handle));
    CHECK_EQ(mprotect(d, 4096, PROT_READ), 0, "mprotect");
    m->d.CS.SegCount = 0;
    m->d.CS.Length = 0;
    MUST(VipPostSend(served, &m->d, region));
    for (i = 0; !__atomic_load_n(&errors, __ATOMIC_ACQUIRE); i++) {
        CHECK(i < 20000, "an error of the connection");
        sleep_ms(1);
    }
}

/* The server's VI has another level than the client's. */
static VIP_RETURN levels_differ(void)
{
    pthread_t server;
    VIP_RETURN code;
    char point[] = "levels";

    level = VIP_SERVICE_RELIABLE_RECEPTION;
    CHECK_EQ(pthread_create(&server, NULL, accept_one, point), 0, "a thread");
    do
        code = connect_to(-1, point);
    while (code == VIP_NO_MATCH);
    CHECK_EQ(pthread_join(server, NULL), 0, "a thread");
    return code;
}

static void one(const char *what)
{
    VIP_DESCRIPTOR *done;
    VIP_MEM_ATTRIBUTES rights = {NULL, VIP_FALSE, VIP_FALSE};
    VIP_MEM_HANDLE got;
    VIP_BOOLEAN queue;
    VIP_VI_HANDLE which;
    VIP_NET_ADDRESS address;
    VIP_RETURN code = VIP_SUCCESS;
    VIP_VI_HANDLE gone;
    VIP_VI_ATTRIBUTES attributes = {VIP_SERVICE_RELIABLE_DELIVERY, 4096, NULL, tag, VIP_FALSE, VIP_FALSE};

    rights.Ptag = tag;
    if (mistake(what)) {
        printf("%s\n", what);
        fflush(stdout);
        return;
    }
    if (strcmp(what, "null") == 0)
        code = VipDestroyVi(NULL);
    else if (strcmp(what, "null-out") == 0)
        code = VipRecvDone(vi, NULL);
    else if (strcmp(what, "kind") == 0)
        code = VipPostSend((VIP_VI_HANDLE)cq, &m->d, region);
    else if (strcmp(what, "no-handle") == 0)
        code = VipCQDone((VIP_CQ_HANDLE)(void *)m, &which, &queue);
    else if (strcmp(what, "arm") == 0)
        code = vipl_cq_arm(cq);
    else if (strcmp(what, "arm-closed") == 0) {
        int fd;

        MUST(vipl_cq_fd(cq, &fd));
        close(fd);
        code = vipl_cq_arm(cq);
    } else if (strcmp(what, "stale") == 0) {
        MUST(VipCreateVi(nic, &attributes, NULL, NULL, &gone));
        MUST(VipDestroyVi(gone));
        code = VipRecvDone(gone, &done);
    } else if (strcmp(what, "foreign-cq") == 0) {
        MUST(VipCreatePtag(other, &attributes.Ptag));
        code = VipCreateVi(other, &attributes, NULL, cq, &gone);
    } else if (strcmp(what, "foreign-tag") == 0)
        code = VipDestroyPtag(other, tag);
    else if (strcmp(what, "range") == 0) {
        void *hole = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK_EQ(munmap((char *)hole + 4096, 4096), 0, "a hole");
        code = VipRegisterMem(nic, hole, 8192, &rights, &got);
    } else if (strcmp(what, "region") == 0)
        code = VipDeregisterMem(nic, m, region + 1);
    else if (strcmp(what, "free-region") == 0) {
        VIP_PVOID memory;

        MUST(vipl_alloc(4096, &memory));
        MUST(VipRegisterMem(nic, memory, 4096, &rights, &got));
        code = vipl_free(memory);
        MUST(VipDeregisterMem(nic, memory, got));
    } else if (strcmp(what, "free-stranger") == 0)
        code = vipl_free(m);
    else if (strncmp(what, "alloc-", 6) == 0) {
        VIP_PVOID memory;

        code = vipl_alloc(strcmp(what, "alloc-all") == 0 ? ~(VIP_ULONG)0 / 4 : 0, &memory);
    } else if (strcmp(what, "state") == 0)
        code = VipConnectPeerDone(vi, &attributes);
    else if (strcmp(what, "level") == 0) {
        attributes.ReliabilityLevel = 7;
        code = VipCreateVi(nic, &attributes, NULL, NULL, &gone);
    } else if (strcmp(what, "transfer-size") == 0) {
        attributes.MaxTransferSize = 1 << 31;
        code = VipCreateVi(nic, &attributes, NULL, NULL, &gone);
    } else if (strcmp(what, "cq-size") == 0)
        code = VipCreateCQ(nic, 0, &cq);
    else if (strcmp(what, "levels") == 0)
        code = levels_differ();
    else if (strcmp(what, "close") == 0)
        code = VipCloseNic(nic);
    else if (strcmp(what, "no-match") == 0)
        code = connect_to(0, "nobody");
    else if (strcmp(what, "no-host") == 0)
        code = connect_to(99, "nobody");
    else if (strcmp(what, "name") == 0) {
        MUST(VipNSInit(nic, NULL));
        code = VipNSGetHostByName(nic, (VIP_CHAR *)"no.such.host.invalid", &address, 0);
        MUST(VipNSShutdown(nic));
    } else if (strcmp(what, "polls") == 0) {
        int i;
        m->d.CS.SegCount = 0;
        m->d.CS.Length = 0;
        MUST(VipPostRecv(vi, &m->d, region));
        for (i = 0; i < 1000; i++)
            CHECK_RETURN(VipRecvDone(vi, &done), VIP_NOT_DONE, "a poll");
        MUST(VipDisconnect(vi));
        code = VipRecvDone(vi, &done);
    } else if (strcmp(what, "outside") == 0)
        post_outside();
    else if (strcmp(what, "read-only") == 0)
        read_only();
    else
        CHECK(0, what);
    printf("%s: %s\n", what, return_name((long)code));
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int i;

    start_showing();
    set_up();
    for (i = 1; i < argc; i++)
        one(argv[i]);
    ok("%d calls made", argc - 1);
    return 0;
}
