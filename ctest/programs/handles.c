/* Several NIC handles of one device in one process, at the same time (spec §3.1): each has VIs with the other
 * side and with the next handle of its own process. One after the other is closed while the rest go on.
 * At the end side 0 prints the library's counters. */
#include "common.h"

#include <vipl_ext.h>

#define HANDLES 3
#define ROUNDS 200
#define BYTES 30000

/* A VI with what it needs for one message each way. */
struct end {
    struct node *node;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *in, *out;
    unsigned char *received, *sent;
};

static struct end make_end(struct node *node)
{
    struct end e;

    e.node = node;
    e.vi = make_vi(node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    e.in = take_descriptor(node, 1);
    e.out = take_descriptor(node, 1);
    e.received = take(node, BYTES);
    e.sent = take(node, BYTES);
    return e;
}

static void prepare(struct end *e)
{
    memset(e->received, 0, BYTES);
    post_recv(e->node, e->vi, e->in, e->received, BYTES);
}

static void send_message(struct end *e, size_t bytes, unsigned long seed)
{
    fill(e->sent, bytes, seed);
    post_send(e->node, e->vi, e->out, e->sent, bytes);
}

static void take_message(struct end *e, size_t bytes, unsigned long seed)
{
    EXPECT_RECV(e->vi, e->in, STATUS_RECEIVED, "XFER-02");
    CHECK_EQ(control(e->in)->Length, bytes, "XFER-01");
    CHECK(filled(e->received, bytes, seed), "XFER-01");
}

static void was_sent(struct end *e)
{
    EXPECT_SEND(e->vi, e->out, STATUS_SENT, "XFER-02");
}

struct world {
    struct side *side;
    struct node node[HANDLES];
    struct end across[HANDLES];  /* to the other side's handle of this number */
    struct end next[HANDLES];    /* to the next handle of this process */
    struct end before[HANDLES];  /* to the one before */
};

/* One message each way over every connection between handles from `first` on. */
static void exchange(struct world *w, int first, int round)
{
    size_t bytes = (size_t)(round * 997) % BYTES;
    int i;

    for (i = first; i < HANDLES; i++) {
        prepare(&w->across[i]);
        if (i + 1 < HANDLES) {
            prepare(&w->next[i]);
            prepare(&w->before[i + 1]);
        }
    }
    meet(w->side);
    for (i = first; i < HANDLES; i++) {
        unsigned long seed = (unsigned long)(round * 10 + i);

        send_message(&w->across[i], bytes, seed + (unsigned long)w->side->number);
        if (i + 1 < HANDLES) {
            send_message(&w->next[i], bytes, seed + 3);
            send_message(&w->before[i + 1], bytes, seed + 4);
        }
    }
    for (i = first; i < HANDLES; i++) {
        unsigned long seed = (unsigned long)(round * 10 + i);

        take_message(&w->across[i], bytes, seed + 1 - (unsigned long)w->side->number);
        was_sent(&w->across[i]);
        if (i + 1 < HANDLES) {
            take_message(&w->before[i + 1], bytes, seed + 3);
            take_message(&w->next[i], bytes, seed + 4);
            was_sent(&w->next[i]);
            was_sent(&w->before[i + 1]);
        }
    }
}

/* A send leaves although its program makes no further call until the peer has it. */
static void quiet_send(struct world *w)
{
    struct end *e = &w->across[HANDLES - 1];
    char c = 0;

    if (w->side->number == 0) {
        prepare(e);
        side_send(w->side, &c, 1);
        take_message(e, 100, 5);
        side_send(w->side, &c, 1);
    } else {
        side_receive(w->side, &c, 1);
        send_message(e, 100, 5);
        side_receive(w->side, &c, 1);
        was_sent(e);
    }
    ok("side %d: a send without a further call", w->side->number);
}

static void print_counters(void)
{
    VIP_ULONG length = 0;
    char *text;

    CHECK_RETURN(vipl_describe("counters", NULL, &length), VIP_ERROR_RESOURCE, "the counters");
    /* others of this process may make counters meanwhile */
    length *= 2;
    text = (char *)malloc(length);
    CHECK(text != NULL, "malloc");
    MUST(vipl_describe("counters", text, &length));
    printf("counters: %s\n", text);
    free(text);
}

/* What codes mean; nothing has to be opened for it. */
static void names(void)
{
    char text[16];
    VIP_ULONG all;

    CHECK(strncmp(vipl_strerror(VIP_TIMEOUT), "VIP_TIMEOUT: ", 13) == 0, "names");
    CHECK(strncmp(vipl_strerror_async(VIP_ERROR_CONN_LOST), "VIP_ERROR_CONN_LOST: ", 21) == 0, "names");
    CHECK(strcmp(vipl_state_name(VIP_STATE_CONNECTED), "VIP_STATE_CONNECTED") == 0, "names");
    CHECK(vipl_strerror(-1) != NULL && vipl_state_name(99) != NULL, "names");
    all = vipl_status_text(VIP_STATUS_DONE | VIP_STATUS_LENGTH_ERROR | VIP_STATUS_OP_RECEIVE, text, sizeof text);
    CHECK_EQ(all, sizeof "DONE|LENGTH_ERROR|OP_RECEIVE", "names");
    CHECK(strcmp(text, "DONE|LENGTH_ERR") == 0, "names");
    CHECK(vipl_status_text(0, NULL, 0) > 1, "names");
}

static void handles(struct side *side)
{
    static struct world worlds[2];
    struct world *w = &worlds[side->number];
    address other;
    int i, first, round;

    w->side = side;
    names();
    for (i = 0; i < HANDLES; i++) {
        open_node(&w->node[i], side->device, 1 << 20);
        CHECK(i == 0 || w->node[i].nic != w->node[i - 1].nic, "NIC-01");
        w->across[i] = make_end(&w->node[i]);
        if (i + 1 < HANDLES)
            w->next[i] = make_end(&w->node[i]);
        if (i > 0)
            w->before[i] = make_end(&w->node[i]);
    }
    other = swap_addresses(side, &w->node[0]);
    for (i = 0; i < HANDLES; i++) {
        char name[13];

        snprintf(name, sizeof name, "across%d", i);
        join_sides(side, &w->node[i], w->across[i].vi, &other, name);
        if (i + 1 < HANDLES)
            join_vis(&w->node[i], w->next[i].vi, &w->node[i + 1], w->before[i + 1].vi);
    }
    for (first = 0; first < HANDLES; first++) {
        for (round = 1; round <= ROUNDS; round++)
            exchange(w, first, round);
        if (first == HANDLES - 1)
            quiet_send(w);
        meet(side);
        /* the handle `first` goes; what the next one has with it ends */
        end_vi(w->across[first].vi);
        if (first + 1 < HANDLES)
            end_vi(w->next[first].vi);
        if (first > 0)
            end_vi(w->before[first].vi);
        close_node(&w->node[first]);
        ok("side %d: %d rounds over %d handles", side->number, ROUNDS, HANDLES - first);
    }
    meet(side);
    if (side->number == 0)
        print_counters();
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, handles);
    return 0;
}
