/* The end of a process, or the beginning of another, in every state.
 *
 *   ends [-d DEVICE] STATE HOW
 *
 * STATE: open, posted, connected, waiting (a thread waits), handler (in a handler), connecting (a thread waits for a client)
 * HOW: exit, _exit, quick, return, main (pthread_exit of main, the others return), exec, fork (a child opens a NIC, too)
 *
 * Ends with 7, after `exec` with 0. */
#include "common.h"

static struct node node;
static const char *how, *device;
static VIP_VI_HANDLE vi, peer;
static VIP_DESCRIPTOR *in, *out;
static int stop;
static address here;

static void at_exit(void)
{
    VIP_NIC_ATTRIBUTES attributes;
    VIP_DESCRIPTOR *d;

    if (node.nic == NULL)
        return;
    CHECK_RETURN(VipQueryNic(node.nic, &attributes), VIP_SUCCESS, "a call in an exit handler");
    if (vi != NULL) {
        VipRecvDone(vi, &d);
        VipRecvWait(vi, 1, &d);
        VipDisconnect(vi);
    }
}

static void end(void)
{
    char program[] = "/bin/true", *arguments[] = {program, NULL};

    if (strcmp(how, "exit") == 0)
        exit(7);
    if (strcmp(how, "_exit") == 0)
        _exit(7);
    if (strcmp(how, "quick") == 0)
        quick_exit(7);
    if (strcmp(how, "exec") == 0) {
        execv(program, arguments);
        _exit(9);
    }
    if (strcmp(how, "fork") == 0) {
        pid_t pid = fork();
        int status = 0;

        if (pid == 0) {
            VIP_NIC_HANDLE nic;
            VIP_NIC_ATTRIBUTES attributes;
            VIP_NIC_HANDLE before = node.nic;

            alarm(60);
            node.nic = NULL;
            if (VipQueryNic(before, &attributes) != VIP_INVALID_PARAMETER)
                _exit(3);
            if (VipOpenNic((const VIP_CHAR *)device, &nic) != VIP_SUCCESS || VipCloseNic(nic) != VIP_SUCCESS)
                _exit(4);
            exit(0);
        }
        CHECK_EQ(waitpid(pid, &status, 0), pid, "waitpid");
        CHECK_EQ(status, 0, "the child");
        exit(7);
    }
}

static void *wait_here(void *argument)
{
    VIP_DESCRIPTOR *d;

    (void)argument;
    while (!atomic_get(&stop))
        VipRecvWait(vi, 100000, &d);
    return NULL;
}

static void *connect_here(void *argument)
{
    address who;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE request;

    (void)argument;
    while (!atomic_get(&stop))
        VipConnectWait(node.nic, &here.net, 1000, &who.net, &attributes, &request);
    return NULL;
}

static void notified(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE v, VIP_DESCRIPTOR *d)
{
    (void)context;
    (void)nic;
    (void)v;
    (void)d;
    end();
    exit(7);
}

/* Outlives main, closes everything and ends the process by returning: its exit status is then 0. */
static void *last(void *argument)
{
    (void)argument;
    sleep_ms(50);
    atomic_set(&stop, 1);
    if (vi != NULL) {
        VipDisconnect(peer);
        VipDisconnect(vi);
        sleep_ms(50);
        drain(vi);
        MUST(VipDestroyVi(vi));
        MUST(VipDestroyVi(peer));
    }
    MUST(VipDeregisterMem(node.nic, node.memory, node.handle));
    MUST(VipDestroyPtag(node.nic, node.ptag));
    MUST(VipCloseNic(node.nic));
    node.nic = NULL;
    vi = NULL;
    return NULL;
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    const char *state;

    if (options.words < 2)
        return 2;
    state = options.word[0];
    how = options.word[1];
    device = options.device;
    alarm(60);
    atexit(at_exit); /* before the library's own, so it runs after that */
    open_node(&node, options.device, 1 << 18);
    here = local_point(&node, (int)getpid(), "here");
    if (strcmp(state, "open") != 0 && strcmp(state, "connecting") != 0) {
        vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
        peer = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
        in = take_descriptor(&node, 1);
        out = take_descriptor(&node, 1);
        post_recv(&node, vi, in, NULL, 0);
        if (strcmp(state, "posted") != 0)
            join_vis(&node, vi, &node, peer);
    }
    if (strcmp(state, "waiting") == 0)
        start_thread(wait_here, NULL);
    if (strcmp(state, "connecting") == 0)
        start_thread(connect_here, NULL);
    if (strcmp(state, "waiting") == 0 || strcmp(state, "connecting") == 0)
        sleep_ms(20); /* most likely inside by then; either way must work */
    if (strcmp(state, "handler") == 0) {
        MUST(VipRecvNotify(vi, NULL, notified));
        post_send(&node, peer, out, NULL, 0);
        for (;;)
            pause();
    }
    if (strcmp(how, "main") == 0) {
        start_thread(last, NULL);
        pthread_exit(NULL);
    }
    end();
    return 7;
}
