/* whole: reads a record that its owner changes all the time, and takes none that is half old and half new. */

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../example.h"

enum { RECORDS = 1000, WORDS = 500 };

typedef struct {
    VIP_UINT64 sum; /* of all words, in a way that a word in another place changes */
    VIP_UINT64 word[WORDS];
} record;

static struct {
    VIP_DESCRIPTOR receive, send;
    window place;
    record r;
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static VIP_UINT64 sum_of(const record *r)
{
    VIP_UINT64 sum = 1;
    int i;

    for (i = 0; i < WORDS; i++)
        sum = sum * 31 + r->word[i];
    return sum;
}

static void serve(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_UINT64 version = 0;
    VIP_DESCRIPTOR *done;
    int i;

    m.r.sum = sum_of(&m.r);
    memset(&m.receive, 0, sizeof m.receive);
    MUST(VipPostRecv(vi, &m.receive, memory));
    accept_client(opened, vi, "whole");
    m.place = window_of(&m.r, memory, sizeof m.r);
    describe(&m.send, &m.place, memory, sizeof m.place);
    post_and_wait(vi, &m.send, memory);

    /* Version n has n in each word. The reader's end completes the receive. */
    while (VipRecvDone(vi, &done) == VIP_NOT_DONE) {
        version++;
        for (i = 0; i < WORDS; i++)
            m.r.word[i] = version;
        m.r.sum = sum_of(&m.r);
        sched_yield();
    }
}

static void call(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_UINT64 latest = 0;
    VIP_DESCRIPTOR *done;
    int taken = 0, i;

    describe(&m.receive, &m.place, memory, sizeof m.place);
    MUST(VipPostRecv(vi, &m.receive, memory));
    connect_server(opened, vi, "whole");
    MUST(VipRecvWait(vi, VIP_INFINITE, &done));
    while (taken < RECORDS) {
        describe_rdma(&m.send, VIP_CONTROL_OP_RDMAREAD, &m.place, &m.r, memory, sizeof m.r);
        post_and_wait(vi, &m.send, memory);
        if (m.r.sum != sum_of(&m.r)) {
            sched_yield(); /* it was being written */
            continue;
        }
        for (i = 0; i < WORDS; i++)
            if (m.r.word[i] != m.r.word[0] || m.r.word[i] < latest) {
                fprintf(stderr, "half of a record\n");
                exit(1);
            }
        latest = m.r.word[0];
        taken++;
    }
    printf("%d records, each of them whole\n", RECORDS);
}

int main(int argc, char **argv)
{
    int is_server = fork() != 0;
    device opened = open_device(device_name(argc, argv));
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, is_server ? READABLE : LOCAL);
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
