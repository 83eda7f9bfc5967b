/* host_server: says to each client which host this is. Lesson 9.
 *
 *     host_server [DEVICE [CLIENTS]]     ends after so many clients, otherwise never */

#define _DEFAULT_SOURCE
#include <unistd.h>
#include "example.h"

static struct {
    VIP_DESCRIPTOR receive, send;
    char question[64], answer[192];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

/* Answers one question; a client that leaves instead of asking flushes the receive. */
static void answer(VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory, int visitor)
{
    char host[64] = "?";
    VIP_DESCRIPTOR *done;

    if (VipRecvWait(vi, VIP_INFINITE, &done) != VIP_SUCCESS)
        return;
    gethostname(host, sizeof host - 1);
    int length = snprintf(m.answer, sizeof m.answer, "%s, this is %s, and you are visitor %d", m.question,
                          host, visitor);
    describe(&m.send, m.answer, memory, (size_t)length + 1);
    if (VipPostSend(vi, &m.send, memory) == VIP_SUCCESS)
        (void)VipSendWait(vi, VIP_INFINITE, &done);
    /* The answer may be under way still. The client leaves when it has it, which flushes this. */
    memset(&m.receive, 0, sizeof m.receive);
    MUST(VipPostRecv(vi, &m.receive, memory));
    (void)VipRecvWait(vi, VIP_INFINITE, &done);
}

int main(int argc, char **argv)
{
    int clients = argc > 2 ? atoi(argv[2]) : 0, visitor;
    device opened = open_device(device_name(argc, argv));
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, LOCAL);
    VIP_VI_HANDLE vi = create_vi(&opened, NULL);

    for (visitor = 1; clients == 0 || visitor <= clients; visitor++) {
        describe(&m.receive, m.question, memory, sizeof m.question);
        MUST(VipPostRecv(vi, &m.receive, memory));
        accept_client(&opened, vi, "host"); /* the address of this host is that of the NIC */
        answer(vi, memory, visitor);
        MUST(VipDisconnect(vi));
        drain(vi);
    }
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    return 0;
}
