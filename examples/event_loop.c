/* event_loop: a server in an event loop, for any number of echo_client.c.
 *
 *     event_loop [DEVICE [CLIENTS]]       ends after so many clients, or when its standard input ends
 *
 * One epoll set has everything that happens: completions, by the descriptor of the completion queue (vipl_cq_fd,
 * vipl_cq_arm); new clients, by a pipe from the thread that waits for them; a timer; standard input. Nothing polls. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include "echo.h"
#include "example.h"

/* A client: one question at a time. */
typedef struct client {
    VIP_DESCRIPTOR receive, send;
    char question[TEXT], answer[TEXT];
    VIP_MEM_HANDLE memory;
    VIP_VI_HANDLE vi;
} client;

static device opened;
static VIP_CQ_HANDLE cq;
static int clients_wanted, here_now, ended;
static unsigned long answered;

static void check(int good, const char *what)
{
    if (!good) {
        perror(what);
        exit(1);
    }
}

static client *create_client(void)
{
    client *c = aligned_alloc(VIP_DESCRIPTOR_ALIGNMENT, (sizeof *c + 63) / 64 * 64);
    check(c != NULL, "aligned_alloc");
    c->memory = register_memory(&opened, c, sizeof *c, LOCAL);
    c->vi = create_vi(&opened, cq);
    VipSetUserData(c->vi, c); /* how a completion finds its client */
    describe(&c->receive, c->question, c->memory, TEXT);
    MUST(VipPostRecv(c->vi, &c->receive, c->memory));
    return c;
}

static void end_client(client *c)
{
    MUST(VipDisconnect(c->vi));
    MUST(VipDestroyVi(c->vi));
    MUST(VipDeregisterMem(opened.nic, c, c->memory));
    free(c);
    here_now--;
    ended++;
}

/* A thread of its own, since VipConnectWait blocks. The loop learns of a client through the pipe. */
static void *accept_clients(void *end)
{
    for (;;) {
        client *c = create_client();
        accept_client(&opened, c->vi, POINT);
        check(write(*(int *)end, &c, sizeof c) == sizeof c, "write");
    }
    return NULL;
}

/* Takes all completions, then asks for the next event. */
static void serve(void)
{
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN is_receive;
    VIP_DESCRIPTOR *done;

    while (VipCQDone(cq, &vi, &is_receive) == VIP_SUCCESS) {
        client *c = VipGetUserData(vi);
        if (VipRecvDone(vi, &done) != VIP_SUCCESS) {
            end_client(c); /* it has left, which flushed the receive */
            continue;
        }
        memcpy(c->answer, c->question, done->CS.Length);
        describe(&c->send, c->answer, c->memory, done->CS.Length);
        describe(&c->receive, c->question, c->memory, TEXT);
        MUST(VipPostRecv(vi, &c->receive, c->memory));
        if (VipPostSend(vi, &c->send, c->memory) == VIP_SUCCESS)
            (void)VipSendWait(vi, VIP_INFINITE, &done);
        answered++;
    }
    MUST(vipl_cq_arm(cq));
}

static void add(int set, int fd)
{
    struct epoll_event event;
    memset(&event, 0, sizeof event);
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0 && fd != STDIN_FILENO)
        check(0, "epoll_ctl"); /* standard input may be a file, which is always readable */
}

int main(int argc, char **argv)
{
    struct itimerspec second = {{1, 0}, {1, 0}};
    int set = epoll_create1(EPOLL_CLOEXEC), timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    int ends[2], completions;
    pthread_t thread;
    client *c;
    char bytes[8];

    clients_wanted = argc > 2 ? atoi(argv[2]) : 0;
    check(set >= 0 && timer >= 0 && pipe2(ends, O_CLOEXEC) == 0, "epoll, timer, pipe");
    check(timerfd_settime(timer, 0, &second, NULL) == 0, "timerfd_settime");
    opened = open_device(device_name(argc, argv));
    MUST(VipCreateCQ(opened.nic, 1024, &cq));
    MUST(vipl_cq_fd(cq, &completions));
    add(set, completions);
    add(set, ends[0]);
    add(set, timer);
    add(set, STDIN_FILENO);
    MUST(vipl_cq_arm(cq));
    check(pthread_create(&thread, NULL, accept_clients, &ends[1]) == 0, "pthread_create");
    printf("waiting at \"%s\" on %s\n", POINT, device_name(argc, argv));
    fflush(stdout);

    while (clients_wanted == 0 || ended < clients_wanted) {
        struct epoll_event event;
        if (epoll_wait(set, &event, 1, -1) != 1)
            continue;
        if (event.data.fd == completions) {
            serve();
        } else if (event.data.fd == ends[0]) {
            check(read(ends[0], &c, sizeof c) == sizeof c, "read");
            here_now++;
        } else if (event.data.fd == timer) {
            check(read(timer, bytes, sizeof bytes) == sizeof bytes, "read");
            if (here_now > 0)
                printf("%d clients, %lu messages\n", here_now, answered);
        } else if (read(STDIN_FILENO, bytes, sizeof bytes) <= 0) {
            break;
        }
    }
    printf("%d clients have left, %lu messages\n", ended, answered);
    return 0; /* with the thread in VipConnectWait: the end of the process releases everything */
}
