/* host_client: asks a server on another host. Lesson 9.
 *
 *     host_client HOST [DEVICE] */

#include <unistd.h>
#include "example.h"

static struct {
    VIP_DESCRIPTOR receive, send;
    char question[64], answer[192];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

/* Connects, or says why that is not possible. */
static void reach(device *opened, VIP_VI_HANDLE vi, char *host)
{
    address here = address_of(opened->nic, "host"), there = here;
    VIP_VI_ATTRIBUTES its_vi;
    VIP_RETURN result;

    /* Only the host's part is written: the discriminator, which stands behind, remains. */
    MUST(VipNSInit(opened->nic, NULL));
    result = VipNSGetHostByName(opened->nic, host, &there.net, 0);
    MUST(VipNSShutdown(opened->nic));
    if (result == VIP_SUCCESS)
        result = VipConnectRequest(vi, &here.net, &there.net, 5000, &its_vi);
    if (result != VIP_SUCCESS) {
        fprintf(stderr, "%s: %s\n", host, vipl_strerror((int)result));
        exit(1);
    }
}

int main(int argc, char **argv)
{
    VIP_DESCRIPTOR *done;

    if (argc < 2) {
        fprintf(stderr, "usage: host_client HOST [DEVICE]\n");
        return 2;
    }
    device opened = open_device(device_name(argc - 1, argv + 1));
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, LOCAL);
    VIP_VI_HANDLE vi = create_vi(&opened, NULL);

    describe(&m.receive, m.answer, memory, sizeof m.answer);
    MUST(VipPostRecv(vi, &m.receive, memory));
    reach(&opened, vi, argv[1]);
    strcpy(m.question, "Good morning");
    describe(&m.send, m.question, memory, strlen(m.question) + 1);
    post_and_wait(vi, &m.send, memory);
    MUST(VipRecvWait(vi, VIP_INFINITE, &done));
    printf("%s\n", m.answer);

    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    return 0;
}
