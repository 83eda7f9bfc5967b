/* A stream of messages from side 0 to side 1 for so many seconds, and how fast it was. Side 1 tells after
 * every few messages that it has posted their receives again, so that each message finds one.
 *
 *   flow SECONDS
 */
#include "common.h"

#define BYTES 65536
#define RECEIVES 64 /* posted at side 1 */
#define BATCH 8      /* receives that side 1 reports together */

struct flow {
    struct node node;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *out[RECEIVES], *in[RECEIVES];
    unsigned char *buffer, *word;
};

/* Sends until the time is over, then one message of one byte. */
static unsigned long flow_out(struct flow *flow, double seconds)
{
    unsigned long sent = 0, completed = 0, credit = RECEIVES;
    const double end = now_ms() + 1000 * seconds;
    VIP_DESCRIPTOR *found;
    int last = 0;

    while (!last || completed < sent) {
        while (!last && sent < credit && sent - completed < RECEIVES / 2) {
            last = now_ms() > end;
            post_send(&flow->node, flow->vi, flow->out[sent % RECEIVES], flow->buffer, last ? 1 : BYTES);
            sent++;
        }
        while (VipRecvDone(flow->vi, &found) == VIP_SUCCESS) {
            credit += BATCH;
            post_recv(&flow->node, flow->vi, found, flow->word, 1);
        }
        while (VipSendDone(flow->vi, &found) == VIP_SUCCESS)
            completed++;
    }
    return sent;
}

static unsigned long flow_in(struct flow *flow)
{
    unsigned long received = 0;
    VIP_DESCRIPTOR *found, *report = NULL;
    int last = 0;

    while (!last) {
        CHECK_RETURN(VipRecvWait(flow->vi, VIP_INFINITE, &found), VIP_SUCCESS, "XFER-02");
        last = control(found)->Length == 1;
        received++;
        post_recv(&flow->node, flow->vi, found, flow->buffer, BYTES);
        if (last || received % BATCH != 0)
            continue;
        if (report != NULL)
            CHECK_RETURN(VipSendWait(flow->vi, VIP_INFINITE, &report), VIP_SUCCESS, "XFER-02");
        report = flow->out[0];
        post_send(&flow->node, flow->vi, report, flow->word, 1);
    }
    if (report != NULL)
        CHECK_RETURN(VipSendWait(flow->vi, VIP_INFINITE, &report), VIP_SUCCESS, "XFER-02");
    return received;
}

static double the_seconds;

static void flow(struct side *side)
{
    struct flow flow;
    address other;
    unsigned long messages;
    double start;
    int i;

    memset(&flow, 0, sizeof flow);
    open_node(&flow.node, side->device, 1 << 20);
    other = swap_addresses(side, &flow.node);
    flow.vi = make_vi(&flow.node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    flow.buffer = take(&flow.node, BYTES);
    flow.word = take(&flow.node, 1);
    for (i = 0; i < RECEIVES; i++) {
        flow.out[i] = take_descriptor(&flow.node, 1);
        flow.in[i] = take_descriptor(&flow.node, 1);
        post_recv(&flow.node, flow.vi, flow.in[i], side->number == 1 ? flow.buffer : flow.word,
                  side->number == 1 ? BYTES : 1);
    }
    join_sides(side, &flow.node, flow.vi, &other, "flow");
    meet(side);
    start = now_ms();
    messages = side->number == 0 ? flow_out(&flow, the_seconds) : flow_in(&flow);
    if (side->number == 0)
        printf("bytes per second: %.0f\n", 1000.0 * BYTES * (double)messages / (now_ms() - start));
    ok("side %d: %lu messages", side->number, messages);
    meet(side);
    end_vi(flow.vi);
    close_node(&flow.node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    if (options.words != 1) {
        fprintf(stderr, "usage: %s [-d DEVICE] SECONDS\n", argv[0]);
        return 2;
    }
    the_seconds = atof(options.word[0]);
    both_sides(&options, flow);
    return 0;
}
