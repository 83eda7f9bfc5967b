/* A program that closes every descriptor from 3 on, as daemons do, and then opens sockets of its own, which get the
 * numbers that the library had. Its calls end, one way or the other; the library writes not a byte into these
 * sockets and closes none of them, to the very end of the program; and a NIC that is opened afterwards works. */
#include "common.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>

#define SOCKETS 300

static const char id[] = "descriptors of the program";

/* ---- the program's own sockets ------------------------------------------------------------------ */

struct own {
    int fd;
    ino_t inode;
};

static void open_sockets(struct own *own, const struct sockaddr_un *peer)
{
    struct stat status;
    int i;

    for (i = 0; i < SOCKETS; i++) {
        own[i].fd = socket(AF_UNIX, SOCK_STREAM, 0);
        CHECK(own[i].fd >= 0, "set-up");
        CHECK_EQ(connect(own[i].fd, (const struct sockaddr *)peer, sizeof *peer), 0, "set-up");
        CHECK_EQ(fstat(own[i].fd, &status), 0, "set-up");
        own[i].inode = status.st_ino;
    }
}

static void expect_untouched(const struct own *own)
{
    struct stat status;
    int i;

    for (i = 0; i < SOCKETS; i++)
        CHECK(fstat(own[i].fd, &status) == 0 && status.st_ino == own[i].inode, id);
}

/* ---- calls -------------------------------------------------------------------------------------- */

static struct node node;
static VIP_VI_HANDLE a, b, fresh;
static VIP_DESCRIPTOR *in, *out;
static unsigned char *received, *sent;

static void set_up(const char *device)
{
    open_node(&node, device, 1 << 20);
    a = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    b = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    fresh = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    in = take_descriptor(&node, 1);
    out = take_descriptor(&node, 1);
    received = take(&node, 30000);
    sent = take(&node, 30000);
    join_vis(&node, a, &node, b);
}

static void transfer(void)
{
    fill(sent, 30000, 3);
    post_recv(&node, b, in, received, 30000);
    post_send(&node, a, out, sent, 30000);
    EXPECT_RECV(b, in, STATUS_RECEIVED, "set-up");
    EXPECT_SEND(a, out, STATUS_SENT, "set-up");
    CHECK(filled(received, 30000, 3), "set-up");
}

/* Calls on what was open before: they end, with success or an error. */
static void old_calls(void)
{
    address local = local_point(&node, (int)getpid(), "client"), remote = local_point(&node, (int)getpid(), "nobody");
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE request;
    VIP_DESCRIPTOR *found;
    VIP_NET_ADDRESS *any = &remote.net;
    VIP_RETURN code;
    int i;

    for (i = 0; i < 20; i++) {
        size_t bytes = i % 2 ? 30000 : 40;

        start_descriptor(in, VIP_CONTROL_OP_SENDRECV);
        add_data(in, received, node.handle, 30000);
        start_descriptor(out, VIP_CONTROL_OP_SENDRECV);
        add_data(out, sent, node.handle, bytes);
        MUST(VipPostRecv(b, in, node.handle));
        MUST(VipPostSend(a, out, node.handle));
        while ((code = VipRecvWait(b, 2000, &found)) == VIP_TIMEOUT)
            ;
        CHECK(found == in, id);
        CHECK(code == VIP_SUCCESS || code == VIP_DESCRIPTOR_ERROR, id);
        while ((code = VipSendWait(a, 2000, &found)) == VIP_TIMEOUT)
            ;
        CHECK(found == out, id);
        CHECK(code == VIP_SUCCESS || code == VIP_DESCRIPTOR_ERROR, id);
    }
    code = VipConnectRequest(fresh, &local.net, &remote.net, 500, &attributes);
    CHECK(code != VIP_SUCCESS, id);
    code = VipConnectWait(node.nic, &local.net, 500, any, &attributes, &request);
    CHECK(code != VIP_SUCCESS, id);
    MUST(VipDisconnect(a));
    MUST(VipDisconnect(b));
    MUST(VipDestroyVi(a));
    MUST(VipDestroyVi(b));
    MUST(VipDestroyVi(fresh));
    close_node(&node);
}

static void in_the_child(const char *device, const struct sockaddr_un *peer, int with_calls)
{
    static struct own own[SOCKETS];
    int fd;

    set_up(device);
    transfer();
    for (fd = 3; fd < 1024; fd++)
        close(fd);
    open_sockets(own, peer);
    if (with_calls) {
        old_calls();
        expect_untouched(own);
        set_up(device);
        transfer();
        expect_untouched(own);
    }
    exit(0); /* sends no farewell into a socket of ours */
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    struct rlimit files = {1024, 1024};
    const struct timeval patience = {(time_t)(PATIENCE / 1000), 0}; /* a child that has failed does not connect */
    int with_calls;

    setrlimit(RLIMIT_NOFILE, &files);
    for (with_calls = 0; with_calls < 2; with_calls++) {
        int listener = socket(AF_UNIX, SOCK_STREAM, 0), ends[SOCKETS], i;
        struct sockaddr_un name;
        socklen_t length = sizeof name;
        char byte;
        pid_t pid;

        memset(&name, 0, sizeof name);
        name.sun_family = AF_UNIX;
        snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "vipl-closes-%d-%d", (int)getpid(), with_calls);
        CHECK_EQ(bind(listener, (struct sockaddr *)&name, length), 0, "set-up");
        CHECK_EQ(listen(listener, SOCKETS), 0, "set-up");
        pid = fork_child();
        setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        if (pid == 0)
            in_the_child(options.device, &name, with_calls);
        for (i = 0; i < SOCKETS; i++)
            CHECK((ends[i] = accept(listener, NULL, NULL)) >= 0, "set-up");
        for (i = 0; i < SOCKETS; i++) {
            CHECK_EQ(read(ends[i], &byte, 1), 0, id); /* its end, and nothing before it */
            close(ends[i]);
        }
        close(listener);
        reap(pid);
        ok(with_calls ? "closed, used again, and a NIC opened anew" : "closed, and the program ended");
    }
    return 0;
}
