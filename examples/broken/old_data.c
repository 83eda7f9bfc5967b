/* old_data: a table that one process writes into another's memory by RDMA, with old rows in it.
 *
 * Planted for the chapter "From a symptom to its cause" (DIAGNOSIS.md), which finds the mistakes. */

#include <sys/wait.h>
#include <unistd.h>
#include "../example.h"

enum { ROWS = 16, ROW = 2048 };

static struct {
    VIP_DESCRIPTOR complete, receive, send, write[ROWS];
    window place;
    char row[ROW], table[ROWS][ROW];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static VIP_MEM_HANDLE memory;

/* The table is complete when the message on the other connection says so. */
static int read_table(device *opened, VIP_VI_HANDLE data, VIP_VI_HANDLE words)
{
    VIP_DESCRIPTOR *done;
    int i, old = 0;

    MUST(VipPostRecv(words, &m.complete, memory)); /* without a buffer */
    accept_client(opened, data, "data");
    accept_client(opened, words, "words");
    m.place = window_of(m.table, memory, sizeof m.table);
    describe(&m.send, &m.place, memory, sizeof m.place);
    post_and_wait(words, &m.send, memory);
    MUST(VipRecvWait(words, VIP_INFINITE, &done));
    for (i = 0; i < ROWS; i++)
        old += m.table[i][0] != 'a' + i || m.table[i][ROW - 1] != 'a' + i;
    printf("%d of %d rows are wrong\n", old, ROWS);
    wait(NULL); /* the writer ends first */
    return old > 0;
}

static int write_table(device *opened, VIP_VI_HANDLE data, VIP_VI_HANDLE words)
{
    VIP_DESCRIPTOR *done;
    window row;
    int i;

    describe(&m.receive, &m.place, memory, sizeof m.place);
    MUST(VipPostRecv(words, &m.receive, memory));
    connect_server(opened, data, "data");
    connect_server(opened, words, "words");
    MUST(VipRecvWait(words, VIP_INFINITE, &done));
    for (i = 0; i < ROWS; i++) {
        memset(m.row, 'a' + i, ROW); /* the row before may still be on its way */
        row = m.place;
        row.at += (VIP_UINT64)i * ROW;
        describe_rdma(&m.write[i], VIP_CONTROL_OP_RDMAWRITE, &row, m.row, memory, ROW);
        MUST(VipPostSend(data, &m.write[i], memory));
    }
    memset(&m.send, 0, sizeof m.send);
    post_and_wait(words, &m.send, memory); /* overtakes what is on the way on the connection for data */
    for (i = 0; i < ROWS; i++)
        MUST(VipSendWait(data, VIP_INFINITE, &done));
    return 0;
}

int main(int argc, char **argv)
{
    int is_reader = fork() != 0;
    device opened = open_device(device_name(argc, argv));
    VIP_VI_HANDLE data = create_vi(&opened, NULL), words = create_vi(&opened, NULL);

    memory = register_memory(&opened, &m, sizeof m, is_reader ? WRITABLE : LOCAL);
    if (is_reader)
        return read_table(&opened, data, words);
    return write_table(&opened, data, words);
}
