/* Receives with more room than their region has (COMPAT-19), as ARMCI posts them: 65472 bytes on a buffer of
 * 8 KB at the end of its region, for messages that are short. And memory attributes without a tag (COMPAT-20).
 * In the strict mode both are refused. */
#include "common.h"

#define REGION 32768
#define BEHIND 65536
#define UNTOUCHED 0xEE

struct world {
    struct side *side;
    struct node node;
    address other;
    VIP_DESCRIPTOR *in, *out;
    unsigned char *memory; /* REGION bytes that are registered, BEHIND bytes that are not */
    VIP_MEM_HANDLE handle;
    int level, number;
};

static VIP_VI_HANDLE connect_new(struct world *w)
{
    VIP_VI_HANDLE vi = make_vi(&w->node, w->level, NULL, NULL);
    char name[24];

    snprintf(name, sizeof name, "beyond%d", w->number++);
    join_sides(w->side, &w->node, vi, &w->other, name);
    return vi;
}

/* How a receive names its memory. */
enum shape { ONE_SEGMENT, TWO_SEGMENTS, SECOND_UNKNOWN, SHAPES };

/* One message of `bytes` bytes into a receive whose region has `room` bytes left. Gives the VI to go on with. */
static VIP_VI_HANDLE message(struct world *w, VIP_VI_HANDLE vi, size_t room, size_t bytes, enum shape shape)
{
    unsigned char *at = w->memory + REGION - room;
    size_t posted = w->node.attributes.MaxTransferSize;
    int good = bytes <= room && !strict_mode(), reliable = w->level != VIP_SERVICE_UNRELIABLE;
    const char *id = "COMPAT-19";

    if (w->side->number == 0) {
        memset(w->memory, UNTOUCHED, REGION + BEHIND);
        start_descriptor(w->in, VIP_CONTROL_OP_SENDRECV);
        if (shape == ONE_SEGMENT) {
            add_data(w->in, at, w->handle, posted < BEHIND ? posted : BEHIND);
        } else if (shape == TWO_SEGMENTS) {
            add_data(w->in, at, w->handle, room / 2);
            add_data(w->in, at + room / 2, w->handle, BEHIND);
        } else {
            add_data(w->in, at, w->handle, room);
            add_data(w->in, at + room, w->handle + 1000, BEHIND);
        }
        MUST(VipPostRecv(vi, w->in, w->node.handle));
        meet(w->side);
        if (good) {
            EXPECT_RECV(vi, w->in, STATUS_RECEIVED, id);
            CHECK_EQ(control(w->in)->Length, bytes, id);
            CHECK(filled(at, bytes, bytes), id);
            CHECK(all_bytes(at + bytes, room - bytes + BEHIND, UNTOUCHED), id);
        } else {
            EXPECT_RECV(vi, w->in, VIP_STATUS_DONE | VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_RECEIVE, id);
        }
        CHECK(all_bytes(w->memory + REGION, BEHIND, UNTOUCHED), id);
        CHECK(all_bytes(w->memory, REGION - room, UNTOUCHED), id);
    } else {
        fill(w->memory, bytes, bytes);
        meet(w->side);
        start_descriptor(w->out, VIP_CONTROL_OP_SENDRECV);
        add_data(w->out, w->memory, w->handle, bytes);
        MUST(VipPostSend(vi, w->out, w->node.handle));
        if (good || !reliable)
            EXPECT_SEND(vi, w->out, STATUS_SENT, id);
    }
    if (good || !reliable) {
        meet(w->side);
        CHECK_EQ(vi_state(vi), VIP_STATE_CONNECTED, id);
        meet(w->side);
        return vi;
    }
    AWAIT_STATE(vi, VIP_STATE_ERROR, id);
    meet(w->side);
    end_vi(vi);
    meet(w->side);
    return connect_new(w);
}

/* COMPAT-19: from nothing up to the end of the region, and beyond. */
static void receives(struct world *w)
{
    static const size_t rooms[] = {24, 300, 8000, 20000, 32000};
    VIP_VI_HANDLE vi = connect_new(w);
    size_t i, shape;

    for (shape = 0; shape < SHAPES; shape++)
        for (i = 0; i < sizeof rooms / sizeof rooms[0]; i++) {
            size_t room = rooms[i];

            if (!strict_mode()) {
                vi = message(w, vi, room, 0, (enum shape)shape);
                vi = message(w, vi, room, 1, (enum shape)shape);
                vi = message(w, vi, room, room / 2 + 1, (enum shape)shape);
                vi = message(w, vi, room, room, (enum shape)shape);
            }
            /* each of these ends the connection, on the reliable levels */
            if (i % SHAPES != shape && shape != ONE_SEGMENT)
                continue;
            vi = message(w, vi, room, i % 2 == 0 ? room + 1 : room + 700, (enum shape)shape);
            if (strict_mode())
                vi = message(w, vi, room, i % 2 == 0 ? 1 : 0, (enum shape)shape);
        }
    end_vi(vi);
    meet(w->side);
    sleep_ms(20);
    forget_errors(&w->node);
    ok("side %d: receives that reach beyond their region", w->side->number);
}

/* The data segments of a receive that takes immediate data of an RDMA Write are not touched, so nothing is wrong
 * with them, in either mode (spec §5.5). */
static void immediate(struct world *w)
{
    VIP_VI_HANDLE vi;
    uint64_t target = (uint64_t)(uintptr_t)w->memory;
    VIP_MEM_HANDLE theirs = w->handle;

    if (device_lacks("RDMA Write")) {
        ok("a device without RDMA Write");
        return;
    }
    vi = connect_new(w);
    if (w->side->number == 0) {
        memset(w->memory, UNTOUCHED, REGION + BEHIND);
        start_descriptor(w->in, VIP_CONTROL_OP_SENDRECV);
        add_data(w->in, w->memory + REGION - 100, w->handle, BEHIND);
        MUST(VipPostRecv(vi, w->in, w->node.handle));
        side_send(w->side, &target, sizeof target);
        side_send(w->side, &theirs, sizeof theirs);
        EXPECT_RECV(vi, w->in, VIP_STATUS_DONE | VIP_STATUS_OP_REMOTE_RDMA_WRITE | VIP_STATUS_IMMEDIATE, "RDMA-04");
        CHECK_EQ(control(w->in)->Length, 3000, "RDMA-03");
        CHECK(filled(w->memory, 3000, 9), "RDMA-05");
        CHECK(all_bytes(w->memory + 3000, REGION - 3000 + BEHIND, UNTOUCHED), "RDMA-04");
    } else {
        side_receive(w->side, &target, sizeof target);
        side_receive(w->side, &theirs, sizeof theirs);
        fill(w->memory, 3000, 9);
        start_descriptor(w->out, VIP_CONTROL_OP_RDMAWRITE);
        add_remote(w->out, target, theirs);
        add_data(w->out, w->memory, w->handle, 3000);
        set_immediate(w->out, 7);
        MUST(VipPostSend(vi, w->out, w->node.handle));
        EXPECT_SEND(vi, w->out, STATUS_WRITTEN, "RDMA-03");
    }
    meet(w->side);
    end_vi(vi);
    meet(w->side);
    ok("side %d: immediate data for such a receive", w->side->number);
}

/* COMPAT-20: attributes without a tag: every VI may use the region, with the RDMA that was asked for. */
static void attributes_without_tag(struct world *w)
{
    VIP_MEM_ATTRIBUTES attributes = mem_attributes(&w->node), found;
    unsigned char *memory = w->memory + REGION;
    VIP_MEM_HANDLE handle = 0, theirs;
    uint64_t target = (uint64_t)(uintptr_t)memory;
    VIP_VI_HANDLE vi;
    int writable;

    attributes.Ptag = NULL;
    if (strict_mode()) {
        CHECK_RETURN(VipRegisterMem(w->node.nic, memory, BEHIND, &attributes, &handle), VIP_INVALID_PTAG, "MEM-07");
        CHECK_RETURN(VipSetMemAttributes(w->node.nic, w->memory, w->handle, &attributes), VIP_INVALID_PTAG, "MEM-07");
        return;
    }
    for (writable = 0; writable < 2; writable++) {
        attributes.EnableRdmaWrite = writable ? VIP_TRUE : VIP_FALSE;
        CHECK_RETURN(VipRegisterMem(w->node.nic, memory, BEHIND, &attributes, &handle), VIP_SUCCESS, "COMPAT-20");
        MUST(VipQueryMem(w->node.nic, memory, handle, &found));
        CHECK(found.Ptag == NULL, "COMPAT-20");
        CHECK_EQ(found.EnableRdmaWrite, attributes.EnableRdmaWrite, "COMPAT-20");
        CHECK_EQ(found.EnableRdmaRead, attributes.EnableRdmaRead, "COMPAT-20");
        vi = connect_new(w); /* with a tag */
        start_descriptor(w->side->number ? w->out : w->in, VIP_CONTROL_OP_SENDRECV);
        add_data(w->side->number ? w->out : w->in, memory, handle, 5000);
        if (w->side->number == 0) {
            MUST(VipPostRecv(vi, w->in, w->node.handle));
            meet(w->side);
            EXPECT_RECV(vi, w->in, STATUS_RECEIVED, "COMPAT-20");
            CHECK(filled(memory, 5000, 3), "COMPAT-20");
        } else {
            fill(memory, 5000, 3);
            meet(w->side);
            MUST(VipPostSend(vi, w->out, w->node.handle));
            EXPECT_SEND(vi, w->out, STATUS_SENT, "COMPAT-20");
        }
        if (device_lacks("RDMA Write")) {
            ok("a device without RDMA Write");
        } else if (w->side->number == 0) {
            VIP_UINT32 status = VIP_STATUS_DONE | VIP_STATUS_OP_REMOTE_RDMA_WRITE;

            memset(memory, UNTOUCHED, BEHIND);
            post_recv(&w->node, vi, w->in, w->node.memory, 0);
            side_send(w->side, &target, sizeof target);
            side_send(w->side, &handle, sizeof handle);
            status |= writable ? VIP_STATUS_IMMEDIATE : VIP_STATUS_RDMA_PROT_ERROR;
            EXPECT_RECV(vi, w->in, status, "COMPAT-20");
            CHECK(writable ? filled(memory, 5000, 4) : all_bytes(memory, BEHIND, UNTOUCHED), "COMPAT-20");
        } else {
            side_receive(w->side, &target, sizeof target);
            side_receive(w->side, &theirs, sizeof theirs);
            fill(memory, 5000, 4);
            start_descriptor(w->out, VIP_CONTROL_OP_RDMAWRITE);
            add_remote(w->out, target, theirs);
            add_data(w->out, memory, handle, 5000);
            set_immediate(w->out, 1);
            MUST(VipPostSend(vi, w->out, w->node.handle));
            if (!writable && w->level != VIP_SERVICE_UNRELIABLE)
                AWAIT_STATE(vi, VIP_STATE_ERROR, "COMPAT-20");
            else
                EXPECT_SEND(vi, w->out, STATUS_WRITTEN, "COMPAT-20");
        }
        meet(w->side);
        end_vi(vi);
        MUST(VipDeregisterMem(w->node.nic, memory, handle));
        meet(w->side);
    }
    sleep_ms(20);
    forget_errors(&w->node);
    ok("side %d: attributes without a tag", w->side->number);
}

static void beyond(struct side *side)
{
    static const int levels[] = {VIP_SERVICE_UNRELIABLE, VIP_SERVICE_RELIABLE_DELIVERY, VIP_SERVICE_RELIABLE_RECEPTION};
    struct world w;
    int i;

    memset(&w, 0, sizeof w);
    w.side = side;
    open_node(&w.node, side->device, 1 << 20);
    w.other = swap_addresses(side, &w.node);
    w.in = take_descriptor(&w.node, 2);
    w.out = take_descriptor(&w.node, 2);
    w.memory = (unsigned char *)map_pages(REGION + BEHIND);
    w.handle = register_range(&w.node, w.memory, REGION);
    for (i = 0; i < 3; i++) {
        w.level = levels[i];
        if (!level_chosen(side, &w.node, w.level))
            continue;
        receives(&w);
        immediate(&w);
        attributes_without_tag(&w);
    }
    MUST(VipDeregisterMem(w.node.nic, w.memory, w.handle));
    munmap(w.memory, REGION + BEHIND);
    close_node(&w.node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, beyond);
    return 0;
}
