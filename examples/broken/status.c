/* status: reports of growing length, until a descriptor comes back with an error.
 *
 * Planted for the chapter "From a symptom to its cause" (DIAGNOSIS.md), which finds the mistake. */

#include <unistd.h>
#include "../example.h"

enum { REPORTS = 10, ROOM = 256, STEP = 32 };

static struct {
    VIP_DESCRIPTOR in[REPORTS], out;
    char report[REPORTS][ROOM], sent[REPORTS * STEP];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

int main(int argc, char **argv)
{
    int is_server = fork() != 0, i;
    device opened = open_device(device_name(argc, argv));
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, LOCAL);
    VIP_VI_HANDLE vi = create_vi(&opened, NULL);
    VIP_DESCRIPTOR *done;

    if (is_server) {
        for (i = 0; i < REPORTS; i++) {
            describe(&m.in[i], m.report[i], memory, ROOM);
            MUST(VipPostRecv(vi, &m.in[i], memory));
        }
        accept_client(&opened, vi, "status");
        for (i = 0; i < REPORTS; i++)
            if (VipRecvWait(vi, VIP_INFINITE, &done) != VIP_SUCCESS) {
                printf("report %d: Status 0x%x\n", i + 1, (unsigned)done->CS.Status);
                return 1;
            }
    } else {
        connect_server(&opened, vi, "status");
        for (i = 1; i <= REPORTS; i++) {
            describe(&m.out, m.sent, memory, (size_t)i * STEP); /* the ninth is larger than ROOM */
            if (VipPostSend(vi, &m.out, memory) != VIP_SUCCESS || VipSendWait(vi, VIP_INFINITE, &done) != VIP_SUCCESS)
                return 1;
        }
    }
    return 0;
}
