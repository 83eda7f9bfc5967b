/* A message arrives on a VI, and the program waits at a completion queue. Whether the layer `validate` may complain is the
 * word on the command line:
 *   hangs, polls  no call looks for the message, for ever: VAL-43, at the line that has that comment
 *   later         the program takes it after a long wait; no complaint, nor of those below
 *   thread        another thread waits for it
 *   belongs       the receive queue belongs to the completion queue */
#include "common.h"

static struct node node;
static VIP_VI_HANDLE from, to;
static VIP_CQ_HANDLE cq;

static VIP_DESCRIPTOR *eight_bytes(void)
{
    VIP_DESCRIPTOR *one = take_descriptor(&node, 1);

    start_descriptor(one, VIP_CONTROL_OP_SENDRECV);
    add_data(one, take(&node, 8), node.handle, 8);
    return one;
}

static void send_one(void)
{
    VIP_DESCRIPTOR *sent;

    MUST(VipPostSend(from, eight_bytes(), node.handle));
    MUST(VipSendWait(from, PATIENCE, &sent));
}

static void *receive(void *nothing)
{
    VIP_DESCRIPTOR *received;

    MUST(VipRecvWait(to, PATIENCE, &received));
    return nothing;
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    const char *word = options.words > 0 ? options.word[0] : "";
    int belongs = strcmp(word, "belongs") == 0;
    VIP_DESCRIPTOR *received;
    VIP_BOOLEAN is_receive;
    VIP_VI_HANDLE vi;

    open_node(&node, options.device, 1 << 16);
    MUST(VipCreateCQ(node.nic, 8, &cq));
    from = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    to = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, cq, belongs ? cq : NULL);
    MUST(VipPostRecv(to, eight_bytes(), node.handle));
    join_vis(&node, from, &node, to);
    if (strcmp(word, "hangs") == 0) {
        send_one();
        VipCQWait(cq, VIP_INFINITE, &vi, &is_receive); /* hangs: VAL-43 */
    } else if (strcmp(word, "polls") == 0) {
        send_one();
        while (VipCQDone(cq, &vi, &is_receive) == VIP_NOT_DONE) /* polls: VAL-43 */
            sched_yield();
    } else if (strcmp(word, "later") == 0) {
        send_one();
        CHECK_RETURN(VipCQWait(cq, 5000, &vi, &is_receive), VIP_TIMEOUT, "the completion queue stays empty");
        MUST(VipRecvDone(to, &received));
    } else if (strcmp(word, "thread") == 0) {
        pthread_t thread = start_thread(receive, NULL);

        CHECK_RETURN(VipCQWait(cq, 100, &vi, &is_receive), VIP_TIMEOUT, "nothing is sent");
        send_one();
        CHECK_RETURN(VipCQWait(cq, 5000, &vi, &is_receive), VIP_TIMEOUT, "the completion queue stays empty");
        pthread_join(thread, NULL);
    } else {
        CHECK(belongs, "a word");
        send_one();
        MUST(VipCQWait(cq, PATIENCE, &vi, &is_receive));
        MUST(VipRecvDone(to, &received));
    }
    MUST(VipDisconnect(from));
    MUST(VipDestroyVi(from));
    MUST(VipDisconnect(to));
    MUST(VipDestroyVi(to));
    MUST(VipDestroyCQ(cq));
    close_node(&node);
    ok(word);
    return 0;
}
