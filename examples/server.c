/* server: one server, many clients, one completion queue.
 *
 * A thread accepts connections while the main thread serves all of them from one completion queue:
 * it echoes each message in upper case. `server DEVICE CLIENTS` starts that many clients. */

#define _POSIX_C_SOURCE 200809L
#include <ctype.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include "example.h"

enum { CLIENTS_MAX = 64, MESSAGES = 100, BYTES = 64 };

/* One connection: a receive and a send, each with its buffer. */
typedef struct {
    VIP_DESCRIPTOR receive, send;
    char question[BYTES], answer[BYTES];
} exchange;

static exchange exchanges[CLIENTS_MAX] __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));
static VIP_VI_HANDLE vis[CLIENTS_MAX];
static device opened;
static VIP_MEM_HANDLE memory;
static int clients;

/* Accepts one client after the other. Each VI has its receive posted before it is connected. */
static void *accept_clients(void *unused)
{
    int i;
    (void)unused;
    for (i = 0; i < clients; i++)
        accept_client(&opened, vis[i], "server");
    return NULL;
}

/* Answers one question; false if the client has left instead, which flushes the receive. */
static int echo(exchange *with, VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *done;
    size_t i, length;
    if (VipRecvDone(vi, &done) != VIP_SUCCESS) {
        MUST(VipDisconnect(vi));
        MUST(VipDestroyVi(vi));
        return 0;
    }
    length = done->CS.Length;
    for (i = 0; i < length; i++)
        with->answer[i] = (char)toupper((unsigned char)with->question[i]);
    /* First the receive for the next question, then the answer that lets the client ask it. */
    describe(&with->receive, with->question, memory, BYTES);
    MUST(VipPostRecv(vi, &with->receive, memory));
    describe(&with->send, with->answer, memory, length);
    post_and_wait(vi, &with->send, memory);
    return 1;
}

static void serve(void)
{
    VIP_CQ_HANDLE cq;
    pthread_t thread;
    int i, left = clients;

    MUST(VipCreateCQ(opened.nic, (VIP_ULONG)clients * 2, &cq));
    for (i = 0; i < clients; i++) {
        vis[i] = create_vi(&opened, cq);
        describe(&exchanges[i].receive, exchanges[i].question, memory, BYTES);
        MUST(VipPostRecv(vis[i], &exchanges[i].receive, memory));
    }
    if (pthread_create(&thread, NULL, accept_clients, NULL) != 0)
        exit(1);
    while (left > 0) {
        VIP_VI_HANDLE vi;
        VIP_BOOLEAN is_receive;
        MUST(VipCQWait(cq, VIP_INFINITE, &vi, &is_receive));
        for (i = 0; vis[i] != vi; i++)
            continue;
        left -= !echo(&exchanges[i], vi);
    }
    pthread_join(thread, NULL);
    MUST(VipDestroyCQ(cq));
    printf("server: %d clients, %d messages each\n", clients, MESSAGES);
}

static void ask(int number)
{
    exchange *with = &exchanges[0];
    address server = address_of(opened.nic, "server");
    VIP_VI_HANDLE vi = create_vi(&opened, NULL);
    VIP_VI_ATTRIBUTES its_vi;
    VIP_DESCRIPTOR *done;
    int i;

    MUST(VipConnectRequest(vi, &server.net, &server.net, 10000, &its_vi));
    for (i = 0; i < MESSAGES; i++) {
        char expected[BYTES];
        int length = snprintf(with->question, BYTES, "client %d, message %d", number, i) + 1;
        snprintf(expected, BYTES, "CLIENT %d, MESSAGE %d", number, i);
        describe(&with->receive, with->answer, memory, BYTES);
        MUST(VipPostRecv(vi, &with->receive, memory));
        describe(&with->send, with->question, memory, (size_t)length);
        post_and_wait(vi, &with->send, memory);
        MUST(VipRecvWait(vi, VIP_INFINITE, &done));
        if (strcmp(with->answer, expected) != 0) {
            fprintf(stderr, "expected %s, got %s\n", expected, with->answer);
            exit(1);
        }
    }
    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
}

int main(int argc, char **argv)
{
    int number = 0, failed = 0, status;
    clients = argc > 2 ? atoi(argv[2]) : 8;
    if (clients < 1 || clients > CLIENTS_MAX) {
        fprintf(stderr, "usage: server [DEVICE [CLIENTS]], with 1 to %d clients\n", CLIENTS_MAX);
        return 1;
    }
    /* Before the first call: each process opens its own NIC. The parent, number 0, is the server. */
    for (number = clients; number > 0 && fork() != 0; number--)
        continue;
    opened = open_device(device_name(argc, argv));
    memory = register_memory(&opened, exchanges, sizeof exchanges, LOCAL);
    if (number == 0)
        serve();
    else
        ask(number);
    MUST(VipDeregisterMem(opened.nic, exchanges, memory));
    close_device(&opened);
    while (number == 0 && wait(&status) > 0)
        failed |= status != 0;
    return failed;
}
