/* completion: all that a descriptor can say when it comes back. Lesson 3. */

#include <sys/wait.h>
#include <unistd.h>
#include "example.h"

static struct {
    VIP_DESCRIPTOR receive[2], send;
    char in[2][32], out[32];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

/* Prints what a call has returned, and the descriptor if it gave one. */
static void show(const char *call, VIP_RETURN result, const VIP_DESCRIPTOR *done)
{
    char status[128];

    printf("%s = %s\n", call, vipl_strerror((int)result));
    if (done != NULL) {
        vipl_status_text(done->CS.Status, status, sizeof status);
        printf("    Status %s, Length %u, ImmediateData %u\n", status, (unsigned)done->CS.Length,
               (unsigned)done->CS.ImmediateData);
    }
    fflush(stdout);
}

static void serve(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;
    VIP_RETURN result;
    int i;

    result = VipRecvDone(vi, &done);
    show("nothing posted: VipRecvDone", result, done);

    for (i = 0; i < 2; i++) {
        describe(&m.receive[i], m.in[i], memory, sizeof m.in[i]);
        MUST(VipPostRecv(vi, &m.receive[i], memory));
    }
    result = VipRecvDone(vi, &done);
    show("nothing arrived: VipRecvDone", result, done);
    result = VipRecvWait(vi, 50, &done);
    show("nothing arrived in 50 ms: VipRecvWait", result, done);

    accept_client(opened, vi, "completion");
    result = VipRecvWait(vi, VIP_INFINITE, &done);
    show("a message: VipRecvWait", result, done);
    result = VipRecvWait(vi, VIP_INFINITE, &done);
    show("the client has left: VipRecvWait", result, done);
}

static void call(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;
    VIP_RETURN result;

    connect_server(opened, vi, "completion");
    strcpy(m.out, "with a number");
    describe(&m.send, m.out, memory, strlen(m.out) + 1);
    m.send.CS.Control |= VIP_CONTROL_IMMEDIATE;
    m.send.CS.ImmediateData = 2026;
    MUST(VipPostSend(vi, &m.send, memory));
    do
        result = VipSendDone(vi, &done);
    while (result == VIP_NOT_DONE);
    if (result != VIP_SUCCESS)
        show("VipSendDone", result, done);
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
