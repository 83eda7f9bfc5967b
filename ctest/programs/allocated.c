/* Memory of vipl_alloc: what a peer's RDMA may do with it, to the byte and to the moment, although on loopback the peer has it mapped.
 * Side 0 is the target, side 1 the initiator, in two processes. */
#include "common.h"
#include "vipl_ext.h"

#define PAGES 16 /* of 4096 bytes: the target's memory */
#define BYTES ((size_t)PAGES * 4096)
#define ROUNDS 40

struct world {
    struct side *side;
    struct node node; /* side 1: memory of its own, not of vipl_alloc */
    address other;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *d;
    unsigned char *from;
    int connections;
};

/* A region as the initiator knows it. */
struct target {
    uint64_t at;
    VIP_MEM_HANDLE handle;
};

static unsigned char *allocate(size_t bytes)
{
    VIP_PVOID memory = NULL;

    MUST(vipl_alloc(bytes, &memory));
    CHECK(memory != NULL && (uintptr_t)memory % 4096 == 0, "vipl_alloc gives whole pages");
    return (unsigned char *)memory;
}

static VIP_MEM_HANDLE register_for(struct world *w, void *at, size_t bytes, int write, int read, VIP_PROTECTION_HANDLE tag)
{
    VIP_MEM_ATTRIBUTES attributes;
    VIP_MEM_HANDLE handle = 0;

    attributes.Ptag = tag;
    attributes.EnableRdmaWrite = write ? VIP_TRUE : VIP_FALSE;
    attributes.EnableRdmaRead = read && w->node.attributes.RDMAReadSupport != 0 ? VIP_TRUE : VIP_FALSE;
    MUST(VipRegisterMem(w->node.nic, at, bytes, &attributes, &handle));
    return handle;
}

static void publish(struct world *w, void *at, VIP_MEM_HANDLE handle)
{
    struct target target = {(uint64_t)(uintptr_t)at, handle};

    side_send(w->side, &target, sizeof target);
}

static struct target learn(struct world *w)
{
    struct target target;

    side_receive(w->side, &target, sizeof target);
    return target;
}

static void connect_again(struct world *w)
{
    char name[24];

    snprintf(name, sizeof name, "mem%d", w->connections++);
    w->vi = make_vi(&w->node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    join_sides(w->side, &w->node, w->vi, &w->other, name);
}

static void leave(struct world *w)
{
    meet(w->side);
    end_vi(w->vi);
    meet(w->side);
    forget_errors(&w->node);
}

/* The status with which an RDMA operation ends. */
static VIP_UINT32 rdma(struct world *w, int operation, struct target to, size_t bytes)
{
    VIP_DESCRIPTOR *found;

    start_descriptor(w->d, operation);
    add_remote(w->d, to.at, to.handle);
    add_data(w->d, w->from, w->node.handle, bytes);
    MUST(VipPostSend(w->vi, w->d, w->node.handle));
    send_wait(w->vi, &found);
    CHECK(found == w->d, "the descriptor comes back");
    return control(found)->Status;
}

/* What is not permitted breaks the connection and changes nothing. */
static void expect_refusal(struct world *w, int operation, struct target to, size_t bytes, const char *id)
{
    memset(w->from, 0xAB, bytes);
    rdma(w, operation, to, bytes); /* a write may count as sent: the loss is reported afterwards */
    AWAIT_STATE(w->vi, VIP_STATE_ERROR, id);
}

/* Mappings of memory of vipl_alloc that this process has for writing, or for reading only. */
static int mappings(int for_writing)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;

    CHECK(maps != NULL, "/proc/self/maps");
    while (fgets(line, sizeof line, maps) != NULL)
        if (strstr(line, "/memfd:vipl-memory") != NULL)
            count += (strstr(line, " rw-s ") != NULL) == for_writing;
    fclose(maps);
    return count;
}

static int maps_memory(const struct world *w)
{
    return strstr(w->side->device, "via_lo") != NULL || strstr(w->side->device, "loopback") != NULL;
}

/* The calls, without a NIC and with one. */
static void calls(struct world *w)
{
    unsigned char *memory = allocate(5000), *more = allocate(1);
    VIP_MEM_HANDLE first, second;
    VIP_PVOID none = NULL;

    CHECK(all_bytes(memory, 8192, 0), "vipl_alloc gives zeroes");
    CHECK_RETURN(vipl_alloc(0, &none), VIP_INVALID_PARAMETER, "no memory at all");
    CHECK_RETURN(vipl_alloc(4096, NULL), VIP_INVALID_PARAMETER, "nowhere to put the address");
    CHECK_RETURN(vipl_alloc(~(VIP_ULONG)0 / 4, &none), VIP_ERROR_RESOURCE, "more than there is");
    CHECK(none == NULL, "an address of nothing");
    CHECK_RETURN(vipl_free(memory + 4096), VIP_INVALID_PARAMETER, "inside");
    CHECK_RETURN(vipl_free(&none), VIP_INVALID_PARAMETER, "not of vipl_alloc");
    CHECK_RETURN(vipl_free(NULL), VIP_SUCCESS, "nothing to free");
    first = register_for(w, memory + 100, 50, 1, 1, w->node.ptag);
    second = register_for(w, memory, 8192, 0, 0, w->node.ptag);
    CHECK_RETURN(vipl_free(memory), VIP_ERROR_RESOURCE, "registered twice");
    MUST(VipDeregisterMem(w->node.nic, memory + 100, first));
    CHECK_RETURN(vipl_free(memory), VIP_ERROR_RESOURCE, "registered once");
    memset(memory, 1, 8192); /* still there */
    MUST(VipDeregisterMem(w->node.nic, memory, second));
    MUST(vipl_free(memory));
    CHECK_RETURN(vipl_free(memory), VIP_INVALID_PARAMETER, "freed twice");
    MUST(vipl_free(more));
    ok("side %d: what the calls take and refuse", w->side->number);
}

/* A region without EnableRdmaWrite is read and never written; on loopback it is mapped for reading only. */
static void read_only(struct world *w)
{
    unsigned char *memory = NULL;
    VIP_MEM_HANDLE handle = 0;
    struct target to;

    if (!rdma_read_supported(&w->node, VIP_SERVICE_RELIABLE_DELIVERY))
        return;
    connect_again(w);
    if (w->side->number == 0) {
        memory = allocate(BYTES);
        fill(memory, BYTES, 3);
        handle = register_for(w, memory, BYTES, 0, 1, w->node.ptag);
        publish(w, memory, handle);
    } else {
        to = learn(w);
        CHECK_STATUS(rdma(w, VIP_CONTROL_OP_RDMAREAD, to, BYTES / 2), STATUS_READ, "a read");
        CHECK(filled(w->from, BYTES / 2, 3), "a read");
        CHECK(!maps_memory(w) || mappings(0) == 1, "mapped for reading");
        expect_refusal(w, VIP_CONTROL_OP_RDMAWRITE, to, 100, "a write to a region without EnableRdmaWrite");
        CHECK_EQ(mappings(1), 0, "not mapped for writing");
    }
    meet(w->side);
    if (w->side->number == 0) {
        CHECK(filled(memory, BYTES, 3), "nothing was written");
        MUST(VipDeregisterMem(w->node.nic, memory, handle));
        MUST(vipl_free(memory));
    }
    leave(w);
    ok("side %d: a region that may be read only", w->side->number);
}

/* Writes to all of a region's bytes and none beside them, by its own tag only, and as its attributes are now. */
static void rights(struct world *w)
{
    enum { OUTSIDE, BEFORE, ANOTHER_TAG, TAKEN_BACK, CASES };
    static const char *const why[] = {"a byte behind the region", "a byte before the region", "a region of another tag",
                                      "EnableRdmaWrite taken back"};
    unsigned char *memory = NULL;
    VIP_PROTECTION_HANDLE tag = NULL;
    int i;

    if (w->side->number == 0) {
        memory = allocate(BYTES);
        MUST(VipCreatePtag(w->node.nic, &tag));
    }
    for (i = 0; i < CASES; i++) {
        connect_again(w);
        if (w->side->number == 0) {
            VIP_MEM_ATTRIBUTES attributes = mem_attributes(&w->node);
            VIP_MEM_HANDLE handle;

            memset(memory, 0xEE, BYTES);
            handle = register_for(w, memory + 5000, 9000, 1, 1, i == ANOTHER_TAG ? tag : w->node.ptag);
            publish(w, memory + 5000, handle);
            meet(w->side);
            attributes.Ptag = i == ANOTHER_TAG ? tag : w->node.ptag;
            attributes.EnableRdmaWrite = i == TAKEN_BACK ? VIP_FALSE : VIP_TRUE;
            MUST(VipSetMemAttributes(w->node.nic, memory + 5000, handle, &attributes));
            meet(w->side);
            meet(w->side);
            CHECK(all_bytes(memory, 5000, 0xEE), why[i]);
            if (i == ANOTHER_TAG)
                CHECK(all_bytes(memory + 5000, 9000, 0xEE), why[i]);
            else
                CHECK(filled(memory + 5000, 9000, (unsigned long)i), why[i]);
            CHECK(all_bytes(memory + 14000, BYTES - 14000, 0xEE), why[i]);
            MUST(VipDeregisterMem(w->node.nic, memory + 5000, handle));
        } else {
            struct target to = learn(w), wrong = to;

            fill(w->from, 9000, (unsigned long)i);
            if (i != ANOTHER_TAG)
                CHECK_STATUS(rdma(w, VIP_CONTROL_OP_RDMAWRITE, to, 9000), STATUS_WRITTEN, "all of the region");
            meet(w->side);
            meet(w->side);
            wrong.at += i == OUTSIDE ? 8990 : 0;
            wrong.at -= i == BEFORE ? 1 : 0;
            expect_refusal(w, VIP_CONTROL_OP_RDMAWRITE, wrong, 11, why[i]);
            meet(w->side);
        }
        leave(w);
    }
    if (w->side->number == 0) {
        MUST(VipDestroyPtag(w->node.nic, tag));
        MUST(vipl_free(memory));
    }
    ok("side %d: bounds, tags, and rights that are taken back", w->side->number);
}

/* The target deregisters in the middle of a stream. When that has returned no byte changes any more, whatever happens next to the
 * memory: it is used, or freed and allocated again. */
static void deregistered(struct world *w)
{
    static const size_t size[] = {8, 4096, BYTES};
    int round;

    for (round = 0; round < ROUNDS; round++) {
        size_t n = size[round % 3];

        if (n > w->node.attributes.MaxTransferSize)
            n = w->node.attributes.MaxTransferSize;
        connect_again(w);
        if (w->side->number == 0) {
            unsigned char *memory = allocate(BYTES);
            VIP_MEM_HANDLE handle = register_for(w, memory, BYTES, 1, 1, w->node.ptag), again;
            double start = now_ms();

            publish(w, memory, handle);
            while (__atomic_load_n(memory + n - 1, __ATOMIC_ACQUIRE) == 0)
                CHECK(now_ms() - start < (double)PATIENCE, "a stream of writes");
            for (start = now_ms(); now_ms() - start < round % 5 * 0.2;)
                ;
            MUST(VipDeregisterMem(w->node.nic, memory, handle));
            memset(memory, 0xEE, BYTES);
            if (round % 2 == 0) {
                MUST(vipl_free(memory));
                memory = allocate(BYTES);
                CHECK(all_bytes(memory, BYTES, 0), "new memory");
                memset(memory, 0xEE, BYTES);
            }
            again = register_for(w, memory, BYTES, 1, 1, w->node.ptag);
            AWAIT_STATE(w->vi, VIP_STATE_ERROR, "a write to what is not registered");
            CHECK(all_bytes(memory, BYTES, 0xEE), "a byte has changed after VipDeregisterMem");
            MUST(VipDeregisterMem(w->node.nic, memory, again));
            MUST(vipl_free(memory));
        } else {
            struct target to = learn(w);
            VIP_UINT32 i = 0;

            do
                memset(w->from, (int)(i++ % 200) + 1, n);
            while (rdma(w, VIP_CONTROL_OP_RDMAWRITE, to, n) == STATUS_WRITTEN && vi_state(w->vi) == VIP_STATE_CONNECTED);
            AWAIT_STATE(w->vi, VIP_STATE_ERROR, "a write to what is not registered");
        }
        leave(w);
    }
    ok("side %d: memory deregistered in the middle of a stream, %d times", w->side->number, ROUNDS);
}

/* A handle of memory that was freed names nothing of what is allocated next, at the same address or not. */
static void allocated_again(struct world *w)
{
    int round;

    for (round = 0; round < 3; round++) {
        connect_again(w);
        if (w->side->number == 0) {
            unsigned char *memory = allocate(BYTES), *next;
            VIP_MEM_HANDLE handle = register_for(w, memory, BYTES, 1, 1, w->node.ptag);

            publish(w, memory, handle);
            meet(w->side);
            CHECK(filled(memory, BYTES / 2, 7), "the first memory");
            MUST(VipDeregisterMem(w->node.nic, memory, handle));
            MUST(vipl_free(memory));
            next = allocate(BYTES);
            handle = register_for(w, next, BYTES, 1, 1, w->node.ptag);
            publish(w, next, handle);
            meet(w->side);
            CHECK(filled(next, BYTES / 2, 8), "the second memory");
            meet(w->side);
            CHECK(filled(next, BYTES / 2, 8), "not by the old handle");
            MUST(VipDeregisterMem(w->node.nic, next, handle));
            MUST(vipl_free(next));
        } else {
            struct target old = learn(w), to;

            fill(w->from, BYTES / 2, 7);
            CHECK_STATUS(rdma(w, VIP_CONTROL_OP_RDMAWRITE, old, BYTES / 2), STATUS_WRITTEN, "the first memory");
            meet(w->side);
            to = learn(w);
            fill(w->from, BYTES / 2, 8);
            CHECK_STATUS(rdma(w, VIP_CONTROL_OP_RDMAWRITE, to, BYTES / 2), STATUS_WRITTEN, "the second memory");
            meet(w->side);
            expect_refusal(w, VIP_CONTROL_OP_RDMAWRITE, old, 64, "a handle of freed memory");
            meet(w->side);
        }
        leave(w);
    }
    ok("side %d: memory freed and allocated again", w->side->number);
}

/* A forked child has nothing at the address, and cannot free it; its parent's transfers go on. */
static void forked(struct world *w)
{
    unsigned char *memory = NULL;
    VIP_MEM_HANDLE handle = 0;
    struct target to = {0, 0};

    connect_again(w);
    if (w->side->number == 0) {
        int status, access;

        memory = allocate(BYTES);
        handle = register_for(w, memory, BYTES, 1, 1, w->node.ptag);
        publish(w, memory, handle);
        meet(w->side);
        for (access = 0; access < 2; access++) {
            pid_t pid = fork_child();

            if (pid == 0) {
                signal(SIGSEGV, SIG_DFL);
                CHECK_RETURN(vipl_free(memory), VIP_INVALID_PARAMETER, "memory of the parent");
                if (access)
                    *(volatile unsigned char *)memory = 1;
                _exit(0);
            }
            CHECK_EQ(waitpid(pid, &status, 0), pid, "waitpid");
            if (access)
                CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "a child has nothing at the address");
            else
                CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child cannot free it");
        }
        CHECK(filled(memory, 4096, 1), "the parent's memory");
    } else {
        to = learn(w);
        fill(w->from, 4096, 1);
        CHECK_STATUS(rdma(w, VIP_CONTROL_OP_RDMAWRITE, to, 4096), STATUS_WRITTEN, "before a fork");
        meet(w->side);
    }
    meet(w->side);
    if (w->side->number == 1) {
        fill(w->from, 4096, 2);
        CHECK_STATUS(rdma(w, VIP_CONTROL_OP_RDMAWRITE, to, 4096), STATUS_WRITTEN, "after a fork");
    }
    meet(w->side);
    if (w->side->number == 0) {
        CHECK(filled(memory, 4096, 2), "after a fork");
        MUST(VipDeregisterMem(w->node.nic, memory, handle));
        MUST(vipl_free(memory));
    }
    leave(w);
    ok("side %d: a fork", w->side->number);
}

/* The target is killed in the middle of a stream: the initiator loses the connection and nothing else. */
static void killed(struct world *w)
{
    struct target to;
    pid_t victim = 0;
    int round;

    for (round = 0; round < 6; round++) {
        size_t n = round % 2 == 0 ? 64 : BYTES / 2;

        if (w->side->number == 0) { /* the victim takes the place of this side */
            pid_t pid = fork_child();
            int status;

            if (pid == 0) {
                unsigned char *memory;
                struct world own = *w;

                open_node(&own.node, w->side->device, 1 << 20);
                pid = getpid();
                side_send(w->side, &pid, sizeof pid);
                own.other = swap_addresses(w->side, &own.node);
                own.connections = 1000 + round;
                memory = allocate(BYTES);
                publish(&own, memory, register_for(&own, memory, BYTES, 1, 1, own.node.ptag));
                connect_again(&own);
                for (;;)
                    pause();
            }
            CHECK_EQ(waitpid(pid, &status, 0), pid, "waitpid");
            CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the victim");
        } else {
            struct world own = *w;
            double start = now_ms();

            side_receive(w->side, &victim, sizeof victim);
            own.other = swap_addresses(w->side, &w->node);
            own.connections = 1000 + round;
            to = learn(w);
            own.vi = NULL;
            connect_again(&own);
            while (rdma(&own, VIP_CONTROL_OP_RDMAWRITE, to, n) == STATUS_WRITTEN) {
                CHECK(now_ms() - start < (double)PATIENCE, "the end of a killed peer is reported");
                if (victim != 0 && now_ms() - start > 3.0 * round + 1.0) {
                    CHECK_EQ(kill(victim, SIGKILL), 0, "kill");
                    victim = 0;
                }
            }
            AWAIT_STATE(own.vi, VIP_STATE_ERROR, "a killed peer");
            end_vi(own.vi);
        }
        meet(w->side);
    }
    ok("side %d: a target killed in the middle of a stream", w->side->number);
}

static void allocated(struct side *side)
{
    struct world w;

    memset(&w, 0, sizeof w);
    w.side = side;
    MUST(vipl_free(allocate(1))); /* before the first NIC */
    open_node(&w.node, side->device, 1 << 20);
    w.other = swap_addresses(side, &w.node);
    w.d = take_descriptor(&w.node, 2);
    w.from = take(&w.node, BYTES);
    calls(&w);
    if (level_chosen(side, &w.node, VIP_SERVICE_RELIABLE_DELIVERY)) {
        read_only(&w);
        rights(&w);
        deregistered(&w);
        allocated_again(&w);
        forked(&w);
        killed(&w);
        forget_errors(&w.node);
    }
    close_node(&w.node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    options.one_process = 0;
    both_sides(&options, allocated);
    return 0;
}
