/* The agent that the library has started is killed: the library starts another one, by itself, and new
 * connections work on the same NIC.
 *
 *   agent_auto [-d DEVICE]
 *
 * To be run where no other program uses the user's agent, in a network name space of its own. */
#include "common.h"

#include <sys/stat.h>
#include <sys/un.h>

#define TIMES 10

struct peer {
    int pid, uid, gid; /* as SO_PEERCRED gives them; its structure is no part of C99's headers */
};

/* Connects to the user's agent if it has its socket in this folder; else -1. */
static int connect_below(const char *form)
{
    struct sockaddr_un there;
    struct stat net;
    char folder[64];
    int end, length;

    CHECK_EQ(stat("/proc/self/ns/net", &net), 0, "the network namespace");
    memset(&there, 0, sizeof there);
    there.sun_family = AF_UNIX;
    snprintf(folder, sizeof folder, form, (int)geteuid());
    length = snprintf(there.sun_path, sizeof there.sun_path, "%s/agent-%lu", folder, (unsigned long)net.st_ino);
    CHECK(length > 0 && (size_t)length < sizeof there.sun_path, "a path");
    end = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(end >= 0, "socket");
    if (connect(end, (struct sockaddr *)(void *)&there, sizeof there) == 0)
        return end;
    close(end);
    return -1;
}

/* The process that serves the user. */
static pid_t agent(void)
{
    struct peer peer;
    socklen_t bytes = sizeof peer;
    double start = now_ms();
    int end;

    while ((end = connect_below("/run/user/%d/vipl")) < 0 && (end = connect_below("/tmp/vipl-%d")) < 0) {
        CHECK(now_ms() - start < (double)PATIENCE, "agent_auto: an agent");
        sleep_ms(1);
    }
    CHECK_EQ(getsockopt(end, SOL_SOCKET, SO_PEERCRED, &peer, &bytes), 0, "SO_PEERCRED");
    close(end);
    return (pid_t)peer.pid;
}

static void exchange(struct node *node, VIP_VI_HANDLE from, VIP_VI_HANDLE to)
{
    size_t mark = node->used;
    VIP_DESCRIPTOR *in = take_descriptor(node, 1), *out = take_descriptor(node, 1);
    unsigned char *received = take(node, 30000), *sent = take(node, 30000);

    fill(sent, 30000, 7);
    post_recv(node, to, in, received, 30000);
    post_send(node, from, out, sent, 30000);
    EXPECT_RECV(to, in, STATUS_RECEIVED, "agent_auto: a transfer");
    EXPECT_SEND(from, out, STATUS_SENT, "agent_auto: a transfer");
    CHECK(filled(received, 30000, 7), "agent_auto: a transfer");
    node->used = mark;
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    VIP_VI_HANDLE vis[TIMES + 1][2];
    static struct node node;
    double start;
    pid_t before;
    int round, i;

    open_node(&node, options.device, 1 << 20);
    for (round = 0; round <= TIMES; round++) {
        for (i = 0; i < 2; i++)
            vis[round][i] = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
        join_vis(&node, vis[round][0], &node, vis[round][1]);
        for (i = 0; i <= round; i++)
            exchange(&node, vis[i][i % 2], vis[i][1 - i % 2]);
        if (round == TIMES)
            break;
        before = agent();
        CHECK_EQ(kill(before, SIGKILL), 0, "kill");
        exchange(&node, vis[round][0], vis[round][1]);
        start = now_ms();
        while (agent() == before) /* it dies in its own time */
            CHECK(now_ms() - start < (double)PATIENCE, "agent_auto: another agent");
    }
    /* Both ends came to every one of the agents: the last one tells of a disconnect. */
    for (round = 0; round <= TIMES; round++) {
        MUST(VipDisconnect(vis[round][0]));
        AWAIT_STATE(vis[round][1], VIP_STATE_ERROR, "agent_auto: disconnects");
    }
    for (round = 0; round <= TIMES; round++)
        for (i = 0; i < 2; i++)
            end_vi(vis[round][i]);
    close_node(&node);
    ok("%d agents killed, each followed by the next", TIMES);
    return 0;
}
