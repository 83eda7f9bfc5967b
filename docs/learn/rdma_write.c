/* rdma_write: a notice board that another process writes to. Lesson 4. */

#include <sys/wait.h>
#include <unistd.h>
#include "example.h"

enum { LINES = 4, ROOM = 32 };

static struct {
    VIP_DESCRIPTOR receive, send;
    window place;           /* where the board of the server is */
    char board[LINES][ROOM]; /* the server's; in the client, what it wants to have there */
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static void serve(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;
    char status[128];
    int line;

    for (line = 0; line < LINES; line++)
        strcpy(m.board[line], "-");
    memset(&m.receive, 0, sizeof m.receive); /* no buffer: the data goes to the board */
    MUST(VipPostRecv(vi, &m.receive, memory));
    accept_client(opened, vi, "rdma_write");

    m.place = window_of(m.board, memory, sizeof m.board);
    describe(&m.send, &m.place, memory, sizeof m.place);
    post_and_wait(vi, &m.send, memory);

    MUST(VipRecvWait(vi, VIP_INFINITE, &done));
    vipl_status_text(done->CS.Status, status, sizeof status);
    printf("%s, Length %u, ImmediateData %u\n", status, (unsigned)done->CS.Length,
           (unsigned)done->CS.ImmediateData);
    for (line = 0; line < LINES; line++)
        printf("line %d: %s\n", line, m.board[line]);
}

/* Writes a line of ours to the same line of the server's board. */
static void write_line(VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory, int line, int flags)
{
    VIP_DESCRIPTOR *d = &m.send;

    memset(d, 0, sizeof *d);
    d->CS.Control = (VIP_UINT16)(VIP_CONTROL_OP_RDMAWRITE | flags);
    d->CS.SegCount = 2;
    d->CS.Length = ROOM;
    d->CS.ImmediateData = flags & VIP_CONTROL_IMMEDIATE ? (VIP_UINT32)line : 0;
    d->DS[0].Remote.Data.AddressBits = m.place.at + (VIP_UINT64)line * ROOM;
    d->DS[0].Remote.Handle = m.place.memory;
    d->DS[1].Local.Data.Address = m.board[line];
    d->DS[1].Local.Handle = memory;
    d->DS[1].Local.Length = ROOM;
    post_and_wait(vi, d, memory);
}

static void call(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;

    describe(&m.receive, &m.place, memory, sizeof m.place);
    MUST(VipPostRecv(vi, &m.receive, memory));
    connect_server(opened, vi, "rdma_write");
    MUST(VipRecvWait(vi, VIP_INFINITE, &done)); /* now we know the place */

    strcpy(m.board[2], "written by another process");
    write_line(vi, memory, 2, 0);
    strcpy(m.board[0], "and announced");
    write_line(vi, memory, 0, VIP_CONTROL_IMMEDIATE);
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
