/* Calls in destructors of thread-specific data, in each of their rounds, of a thread that has used the library before; in the
 * last one everything is closed.
 *
 *   keys [-d DEVICE] ROUND
 *
 * ROUND: in which one everything is closed. */
#include "common.h"

#include <limits.h>

static struct node node;
static VIP_VI_HANDLE vi, peer;
static VIP_CQ_HANDLE cq;
static VIP_DESCRIPTOR *in, *out;
static pthread_key_t key;
static int rounds, last, closed;
static const char *device;

static void nothing(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context;
    (void)error;
}

/* Every kind of call. */
static void calls(void)
{
    static unsigned char page[8192];
    VIP_NIC_ATTRIBUTES attributes;
    VIP_VI_ATTRIBUTES wanted;
    VIP_DESCRIPTOR *found;
    VIP_MEM_HANDLE handle;
    VIP_VI_HANDLE v;
    VIP_BOOLEAN b;
    VIP_CONN_HANDLE request;
    VIP_NIC_HANDLE other;
    address who, here = local_point(&node, (int)getpid(), "here");

    MUST(VipOpenNic((const VIP_CHAR *)device, &other));
    MUST(VipCloseNic(other));
    MUST(VipQueryNic(node.nic, &attributes));
    CHECK_RETURN(VipQueryNic(NULL, &attributes), VIP_INVALID_PARAMETER, "a line of the log");
    post_recv(&node, vi, in, NULL, 0);
    CHECK_RETURN(VipRecvWait(vi, 5, &found), VIP_TIMEOUT, "a wait");
    post_send(&node, peer, out, NULL, 0);
    CHECK_EQ(send_wait(peer, &found), VIP_SUCCESS, "a send");
    CHECK_EQ(recv_wait(vi, &found), VIP_SUCCESS, "a receive");
    CHECK_RETURN(VipCQWait(cq, 5, &v, &b), VIP_TIMEOUT, "a wait");
    CHECK_RETURN(VipCQDone(cq, &v, &b), VIP_NOT_DONE, "a poll");
    handle = register_range(&node, page, sizeof page);
    MUST(VipDeregisterMem(node.nic, page, handle));
    v = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    MUST(VipDestroyVi(v));
    CHECK_RETURN(VipConnectWait(node.nic, &here.net, 5, &who.net, &wanted, &request), VIP_TIMEOUT, "a server");
    MUST(VipErrorCallback(node.nic, NULL, nothing));
    MUST(VipErrorCallback(node.nic, NULL, NULL));
}

static void destroy(void *value)
{
    rounds++;
    if (closed)
        return;
    calls();
    if (rounds < last) {
        pthread_setspecific(key, value);
        return;
    }
    end_vi(vi);
    end_vi(peer);
    MUST(VipDestroyCQ(cq));
    close_node(&node);
    closed = 1;
}

static void *body(void *argument)
{
    (void)argument;
    pthread_setspecific(key, &node);
    open_node(&node, device, 1 << 20);
    MUST(VipCreateCQ(node.nic, 4, &cq));
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    peer = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    join_vis(&node, vi, &node, peer);
    in = take_descriptor(&node, 1);
    out = take_descriptor(&node, 1);
    calls();
    return NULL;
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    last = options.words > 0 ? atoi(options.word[0]) : 1;
    CHECK_EQ(pthread_key_create(&key, destroy), 0, "a key"); /* before those of the library */
    device = options.device;
    join_thread(start_thread(body, NULL));
    CHECK_EQ(closed, 1, "everything is closed");
    CHECK_EQ(rounds, last, "rounds of destructors");
    ok("calls in %d rounds of destructors", rounds);
    return 0;
}
