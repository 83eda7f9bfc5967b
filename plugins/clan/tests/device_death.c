/* The device is killed while two VIs of this process are connected: the application is informed once, its VIs are in
 * Error with their queues flushed, nothing hangs, and a device that is opened then works. The file that
 * CLAN_READY names says when to kill it. */
#include "common.h"

static void exchange(struct node *node, VIP_VI_HANDLE from, VIP_VI_HANDLE to)
{
    VIP_DESCRIPTOR *send = take_descriptor(node, 1), *receive = take_descriptor(node, 1);
    unsigned char *data = take(node, 8192);

    fill(data, 4096, 1);
    post_recv(node, to, receive, data + 4096, 4096);
    post_send(node, from, send, data, 4096);
    EXPECT_SEND(from, send, STATUS_SENT, "a send");
    EXPECT_RECV(to, receive, STATUS_RECEIVED, "a receive");
    CHECK(filled(data + 4096, 4096, 1), "the data");
}

static void open_pair(struct node *node, const char *device, VIP_VI_HANDLE *from, VIP_VI_HANDLE *to)
{
    open_node(node, device, 1u << 20);
    *from = make_vi(node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    *to = make_vi(node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    join_vis(node, *to, node, *from);
    exchange(node, *from, *to);
}

static void close_pair(struct node *node, VIP_VI_HANDLE from, VIP_VI_HANDLE to)
{
    MUST(VipDisconnect(from));
    MUST(VipDisconnect(to));
    MUST(VipDestroyVi(from));
    MUST(VipDestroyVi(to));
    close_node(node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    struct node node, other;
    VIP_VI_HANDLE from, to, new_from, new_to;
    VIP_DESCRIPTOR *left;
    FILE *ready;

    open_pair(&node, options.device, &from, &to);
    left = take_descriptor(&node, 1);
    post_recv(&node, to, left, take(&node, 64), 64);
    ready = fopen(getenv("CLAN_READY"), "w");
    CHECK(ready != NULL, "the file CLAN_READY");
    fclose(ready);
    /* Waits in the library; the end of the device ends the wait. */
    EXPECT_RECV(to, left, STATUS_FLUSHED_RECEIVE, "the receive that is left");
    (void)NEXT_ERROR(&node, VIP_ERROR_CATASTROPHIC, NULL, "ERR-catastrophic");
    CHECK_EQ(vi_state(from), VIP_STATE_ERROR, "a VI without a device");
    CHECK_EQ(vi_state(to), VIP_STATE_ERROR, "a VI without a device");
    open_pair(&other, options.device, &new_from, &new_to);
    close_pair(&node, from, to);
    close_pair(&other, new_from, new_to);
    ok("lived through the end of the device");
    return 0;
}
