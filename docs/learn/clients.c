/* clients: one server waits for three clients at one completion queue. Lesson 6. */

#include <sys/wait.h>
#include <unistd.h>
#include "example.h"

enum { CLIENTS = 3, MESSAGES = 2, RECEIVES = MESSAGES + 1, ROOM = 32 };

/* A connection of the server. */
typedef struct {
    int number;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR receive[RECEIVES] __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));
    char text[RECEIVES][ROOM];
} client;

static client clients[CLIENTS];

static void serve(device *opened)
{
    VIP_MEM_HANDLE memory = register_memory(opened, clients, sizeof clients, LOCAL);
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN is_receive;
    VIP_DESCRIPTOR *done;
    client *c;
    int i, here;

    MUST(VipCreateCQ(opened->nic, CLIENTS * RECEIVES, &cq));
    for (c = clients; c < clients + CLIENTS; c++) {
        c->number = (int)(c - clients) + 1;
        c->vi = create_vi(opened, cq); /* its receives complete in the queue */
        VipSetUserData(c->vi, c);
        for (i = 0; i < RECEIVES; i++) {
            describe(&c->receive[i], c->text[i], memory, ROOM);
            MUST(VipPostRecv(c->vi, &c->receive[i], memory));
        }
    }
    for (c = clients; c < clients + CLIENTS; c++)
        accept_client(opened, c->vi, "clients");

    for (here = CLIENTS; here > 0;) {
        MUST(VipCQWait(cq, VIP_INFINITE, &vi, &is_receive)); /* which VI, which of its queues */
        c = VipGetUserData(vi);
        if (VipRecvDone(vi, &done) == VIP_SUCCESS) {
            printf("%s\n", c->text[done - c->receive]);
        } else {
            printf("VI %d: its client has left\n", c->number);
            here--;
        }
    }

    for (c = clients; c < clients + CLIENTS; c++) {
        MUST(VipDisconnect(c->vi));
        MUST(VipDestroyVi(c->vi));
    }
    MUST(VipDestroyCQ(cq));
    MUST(VipDeregisterMem(opened->nic, clients, memory));
}

static void call(device *opened, int number)
{
    client *mine = &clients[0];
    VIP_MEM_HANDLE memory = register_memory(opened, mine, sizeof *mine, LOCAL);
    VIP_VI_HANDLE vi = create_vi(opened, NULL);
    int i;

    connect_server(opened, vi, "clients");
    for (i = 1; i <= MESSAGES; i++) {
        int length = snprintf(mine->text[0], ROOM, "client %d says %d", number, i) + 1;
        describe(&mine->receive[0], mine->text[0], memory, (size_t)length);
        post_and_wait(vi, &mine->receive[0], memory);
    }
    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened->nic, mine, memory));
}

int main(int argc, char **argv)
{
    int number = CLIENTS;

    /* The parent, number 0, is the server. */
    while (number > 0 && fork() != 0)
        number--;
    device opened = open_device(device_name(argc, argv));
    if (number == 0)
        serve(&opened);
    else
        call(&opened, number);
    close_device(&opened);
    while (number == 0 && wait(NULL) > 0)
        continue;
    return 0;
}
