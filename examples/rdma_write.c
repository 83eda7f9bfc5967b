/* rdma_write: one process writes into the memory of another.
 *
 * The target registers a window that peers may write to, tells where it is in a message, and does nothing more: no
 * descriptor of its own is used. `rdma_write DEVICE` uses another device than /dev/via_lo. */

#include <unistd.h>
#include "example.h"

static struct {
    VIP_DESCRIPTOR receive, send;
    window place; /* where the text is to go */
    char text[64];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static void be_written(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;

    memset(&m.receive, 0, sizeof m.receive); /* without a buffer */
    MUST(VipPostRecv(vi, &m.receive, memory));
    accept_client(opened, vi, "rdma_write");
    m.place = window_of(m.text, memory, sizeof m.text);
    describe(&m.send, &m.place, memory, sizeof m.place);
    post_and_wait(vi, &m.send, memory);
    /* An empty message follows the data on the same VI, so it arrives after them. */
    MUST(VipRecvWait(vi, VIP_INFINITE, &done));
    printf("the window has: %s\n", m.text);
}

static void write_there(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;

    describe(&m.receive, &m.place, memory, sizeof m.place);
    MUST(VipPostRecv(vi, &m.receive, memory));
    connect_server(opened, vi, "rdma_write");
    MUST(VipRecvWait(vi, VIP_INFINITE, &done));
    strcpy(m.text, "written from another process");
    describe_rdma(&m.send, VIP_CONTROL_OP_RDMAWRITE, &m.place, m.text, memory, strlen(m.text) + 1);
    post_and_wait(vi, &m.send, memory);
    memset(&m.send, 0, sizeof m.send);
    post_and_wait(vi, &m.send, memory);
}

int main(int argc, char **argv)
{
    int is_target = fork() != 0;
    device opened = open_device(device_name(argc, argv));
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, is_target ? WRITABLE : LOCAL);
    VIP_VI_HANDLE vi = create_vi(&opened, NULL);

    if (is_target)
        be_written(&opened, vi, memory);
    else
        write_there(&opened, vi, memory);

    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    return 0;
}
