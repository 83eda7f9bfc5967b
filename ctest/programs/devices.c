/* One binary, two devices of different plug-ins, chosen by name alone: one after the other (MOD-01) and both
 * at the same time (MOD-02). The second device is $CTEST_OTHER_DEVICE. */
#include "common.h"

#define RD VIP_SERVICE_RELIABLE_DELIVERY
#define BYTES 5000

/* Two connected VIs on one device, and what they need for a message. */
struct device {
    struct node node;
    VIP_VI_HANDLE one, two;
    VIP_DESCRIPTOR *in, *out;
    unsigned char *received, *sent;
};

static void start(struct device *d, const char *name)
{
    open_node(&d->node, name, 1 << 16);
    d->one = make_vi(&d->node, RD, NULL, NULL);
    d->two = make_vi(&d->node, RD, NULL, NULL);
    d->in = take_descriptor(&d->node, 1);
    d->out = take_descriptor(&d->node, 1);
    d->received = take(&d->node, BYTES);
    d->sent = take(&d->node, BYTES);
    join_vis(&d->node, d->one, &d->node, d->two);
}

static void post(struct device *d, unsigned long seed)
{
    memset(d->received, 0, BYTES);
    fill(d->sent, BYTES, seed);
    post_recv(&d->node, d->one, d->in, d->received, BYTES);
    post_send(&d->node, d->two, d->out, d->sent, BYTES);
}

static void receive(struct device *d, unsigned long seed, const char *id)
{
    EXPECT_SEND(d->two, d->out, STATUS_SENT, id);
    EXPECT_RECV(d->one, d->in, STATUS_RECEIVED, id);
    CHECK(filled(d->received, BYTES, seed), id);
}

static void end(struct device *d)
{
    MUST(VipDisconnect(d->one));
    end_vi(d->two);
    end_vi(d->one);
    close_node(&d->node);
}

static void one_after_the_other(const char *const name[2])
{
    struct device d;
    int i;

    for (i = 0; i < 2; i++) {
        start(&d, name[i]);
        post(&d, 1);
        receive(&d, 1, "MOD-01");
        printf("ok: a message over %s\n", d.node.attributes.Name);
        end(&d);
    }
}

/* Each message of one device is under way while the other device moves its own. */
static void at_the_same_time(const char *const name[2])
{
    struct device d[2];
    VIP_MEM_ATTRIBUTES attributes;
    unsigned long i;

    start(&d[0], name[0]);
    start(&d[1], name[1]);
    CHECK(strcmp(d[0].node.attributes.Name, d[1].node.attributes.Name) != 0, "MOD-02");
    for (i = 0; i < 100; i++) {
        post(&d[0], 2 * i);
        post(&d[1], 2 * i + 1);
        receive(&d[i % 2], 2 * i + i % 2, "MOD-02");
        receive(&d[1 - i % 2], 2 * i + 1 - i % 2, "MOD-02");
    }
    /* what belongs to one device means nothing to the other */
    CHECK_RETURN(VipQueryMem(d[0].node.nic, d[1].node.memory, d[1].node.handle, &attributes), VIP_INVALID_PARAMETER,
                 "NIC-14");
    NO_ERROR(&d[0].node, 0, "MOD-02");
    NO_ERROR(&d[1].node, 0, "MOD-02");
    end(&d[0]);
    end(&d[1]);
    ok("two devices at the same time");
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    const char *name[2];

    name[0] = options.device;
    name[1] = getenv("CTEST_OTHER_DEVICE");
    CHECK(name[1] != NULL, "the variable CTEST_OTHER_DEVICE");
    one_after_the_other(name);
    at_the_same_time(name);
    return 0;
}
