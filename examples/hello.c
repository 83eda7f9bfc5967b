/* hello: two processes, one message.
 *
 * Shows the life of a connection: open, register, create, post the receive, connect, transfer,
 * disconnect, release. `hello DEVICE` uses another device than /dev/via_lo. */

#include <unistd.h>
#include "example.h"

/* Descriptor and buffer share one region. Descriptors are aligned to 64 bytes. */
static struct {
    VIP_DESCRIPTOR d;
    char text[64];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static void serve(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    address here = address_of(opened->nic, "hello"), client;
    VIP_VI_ATTRIBUTES its_vi;
    VIP_CONN_HANDLE request;
    VIP_DESCRIPTOR *done;

    /* Before the connection: the client may send at once. */
    describe(&m.d, m.text, memory, sizeof m.text);
    MUST(VipPostRecv(vi, &m.d, memory));
    MUST(VipConnectWait(opened->nic, &here.net, VIP_INFINITE, &client.net, &its_vi, &request));
    MUST(VipConnectAccept(request, vi));
    MUST(VipRecvWait(vi, VIP_INFINITE, &done));
    printf("%u bytes: %s\n", (unsigned)done->CS.Length, m.text);
}

static void greet(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    address server = address_of(opened->nic, "hello");
    VIP_VI_ATTRIBUTES its_vi;
    VIP_DESCRIPTOR *done;

    MUST(VipConnectRequest(vi, &server.net, &server.net, 5000, &its_vi));
    strcpy(m.text, "hello from another process");
    describe(&m.d, m.text, memory, strlen(m.text) + 1);
    MUST(VipPostSend(vi, &m.d, memory));
    MUST(VipSendWait(vi, VIP_INFINITE, &done));
}

int main(int argc, char **argv)
{
    /* Before the first call: each process opens its own NIC. */
    int is_server = fork() != 0;
    device opened = open_device(device_name(argc, argv));
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, LOCAL);
    VIP_VI_HANDLE vi = create_vi(&opened, NULL);

    if (is_server)
        serve(&opened, vi, memory);
    else
        greet(&opened, vi, memory);

    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    return 0;
}
