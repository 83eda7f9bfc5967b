/* poll: waits for a completion queue and for a pipe, whichever comes first, in one poll(2). */

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../example.h"

static struct {
    VIP_DESCRIPTOR d;
    char text[32];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static void serve(device *opened, VIP_MEM_HANDLE memory, int pipe_end)
{
    struct pollfd both[2] = {{.events = POLLIN}, {.fd = pipe_end, .events = POLLIN}};
    VIP_BOOLEAN is_receive;
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi, which;
    VIP_DESCRIPTOR *done;
    char line[32];
    int left = 2;

    MUST(VipCreateCQ(opened->nic, 4, &cq));
    vi = create_vi(opened, cq);
    describe(&m.d, m.text, memory, sizeof m.text);
    MUST(VipPostRecv(vi, &m.d, memory));
    accept_client(opened, vi, "poll");
    MUST(vipl_cq_fd(cq, &both[0].fd));
    while (left > 0) {
        /* First take what is there, then ask for the next event, then sleep: nothing slips through between. */
        while (VipCQDone(cq, &which, &is_receive) == VIP_SUCCESS) {
            MUST(VipRecvDone(which, &done));
            printf("a message: %s\n", m.text);
            left--;
        }
        MUST(vipl_cq_arm(cq));
        if (left == 0 || poll(both, 2, -1) < 0)
            break;
        if (both[1].revents & POLLIN) {
            ssize_t bytes = read(pipe_end, line, sizeof line - 1);
            line[bytes > 0 ? bytes : 0] = '\0';
            printf("the pipe: %s\n", line);
            both[1].fd = -1; /* poll ignores it from now on */
            left--;
        }
    }
    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
    MUST(VipDestroyCQ(cq));
}

static void call(device *opened, VIP_MEM_HANDLE memory, int pipe_end)
{
    VIP_VI_HANDLE vi = create_vi(opened, NULL);

    connect_server(opened, vi, "poll");
    if (write(pipe_end, "seen", 4) != 4)
        perror("write");
    strcpy(m.text, "seen, too");
    describe(&m.d, m.text, memory, strlen(m.text) + 1);
    post_and_wait(vi, &m.d, memory);
    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
}

int main(int argc, char **argv)
{
    int ends[2], is_server;

    if (pipe(ends) != 0) {
        perror("pipe");
        return 1;
    }
    is_server = fork() != 0;
    device opened = open_device(device_name(argc, argv));
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, LOCAL);
    if (is_server)
        serve(&opened, memory, ends[0]);
    else
        call(&opened, memory, ends[1]);
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    if (is_server)
        wait(NULL);
    return 0;
}
