/* rdma_read: a process reads what another one has, and sends it on without having seen it. Lesson 5. */

#include <sys/wait.h>
#include <unistd.h>
#include "example.h"

static struct {
    VIP_DESCRIPTOR receive, read, send;
    window place;   /* where the server's text is */
    char text[64];  /* the server's; in the client, what it has read */
    char back[64];  /* what comes back to the server */
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static void serve(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;

    strcpy(m.text, "nobody asked the owner");
    describe(&m.receive, m.back, memory, sizeof m.back);
    MUST(VipPostRecv(vi, &m.receive, memory));
    accept_client(opened, vi, "rdma_read");
    m.place = window_of(m.text, memory, sizeof m.text);
    describe(&m.send, &m.place, memory, sizeof m.place);
    post_and_wait(vi, &m.send, memory);

    MUST(VipRecvWait(vi, VIP_INFINITE, &done));
    printf("server: it came back as \"%s\"\n", m.back);
}

static void call(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;

    describe(&m.receive, &m.place, memory, sizeof m.place);
    MUST(VipPostRecv(vi, &m.receive, memory));
    connect_server(opened, vi, "rdma_read");
    MUST(VipRecvWait(vi, VIP_INFINITE, &done));

    /* The peer's range first, then our buffer, as with RDMA Write: only the data goes the other way. */
    describe_rdma(&m.read, VIP_CONTROL_OP_RDMAREAD, &m.place, m.text, memory, sizeof m.text);
    MUST(VipPostSend(vi, &m.read, memory));

    /* This send would overtake the read, and take from the buffer what was there before. */
    describe(&m.send, m.text, memory, sizeof m.text);
    m.send.CS.Control |= VIP_CONTROL_QFENCE;
    MUST(VipPostSend(vi, &m.send, memory));

    MUST(VipSendWait(vi, VIP_INFINITE, &done)); /* the read */
    printf("client: read \"%s\"\n", m.text);
    MUST(VipSendWait(vi, VIP_INFINITE, &done)); /* the send */
}

int main(int argc, char **argv)
{
    int is_server = fork() != 0;
    device opened = open_device(device_name(argc, argv));

    if (!has_rdma_read(&opened)) {
        if (is_server)
            printf("this device has no RDMA Read; vipinfo shows which have\n");
        close_device(&opened);
        return 2;
    }
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
