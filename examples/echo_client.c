/* echo_client: asks a server on another host, which the name service knows.
 *
 *     echo_client HOST [DEVICE [MESSAGES]]
 *
 * HOST is a name of /etc/vip_hosts, of the resolver for ip:, or localhost; each message has to come back as it was. The server is
 * echo_server.c or event_loop.c, on the same kind of device. */

#include "echo.h"
#include "example.h"

static struct {
    VIP_DESCRIPTOR receive, send;
    char question[TEXT], answer[TEXT];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

/* Sends a text and waits for its echo. */
static void ask(VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory, int number)
{
    VIP_DESCRIPTOR *done;
    int length = snprintf(m.question, TEXT, "message %d", number) + 1;

    describe(&m.receive, m.answer, memory, TEXT);
    MUST(VipPostRecv(vi, &m.receive, memory));
    describe(&m.send, m.question, memory, (size_t)length);
    post_and_wait(vi, &m.send, memory);
    MUST(VipRecvWait(vi, VIP_INFINITE, &done));
    if (done->CS.Length != (VIP_UINT32)length || strcmp(m.question, m.answer) != 0) {
        fprintf(stderr, "expected \"%s\", got %u bytes: \"%s\"\n", m.question, (unsigned)done->CS.Length, m.answer);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    int messages = argc > 3 ? atoi(argv[3]) : 10, i;
    VIP_VI_ATTRIBUTES its_vi;
    VIP_MEM_HANDLE memory;
    VIP_VI_HANDLE vi;
    address here, server;
    device opened;
    VIP_RETURN result;

    if (argc < 2) {
        fprintf(stderr, "usage: echo_client HOST [DEVICE [MESSAGES]]\n");
        return 2;
    }
    opened = open_device(device_name(argc - 1, argv + 1));
    memory = register_memory(&opened, &m, sizeof m, LOCAL);
    vi = create_vi(&opened, NULL);
    here = address_of(opened.nic, POINT);
    server = address_at(opened.nic, argv[1], POINT);
    result = VipConnectRequest(vi, &here.net, &server.net, 10000, &its_vi);
    if (result != VIP_SUCCESS) {
        fprintf(stderr, "no connection to %s: %s\n    is echo_server running there, on the same kind of device?\n", argv[1],
                vipl_strerror((int)result));
        return 1;
    }
    for (i = 1; i <= messages; i++)
        ask(vi, memory, i);
    printf("%d messages to %s and back\n", messages, argv[1]);
    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    return 0;
}
