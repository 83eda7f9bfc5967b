/* A loop that posts, between two marks that a tracer finds: two calls of getppid. Both VIs are in this process.
 * Files say when it is ready for that, when it may begin, and when it has posted: CLAN_READY, CLAN_GO, CLAN_POSTED. */
#include "common.h"

enum { POSTS = 400 };

static VIP_DESCRIPTOR *sends[POSTS], *receives[2 * POSTS];

static void post(struct node *node, VIP_VI_HANDLE from, VIP_VI_HANDLE to, int first)
{
    int i;

    for (i = 0; i < POSTS; i++) {
        MUST(VipPostSend(from, sends[i], node->handle));
        MUST(VipPostRecv(to, receives[first + i], node->handle));
    }
}

static void take_all(VIP_VI_HANDLE from, VIP_VI_HANDLE to, int first)
{
    int i;

    for (i = 0; i < POSTS; i++) {
        EXPECT_SEND(from, sends[i], STATUS_SENT, "a send");
        EXPECT_RECV(to, receives[first + i], STATUS_RECEIVED, "a receive");
    }
}

static void announce(const char *name)
{
    FILE *file = fopen(getenv(name), "w");

    CHECK(file != NULL, name);
    fclose(file);
}

static void wait_for(const char *name)
{
    while (access(getenv(name), F_OK) != 0)
        sleep_ms(5);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    VIP_VI_HANDLE from, to;
    unsigned char *data;
    struct node node;
    int i;

    open_node(&node, options.device, 1u << 20);
    from = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    to = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    data = take(&node, 128);
    for (i = 0; i < POSTS; i++) {
        sends[i] = take_descriptor(&node, 1);
        start_descriptor(sends[i], VIP_CONTROL_OP_SENDRECV);
        add_data(sends[i], data, node.handle, 8);
    }
    for (i = 0; i < 2 * POSTS; i++) {
        receives[i] = take_descriptor(&node, 1);
        start_descriptor(receives[i], VIP_CONTROL_OP_SENDRECV);
        add_data(receives[i], data + 64, node.handle, 8);
    }
    join_vis(&node, to, &node, from);
    for (i = 0; i < POSTS; i++)
        MUST(VipPostRecv(to, receives[i], node.handle));
    /* Afterwards the queues of the library have their full size. */
    post(&node, from, to, POSTS);
    take_all(from, to, 0);
    announce("CLAN_READY");
    wait_for("CLAN_GO");
    (void)getppid();
    post(&node, from, to, 0);
    (void)getppid();
    announce("CLAN_POSTED");
    take_all(from, to, POSTS);
    MUST(VipDisconnect(from));
    MUST(VipDisconnect(to));
    ok("%d posts of each kind", POSTS);
    return 0;
}
