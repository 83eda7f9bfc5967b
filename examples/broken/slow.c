/* slow: a thousand questions, and their answers.
 *
 * Planted for the chapter "From a symptom to its cause" (DIAGNOSIS.md), which finds the mistake. */

#include <time.h>
#include <unistd.h>
#include "../example.h"

enum { QUESTIONS = 1000 };

static struct {
    VIP_DESCRIPTOR in, out;
    char question[64], answer[64];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

int main(int argc, char **argv)
{
    int is_server = fork() != 0, i;
    device opened = open_device(device_name(argc, argv));
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, LOCAL);
    VIP_DESCRIPTOR *done;
    VIP_VI_HANDLE vi;
    struct timespec begin, end;

    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (i = 0; i < QUESTIONS; i++) {
        vi = create_vi(&opened, NULL); /* a connection for each question */
        describe(&m.in, m.question, memory, sizeof m.question);
        MUST(VipPostRecv(vi, &m.in, memory));
        if (is_server) {
            accept_client(&opened, vi, "slow");
            MUST(VipRecvWait(vi, VIP_INFINITE, &done));
        } else
            connect_server(&opened, vi, "slow");
        describe(&m.out, m.answer, memory, sizeof m.answer);
        post_and_wait(vi, &m.out, memory);
        if (!is_server)
            MUST(VipRecvWait(vi, VIP_INFINITE, &done));
        MUST(VipDisconnect(vi));
        MUST(VipDestroyVi(vi));
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (is_server)
        printf("%.1f us for a question and its answer\n",
               ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) / 1000 / QUESTIONS);
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    return 0;
}
