/* A server that waits for clients while its interface, or the address of its host, goes: its handler is called. The test that runs this
 * takes the interface away when the NIC is open. */
#include "common.h"

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context;
    CHECK_EQ(error->ErrorCode, VIP_ERROR_CATASTROPHIC, "E18");
    printf("ok: on_error of a catastrophe\n");
    exit(0);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    VIP_VI_ATTRIBUTES theirs;
    VIP_CONN_HANDLE request;
    address local, remote;
    struct node node;

    open_node(&node, options.device, 65536);
    MUST(VipErrorCallback(node.nic, NULL, on_error));
    make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    local = local_point(&node, 1, "deaf");
    for (;;)
        if (VipConnectWait(node.nic, &local.net, VIP_INFINITE, &remote.net, &theirs, &request) != VIP_SUCCESS)
            sleep_ms(100);
}
