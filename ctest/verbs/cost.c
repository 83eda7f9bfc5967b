/* Sends messages of 64 bytes over a device that does everything at once (fake.c), and takes their completions: what is executed
 * inside `measured` is counted. The peer posts no receive, so that no other thread has anything to do. */
#include "../programs/common.h"

__attribute__((noinline)) void measured(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor, VIP_MEM_HANDLE handle, unsigned long rounds)
{
    VIP_DESCRIPTOR *done;
    unsigned long i;

    for (i = 0; i < rounds; i++) {
        MUST(VipPostSend(vi, descriptor, handle));
        MUST(VipSendDone(vi, &done));
        CHECK(done == descriptor, "the order of completions");
    }
}

int main(int argc, char **argv)
{
    unsigned long rounds = strtoul(argv[argc - 1], NULL, 10), i;
    VIP_DESCRIPTOR *descriptor, *done;
    VIP_VI_HANDLE vi, other;
    unsigned char *data;
    struct node node;

    open_node(&node, "verbs:", 1 << 20);
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    other = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    descriptor = take_descriptor(&node, 1);
    data = take(&node, 64);
    join_vis(&node, vi, &node, other);
    start_descriptor(descriptor, VIP_CONTROL_OP_SENDRECV);
    add_data(descriptor, data, node.handle, 64);
    /* The first one also waits until both sides are set up, and locks take a while to know their thread. */
    MUST(VipPostSend(vi, descriptor, node.handle));
    MUST(VipSendWait(vi, PATIENCE, &done));
    for (i = 0; i < 100; i++) {
        MUST(VipPostSend(vi, descriptor, node.handle));
        MUST(VipSendDone(vi, &done));
    }
    measured(vi, descriptor, node.handle, rounds);
    ok("%lu messages", rounds);
    return 0;
}
