/* What transfers may touch (spec §10): exact bounds, tags, and memory that has gone away.
 *
 * Side 1 sends, side 0 receives, over an Unreliable connection, where a fault of one message leaves the
 * connection up: a good message follows every refused one. */
#include "common.h"

#define LARGE 40000

struct world {
    struct side *side;
    struct node node;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *out, *in;
    unsigned char *buffer; /* LARGE bytes of the node's region */
};

#define RECEIVE_REFUSED (VIP_STATUS_DONE | VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_RECEIVE)
#define SEND_REFUSED (VIP_STATUS_DONE | VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_SEND)

static void good_message(struct world *w, size_t bytes, const char *id)
{
    static int number;
    unsigned long seed = (unsigned long)atomic_add(&number, 1); /* shared between threads: any value */

    if (w->side->number == 1) {
        fill(w->buffer, bytes, seed);
        side_send(w->side, &seed, sizeof seed);
        meet(w->side);
        post_send(&w->node, w->vi, w->out, w->buffer, bytes);
        EXPECT_SEND(w->vi, w->out, STATUS_SENT, id);
    } else {
        side_receive(w->side, &seed, sizeof seed);
        memset(w->buffer, 0, bytes);
        post_recv(&w->node, w->vi, w->in, w->buffer, bytes);
        meet(w->side);
        EXPECT_RECV(w->vi, w->in, STATUS_RECEIVED, id);
        CHECK(filled(w->buffer, bytes, seed), id);
    }
    meet(w->side);
}

/* Side 0 has posted `w->in`, whose buffer cannot take the message that side 1 sends. */
static void refused_receive(struct world *w, size_t bytes, const char *id)
{
    meet(w->side);
    if (w->side->number == 1) {
        fill(w->buffer, bytes, 5);
        post_send(&w->node, w->vi, w->out, w->buffer, bytes);
        EXPECT_SEND(w->vi, w->out, STATUS_SENT, id);
    } else {
        EXPECT_RECV(w->vi, w->in, RECEIVE_REFUSED, id);
    }
    meet(w->side);
    good_message(w, 100, id);
    good_message(w, LARGE, id);
}

/* Side 1 sends a piece that it may not send; nothing of it reaches side 0, whose receive takes the good
 * message that follows. */
static void refused_send(struct world *w, void *data, VIP_MEM_HANDLE handle, size_t bytes, const char *id)
{
    if (w->side->number == 1) {
        meet(w->side);
        start_descriptor(w->out, VIP_CONTROL_OP_SENDRECV);
        add_data(w->out, data, handle, bytes);
        MUST(VipPostSend(w->vi, w->out, w->node.handle));
        EXPECT_SEND(w->vi, w->out, SEND_REFUSED, id);
        fill(w->buffer, 50, 17);
        post_send(&w->node, w->vi, w->out, w->buffer, 50);
        EXPECT_SEND(w->vi, w->out, STATUS_SENT, id);
    } else {
        memset(w->buffer, 0xEE, LARGE);
        post_recv(&w->node, w->vi, w->in, w->buffer, LARGE);
        meet(w->side);
        EXPECT_RECV(w->vi, w->in, STATUS_RECEIVED, id);
        CHECK_EQ(control(w->in)->Length, 50, id);
        CHECK(filled(w->buffer, 50, 17) && all_bytes(w->buffer + 50, LARGE - 50, 0xEE), id);
    }
    meet(w->side);
}

static void bounds(struct world *w)
{
    static const size_t sizes[] = {1, 64, 1000, LARGE - 200};
    unsigned char *base = w->buffer + 100;
    VIP_MEM_HANDLE exact, second;
    size_t i;

    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t n = sizes[i];

        exact = register_range(&w->node, base, n);
        second = register_range(&w->node, base + n, 50);
        refused_send(w, base, exact, n + 1, "MEM-18");
        refused_send(w, base - 1, exact, n, "MEM-18");
        refused_send(w, base, second, n, "MEM-18");
        refused_send(w, base, exact, n + 50, "MEM-19");
        if (w->side->number == 0) {
            memset(base - 1, 0xEE, n + 60);
            start_descriptor(w->in, VIP_CONTROL_OP_SENDRECV);
            add_data(w->in, base, exact, n + 1);
            MUST(VipPostRecv(w->vi, w->in, w->node.handle));
        }
        refused_receive(w, n + 1, "MEM-18");

        /* in two segments, each of its own region, it works */
        if (w->side->number == 1) {
            fill(base, n + 50, 9);
            start_descriptor(w->out, VIP_CONTROL_OP_SENDRECV);
            add_data(w->out, base, exact, n);
            add_data(w->out, base + n, second, 50);
            meet(w->side);
            MUST(VipPostSend(w->vi, w->out, w->node.handle));
            EXPECT_SEND(w->vi, w->out, STATUS_SENT, "MEM-19");
        } else {
            memset(base - 1, 0xEE, n + 60);
            start_descriptor(w->in, VIP_CONTROL_OP_SENDRECV);
            add_data(w->in, base, exact, n);
            add_data(w->in, base + n, second, 50);
            MUST(VipPostRecv(w->vi, w->in, w->node.handle));
            meet(w->side);
            EXPECT_RECV(w->vi, w->in, STATUS_RECEIVED, "MEM-19");
            CHECK(filled(base, n + 50, 9), "MEM-19");
            CHECK(base[-1] == 0xEE && base[n + 50] == 0xEE, "MEM-19");
        }
        MUST(VipDeregisterMem(w->node.nic, base, exact));
        MUST(VipDeregisterMem(w->node.nic, base + n, second));
        meet(w->side);
    }
    ok("side %d: exact bounds", w->side->number);
}

static void tags(struct world *w)
{
    VIP_MEM_ATTRIBUTES attributes = mem_attributes(&w->node);
    unsigned char *base = w->buffer + 100;
    VIP_PROTECTION_HANDLE other;
    VIP_MEM_HANDLE handle;

    MUST(VipCreatePtag(w->node.nic, &other));
    attributes.Ptag = other;
    MUST(VipRegisterMem(w->node.nic, base, 500, &attributes, &handle));
    refused_send(w, base, handle, 500, "MEM-20");
    if (w->side->number == 0) {
        start_descriptor(w->in, VIP_CONTROL_OP_SENDRECV);
        add_data(w->in, base, handle, 500);
        MUST(VipPostRecv(w->vi, w->in, w->node.handle));
    }
    refused_receive(w, 500, "MEM-20");

    attributes.Ptag = w->node.ptag;
    CHECK_RETURN(VipSetMemAttributes(w->node.nic, base, handle, &attributes), VIP_SUCCESS, "MEM-16");
    MUST(VipDestroyPtag(w->node.nic, other));
    if (w->side->number == 1) {
        fill(base, 500, 77);
        start_descriptor(w->out, VIP_CONTROL_OP_SENDRECV);
        add_data(w->out, base, handle, 500);
        meet(w->side);
        MUST(VipPostSend(w->vi, w->out, w->node.handle));
        EXPECT_SEND(w->vi, w->out, STATUS_SENT, "MEM-21");
    } else {
        start_descriptor(w->in, VIP_CONTROL_OP_SENDRECV);
        add_data(w->in, base, handle, 500);
        MUST(VipPostRecv(w->vi, w->in, w->node.handle));
        meet(w->side);
        EXPECT_RECV(w->vi, w->in, STATUS_RECEIVED, "MEM-21");
        CHECK(filled(base, 500, 77), "MEM-21");
    }
    MUST(VipDeregisterMem(w->node.nic, base, handle));
    meet(w->side);
    ok("side %d: tags", w->side->number);
}

static void deregistered(struct world *w)
{
    unsigned char *base = w->buffer + 100;
    VIP_MEM_HANDLE handle = register_range(&w->node, base, 2000);
    size_t n;

    MUST(VipDeregisterMem(w->node.nic, base, handle));
    refused_send(w, base, handle, 2000, "MEM-22");
    refused_send(w, base, 0, 2000, "DERR-07");
    refused_send(w, base, 0x7FFFFFFFu, 2000, "DERR-07");
    for (n = 64; n <= LARGE - 200; n += LARGE - 264) { /* a small and a large message */
        handle = register_range(&w->node, base, LARGE - 200);
        if (w->side->number == 0) {
            memset(base, 0xEE, LARGE - 200);
            start_descriptor(w->in, VIP_CONTROL_OP_SENDRECV);
            add_data(w->in, base, handle, LARGE - 200);
            MUST(VipPostRecv(w->vi, w->in, w->node.handle));
        }
        MUST(VipDeregisterMem(w->node.nic, base, handle));
        if (w->side->number == 0) {
            meet(w->side);
            EXPECT_RECV(w->vi, w->in, RECEIVE_REFUSED, "spec §10.5");
            CHECK(all_bytes(base, LARGE - 200, 0xEE), "spec §10.5: the memory is touched no more");
            meet(w->side);
        } else {
            meet(w->side);
            fill(w->buffer, n, 5);
            post_send(&w->node, w->vi, w->out, w->buffer, n);
            EXPECT_SEND(w->vi, w->out, STATUS_SENT, "spec §10.5");
            meet(w->side);
        }
        good_message(w, 100, "spec §10.5");
    }
    ok("side %d: deregistered buffers", w->side->number);
}

/* Takes memory away. Between threads it becomes inaccessible only, since another thread's next mapping
 * could come to lie in the hole. */
static void vanish(struct world *w, void *pages, size_t bytes)
{
    if (w->side->threads)
        CHECK_EQ(mprotect(pages, bytes, PROT_NONE), 0, "mprotect");
    else
        CHECK_EQ(munmap(pages, bytes), 0, "munmap");
}

/* Unmaps what is still there of memory whose end has vanished: what lies in the hole by now belongs to others, such as
 * the file that a layer reads for names of functions. */
static void unmap_rest(struct world *w, void *pages, size_t rest, size_t all)
{
    size_t bytes = w->side->threads ? all : rest;

    if (bytes > 0)
        CHECK_EQ(munmap(pages, bytes), 0, "munmap");
}

/* Memory that goes away after it was registered. */
static void unmapped(struct world *w)
{
    static const size_t sizes[] = {20, 4096, LARGE};
    const size_t room = 49152;
    unsigned char *pages;
    VIP_MEM_HANDLE handle;
    size_t i;

    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t n = sizes[i];

        /* receive into unmapped memory */
        pages = (unsigned char *)map_pages(room);
        handle = register_range(&w->node, pages, room);
        if (w->side->number == 0) {
            start_descriptor(w->in, VIP_CONTROL_OP_SENDRECV);
            add_data(w->in, pages, handle, room);
            MUST(VipPostRecv(w->vi, w->in, w->node.handle));
            vanish(w, pages, room);
        }
        refused_receive(w, n, "MEM-23");

        /* send from unmapped memory */
        if (w->side->number == 1)
            vanish(w, pages, room);
        refused_send(w, pages, handle, n, "spec §10.4");
        MUST(VipDeregisterMem(w->node.nic, pages, handle));
        unmap_rest(w, pages, 0, room);

        /* receive into memory of which only the beginning is there */
        pages = (unsigned char *)map_pages(room);
        handle = register_range(&w->node, pages, room);
        if (w->side->number == 0) {
            start_descriptor(w->in, VIP_CONTROL_OP_SENDRECV);
            add_data(w->in, pages + 4096 - 10, handle, room - 4096);
            MUST(VipPostRecv(w->vi, w->in, w->node.handle));
            vanish(w, pages + 4096, room - 4096);
        }
        refused_receive(w, n, "MEM-23");
        MUST(VipDeregisterMem(w->node.nic, pages, handle));
        unmap_rest(w, pages, w->side->number == 0 ? 4096 : room, room);
    }
    ok("side %d: memory that was taken away", w->side->number);
}

/* A large send of which the second half is not there: the send is refused, side 0 gets nothing, or learns
 * that it got a part (spec §6.2), and the connection lives on (E2). */
static void half_there(struct world *w)
{
    const size_t room = 49152;
    unsigned char *pages = (unsigned char *)map_pages(room);
    VIP_MEM_HANDLE handle = register_range(&w->node, pages, room);

    meet(w->side);
    if (w->side->number == 1) {
        vanish(w, pages + 24576, room - 24576);
        start_descriptor(w->out, VIP_CONTROL_OP_SENDRECV);
        add_data(w->out, pages, handle, LARGE);
        meet(w->side);
        MUST(VipPostSend(w->vi, w->out, w->node.handle));
        EXPECT_SEND(w->vi, w->out, SEND_REFUSED, "E2");
        fill(w->buffer, 50, 18);
        post_send(&w->node, w->vi, w->out, w->buffer, 50);
        EXPECT_SEND(w->vi, w->out, STATUS_SENT, "E2");
    } else {
        VIP_DESCRIPTOR *spare = take_descriptor(&w->node, 1), *last = w->in;

        post_recv(&w->node, w->vi, w->in, w->buffer, LARGE);
        post_recv(&w->node, w->vi, spare, w->buffer, LARGE);
        meet(w->side);
        if (VipRecvWait(w->vi, PATIENCE, &last) == VIP_DESCRIPTOR_ERROR && last == w->in) {
            CHECK_STATUS(control(last)->Status & VIP_STATUS_ERROR_MASK, VIP_STATUS_PARTIAL_ERROR, "spec §6.2");
            EXPECT_RECV(w->vi, spare, STATUS_RECEIVED, "E2");
            last = spare;
        } else {
            CHECK(last == w->in, "E2");
            CHECK_STATUS(control(last)->Status, STATUS_RECEIVED, "E2");
        }
        CHECK_EQ(control(last)->Length, 50, "E2");
        CHECK(filled(w->buffer, 50, 18), "E2");
    }
    CHECK_EQ(vi_state(w->vi), VIP_STATE_CONNECTED, "E2");
    MUST(VipDeregisterMem(w->node.nic, pages, handle));
    unmap_rest(w, pages, w->side->number == 1 ? 24576 : room, room);
    meet(w->side);
    ok("side %d: memory of which half is there", w->side->number);
}

static void read_only(struct world *w)
{
    static const size_t sizes[] = {20, LARGE};
    const size_t room = 40960;
    unsigned char *pages;
    VIP_MEM_HANDLE handle;
    size_t i;

    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t n = sizes[i];

        pages = (unsigned char *)map_pages(room);
        fill(pages, room, 31);
        CHECK_EQ(mprotect(pages, room, PROT_READ), 0, "mprotect");
        handle = register_range(&w->node, pages, room); /* may be registered */
        if (w->side->number == 0) {
            start_descriptor(w->in, VIP_CONTROL_OP_SENDRECV);
            add_data(w->in, pages, handle, room);
            MUST(VipPostRecv(w->vi, w->in, w->node.handle));
        }
        refused_receive(w, n, "spec §3.17: receive into a read-only mapping");
        CHECK(filled(pages, room, 31), "spec §3.17");

        /* sending from it works */
        if (w->side->number == 1) {
            start_descriptor(w->out, VIP_CONTROL_OP_SENDRECV);
            add_data(w->out, pages, handle, n);
            meet(w->side);
            MUST(VipPostSend(w->vi, w->out, w->node.handle));
            EXPECT_SEND(w->vi, w->out, STATUS_SENT, "spec §3.17");
        } else {
            post_recv(&w->node, w->vi, w->in, w->buffer, LARGE);
            meet(w->side);
            EXPECT_RECV(w->vi, w->in, STATUS_RECEIVED, "spec §3.17");
            CHECK(filled(w->buffer, n, 31), "spec §3.17");
        }
        MUST(VipDeregisterMem(w->node.nic, pages, handle));
        munmap(pages, room);
        meet(w->side);
    }
    ok("side %d: read-only memory", w->side->number);
}

/* Memory of every sort can be sent from and received into. */
static void sorts_of_memory(struct world *w)
{
    static unsigned char data[3000];
    unsigned char stack[3000], *heap = (unsigned char *)malloc(3000);
    unsigned char *shared = (unsigned char *)mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                                                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    unsigned char *piece[4];
    VIP_MEM_HANDLE handle[4];
    VIP_DESCRIPTOR *d = take_descriptor(&w->node, 4);
    int i;

    CHECK(heap != NULL && shared != MAP_FAILED, "set-up");
    piece[0] = data + 1500 * w->side->number; /* one variable for both sides when they are threads */
    piece[1] = stack;
    piece[2] = heap;
    piece[3] = shared;
    start_descriptor(d, VIP_CONTROL_OP_SENDRECV);
    for (i = 0; i < 4; i++) {
        memset(piece[i], 0, 1500);
        if (w->side->number == 1)
            fill(piece[i], 1500, (unsigned long)i);
        handle[i] = register_range(&w->node, piece[i], 1500);
        add_data(d, piece[i], handle[i], 1500);
    }
    if (w->side->number == 1) {
        meet(w->side);
        MUST(VipPostSend(w->vi, d, w->node.handle));
        EXPECT_SEND(w->vi, d, STATUS_SENT, "MEM-04");
    } else {
        MUST(VipPostRecv(w->vi, d, w->node.handle));
        meet(w->side);
        EXPECT_RECV(w->vi, d, STATUS_RECEIVED, "MEM-04");
        for (i = 0; i < 4; i++)
            CHECK(filled(piece[i], 1500, (unsigned long)i), "MEM-04");
    }
    for (i = 0; i < 4; i++)
        MUST(VipDeregisterMem(w->node.nic, piece[i], handle[i]));
    meet(w->side);
    free(heap);
    munmap(shared, 4096);
    ok("side %d: stack, heap, data and shared memory", w->side->number);
}

static void memory(struct side *side)
{
    struct world w;
    address other;

    memset(&w, 0, sizeof w);
    w.side = side;
    open_node(&w.node, side->device, 1 << 20);
    other = swap_addresses(side, &w.node);
    w.out = take_descriptor(&w.node, 4);
    w.in = take_descriptor(&w.node, 4);
    w.buffer = take(&w.node, LARGE);
    w.vi = make_vi(&w.node, VIP_SERVICE_UNRELIABLE, NULL, NULL);
    join_sides(side, &w.node, w.vi, &other, "memory");

    bounds(&w);
    tags(&w);
    deregistered(&w);
    read_only(&w);
    sorts_of_memory(&w);
    if (!device_lacks("memory that may be unmapped while it is registered")) {
        unmapped(&w);
        half_there(&w);
    }
    NO_ERROR(&w.node, 50, "everything was told by descriptors");
    meet(side);
    end_vi(w.vi);
    close_node(&w.node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, memory);
    return 0;
}
