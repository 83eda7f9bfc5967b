/* rdma_read: one process reads the memory of another, which does not notice.
 *
 * The owner fills a window that peers may read, tells where it is in a message, and sleeps until the reader has gone.
 * Not every device reads: VIP_NIC_ATTRIBUTES says. `rdma_read DEVICE` uses another device than /dev/via_lo. */

#include <unistd.h>
#include "example.h"

static struct {
    VIP_DESCRIPTOR receive, send;
    window place; /* where the text is */
    char text[64];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static void be_read(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;

    strcpy(m.text, "read without a word");
    memset(&m.receive, 0, sizeof m.receive); /* without a buffer */
    MUST(VipPostRecv(vi, &m.receive, memory));
    accept_client(opened, vi, "rdma_read");
    m.place = window_of(m.text, memory, sizeof m.text);
    describe(&m.send, &m.place, memory, sizeof m.place);
    post_and_wait(vi, &m.send, memory);
    /* No message comes: the receive is flushed when the reader disconnects. */
    if (VipRecvWait(vi, VIP_INFINITE, &done) != VIP_DESCRIPTOR_ERROR)
        fprintf(stderr, "a message that nobody has sent\n");
}

static void read_there(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;

    describe(&m.receive, &m.place, memory, sizeof m.place);
    MUST(VipPostRecv(vi, &m.receive, memory));
    connect_server(opened, vi, "rdma_read");
    MUST(VipRecvWait(vi, VIP_INFINITE, &done));
    describe_rdma(&m.send, VIP_CONTROL_OP_RDMAREAD, &m.place, m.text, memory, m.place.bytes);
    post_and_wait(vi, &m.send, memory);
    printf("the other process has: %s\n", m.text);
}

int main(int argc, char **argv)
{
    int is_owner = fork() != 0;
    device opened = open_device(device_name(argc, argv));
    VIP_MEM_HANDLE memory;
    VIP_VI_HANDLE vi;

    if (!has_rdma_read(&opened)) {
        printf("this device has no RDMA Read; vipinfo -v shows which one has\n");
        close_device(&opened);
        return 0;
    }
    memory = register_memory(&opened, &m, sizeof m, is_owner ? READABLE : LOCAL);
    vi = create_vi(&opened, NULL);
    if (is_owner)
        be_read(&opened, vi, memory);
    else
        read_there(&opened, vi, memory);

    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    return 0;
}
