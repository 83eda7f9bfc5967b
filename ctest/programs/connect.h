/* What the test programs share: connection points, connections, and the record of asynchronous errors.
 * Included by common.h. */
#ifndef CTEST_CONNECT_H
#define CTEST_CONNECT_H

/* ---- addresses and connections --------------------------------------------------------------- */

/* Room for a network address with a host address of 16 and a discriminator of 64 bytes. */
typedef union address {
    VIP_NET_ADDRESS net;
    unsigned char bytes[4 + 16 + 64 + 12];
} address;

static inline void set_address(address *a, const void *host, size_t host_len, const void *discriminator,
                               size_t discriminator_len)
{
    memset(a, 0, sizeof *a);
    a->net.HostAddressLen = (VIP_UINT16)host_len;
    a->net.DiscriminatorLen = (VIP_UINT16)discriminator_len;
    memcpy(a->bytes + 4, host, host_len);
    memcpy(a->bytes + 4 + host_len, discriminator, discriminator_len);
}

/* The connection point `name` of this test run, 16 bytes of discriminator, on a host address. */
static inline address point(const void *host, size_t host_len, int run, const char *name)
{
    unsigned char discriminator[16];
    address a;

    memset(discriminator, 0, sizeof discriminator);
    memcpy(discriminator, &run, sizeof run);
    CHECK(strlen(name) <= 12, "length of a connection point's name");
    memcpy(discriminator + 4, name, strlen(name));
    set_address(&a, host, host_len, discriminator, sizeof discriminator);
    return a;
}

static inline address local_point(const struct node *node, int run, const char *name)
{
    return point(node->attributes.LocalNicAddress, node->attributes.NicAddressLen, run, name);
}

/* Sends this side's host address to the other side and receives that of the other. */
static inline address swap_addresses(struct side *side, const struct node *node)
{
    address mine, theirs;

    set_address(&mine, node->attributes.LocalNicAddress, node->attributes.NicAddressLen, "", 0);
    side_send(side, &mine, sizeof mine);
    side_receive(side, &theirs, sizeof theirs);
    return theirs;
}

static inline address remote_point(const address *host, int run, const char *name)
{
    return point(host->bytes + 4, host->net.HostAddressLen, run, name);
}

/* Waits at a connection point and accepts the first request. */
static inline void serve(struct node *node, VIP_VI_HANDLE vi, address local)
{
    VIP_CONN_HANDLE request = NULL;
    VIP_VI_ATTRIBUTES attributes;
    address remote;

    MUST(VipConnectWait(node->nic, &local.net, PATIENCE, &remote.net, &attributes, &request));
    MUST(VipConnectAccept(request, vi));
}

/* Asks for a connection until a server waits there, as programs do (spec §3.11). */
static inline void ask(VIP_VI_HANDLE vi, address local, address remote)
{
    VIP_VI_ATTRIBUTES attributes;
    VIP_RETURN code;
    double start = now_ms();

    while ((code = VipConnectRequest(vi, &local.net, &remote.net, PATIENCE, &attributes)) ==
           VIP_NO_MATCH) {
        CHECK(now_ms() - start < (double)PATIENCE, "a peer that waits");
        sleep_ms(1);
    }
    MUST(code);
}

/* Connects this side's VI with the other side's: side 0 serves, side 1 asks. */
static inline void join_sides(struct side *side, struct node *node, VIP_VI_HANDLE vi,
                              const address *other, const char *name)
{
    if (side->number == 0)
        serve(node, vi, local_point(node, side->run, name));
    else
        ask(vi, local_point(node, side->run, "client"), remote_point(other, side->run, name));
}

struct server {
    struct node *node;
    VIP_VI_HANDLE vi;
    address local;
};

static inline void *run_server(void *argument)
{
    struct server *server = (struct server *)argument;

    serve(server->node, server->vi, server->local);
    return NULL;
}

/* Connects two VIs of this process; the nodes may be the same. */
static inline void join_vis(struct node *a_node, VIP_VI_HANDLE a, struct node *b_node, VIP_VI_HANDLE b)
{
    static int number; /* counts the connections made here */
    struct server server;
    char name[24];
    pthread_t thread;

    snprintf(name, sizeof name, "join%d", atomic_add(&number, 1));
    server.node = a_node;
    server.vi = a;
    server.local = local_point(a_node, (int)getpid(), name);
    thread = start_thread(run_server, &server);
    ask(b, local_point(b_node, (int)getpid(), "client"), server.local);
    join_thread(thread);
}

/* ---- asynchronous errors, continued ---------------------------------------------------------- */

/* The next asynchronous error of the node that was not asked for yet. */
static inline VIP_ERROR_DESCRIPTOR next_error(const char *file, int line, struct node *node, int code,
                                              VIP_VI_HANDLE vi, const char *id)
{
    struct errors *errors = &node->errors;
    VIP_ERROR_DESCRIPTOR error;
    double start = now_ms();

    memset(&error, 0, sizeof error);
    for (;;) {
        int there;

        pthread_mutex_lock(&errors->lock);
        there = errors->seen < errors->count;
        if (there)
            error = errors->list[errors->seen++];
        pthread_mutex_unlock(&errors->lock);
        if (there)
            break;
        if (now_ms() - start > (double)PATIENCE)
            fail(file, line, id, "an asynchronous error", "one", "none");
        sleep_ms(1);
    }
    check_number(file, line, id, "ErrorCode", (long long)error.ErrorCode, code);
    if (error.ViHandle != vi || error.NicHandle != node->nic)
        fail(file, line, id, "ViHandle and NicHandle of an asynchronous error", "the VI's",
             "others");
    return error;
}
#define NEXT_ERROR(node, code, vi, id) next_error(__FILE__, __LINE__, node, code, vi, id)

/* No asynchronous error has come, nor comes within `ms`. */
static inline void no_error(const char *file, int line, struct node *node, unsigned long ms,
                            const char *id)
{
    struct errors *errors = &node->errors;
    int left, code;

    sleep_ms(ms);
    pthread_mutex_lock(&errors->lock);
    left = errors->count - errors->seen;
    code = left > 0 ? (int)errors->list[errors->seen].ErrorCode : -1;
    pthread_mutex_unlock(&errors->lock);
    if (left != 0)
        check_number(file, line, id, "code of an unexpected asynchronous error", code, -1);
    shows(id);
}
#define NO_ERROR(node, ms, id) no_error(__FILE__, __LINE__, node, ms, id)

/* What has been told so far does not matter. A handler that is running now is waited for (spec §3.31); after
 * VipDisconnect no further one comes for the old connection (spec §9.6). */
static inline void forget_errors(struct node *node)
{
    MUST(VipErrorCallback(node->nic, &node->errors, note_error));
    pthread_mutex_lock(&node->errors.lock);
    node->errors.count = node->errors.seen = 0;
    pthread_mutex_unlock(&node->errors.lock);
}

#endif
