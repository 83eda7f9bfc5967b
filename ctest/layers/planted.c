/* Mistakes that the library lets pass, one after another, each on a line with the number of the finding that
 * the layer `validate` must report with that line: "VAL-10" in a comment at its end. */
#include "common.h"

/* Two VIs of this process, connected; `receives` are posted at the second one before. */
struct pair {
    VIP_VI_HANDLE a, b;
    VIP_DESCRIPTOR *in[4];
};

static struct pair make_pair(struct node *node, VIP_CQ_HANDLE cq, int receives)
{
    struct pair pair;
    int i;

    pair.a = make_vi(node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    pair.b = make_vi(node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, cq);
    for (i = 0; i < receives; i++) {
        pair.in[i] = take_descriptor(node, 1);
        start_descriptor(pair.in[i], VIP_CONTROL_OP_SENDRECV);
        add_data(pair.in[i], take(node, 64), node->handle, 64);
        MUST(VipPostRecv(pair.b, pair.in[i], node->handle)); /* VAL-10 */
    }
    join_vis(node, pair.a, node, pair.b);
    return pair;
}

static VIP_DESCRIPTOR *message(struct node *node, unsigned char *buffer)
{
    VIP_DESCRIPTOR *out = take_descriptor(node, 1);

    start_descriptor(out, VIP_CONTROL_OP_SENDRECV);
    add_data(out, buffer, node->handle, 8);
    return out;
}

static void posted(struct node *node)
{
    struct pair pair = make_pair(node, NULL, 2);
    unsigned char *buffer = take(node, 8);
    VIP_DESCRIPTOR *out = message(node, buffer), *found;

    /* a receive that is changed while it is posted: posted above, at VAL-10 */
    segment(pair.in[0], 0)->Length = 32;
    MUST(VipPostSend(pair.a, out, node->handle)); /* VAL-11 */
    buffer[0] ^= 1;
    MUST(VipSendWait(pair.a, PATIENCE, &found));
    MUST(VipRecvWait(pair.b, PATIENCE, &found));
    /* ImmediateData that is not announced */
    out = message(node, buffer);
    set_immediate(out, 5);
    control(out)->Control = VIP_CONTROL_OP_SENDRECV;
    MUST(VipPostSend(pair.a, out, node->handle)); /* VAL-04 */
    MUST(VipRecvWait(pair.b, PATIENCE, &found));
    MUST(VipDisconnect(pair.a));
    MUST(VipDestroyVi(pair.a)); /* VAL-40 */
    MUST(VipDisconnect(pair.b));
    MUST(VipDestroyVi(pair.b));
}

/* A server that posts its first receive when its client may have sent already. */
static void unasked(struct node *node)
{
    struct pair pair = make_pair(node, NULL, 0);
    VIP_DESCRIPTOR *in = take_descriptor(node, 1), *found;

    start_descriptor(in, VIP_CONTROL_OP_SENDRECV);
    add_data(in, take(node, 8), node->handle, 8);
    MUST(VipPostRecv(pair.b, in, node->handle)); /* VAL-51 */
    MUST(VipPostSend(pair.a, message(node, take(node, 8)), node->handle));
    MUST(VipRecvWait(pair.b, PATIENCE, &found));
    MUST(VipSendWait(pair.a, PATIENCE, &found));
    MUST(VipDisconnect(pair.a));
    MUST(VipDestroyVi(pair.a));
    MUST(VipDisconnect(pair.b));
    MUST(VipDestroyVi(pair.b));
}

static void memory(struct node *node)
{
    VIP_MEM_HANDLE handle;
    VIP_VI_HANDLE vi = make_vi(node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    unsigned char *pages = (unsigned char *)map_pages(8192);
    VIP_DESCRIPTOR *in = take_descriptor(node, 1), *found;

    MUST(VipRegisterMem(node->nic, pages, 4096, NULL, &handle)); /* VAL-02 */
    MUST(VipDeregisterMem(node->nic, pages, handle));
    handle = register_range(node, pages, 4096);
    start_descriptor(in, VIP_CONTROL_OP_SENDRECV);
    add_data(in, pages + 4000, handle, 200);
    MUST(VipPostRecv(vi, in, node->handle)); /* VAL-06 */
    CHECK_EQ(munmap(pages, 8192), 0, "munmap");
    MUST(VipDeregisterMem(node->nic, pages, handle)); /* VAL-13 VAL-14 */
    VipRecvDone(vi, &found);
    MUST(VipDestroyVi(vi)); /* VAL-03 */
    CHECK_RETURN(VipDisconnect(vi), VIP_INVALID_PARAMETER, "VI"); /* VAL-31 */
}

static void handles(struct node *node, const char *device)
{
    struct node other;
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;
    VIP_VI_ATTRIBUTES attributes = vi_attributes(node, VIP_SERVICE_RELIABLE_DELIVERY);

    open_node(&other, device, 1 << 16);
    MUST(VipCreateCQ(other.nic, 8, &cq));
    CHECK_RETURN(VipCreateVi(node->nic, &attributes, NULL, cq, &vi), VIP_INVALID_PARAMETER, "VI"); /* VAL-30 */
    attributes.Ptag = NULL;
    MUST(VipCreateVi(node->nic, &attributes, NULL, NULL, &vi)); /* VAL-01 */
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(other.nic, other.memory, other.handle));
    MUST(VipDestroyPtag(other.nic, other.ptag));
    CHECK_RETURN(VipCloseNic(other.nic), VIP_ERROR_RESOURCE, "NIC"); /* VAL-41 */
    MUST(VipDestroyCQ(cq));
    MUST(VipCloseNic(other.nic));
}

/* A message for a VI whose receives belong to no completion queue, and a wait at one. */
static void unlooked(struct node *node)
{
    VIP_CQ_HANDLE cq;
    struct pair pair;
    VIP_DESCRIPTOR *found;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN is_receive;

    MUST(VipCreateCQ(node->nic, 8, &cq));
    pair = make_pair(node, NULL, 1);
    MUST(VipPostSend(pair.a, message(node, take(node, 8)), node->handle));
    MUST(VipSendWait(pair.a, PATIENCE, &found));
    CHECK_RETURN(VipCQWait(cq, 500, &vi, &is_receive), VIP_TIMEOUT, "no entry"); /* VAL-43 */
    MUST(VipDisconnect(pair.a));
    MUST(VipDestroyVi(pair.a));
    MUST(VipDisconnect(pair.b));
    MUST(VipDestroyVi(pair.b));
    MUST(VipDestroyCQ(cq));
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    struct node node;

    open_node(&node, options.device, 1 << 20);
    posted(&node);
    unasked(&node);
    unlooked(&node);
    memory(&node);
    handles(&node, options.device);
    close_node(&node);
    ok("all mistakes are made");
    return 0;
}
