/* What the test programs share: an opened NIC with one registered region, descriptors, VIs.
 * Included by common.h. */
#ifndef CTEST_NODE_H
#define CTEST_NODE_H

/* ---- asynchronous errors --------------------------------------------------------------------- */

struct errors {
    pthread_mutex_t lock;
    int count; /* noted so far */
    int seen;  /* asked for so far */
    VIP_ERROR_DESCRIPTOR list[256];
};

static inline void note_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    struct errors *errors = (struct errors *)context;

    pthread_mutex_lock(&errors->lock);
    if (errors->count < 256) /* no test expects more */
        errors->list[errors->count++] = *error;
    pthread_mutex_unlock(&errors->lock);
}

/* ---- a node ---------------------------------------------------------------------------------- */

struct node {
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES attributes;
    VIP_PROTECTION_HANDLE ptag;
    unsigned char *memory; /* one region for descriptors and buffers alike */
    size_t bytes, used;
    VIP_MEM_HANDLE handle;
    struct errors errors;
};

/* Whether a side that goes through all levels has to do with this one. */
static inline int level_chosen(const struct side *side, const struct node *node, int level)
{
    return (node->attributes.ReliabilityLevelSupport & level) == level &&
           (side->level == 0 || side->level == level);
}

/* The level of a test that goes through one level only. */
static inline int tested_level(const struct side *side)
{
    return side->level != 0 ? side->level : VIP_SERVICE_RELIABLE_DELIVERY;
}

/* Another level that the device has, or 0. */
static inline int other_level(const struct node *node, int level)
{
    int left = node->attributes.ReliabilityLevelSupport & ~level;

    return left & -left;
}

static inline int rdma_read_supported(const struct node *node, int level)
{
    return (node->attributes.RDMAReadSupport & level) == level;
}

static inline int level_supported(const struct node *node, int level)
{
    return (node->attributes.ReliabilityLevelSupport & level) == level;
}

static inline VIP_MEM_ATTRIBUTES mem_attributes(const struct node *node)
{
    VIP_MEM_ATTRIBUTES attributes;

    attributes.Ptag = node->ptag;
    attributes.EnableRdmaWrite = VIP_TRUE;
    attributes.EnableRdmaRead = node->attributes.RDMAReadSupport != 0;
    return attributes;
}

static inline VIP_MEM_HANDLE register_range(struct node *node, void *base, size_t bytes)
{
    VIP_MEM_ATTRIBUTES attributes = mem_attributes(node);
    VIP_MEM_HANDLE handle = 0;

    MUST(VipRegisterMem(node->nic, base, bytes, &attributes, &handle));
    CHECK(handle != 0, "MEM-09");
    return handle;
}

static inline void *map_pages(size_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(pages != MAP_FAILED, "mmap");
    return pages;
}

/* An extension, which another VIPL may not have. */
VIP_RETURN vipl_alloc(VIP_ULONG bytes, VIP_PVOID *address) __attribute__((weak));
VIP_RETURN vipl_free(VIP_PVOID address) __attribute__((weak));

/* With CTEST_MEMORY=library tests have their memory from vipl_alloc. */
static inline int library_memory(void)
{
    const char *memory = getenv("CTEST_MEMORY");

    return memory != NULL && strcmp(memory, "library") == 0;
}

static inline unsigned char *get_memory(size_t bytes)
{
    VIP_PVOID memory = NULL;

    if (!library_memory())
        return (unsigned char *)map_pages(bytes);
    MUST(vipl_alloc(bytes, &memory));
    return (unsigned char *)memory;
}

static inline void give_back(unsigned char *memory, size_t bytes)
{
    if (library_memory())
        MUST(vipl_free(memory));
    else
        CHECK_EQ(munmap(memory, bytes), 0, "munmap");
}

/* Opens a device, makes a tag, registers `bytes` of memory. */
static inline void open_node(struct node *node, const char *device, size_t bytes)
{
    memset(node, 0, sizeof *node);
    pthread_mutex_init(&node->errors.lock, NULL);
    CHECK_RETURN(VipOpenNic(device, &node->nic), VIP_SUCCESS, "NIC-01");
    CHECK(node->nic != NULL, "NIC-01");
    MUST(VipQueryNic(node->nic, &node->attributes));
    MUST(VipErrorCallback(node->nic, &node->errors, note_error));
    MUST(VipCreatePtag(node->nic, &node->ptag));
    node->memory = get_memory(bytes);
    node->bytes = bytes;
    node->handle = register_range(node, node->memory, bytes);
}

static inline void close_node(struct node *node)
{
    MUST(VipDeregisterMem(node->nic, node->memory, node->handle));
    MUST(VipDestroyPtag(node->nic, node->ptag));
    MUST(VipCloseNic(node->nic));
    give_back(node->memory, node->bytes);
}

/* Zeroed room in the node's region, aligned to 64 bytes; given back by `node->used = mark` only. */
static inline unsigned char *take(struct node *node, size_t bytes)
{
    unsigned char *room = node->memory + node->used;

    CHECK(node->used + bytes <= node->bytes, "room in the node's region");
    node->used += (bytes + 63) & ~(size_t)63;
    memset(room, 0, bytes);
    return room;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static inline unsigned char pattern_at(unsigned long seed, size_t i)
{
    return (unsigned char)((i * 131u + i / 251u + seed * 29u + 7u) & 0xff);
}

static inline void fill(void *buffer, size_t bytes, unsigned long seed)
{
    unsigned char *p = (unsigned char *)buffer;
    size_t i;

    for (i = 0; i < bytes; i++)
        p[i] = pattern_at(seed, i);
}

static inline int filled(const void *buffer, size_t bytes, unsigned long seed)
{
    const unsigned char *p = (const unsigned char *)buffer;
    size_t i;

    for (i = 0; i < bytes; i++)
        if (p[i] != pattern_at(seed, i))
            return 0;
    return 1;
}

static inline int all_bytes(const void *buffer, size_t bytes, int value)
{
    const unsigned char *p = (const unsigned char *)buffer;
    size_t i;

    for (i = 0; i < bytes; i++)
        if (p[i] != value)
            return 0;
    return 1;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

/* Both dialects have the same bytes (spec §2.6): these work in either. */
static inline VIP_CONTROL_SEGMENT *control(VIP_DESCRIPTOR *descriptor)
{
    return (VIP_CONTROL_SEGMENT *)(void *)descriptor;
}

static inline VIP_DATA_SEGMENT *segment(VIP_DESCRIPTOR *descriptor, unsigned index)
{
    return (VIP_DATA_SEGMENT *)(void *)((unsigned char *)descriptor + 32) + index;
}

static inline VIP_DESCRIPTOR *take_descriptor(struct node *node, unsigned segments)
{
    return (VIP_DESCRIPTOR *)(void *)take(node, 32 + 16 * (segments < 2 ? 2 : segments));
}

static inline void start_descriptor(VIP_DESCRIPTOR *descriptor, int operation)
{
    memset(descriptor, 0, sizeof *descriptor);
    control(descriptor)->Control = (VIP_UINT16)operation;
}

/* Appends a piece of local memory. */
static inline void add_data(VIP_DESCRIPTOR *descriptor, void *data, VIP_MEM_HANDLE handle, size_t bytes)
{
    VIP_DATA_SEGMENT *piece = segment(descriptor, control(descriptor)->SegCount++);

    /* A program of 32 bits stores half of it, and memory from malloc may have anything in the other half (spec 2.4). */
    piece->Data.AddressBits = ~(uint64_t)0;
    piece->Data.Address = data;
    piece->Handle = handle;
    piece->Length = (VIP_UINT32)bytes;
    control(descriptor)->Length += (VIP_UINT32)bytes;
}

/* Sets the remote range; comes before all data. */
static inline void add_remote(VIP_DESCRIPTOR *descriptor, uint64_t address, VIP_MEM_HANDLE handle)
{
    VIP_ADDRESS_SEGMENT *remote = (VIP_ADDRESS_SEGMENT *)(void *)segment(descriptor, 0);

    remote->Data.AddressBits = address;
    /* A program of 32 bits has done the same with the address of another one. */
    if (sizeof(void *) == 4 && getenv("CTEST_SECOND") == NULL)
        remote->Data.AddressBits |= ~(uint64_t)0 << 32;
    remote->Handle = handle;
    remote->Reserved = 0;
    control(descriptor)->SegCount = 1;
}

static inline void set_immediate(VIP_DESCRIPTOR *descriptor, VIP_UINT32 value)
{
    control(descriptor)->Control |= VIP_CONTROL_IMMEDIATE;
    control(descriptor)->ImmediateData = value;
}

/* Post one piece of the node's region: the everyday case. */
static inline void post_send(struct node *node, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor,
                             void *data, size_t bytes)
{
    start_descriptor(descriptor, VIP_CONTROL_OP_SENDRECV);
    if (bytes != 0)
        add_data(descriptor, data, node->handle, bytes);
    MUST(VipPostSend(vi, descriptor, node->handle));
}

static inline void post_recv(struct node *node, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor,
                             void *data, size_t bytes)
{
    start_descriptor(descriptor, VIP_CONTROL_OP_SENDRECV);
    if (bytes != 0)
        add_data(descriptor, data, node->handle, bytes);
    MUST(VipPostRecv(vi, descriptor, node->handle));
}

#define STATUS_SENT (VIP_STATUS_DONE | VIP_STATUS_OP_SEND)
#define STATUS_RECEIVED (VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE)
#define STATUS_WRITTEN (VIP_STATUS_DONE | VIP_STATUS_OP_RDMA_WRITE)
#define STATUS_READ (VIP_STATUS_DONE | VIP_STATUS_OP_RDMA_READ)
#define STATUS_FLUSHED_RECEIVE \
    (VIP_STATUS_DONE | VIP_STATUS_DESC_FLUSHED_ERROR | VIP_STATUS_OP_RECEIVE)
#define STATUS_FLUSHED_SEND (VIP_STATUS_DONE | VIP_STATUS_DESC_FLUSHED_ERROR | VIP_STATUS_OP_SEND)

/* The next descriptor of a queue, which must be this one, with this status. */
static inline void expect_taken(const char *file, int line, const char *id, const char *what,
                                VIP_RETURN code, VIP_DESCRIPTOR *found, VIP_DESCRIPTOR *expected,
                                unsigned long status)
{
    if (code != VIP_SUCCESS && code != VIP_DESCRIPTOR_ERROR)
        fail(file, line, id, what, "a completed descriptor", return_name((long)code));
    if (found != expected)
        fail(file, line, id, what, "the next descriptor in posting order",
             found == NULL ? "an empty queue" : "another descriptor");
    check_status(file, line, id, what, control(found)->Status, status);
    check_return(file, line, id, what, (long)code,
                 (long)(status & VIP_STATUS_ERROR_MASK ? VIP_DESCRIPTOR_ERROR : VIP_SUCCESS));
}

static inline VIP_RETURN send_wait(VIP_VI_HANDLE vi, VIP_DESCRIPTOR **found)
{
    *found = NULL;
    return VipSendWait(vi, PATIENCE, found);
}

static inline VIP_RETURN recv_wait(VIP_VI_HANDLE vi, VIP_DESCRIPTOR **found)
{
    *found = NULL;
    return VipRecvWait(vi, PATIENCE, found);
}

/* Waits for the head of the send or receive queue. */
#define EXPECT_SEND(vi, descriptor, status, id)                                             \
    do {                                                                                    \
        VIP_DESCRIPTOR *found_;                                                             \
        VIP_RETURN code_ = send_wait(vi, &found_);                                          \
        expect_taken(__FILE__, __LINE__, id, "VipSendWait", code_, found_, descriptor, status); \
    } while (0)
#define EXPECT_RECV(vi, descriptor, status, id)                                             \
    do {                                                                                    \
        VIP_DESCRIPTOR *found_;                                                             \
        VIP_RETURN code_ = recv_wait(vi, &found_);                                          \
        expect_taken(__FILE__, __LINE__, id, "VipRecvWait", code_, found_, descriptor, status); \
    } while (0)

/* ---- VIs ------------------------------------------------------------------------------------- */

static inline VIP_VI_ATTRIBUTES vi_attributes(const struct node *node, int level)
{
    VIP_VI_ATTRIBUTES attributes;

    memset(&attributes, 0, sizeof attributes);
    attributes.ReliabilityLevel = (VIP_RELIABILITY_LEVEL)level;
    attributes.MaxTransferSize = node->attributes.MaxTransferSize;
    attributes.Ptag = node->ptag;
    attributes.EnableRdmaWrite = VIP_TRUE;
    attributes.EnableRdmaRead = rdma_read_supported(node, level);
    return attributes;
}

static inline VIP_VI_HANDLE make_vi(struct node *node, int level, VIP_CQ_HANDLE send_cq,
                                    VIP_CQ_HANDLE recv_cq)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(node, level);
    VIP_VI_HANDLE vi = NULL;

    MUST(VipCreateVi(node->nic, &attributes, send_cq, recv_cq, &vi));
    CHECK(vi != NULL, "set-up");
    return vi;
}

static inline int vi_state(VIP_VI_HANDLE vi)
{
    VIP_VI_STATE state;
    VIP_VI_ATTRIBUTES attributes;
    VIP_BOOLEAN send_empty, recv_empty;

    MUST(VipQueryVi(vi, &state, &attributes, &send_empty, &recv_empty));
    return (int)state;
}

static inline void await_state(const char *file, int line, VIP_VI_HANDLE vi, int state, const char *id)
{
    double start = now_ms();

    while (vi_state(vi) != state) {
        if (now_ms() - start > (double)PATIENCE)
            check_number(file, line, id, "state of the VI", vi_state(vi), state);
        sleep_ms(1);
    }
    shows(id);
}
#define AWAIT_STATE(vi, state, id) await_state(__FILE__, __LINE__, vi, state, id)

/* Takes everything off both queues. */
static inline void drain(VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *descriptor;
    VIP_RETURN code;

    do {
        code = VipSendDone(vi, &descriptor);
        CHECK(code != VIP_NOT_DONE && code != VIP_INVALID_PARAMETER, "drain a flushed queue");
    } while (descriptor != NULL);
    do {
        code = VipRecvDone(vi, &descriptor);
        CHECK(code != VIP_NOT_DONE && code != VIP_INVALID_PARAMETER, "drain a flushed queue");
    } while (descriptor != NULL);
}

/* Disconnects, drains and destroys. */
static inline void end_vi(VIP_VI_HANDLE vi)
{
    MUST(VipDisconnect(vi));
    drain(vi);
    MUST(VipDestroyVi(vi));
}

#endif
