/* levels: the same 100 messages on the three reliability levels. Lesson 7. */

#include <sys/wait.h>
#include <unistd.h>
#include "example.h"

enum { MESSAGES = 100 };

static const struct {
    VIP_RELIABILITY_LEVEL level;
    const char *name;
} levels[] = {
    {VIP_SERVICE_UNRELIABLE, "Unreliable"},
    {VIP_SERVICE_RELIABLE_DELIVERY, "Reliable Delivery"},
    {VIP_SERVICE_RELIABLE_RECEPTION, "Reliable Reception"},
};

static struct {
    VIP_DESCRIPTOR receive[MESSAGES], send;
    VIP_UINT32 in[MESSAGES], out;
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

/* Takes messages until the client leaves; prints how many of them came, and how many in order. */
static void serve(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory, const char *name)
{
    VIP_UINT32 expected = 0;
    VIP_DESCRIPTOR *done;
    int i, arrived = 0, in_order = 0;

    for (i = 0; i < MESSAGES; i++) {
        describe(&m.receive[i], &m.in[i], memory, sizeof m.in[i]);
        MUST(VipPostRecv(vi, &m.receive[i], memory));
    }
    accept_client(opened, vi, name);
    while (VipRecvWait(vi, VIP_INFINITE, &done) == VIP_SUCCESS) {
        VIP_UINT32 number = m.in[done - m.receive];
        arrived++;
        in_order += number >= expected;
        expected = number + 1;
    }
    printf("%s: %d of %d arrived, %d in order\n", name, arrived, MESSAGES, in_order);
}

static void call(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory, const char *name)
{
    connect_server(opened, vi, name);
    for (m.out = 0; m.out < MESSAGES; m.out++) {
        describe(&m.send, &m.out, memory, sizeof m.out);
        post_and_wait(vi, &m.send, memory);
    }
}

int main(int argc, char **argv)
{
    int is_server = fork() != 0;
    device opened = open_device(device_name(argc, argv));
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, LOCAL);
    VIP_VI_HANDLE vi;
    size_t i;

    for (i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        VIP_VI_ATTRIBUTES wanted = {
            .ReliabilityLevel = levels[i].level,
            .MaxTransferSize = 4096,
            .Ptag = opened.tag,
        };
        MUST(VipCreateVi(opened.nic, &wanted, NULL, NULL, &vi));
        if (is_server)
            serve(&opened, vi, memory, levels[i].name);
        else
            call(&opened, vi, memory, levels[i].name);
        MUST(VipDisconnect(vi));
        drain(vi); /* receives that no message has used */
        MUST(VipDestroyVi(vi));
    }
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    if (is_server)
        wait(NULL);
    return 0;
}
