/* A program that was started without standard input, output or error, in all combinations: the library takes none
 * of these numbers, so that the program's own next file gets them and nothing is printed into a NIC. */
#include "common.h"

#include <fcntl.h>
#include <sys/stat.h>

static const char id[] = "descriptors 0 to 2 are the program's";

/* Not one of the closed numbers is in use. Says so on a copy of standard error. */
static void expect_free(unsigned closed, const char *when)
{
    int fd;

    for (fd = 0; fd < 3; fd++)
        if ((closed >> fd & 1) && fcntl(fd, F_GETFD) != -1) {
            dprintf(102, "descriptor %d is in use %s\n", fd, when);
            _exit(1);
        }
}

static void run_without(const char *device, unsigned closed)
{
    static struct node node;
    VIP_VI_HANDLE a, b;
    VIP_DESCRIPTOR *in, *out;
    unsigned char *received, *sent;
    struct stat before, after;
    int fd, lowest = closed & 1 ? 0 : closed & 2 ? 1 : 2;

    CHECK(dup2(2, 102) == 102, "set-up");
    memset(&before, 0, sizeof before);
    for (fd = 0; fd < 3; fd++)
        if (closed >> fd & 1)
            close(fd);
        else
            fstat(fd, &before);
    open_node(&node, device, 1 << 20);
    expect_free(closed, "after VipOpenNic");
    a = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    b = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    in = take_descriptor(&node, 1);
    out = take_descriptor(&node, 1);
    received = take(&node, 30000);
    sent = take(&node, 30000);
    join_vis(&node, a, &node, b);
    expect_free(closed, "after connecting");
    fill(sent, 30000, 5);
    post_recv(&node, b, in, received, 30000);
    post_send(&node, a, out, sent, 30000);
    EXPECT_RECV(b, in, STATUS_RECEIVED, id);
    EXPECT_SEND(a, out, STATUS_SENT, id);
    CHECK(filled(received, 30000, 5), id);
    expect_free(closed, "after a transfer");
    end_vi(a);
    end_vi(b);
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    CHECK_EQ(fd, lowest, id);
    close(fd);
    close_node(&node);
    expect_free(closed, "after VipCloseNic");
    for (fd = 0; fd < 3; fd++)
        if (!(closed >> fd & 1))
            CHECK(fstat(fd, &after) == 0, id);
    CHECK(closed == 7 || (before.st_ino == after.st_ino && before.st_dev == after.st_dev), id);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    unsigned closed;

    for (closed = 1; closed < 8; closed++) {
        pid_t pid = fork_child();

        if (pid == 0) {
            run_without(options.device, closed);
            exit(0);
        }
        reap(pid);
    }
    ok("seven programs without standard descriptors");
    return 0;
}
