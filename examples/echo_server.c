/* echo_server: a server for echo_client.c, which may run on another host.
 *
 *     echo_server [DEVICE [CLIENTS]]      ip: or a name of vipinfo; ends after so many clients, otherwise never
 *
 * It serves one client after the other: a message comes back as it was. The same VI serves all of them: after
 * VipDisconnect it is as new. */

#include "echo.h"
#include "example.h"

static struct {
    VIP_DESCRIPTOR receive[2], send;
    char question[2][TEXT], answer[TEXT];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static void post_receive(VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory, int which)
{
    describe(&m.receive[which], m.question[which], memory, TEXT);
    MUST(VipPostRecv(vi, &m.receive[which], memory));
}

/* Answers until the client leaves, which flushes the receives. */
static int echo(VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;
    int which, count = 0;

    while (VipRecvWait(vi, VIP_INFINITE, &done) == VIP_SUCCESS) {
        which = done == &m.receive[1];
        memcpy(m.answer, m.question[which], TEXT);
        describe(&m.send, m.answer, memory, done->CS.Length);
        post_receive(vi, memory, which);
        /* The client may have left without waiting for this. */
        if (VipPostSend(vi, &m.send, memory) != VIP_SUCCESS || VipSendWait(vi, VIP_INFINITE, &done) != VIP_SUCCESS)
            break;
        count++;
    }
    return count;
}

int main(int argc, char **argv)
{
    int clients = argc > 2 ? atoi(argv[2]) : 0, served;
    device opened = open_device(device_name(argc, argv));
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, LOCAL);
    VIP_VI_HANDLE vi = create_vi(&opened, NULL);

    printf("waiting at \"%s\" on %s\n", POINT, device_name(argc, argv));
    fflush(stdout);
    for (served = 0; clients == 0 || served < clients; served++) {
        /* Before the connection: the client may send at once. */
        post_receive(vi, memory, 0);
        post_receive(vi, memory, 1);
        accept_client(&opened, vi, POINT);
        printf("client %d: %d messages\n", served + 1, echo(vi, memory));
        fflush(stdout);
        MUST(VipDisconnect(vi));
        drain(vi); /* what was flushed has to be taken before it can be posted again */
    }
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    return 0;
}
