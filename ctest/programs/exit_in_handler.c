/* COMPAT-12: exit() inside an error callback ends the process with that status.
 *
 * This process never calls VIPL. One child connects and is killed; the handler of the second child calls exit. */
#include "common.h"

#define STATUS 42

static void leave(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    CHECK_EQ(error->ErrorCode, VIP_ERROR_CONN_LOST, "COMPAT-12");
    printf("ok: the handler calls exit(%d)\n", *(int *)context);
    exit(*(int *)context);
}

static void at_exit_too(void)
{
    printf("ok: exit handlers run\n");
}

static pid_t start(const char *device, int run, int server, int ready)
{
    static int status = STATUS;
    pid_t pid = fork_child();
    struct node node;
    VIP_DESCRIPTOR *d, *found;
    VIP_VI_HANDLE vi;

    if (pid != 0)
        return pid;
    open_node(&node, device, 65536);
    MUST(VipErrorCallback(node.nic, &status, leave));
    atexit(at_exit_too);
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    d = take_descriptor(&node, 1);
    post_recv(&node, vi, d, NULL, 0);
    if (server)
        serve(&node, vi, local_point(&node, run, "leave"));
    else
        ask(vi, local_point(&node, run, "client"), local_point(&node, run, "leave"));
    CHECK_EQ(write(ready, "r", 1), 1, "pipe");
    for (;;) /* the main thread is inside a wait, or between two, when the handler ends the process */
        VipRecvWait(vi, VIP_INFINITE, &found);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    int ready[2], round, status;
    char c;

    CHECK_EQ(pipe(ready), 0, "pipe");
    for (round = 0; round < 5; round++) {
        int run = (int)getpid() + (round << 24);
        pid_t stays = start(options.device, run, 1, ready[1]);
        pid_t goes = start(options.device, run, 0, ready[1]);

        CHECK(read(ready[0], &c, 1) == 1 && read(ready[0], &c, 1) == 1, "pipe");
        kill(goes, SIGKILL);
        CHECK_EQ(waitpid(goes, &status, 0), goes, "waitpid");
        CHECK_EQ(waitpid(stays, &status, 0), stays, "waitpid");
        CHECK(WIFEXITED(status), "COMPAT-12");
        CHECK_EQ(WEXITSTATUS(status), STATUS, "COMPAT-12");
    }
    ok("%d processes ended inside an error callback", round);
    return 0;
}
