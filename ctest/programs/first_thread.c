/* Processes whose first thread has ended while another one goes on. Their number is that of the thread that ended,
 * which has no memory any more.
 *
 *   first_thread [-d DEVICE] before | after    the first call, or the connection
 */
#include "common.h"

#define BYTES 65536
#define SMALL 100
#define ROUNDS 3

static struct side side;
static int joined, before;
static size_t large; /* bytes of a large message, as long as every device takes it */

struct place {
    uint64_t address;
    VIP_MEM_HANDLE handle;
};

static void one_message(struct node *node, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *in, VIP_DESCRIPTOR *out,
                        unsigned char *received, unsigned char *sent, size_t bytes, int sends)
{
    if (sends) {
        fill(sent, bytes, bytes);
        post_send(node, vi, out, sent, bytes);
        EXPECT_SEND(vi, out, STATUS_SENT, "a message of a process without its first thread");
    } else {
        EXPECT_RECV(vi, in, STATUS_RECEIVED, "a message from a process without its first thread");
        CHECK(filled(received, bytes, bytes), "what it sent");
        post_recv(node, vi, in, received, large);
    }
    meet(&side);
}

static void rdma(struct node *node, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *out, unsigned char *sent, struct place to,
                 size_t bytes)
{
    VIP_DESCRIPTOR *done;

    fill(sent, bytes, 3);
    start_descriptor(out, VIP_CONTROL_OP_RDMAWRITE);
    add_remote(out, to.address, to.handle);
    add_data(out, sent, node->handle, bytes);
    MUST(VipPostSend(vi, out, node->handle));
    MUST(send_wait(vi, &done));
    CHECK_EQ(control(done)->Status & VIP_STATUS_ERROR_MASK, 0, "an RDMA Write to a process without its first thread");
}

static void *rest(void *unused)
{
    static struct node node;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *in, *out;
    unsigned char *received, *sent, *target;
    struct place mine, theirs;
    address other;
    char task[64];
    int round;

    (void)unused;
    if (before)
        while (access("/proc/self/exe", F_OK) == 0) /* a process without its first thread has none */
            sleep_ms(1);
    open_node(&node, side.device, 1 << 20);
    large = node.attributes.MaxTransferSize < BYTES ? node.attributes.MaxTransferSize : BYTES;
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    in = take_descriptor(&node, 1);
    out = take_descriptor(&node, 2);
    received = take(&node, BYTES);
    sent = take(&node, BYTES);
    target = take(&node, BYTES);
    post_recv(&node, vi, in, received, large);
    other = swap_addresses(&side, &node);
    join_sides(&side, &node, vi, &other, "first");
    if (!before)
        one_message(&node, vi, in, out, received, sent, large, side.number);
    meet(&side);
    atomic_set(&joined, 1);
    snprintf(task, sizeof task, "/proc/%d/exe", (int)getpid());
    while (access(task, F_OK) == 0)
        sleep_ms(1);
    meet(&side);
    for (round = 0; round < 2 * ROUNDS; round++) {
        one_message(&node, vi, in, out, received, sent, large, (round ^ side.number) & 1);
        one_message(&node, vi, in, out, received, sent, SMALL, (round ^ side.number) & 1);
    }
    mine.address = (uint64_t)(uintptr_t)target;
    mine.handle = node.handle;
    side_send(&side, &mine, sizeof mine);
    side_receive(&side, &theirs, sizeof theirs);
    rdma(&node, vi, out, sent, theirs, 8);
    rdma(&node, vi, out, sent, theirs, large);
    meet(&side);
    CHECK(filled(target, large, 3), "what the other side wrote");
    meet(&side);
    end_vi(vi);
    close_node(&node);
    fflush(NULL);
    exit(0);
}

static void one_side(int number, int link, int run, const char *device)
{
    side.number = number;
    side.link = link;
    side.run = run;
    side.device = device;
    start_thread(rest, NULL);
    if (!before)
        await(&joined, 1, "a connection");
    pthread_exit(NULL);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    int ends[2], i;
    pid_t pids[2];

    before = options.words == 1 && strcmp(options.word[0], "before") == 0;
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0, "socketpair");
    for (i = 0; i < 2; i++) {
        pids[i] = fork_child();
        if (pids[i] == 0) {
            close(ends[1 - i]);
            one_side(i, ends[i], (int)getppid(), options.device);
        }
    }
    close(ends[0]);
    close(ends[1]);
    reap(pids[0]);
    reap(pids[1]);
    ok("two processes without their first threads");
    return 0;
}
