/* no_connection: a client that asks for its server in vain.
 *
 * Planted for the chapter "From a symptom to its cause" (DIAGNOSIS.md), which finds the mistake. */

#include <unistd.h>
#include "../example.h"

/* A discriminator is bytes, not a text: this one is one byte longer than the server's. */
static address wanted(VIP_NIC_HANDLE nic)
{
    address result = address_of(nic, "orders");
    result.net.DiscriminatorLen++;
    return result;
}

int main(int argc, char **argv)
{
    int is_server = fork() != 0;
    device opened = open_device(device_name(argc, argv));
    VIP_VI_HANDLE vi = create_vi(&opened, NULL);
    address here = address_of(opened.nic, "orders"), server = wanted(opened.nic), client;
    VIP_VI_ATTRIBUTES its_vi;
    VIP_CONN_HANDLE request;

    if (is_server) {
        MUST(VipConnectWait(opened.nic, &here.net, 4000, &client.net, &its_vi, &request));
        MUST(VipConnectAccept(request, vi));
    } else
        MUST(VipConnectRequest(vi, &server.net, &server.net, 3000, &its_vi));
    puts("connected");
    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
    close_device(&opened);
    return 0;
}
