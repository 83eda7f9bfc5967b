/* flag: the target polls its memory, without descriptor, completion or call of the library. */

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../example.h"

static struct {
    VIP_DESCRIPTOR receive, send;
    window place;
    struct {
        char text[120];
        VIP_UINT64 flag; /* the last 8 bytes of the range, which become visible after all others */
    } page;
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static void serve(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    m.page.flag = 0;
    accept_client(opened, vi, "flag");
    m.place = window_of(&m.page, memory, sizeof m.page);
    describe(&m.send, &m.place, memory, sizeof m.place);
    post_and_wait(vi, &m.send, memory);

    /* An acquire load: what stands before the flag is read after it. A wait of this kind never sleeps, so it yields. */
    while (__atomic_load_n(&m.page.flag, __ATOMIC_ACQUIRE) == 0)
        sched_yield();
    printf("the flag is %u: %s\n", (unsigned)m.page.flag, m.page.text);
}

static void call(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;

    describe(&m.receive, &m.place, memory, sizeof m.place);
    MUST(VipPostRecv(vi, &m.receive, memory));
    connect_server(opened, vi, "flag");
    MUST(VipRecvWait(vi, VIP_INFINITE, &done));
    strcpy(m.page.text, "all of it is there");
    m.page.flag = 1;
    describe_rdma(&m.send, VIP_CONTROL_OP_RDMAWRITE, &m.place, &m.page, memory, sizeof m.page);
    post_and_wait(vi, &m.send, memory);
}

int main(int argc, char **argv)
{
    int is_server = fork() != 0;
    device opened = open_device(device_name(argc, argv));
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, is_server ? WRITABLE : LOCAL);
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
