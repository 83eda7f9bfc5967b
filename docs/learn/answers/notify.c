/* notify: a handler takes the messages while the program does something else. */

#include <semaphore.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../example.h"

enum { MESSAGES = 10 };

static struct {
    VIP_DESCRIPTOR receive[MESSAGES], send;
    VIP_UINT32 in[MESSAGES], out;
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static sem_t all_here;
static VIP_UINT32 sum;

/* Runs on a thread of the library, one call at a time. A request is for one completion, so the handler asks for the next one
 * itself. The descriptor has been taken off the queue already. */
static void arrived(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *done)
{
    int *left = context;

    (void)nic;
    if ((done->CS.Status & VIP_STATUS_ERROR_MASK) == 0) {
        sum += m.in[done - m.receive];
        if (--*left == 0)
            sem_post(&all_here);
    }
    if (*left > 0)
        MUST(VipRecvNotify(vi, context, arrived));
}

static void serve(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    static int left = MESSAGES;
    int i;

    sem_init(&all_here, 0, 0);
    for (i = 0; i < MESSAGES; i++) {
        describe(&m.receive[i], &m.in[i], memory, sizeof m.in[i]);
        MUST(VipPostRecv(vi, &m.receive[i], memory));
    }
    MUST(VipRecvNotify(vi, &left, arrived));
    accept_client(opened, vi, "notify");
    sem_wait(&all_here); /* or anything else: nothing is polled here */
    printf("%d messages, their sum is %u\n", MESSAGES, (unsigned)sum);
}

static void call(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    connect_server(opened, vi, "notify");
    for (m.out = 1; m.out <= MESSAGES; m.out++) {
        describe(&m.send, &m.out, memory, sizeof m.out);
        post_and_wait(vi, &m.send, memory);
    }
}

int main(int argc, char **argv)
{
    int is_server = fork() != 0;
    device opened = open_device(device_name(argc, argv));
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, LOCAL);
    VIP_VI_HANDLE vi = create_vi(&opened, NULL);

    if (is_server)
        serve(&opened, vi, memory);
    else
        call(&opened, vi, memory);

    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    if (is_server)
        wait(NULL);
    return 0;
}
