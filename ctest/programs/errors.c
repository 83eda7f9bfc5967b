/* The error table of spec §6.4, row by row, on the three levels: what the send queue says, what the
 * receive queue says, which asynchronous errors come, and who dies.
 *
 * Side 1 does something wrong, or something that side 0 is not ready for. Each row runs on a connection of
 * its own. Where the connection lives on, a good message proves it; where it dies, both VIs must be found
 * in Error, everything else flushed, and each side must have learned the cause once: by a descriptor or by
 * one asynchronous error, never both (ERR-08). */
#include "errors_table.h"

struct world {
    struct side *side;
    struct node node;
    address other;
    VIP_PROTECTION_HANDLE other_tag;
};

/* One row on one level. */
struct run {
    struct world *w;
    const struct row *row;
    const struct outcome *outcome;
    int level;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *d, *spare;
    unsigned char *buffer;
    unsigned char *region; /* where RDMA goes: BUFFER bytes, of which the region has 4096 in the middle */
    VIP_MEM_HANDLE handle, descriptors;
    int saw_bits, saw_async; /* what this side observed; NONE: nothing */
};

struct remote {
    uint64_t address;
    VIP_MEM_HANDLE handle;
    uint32_t reserved; /* as many bytes on either side, whatever their word sizes */
};

/* Side 0 gets ready and tells where RDMA may go. */
static void prepare(struct run *r)
{
    struct node *node = &r->w->node;
    VIP_MEM_ATTRIBUTES attributes = mem_attributes(node);
    enum target target = r->row->target;
    struct remote remote;
    size_t bytes = target == SMALL ? 50 : BUFFER;

    memset(&remote, 0, sizeof remote); /* its padding is sent as well */
    memset(r->buffer, 0xEE, BUFFER);
    memset(r->region, 0xEE, BUFFER);
    if (target == REGION_CLOSED || target == REGION_CLOSED_NOTHING)
        attributes.EnableRdmaWrite = attributes.EnableRdmaRead = VIP_FALSE;
    if (target == REGION_TAG)
        attributes.Ptag = r->w->other_tag;
    MUST(VipRegisterMem(node->nic, r->region + 2048, 4096, &attributes, &r->handle));
    remote.address = (uint64_t)(uintptr_t)r->region + 2048 + (target == REGION_SHORT ? 4000 : 0);
    remote.handle = r->handle;
    if (target == REGION_UNKNOWN) {
        MUST(VipDeregisterMem(node->nic, r->region + 2048, r->handle));
        r->handle = 0;
    }
    start_descriptor(r->d, target == RECV_OP        ? VIP_CONTROL_OP_RDMAWRITE
                           : target == RECV_READ_OP ? VIP_CONTROL_OP_RDMAREAD
                                                    : VIP_CONTROL_OP_SENDRECV);
    if (target == RECV_BIT)
        control(r->d)->Control |= 0x0100;
    add_data(r->d, r->buffer, target == RECV_HANDLE ? 0x7FFFFFFFu : node->handle, bytes);
    if (target == RECV_GONE) {
        MUST(VipPostRecv(r->vi, r->d, r->descriptors));
        MUST(VipDeregisterMem(node->nic, r->d, r->descriptors));
    } else if (target != NOTHING && target != REGION_CLOSED_NOTHING) {
        VIP_DESCRIPTOR *found;

        MUST(VipPostRecv(r->vi, r->d, node->handle));
        /* good or bad, it is not looked at before a message comes (DERR-13) */
        CHECK_RETURN(VipRecvDone(r->vi, &found), VIP_NOT_DONE, r->row->id);
    }
    side_send(r->w->side, &remote, sizeof remote);
}

/* Side 1 posts what the row says. */
static void act(struct run *r, const struct remote *remote)
{
    struct node *node = &r->w->node;
    size_t most = node->attributes.MaxSegmentsPerDesc;
    VIP_CONTROL_SEGMENT *c = control(r->d);
    unsigned i;

    fill(r->buffer, BUFFER, 3);
    start_descriptor(r->d, VIP_CONTROL_OP_SENDRECV);
    switch (r->row->action) {
    case SEND:
        add_data(r->d, r->buffer, node->handle, 100);
        break;
    case SEND_LARGE:
        add_data(r->d, r->buffer, node->handle, 6000);
        break;
    case SEND_BAD_OP:
        add_data(r->d, r->buffer, node->handle, 100);
        c->Control = VIP_CONTROL_OP_RESERVED;
        break;
    case SEND_BAD_BIT:
        add_data(r->d, r->buffer, node->handle, 100);
        c->Control |= 0x8000;
        break;
    case SEND_SEGMENTS:
        for (i = 0; i <= most; i++)
            add_data(r->d, r->buffer + i, node->handle, 1);
        break;
    case SEND_BAD_BOTH:
        add_data(r->d, r->buffer, 0x7FFFFFFFu, 100);
        c->Control = VIP_CONTROL_OP_RESERVED;
        break;
    case SEND_LENGTH:
        add_data(r->d, r->buffer, node->handle, 100);
        c->Length = 99;
        break;
    case SEND_TOO_LONG:
        add_data(r->d, r->buffer, node->handle, 7001);
        break;
    case SEND_HANDLE:
        add_data(r->d, r->buffer, 0x7FFFFFFFu, 100);
        break;
    case WRITE_EMPTY:
        c->Control = VIP_CONTROL_OP_RDMAWRITE;
        break;
    case READ_EMPTY:
        c->Control = VIP_CONTROL_OP_RDMAREAD;
        break;
    case WRITE:
    case WRITE_IMMEDIATE:
        c->Control = VIP_CONTROL_OP_RDMAWRITE;
        add_remote(r->d, remote->address, remote->handle);
        add_data(r->d, r->buffer, node->handle, 1000);
        if (r->row->action == WRITE_IMMEDIATE)
            set_immediate(r->d, 4711);
        break;
    case READ:
    case READ_IMMEDIATE:
        c->Control = VIP_CONTROL_OP_RDMAREAD;
        add_remote(r->d, remote->address, remote->handle);
        add_data(r->d, r->buffer, node->handle, 1000);
        if (r->row->action == READ_IMMEDIATE)
            set_immediate(r->d, 4711);
        break;
    }
    MUST(VipPostSend(r->vi, r->d, node->handle));
}

/* Takes the next descriptor off; gives its error bits. */
static int take_bits(struct run *r, int recv, VIP_DESCRIPTOR *expected)
{
    VIP_DESCRIPTOR *found = NULL;
    VIP_RETURN code = recv ? VipRecvWait(r->vi, PATIENCE, &found) : VipSendWait(r->vi, PATIENCE, &found);
    VIP_UINT32 status;

    if (code != VIP_SUCCESS && code != VIP_DESCRIPTOR_ERROR)
        fail(__FILE__, __LINE__, r->row->id, "the next descriptor", "a completed one", return_name((long)code));
    CHECK(found == expected, r->row->id);
    status = control(found)->Status;
    CHECK(status & VIP_STATUS_DONE, r->row->id);
    CHECK_EQ(status & VIP_STATUS_RESERVED, 0, "DERR-22");
    CHECK_RETURN(code, status & VIP_STATUS_ERROR_MASK ? VIP_DESCRIPTOR_ERROR : VIP_SUCCESS, "spec §5.8");
    return (int)(status & VIP_STATUS_ERROR_MASK);
}

static void expect_operation(struct run *r)
{
    static const VIP_UINT32 operation[4] = {VIP_STATUS_OP_SEND, VIP_STATUS_OP_RDMA_WRITE,
                                            VIP_STATUS_OP_RDMA_READ, VIP_STATUS_OP_SEND};
    int asked = control(r->d)->Control & VIP_CONTROL_OP_MASK;

    if (asked != VIP_CONTROL_OP_RESERVED)
        CHECK_STATUS(control(r->d)->Status & VIP_STATUS_OP_MASK, operation[asked], r->row->id);
}

/* Side 1: what the send queue says, and what the handler was called for. */
static void check_sender(struct run *r)
{
    const struct outcome *o = r->outcome;
    int bits = take_bits(r, 0, r->d), async = o->sender_async;

    r->saw_bits = bits;
    expect_operation(r);
    if (o->sender != NONE) {
        check_status(__FILE__, __LINE__, r->row->id, "error bits of the send queue's descriptor",
                     (unsigned long)bits, (unsigned long)o->sender);
    } else if (bits != 0) {
        /* still outstanding when the other side died */
        if ((bits & o->sender_or) != bits || (bits & (bits - 1)) != 0)
            check_status(__FILE__, __LINE__, r->row->id, "error bits of the send queue's descriptor",
                         (unsigned long)bits, (unsigned long)o->sender_or);
        if (bits != FLUSHED) /* which is no cause (spec §6.4) */
            async = NONE;
    }
    if (!o->dies)
        return;
    AWAIT_STATE(r->vi, VIP_STATE_ERROR, r->row->id);
    if (async != NONE)
        r->saw_async = (int)NEXT_ERROR(&r->w->node, async, r->vi, r->row->id).ErrorCode;
    start_descriptor(r->spare, VIP_CONTROL_OP_SENDRECV);
    MUST(VipPostSend(r->vi, r->spare, r->w->node.handle));
    check_status(__FILE__, __LINE__, "DERR-11", "a later send",
                 (unsigned long)take_bits(r, 0, r->spare), FLUSHED);
}

/* Side 0: what the receive queue says, what the handler was called for, which bytes were written. */
static void check_receiver(struct run *r)
{
    const struct outcome *o = r->outcome;
    const int placed = r->row->action == WRITE_IMMEDIATE && r->row->target == NOTHING;

    if (o->receiver_async != NONE) {
        VIP_ERROR_DESCRIPTOR error =
            NEXT_ERROR(&r->w->node, o->receiver_async, r->vi, r->row->id);

        r->saw_async = (int)error.ErrorCode;
        if (o->receiver_async == VIP_ERROR_COMP_PROT) {
            CHECK(error.DescriptorPtr == r->d, r->row->id);
            CHECK_EQ(error.ResourceCode, VIP_RESOURCE_DESCRIPTOR, r->row->id);
        } else {
            CHECK(error.DescriptorPtr == NULL, r->row->id);
            CHECK_EQ(error.ResourceCode, VIP_RESOURCE_VI, r->row->id);
        }
        if (o->receiver_async == EMPTY)
            CHECK_EQ(error.OpCode, VIP_STATUS_OP_RECEIVE, "spec §11");
        if (o->receiver_async == RDMAW)
            CHECK_EQ(error.OpCode, VIP_STATUS_OP_REMOTE_RDMA_WRITE, "spec §11");
        if (o->receiver_async == RDMAR)
            CHECK_EQ(error.OpCode, VIP_STATUS_OP_RDMA_READ, "spec §11");
        if (o->dies)
            CHECK_EQ(vi_state(r->vi), VIP_STATE_ERROR, "ERR-05");
    }
    if (o->receiver != NONE) {
        int remote_write = r->row->action == WRITE_IMMEDIATE;

        r->saw_bits = take_bits(r, 1, r->d);
        check_status(__FILE__, __LINE__, r->row->id, "error bits of the receive",
                     (unsigned long)r->saw_bits, (unsigned long)o->receiver);
        if (!(o->receiver & FLUSHED))
            CHECK_STATUS(control(r->d)->Status & VIP_STATUS_OP_MASK,
                         remote_write ? VIP_STATUS_OP_REMOTE_RDMA_WRITE : VIP_STATUS_OP_RECEIVE, r->row->id);
    }
    if (o->dies)
        AWAIT_STATE(r->vi, VIP_STATE_ERROR, r->row->id);
    if (r->row->target == SMALL)
        CHECK(all_bytes(r->buffer + 50, BUFFER - 50, 0xEE), "DERR-12");
    else if (r->row->target != RECV_GONE) /* there, only the completion could not be written */
        CHECK(all_bytes(r->buffer, BUFFER, 0xEE), "DERR-09");
    CHECK(all_bytes(r->region, 2048, 0xEE), "RDMA-10");
    if (placed)
        CHECK(filled(r->region + 2048, 1000, 3), "E11");
    else
        CHECK(all_bytes(r->region + 2048, 1000, 0xEE), "RDMA-10");
    CHECK(all_bytes(r->region + 3048, BUFFER - 3048, 0xEE), "RDMA-10");
}

/* The connection has survived: a message goes through. */
static void survived(struct run *r)
{
    struct node *node = &r->w->node;

    if (r->w->side->number == 0) {
        if (r->outcome->receiver == NONE) {
            VIP_DESCRIPTOR *found;

            /* a receive that was not used is used now */
            if (VipRecvDone(r->vi, &found) == VIP_DESCRIPTOR_ERROR && found == NULL)
                post_recv(node, r->vi, r->d, r->buffer, BUFFER);
        } else {
            post_recv(node, r->vi, r->d, r->buffer, BUFFER);
        }
        meet(r->w->side);
        CHECK_EQ(take_bits(r, 1, r->d), 0, "DERR-10");
        CHECK(filled(r->buffer, 200, 8), "DERR-10");
        CHECK_EQ(vi_state(r->vi), VIP_STATE_CONNECTED, "DERR-15");
    } else {
        fill(r->buffer, 200, 8);
        meet(r->w->side);
        post_send(node, r->vi, r->d, r->buffer, 200);
        CHECK_EQ(take_bits(r, 0, r->d), 0, "DERR-10");
        CHECK_EQ(vi_state(r->vi), VIP_STATE_CONNECTED, "DERR-10");
    }
}

/* ---- what is printed ------------------------------------------------------------------------- */

static const char *bits_name(int bits)
{
    static const char *const names[] = {"FORMAT_ERROR", "PROTECTION_ERROR", "LENGTH_ERROR", "PARTIAL_ERROR",
                                        "FLUSHED", "TRANSPORT_ERROR", "RDMA_PROT_ERROR", "REMOTE_DESC_ERROR"};
    int i;

    for (i = 0; i < 8; i++)
        if (bits == (int)(VIP_STATUS_FORMAT_ERROR << i))
            return names[i];
    return bits == 0 ? "success" : bits == NONE ? "-" : "several bits";
}

static const char *async_name(int code)
{
    static const char *const names[] = {"POST_DESC", "CONN_LOST", "RECVQ_EMPTY", "VI_OVERRUN", "RDMAW_PROT",
                                        "RDMAW_DATA", "RDMAW_ABORT", "RDMAR_PROT", "COMP_PROT",
                                        "RDMA_TRANSPORT", "CATASTROPHIC"};

    return code >= 0 && code < 11 ? names[code] : "-";
}

static const char *level_name(int level)
{
    return level == VIP_SERVICE_UNRELIABLE ? "U" : level == VIP_SERVICE_RELIABLE_DELIVERY ? "RD" : "RR";
}

/* One line per row, level and side: descriptor, asynchronous error, end. */
static void print_row(struct run *r)
{
    const struct outcome *o = r->outcome;
    int sender = r->w->side->number == 1, bits = sender ? o->sender : o->receiver;
    int async = sender ? o->sender_async : o->receiver_async;
    char expected[200];
    int i;

    snprintf(expected, sizeof expected, "%s", sender && bits == NONE ? "success" : bits_name(bits));
    for (i = 1; sender && bits == NONE && i < 0x200; i <<= 1)
        if (o->sender_or & i)
            snprintf(expected + strlen(expected), sizeof expected - strlen(expected), " or %s", bits_name(i));
    printf("row: %s | %s | %s | expected %s, async %s%s, %s | observed %s, async %s, %s\n", r->row->id,
           level_name(r->level), sender ? "sender" : "receiver", expected, async_name(async),
           sender && bits == NONE && async != NONE && o->sender_or != 0 ? " after success" : "",
           o->dies ? "Error" : "Connected", bits_name(r->saw_bits), async_name(r->saw_async),
           vi_state(r->vi) == VIP_STATE_ERROR ? "Error" : "Connected");
}

/* ---- the rows -------------------------------------------------------------------------------- */

/* Whether the row is about this level of this device, in this mode. */
static int applies(struct world *w, const struct row *row, int level)
{
    int reads = rdma_read_supported(&w->node, level);

    if (row->not_on & level || (row->strict_only && !strict_mode()))
        return 0;
    if (row->action == READ) /* without support it is the sender's own fault */
        return row->target == GOOD ? !reads : reads;
    if (row->action == WRITE || row->action == WRITE_IMMEDIATE)
        return !device_lacks("RDMA Write");
    return 1;
}

static void run_row(struct world *w, const struct row *row, int level, int number)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&w->node, level);
    size_t mark = w->node.used;
    struct remote remote;
    struct run r;
    char name[24];

    memset(&r, 0, sizeof r);
    r.saw_bits = r.saw_async = NONE;
    r.w = w;
    r.row = row;
    r.level = level;
    r.outcome = &row->outcome[level == 1 ? 0 : level == 2 ? 1 : 2];
    r.d = row->target == RECV_GONE && w->side->number == 0
              ? (VIP_DESCRIPTOR *)map_pages(4096)
              : take_descriptor(&w->node, (unsigned)w->node.attributes.MaxSegmentsPerDesc + 1);
    if (row->target == RECV_GONE && w->side->number == 0)
        r.descriptors = register_range(&w->node, r.d, 4096);
    r.spare = take_descriptor(&w->node, 1);
    r.buffer = take(&w->node, BUFFER);
    r.region = take(&w->node, BUFFER);
    attributes.MaxTransferSize = 7000;
    if (row->target == VI_CLOSED && w->side->number == 0)
        attributes.EnableRdmaWrite = attributes.EnableRdmaRead = VIP_FALSE;
    if (w->side->number == 1) /* the initiator's own flags do not matter (RDMA-17) */
        attributes.EnableRdmaWrite = attributes.EnableRdmaRead = VIP_FALSE;
    MUST(VipCreateVi(w->node.nic, &attributes, NULL, NULL, &r.vi));
    snprintf(name, sizeof name, "row%d", number);
    join_sides(w->side, &w->node, r.vi, &w->other, name);

    if (w->side->number == 0) {
        prepare(&r);
        check_receiver(&r);
    } else {
        side_receive(w->side, &remote, sizeof remote);
        act(&r, &remote);
        check_sender(&r);
    }
    print_row(&r);
    meet(w->side);
    if (!r.outcome->dies)
        survived(&r);
    NO_ERROR(&w->node, 5, r.outcome->dies ? "ERR-08" : row->id); /* at most one, and that was asked for */
    meet(w->side);
    shows(row->also[level == 1 ? 0 : level == 2 ? 1 : 2]); /* all that the row says has been checked */
    end_vi(r.vi);
    if (r.handle != 0)
        MUST(VipDeregisterMem(w->node.nic, r.region + 2048, r.handle));
    if (r.descriptors != 0)
        munmap(r.d, 4096);
    w->node.used = mark;
    meet(w->side);
    sleep_ms(5);
    forget_errors(&w->node); /* of the disconnect */
    meet(w->side);
}

/* E15: what a post refuses is told by its code and by an asynchronous error, and changes nothing. */
static void refused_posts(struct world *w, int level)
{
    VIP_VI_HANDLE vi = make_vi(&w->node, level, NULL, NULL);
    size_t mark = w->node.used;
    unsigned char *room = take(&w->node, 128);
    VIP_ERROR_DESCRIPTOR error;
    char name[24];
    int i;

    snprintf(name, sizeof name, "posts%d", level);
    join_sides(w->side, &w->node, vi, &w->other, name);
    for (i = 0; i < 2; i++) {
        VIP_DESCRIPTOR *odd = (VIP_DESCRIPTOR *)(void *)(room + 16);

        CHECK_RETURN(i ? VipPostSend(vi, odd, w->node.handle) : VipPostRecv(vi, odd, w->node.handle),
                     VIP_INVALID_PARAMETER, "E15 POST-02");
        error = NEXT_ERROR(&w->node, VIP_ERROR_POST_DESC, vi, "E15 POST-02");
        CHECK(error.DescriptorPtr == odd, "E15 POST-02");
        CHECK_EQ(error.ResourceCode, VIP_RESOURCE_DESCRIPTOR, "E15 POST-02");
        CHECK_EQ(vi_state(vi), VIP_STATE_CONNECTED, "E15 POST-06");
        printf("row: E15 | %s | %s | expected VIP_INVALID_PARAMETER, async POST_DESC, Connected | observed "
               "VIP_INVALID_PARAMETER, async %s, Connected\n",
               level_name(level), w->side->number ? "sender" : "receiver", async_name((int)error.ErrorCode));
    }
    NO_ERROR(&w->node, 5, "E15");
    meet(w->side);
    end_vi(vi);
    w->node.used = mark;
    meet(w->side);
    sleep_ms(5);
    forget_errors(&w->node);
    meet(w->side);
}

/* E14: side 1 disconnects. How soon the handler of side 0 is called depends on the mode (spec §17). */
static void peer_leaves(struct world *w, int level)
{
    VIP_VI_HANDLE vi = make_vi(&w->node, level, NULL, NULL);
    VIP_DESCRIPTOR *d = take_descriptor(&w->node, 1);
    char name[24];

    snprintf(name, sizeof name, "leaves%d", level);
    post_recv(&w->node, vi, d, NULL, 0);
    join_sides(w->side, &w->node, vi, &w->other, name);
    meet(w->side);
    if (w->side->number == 1) {
        MUST(VipDisconnect(vi));
        NO_ERROR(&w->node, 5, "E14 DISC-07");
    } else {
        EXPECT_RECV(vi, d, STATUS_FLUSHED_RECEIVE, "E14 DISC-05");
        CHECK_EQ(vi_state(vi), VIP_STATE_ERROR, "E14 DISC-05");
        NEXT_ERROR(&w->node, VIP_ERROR_CONN_LOST, vi, "E14 DISC-06");
        NO_ERROR(&w->node, 5, "E14 DISC-06");
        printf("row: E14 | %s | receiver | expected FLUSHED, async CONN_LOST, Error | observed FLUSHED, async "
               "CONN_LOST, Error\n", level_name(level));
    }
    meet(w->side);
    end_vi(vi);
    meet(w->side);
}

/* Of ten sends of which the third fails, the first two succeed and the rest takes no effect (DERR-20). */
static void third_of_ten(struct world *w)
{
    VIP_VI_HANDLE vi = make_vi(&w->node, VIP_SERVICE_RELIABLE_RECEPTION, NULL, NULL);
    size_t mark = w->node.used;
    VIP_DESCRIPTOR *d[10];
    unsigned char *buffer = take(&w->node, 1000);
    int i;

    join_sides(w->side, &w->node, vi, &w->other, "third");
    for (i = 0; i < 10; i++)
        d[i] = take_descriptor(&w->node, 1);
    if (w->side->number == 0) {
        memset(buffer, 0xEE, 1000);
        for (i = 0; i < 10; i++)
            post_recv(&w->node, vi, d[i], buffer + 100 * i, i == 2 ? 50 : 100); /* the third is too small */
        meet(w->side);
        EXPECT_RECV(vi, d[0], STATUS_RECEIVED, "DERR-20");
        EXPECT_RECV(vi, d[1], STATUS_RECEIVED, "DERR-20");
        EXPECT_RECV(vi, d[2], VIP_STATUS_DONE | LENGTH | VIP_STATUS_OP_RECEIVE, "DERR-20");
        for (i = 3; i < 10; i++)
            EXPECT_RECV(vi, d[i], STATUS_FLUSHED_RECEIVE, "DERR-20");
        CHECK(filled(buffer, 100, 0) && filled(buffer + 100, 100, 1), "DERR-20");
        CHECK(all_bytes(buffer + 250, 750, 0xEE), "DERR-20");
    } else {
        for (i = 0; i < 10; i++)
            fill(buffer + 100 * i, 100, (unsigned long)i);
        meet(w->side);
        for (i = 0; i < 10; i++)
            post_send(&w->node, vi, d[i], buffer + 100 * i, 100);
        EXPECT_SEND(vi, d[0], STATUS_SENT, "DERR-20");
        EXPECT_SEND(vi, d[1], STATUS_SENT, "DERR-20");
        EXPECT_SEND(vi, d[2], VIP_STATUS_DONE | REMOTE | VIP_STATUS_OP_SEND, "DERR-20");
        for (i = 3; i < 10; i++)
            EXPECT_SEND(vi, d[i], STATUS_FLUSHED_SEND, "DERR-20");
    }
    CHECK_EQ(vi_state(vi), VIP_STATE_ERROR, "DERR-20");
    NO_ERROR(&w->node, 20, "DERR-20");
    meet(w->side);
    end_vi(vi);
    w->node.used = mark;
    ok("side %d: of ten sends the third fails", w->side->number);
}

static void errors(struct side *side)
{
    const int count = (int)(sizeof rows / sizeof rows[0]);
    struct world w;
    int i, level;

    memset(&w, 0, sizeof w);
    w.side = side;
    open_node(&w.node, side->device, 1 << 20);
    MUST(VipCreatePtag(w.node.nic, &w.other_tag));
    w.other = swap_addresses(side, &w.node);
    for (level = 1; level <= 4; level *= 2) {
        if (!level_chosen(side, &w.node, level))
            continue;
        for (i = 0; i < count; i++) {
            if (applies(&w, &rows[i], level))
                run_row(&w, &rows[i], level, 100 * level + i);
        }
        refused_posts(&w, level);
        peer_leaves(&w, level);
        for (i = 0; i < (int)(sizeof out_of_reach / sizeof out_of_reach[0]); i++)
            if (side->number == 0)
                printf("row: %s | %s | both | not produced, needs %s\n", out_of_reach[i].id, level_name(level),
                       out_of_reach[i].needs);
        ok("side %d: level %d: %d rows", side->number, level, count);
    }
    if (level_chosen(side, &w.node, VIP_SERVICE_RELIABLE_RECEPTION))
        third_of_ten(&w);
    MUST(VipDestroyPtag(w.node.nic, w.other_tag));
    close_node(&w.node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, errors);
    return 0;
}
