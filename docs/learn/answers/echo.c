/* echo: both queues of a VI complete in one completion queue, and the server never waits for a send. */

#include <sys/wait.h>
#include <unistd.h>
#include "../example.h"

enum { MESSAGES = 100, SLOTS = 4 };

static struct {
    VIP_DESCRIPTOR receive[SLOTS], send[SLOTS];
    VIP_UINT32 in[SLOTS], out[SLOTS];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

/* Answers message i, from slot i of the send side: it is free, since the client waits for each SLOTS answers. */
static void answer(VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory, int i)
{
    m.out[i] = m.in[i] * 2;
    describe(&m.receive[i], &m.in[i], memory, sizeof m.in[i]);
    MUST(VipPostRecv(vi, &m.receive[i], memory));
    describe(&m.send[i], &m.out[i], memory, sizeof m.out[i]);
    MUST(VipPostSend(vi, &m.send[i], memory));
}

static void serve(device *opened, VIP_MEM_HANDLE memory)
{
    VIP_VI_ATTRIBUTES wanted = {
        .ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY,
        .MaxTransferSize = 4096,
        .Ptag = opened->tag,
        .EnableRdmaWrite = VIP_TRUE,
        .EnableRdmaRead = has_rdma_read(opened) ? VIP_TRUE : VIP_FALSE,
    };
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi, which;
    VIP_BOOLEAN is_receive;
    VIP_DESCRIPTOR *done;
    int i, received = 0, sent = 0;

    MUST(VipCreateCQ(opened->nic, 2 * SLOTS, &cq));
    MUST(VipCreateVi(opened->nic, &wanted, cq, cq, &vi)); /* the same for sends and receives */
    for (i = 0; i < SLOTS; i++) {
        describe(&m.receive[i], &m.in[i], memory, sizeof m.in[i]);
        MUST(VipPostRecv(vi, &m.receive[i], memory));
    }
    accept_client(opened, vi, "echo");
    while (sent < MESSAGES) {
        MUST(VipCQWait(cq, VIP_INFINITE, &which, &is_receive));
        if (is_receive) {
            MUST(VipRecvDone(which, &done));
            answer(which, memory, (int)(done - m.receive));
            received++;
        } else {
            MUST(VipSendDone(which, &done));
            sent++;
        }
    }
    printf("%d received, %d sent\n", received, sent);
    MUST(VipDisconnect(vi));
    drain(vi);
    MUST(VipDestroyVi(vi));
    MUST(VipDestroyCQ(cq));
}

static void call(device *opened, VIP_MEM_HANDLE memory)
{
    VIP_VI_HANDLE vi = create_vi(opened, NULL);
    VIP_DESCRIPTOR *done;
    VIP_UINT32 sum = 0;
    int round, i;

    connect_server(opened, vi, "echo");
    for (round = 0; round < MESSAGES / SLOTS; round++) {
        for (i = 0; i < SLOTS; i++) {
            m.out[i] = (VIP_UINT32)(round * SLOTS + i);
            describe(&m.receive[i], &m.in[i], memory, sizeof m.in[i]);
            MUST(VipPostRecv(vi, &m.receive[i], memory));
            describe(&m.send[i], &m.out[i], memory, sizeof m.out[i]);
            MUST(VipPostSend(vi, &m.send[i], memory));
        }
        for (i = 0; i < SLOTS; i++) {
            MUST(VipSendWait(vi, VIP_INFINITE, &done));
            MUST(VipRecvWait(vi, VIP_INFINITE, &done));
            sum += m.in[i];
        }
    }
    printf("the answers add up to %u\n", (unsigned)sum);
    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
}

int main(int argc, char **argv)
{
    int is_server = fork() != 0;
    device opened = open_device(device_name(argc, argv));
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, LOCAL);

    if (is_server)
        serve(&opened, memory);
    else
        call(&opened, memory);

    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    if (is_server)
        wait(NULL);
    return 0;
}
