/* patient: the client of lesson 9, which may be started before its server.
 *
 *     patient HOST [DEVICE] */

#define _DEFAULT_SOURCE
#include <unistd.h>
#include "../example.h"

static struct {
    VIP_DESCRIPTOR receive, send;
    char question[64], answer[192];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

/* Looks the host up, and calls it until it answers, for half a minute. Each attempt leaves the VI as it was: Idle, with its receive
 * posted. */
static void reach(device *opened, VIP_VI_HANDLE vi, char *host)
{
    address here = address_of(opened->nic, "host"), there = address_at(opened->nic, host, "host");
    VIP_VI_ATTRIBUTES its_vi;
    VIP_RETURN result;
    int attempt;

    for (attempt = 0; attempt < 150; attempt++) {
        result = VipConnectRequest(vi, &here.net, &there.net, 5000, &its_vi);
        if (result == VIP_SUCCESS)
            return;
        /* No server waits, or the host itself is not there yet. All else does not get better by waiting. */
        if (result != VIP_NO_MATCH && result != VIP_NOT_REACHABLE && result != VIP_TIMEOUT)
            break;
        if (attempt == 0)
            fprintf(stderr, "waiting for the server\n");
        usleep(200000);
    }
    fprintf(stderr, "%s: %s\n", host, vipl_strerror((int)result));
    exit(1);
}

int main(int argc, char **argv)
{
    VIP_DESCRIPTOR *done;

    if (argc < 2) {
        fprintf(stderr, "usage: patient HOST [DEVICE]\n");
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
