/* What the plug-in verbs counts, over a device that does everything at once (fake.c): on the reliable levels no byte is
 * copied as long as the device has room for the segments, and a connected process that does nothing is not woken. */
#include "../programs/common.h"
#include <vipl_ext.h>

/* Segments that the plug-in gives to a device, and more. */
#define FITTING 5
#define MANY 9
#define PIECE 100

static unsigned long counter(const char *name)
{
    VIP_ULONG length = 0;
    unsigned long value;
    char *text, *found;

    CHECK_RETURN(vipl_describe("counters", NULL, &length), VIP_ERROR_RESOURCE, "the counters");
    length += 1000;
    text = malloc(length);
    CHECK(text != NULL, "memory");
    MUST(vipl_describe("counters", text, &length));
    found = strstr(text, name);
    CHECK(found != NULL, name);
    value = strtoul(strchr(found, ':') + 1, NULL, 10);
    free(text);
    return value;
}

/* A message of pieces that are no neighbours. */
static void message(struct node *node, VIP_VI_HANDLE from, VIP_VI_HANDLE to, VIP_DESCRIPTOR *out, VIP_DESCRIPTOR *in,
                    unsigned char *data, int pieces)
{
    unsigned char *room = data + 2 * MANY * PIECE;
    VIP_DESCRIPTOR *done;
    int i;

    start_descriptor(out, VIP_CONTROL_OP_SENDRECV);
    start_descriptor(in, VIP_CONTROL_OP_SENDRECV);
    for (i = 0; i < pieces; i++) {
        fill(data + 2 * i * PIECE, PIECE, (unsigned long)(pieces + i));
        memset(room + 2 * i * PIECE, 0, PIECE);
        add_data(out, data + 2 * i * PIECE, node->handle, PIECE);
        add_data(in, room + 2 * i * PIECE, node->handle, PIECE);
    }
    MUST(VipPostRecv(to, in, node->handle));
    MUST(VipPostSend(from, out, node->handle));
    MUST(VipSendWait(from, PATIENCE, &done));
    MUST(VipRecvWait(to, PATIENCE, &done));
    CHECK_EQ(control(done)->Length, pieces * PIECE, "all of it");
    for (i = 0; i < pieces; i++)
        CHECK(filled(room + 2 * i * PIECE, PIECE, (unsigned long)(pieces + i)), "what was sent");
}

static void level(int reliability)
{
    VIP_DESCRIPTOR *out, *in;
    VIP_VI_HANDLE from, to;
    unsigned char *data;
    unsigned long before;
    struct node node;
    int pieces;

    open_node(&node, "verbs:", 1 << 20);
    from = make_vi(&node, reliability, NULL, NULL);
    to = make_vi(&node, reliability, NULL, NULL);
    out = take_descriptor(&node, MANY);
    in = take_descriptor(&node, MANY);
    data = take(&node, 4 * MANY * PIECE);
    join_vis(&node, from, &node, to);
    before = counter("verbs.bytes_copied");
    for (pieces = 0; pieces <= FITTING; pieces++)
        message(&node, from, to, out, in, data, pieces);
    CHECK_EQ(counter("verbs.bytes_copied"), before, "no copy");
    message(&node, from, to, out, in, data, MANY);
    CHECK_EQ(counter("verbs.bytes_copied"), before + 2 * MANY * PIECE, "a copy on either side");
    end_vi(from);
    end_vi(to);
    close_node(&node);
}

/* Both sides are set up, and nothing happens. */
static void idle(void)
{
    VIP_VI_HANDLE one, other;
    unsigned long before;
    struct node node;

    open_node(&node, "verbs:", 1 << 20);
    one = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    other = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    join_vis(&node, one, &node, other);
    sleep_ms(500);
    before = counter("verbs.wake_ups");
    CHECK(before > 0, "the thread has helped to connect");
    sleep_ms(1500);
    CHECK_EQ(counter("verbs.wake_ups"), before, "no wake-up while nothing happens");
    end_vi(one);
    end_vi(other);
    close_node(&node);
}

int main(void)
{
    level(VIP_SERVICE_RELIABLE_DELIVERY);
    level(VIP_SERVICE_RELIABLE_RECEPTION);
    idle();
    ok("nothing was copied, and no thread was woken");
    return 0;
}
