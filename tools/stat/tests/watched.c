/* Two processes for vipstat to look at: side 0 sends $WATCHED_MESSAGES messages of 100, 1, 2, ... bytes, side 1 takes them and has one
 * receive left. Each prints "ready SIDE PID" and stays until standard input ends, or until it is killed. */
#include "common.h"

#define BYTES 100

static void watched(struct side *side)
{
    int left = atoi(getenv("WATCHED_MESSAGES")), c;
    VIP_DESCRIPTOR *descriptor, *found;
    unsigned char *buffer;
    struct node node;
    VIP_VI_HANDLE vi;
    address other;
    VIP_CQ_HANDLE cq;

    open_node(&node, side->device, 1 << 20);
    other = swap_addresses(side, &node);
    MUST(VipCreateCQ(node.nic, 64, &cq));
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, side->number == 1 ? cq : NULL);
    descriptor = take_descriptor(&node, 1);
    buffer = take(&node, BYTES);
    if (side->number == 1)
        post_recv(&node, vi, descriptor, buffer, BYTES);
    join_sides(side, &node, vi, &other, "watched");
    for (; left > 0; left--) {
        if (side->number == 0) {
            post_send(&node, vi, descriptor, buffer, left % BYTES + 1);
            MUST(VipSendWait(vi, PATIENCE, &found));
        } else {
            VIP_VI_HANDLE named;
            VIP_BOOLEAN is_recv;

            MUST(VipCQWait(cq, PATIENCE, &named, &is_recv));
            MUST(VipRecvDone(vi, &found));
            post_recv(&node, vi, descriptor, buffer, BYTES);
        }
        meet(side);
    }
    printf("ready %d %d\n", side->number, (int)getpid());
    fflush(stdout);
    meet(side);
    while (side->number == 0 && (c = getchar()) != EOF)
        ;
    meet(side);
    end_vi(vi);
    MUST(VipDestroyCQ(cq));
    close_node(&node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, watched);
    return 0;
}
