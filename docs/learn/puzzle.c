/* puzzle: it prints what it should, and has three mistakes. Exercise of lesson 8. */

#include <sys/wait.h>
#include <unistd.h>
#include "example.h"

enum { MESSAGES = 3, ROOM = 32 };

static struct {
    VIP_DESCRIPTOR receive[MESSAGES], send[MESSAGES], thanks;
    char in[MESSAGES][ROOM], out[ROOM];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static void serve(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;
    int i;

    for (i = 0; i < MESSAGES; i++) {
        describe(&m.receive[i], m.in[i], memory, ROOM);
        MUST(VipPostRecv(vi, &m.receive[i], memory));
    }
    accept_client(opened, vi, "puzzle");
    for (i = 0; i < MESSAGES; i++) {
        MUST(VipRecvWait(vi, VIP_INFINITE, &done));
        printf("message %u: %u bytes\n", (unsigned)done->CS.ImmediateData, (unsigned)done->CS.Length);
    }
    memset(&m.thanks, 0, sizeof m.thanks);
    post_and_wait(vi, &m.thanks, memory);
}

static void call(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;
    int i;

    memset(&m.thanks, 0, sizeof m.thanks);
    MUST(VipPostRecv(vi, &m.thanks, memory));
    connect_server(opened, vi, "puzzle");
    for (i = 0; i < MESSAGES; i++) {
        snprintf(m.out, ROOM, "message %d", i);
        describe(&m.send[i], m.out, memory, strlen(m.out) + 1);
        m.send[i].CS.ImmediateData = (VIP_UINT32)(10 + i);
        MUST(VipPostSend(vi, &m.send[i], memory));
    }
    MUST(VipRecvWait(vi, VIP_INFINITE, &done));
}

int main(int argc, char **argv)
{
    int is_server = fork() != 0;
    device opened = open_device(device_name(argc, argv));
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, LOCAL);
    VIP_VI_HANDLE vi = create_vi(&opened, NULL);

    if (is_server)
        serve(&opened, vi, memory);
    else
        call(&opened, vi, memory);

    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    if (is_server)
        wait(NULL);
    return 0;
}
