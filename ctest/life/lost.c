/* A program that exits on the first error that it sees, as old ones do: the log says that the connection was lost.
 *
 *   lost [-d DEVICE] disconnect|exit|kill
 *
 * What the other process does when the connection is there. Ends with 1, the program's own idea of an error. */
#include "common.h"

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    const char *how = options.words > 0 ? options.word[0] : "";
    int run = (int)getpid(), ready[2];
    pid_t pid;
    struct node node;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *in, *found = NULL;
    char c;

    alarm(60);
    CHECK_EQ(pipe(ready), 0, "pipe");
    pid = fork_child();
    open_node(&node, options.device, 65536);
    MUST(VipErrorCallback(node.nic, NULL, NULL)); /* the default handler */
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    in = take_descriptor(&node, 1);
    post_recv(&node, vi, in, NULL, 0);
    if (pid == 0) {
        ask(vi, local_point(&node, run, "client"), local_point(&node, run, "lost"));
        CHECK_EQ(read(ready[0], &c, 1), 1, "pipe");
        if (strcmp(how, "disconnect") == 0) {
            MUST(VipDisconnect(vi));
            pause();
        }
        if (strcmp(how, "exit") == 0)
            exit(0);
        raise(SIGKILL);
    }
    serve(&node, vi, local_point(&node, run, "lost"));
    CHECK_EQ(write(ready[1], "r", 1), 1, "pipe");
    if (VipRecvWait(vi, VIP_INFINITE, &found) == VIP_DESCRIPTOR_ERROR)
        exit(1);
    return 2;
}
