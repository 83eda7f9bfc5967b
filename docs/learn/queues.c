/* queues: four messages at once, each gathered from two places and scattered to two. Lesson 2. */

#include <sys/wait.h>
#include <unistd.h>
#include "example.h"

enum { COUNT = 4, ROOM = 32 };

static struct {
    VIP_DESCRIPTOR d[COUNT];
    VIP_UINT32 number[COUNT]; /* the header of message i */
    char text[COUNT][ROOM];   /* its body */
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

/* Makes descriptor i describe header i and the first bytes of body i. */
static void describe_both(int i, VIP_MEM_HANDLE memory, size_t bytes)
{
    VIP_DESCRIPTOR *d = &m.d[i];

    memset(d, 0, sizeof *d);
    d->CS.SegCount = 2;
    d->CS.Length = (VIP_UINT32)(sizeof m.number[i] + bytes);
    d->DS[0].Local.Data.Address = &m.number[i];
    d->DS[0].Local.Handle = memory;
    d->DS[0].Local.Length = sizeof m.number[i];
    d->DS[1].Local.Data.Address = m.text[i];
    d->DS[1].Local.Handle = memory;
    d->DS[1].Local.Length = (VIP_UINT32)bytes;
}

static void serve(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;
    int i;

    for (i = 0; i < COUNT; i++) {
        describe_both(i, memory, ROOM);
        MUST(VipPostRecv(vi, &m.d[i], memory));
    }
    accept_client(opened, vi, "queues");
    for (i = 0; i < COUNT; i++) {
        MUST(VipRecvWait(vi, VIP_INFINITE, &done));
        int which = (int)(done - m.d);
        printf("receive %d: %u bytes, number %u, %s\n", which, (unsigned)done->CS.Length,
               (unsigned)m.number[which], m.text[which]);
    }
}

static void call(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    static const char *texts[COUNT] = {"first", "second", "third", "fourth"};
    VIP_DESCRIPTOR *done;
    int i;

    connect_server(opened, vi, "queues");
    for (i = 0; i < COUNT; i++) {
        m.number[i] = 100 + (VIP_UINT32)i;
        strcpy(m.text[i], texts[i]);
        describe_both(i, memory, strlen(texts[i]) + 1);
        MUST(VipPostSend(vi, &m.d[i], memory));
    }
    for (i = 0; i < COUNT; i++) {
        MUST(VipSendWait(vi, VIP_INFINITE, &done));
        if (done != &m.d[i])
            printf("sends out of order?\n");
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
