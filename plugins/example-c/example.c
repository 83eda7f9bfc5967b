/* A VIPL plug-in in plain C: the device `example`, which connects processes of one host through memory that
 * they share. It does the least that a plug-in must do, and it does that right:
 *
 *   - send and receive with immediate data on Reliable Delivery, messages of up to 32768 bytes
 *   - no RDMA: such a descriptor is a format error
 *   - every check of spec §5.7, every error of §6.4 that it can meet, orderly and disorderly ends
 *
 * Compile:  cc -std=c99 -O2 -Wall -shared -fPIC -pthread -I../../headers example.c -o libvipl_example.so
 * Use:      VIPL_PLUGIN_PATH=$PWD some-program example       (any program that lets you name the device)
 *
 * What the library does, and this file therefore does not: handles, states of VIs, the queues of posted
 * descriptors, completion queues, waits, connecting, flushing, telling the program about errors. What this
 * file does: move the bytes. Its picture of a connection, in the segment that the library gives at `attach`:
 *
 *   lane[0]:  side 0 ──▶ side 1     slots, `sent` counted by the sender, `taken` by the receiver
 *   lane[1]:  side 1 ──▶ side 0
 *
 * There are no locks between the processes: each word has one writer, so a process that is killed anywhere
 * leaves nothing held. What the partner writes is not trusted: it is read once and checked. */
#define _GNU_SOURCE 1
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "vipl_plugin.h"

#define MESSAGE_MAX 32768 /* the least that programs expect (spec §2.3) */
#define SLOTS 8           /* messages under way in one direction; a power of two */
#define SEGMENTS_MAX 252
#define VIS_MAX 1024

#define OPEN 0
#define LEFT 1   /* the partner has disconnected in good order */
#define BROKEN 2 /* an error on its side has broken the connection */

struct slot {
    uint32_t length, immediate, flagged, unused;
    unsigned char data[MESSAGE_MAX];
};

struct lane {
    uint32_t sent;       /* messages put in, by the sender */
    uint32_t closed;     /* OPEN, LEFT or BROKEN, by the sender, after its last message */
    unsigned char apart[56];
    uint32_t taken;      /* messages taken out, by the receiver; on a cache line of its own */
    unsigned char apart_too[60];
    struct slot slots[SLOTS];
};

struct shared {
    struct lane lane[2];
};

/* This side of a connection: `vi->context` from attach to detach. */
struct link {
    struct shared *shared;
    struct lane *out, *in;
    uint32_t sent, taken; /* our own counts; the shared copies are for the partner */
    int dead;             /* broken: nothing is to be done any more */
};

/* A descriptor, copied out of the program's memory once, checked and used as this copy. */
struct image {
    VIP_CONTROL_SEGMENT control;
    VIP_DATA_SEGMENT data[SEGMENTS_MAX];
};

/* One opening of the device: `nic->context`. */
struct nic {
    const vipl_nic *nic;
    pthread_t thread;
    int stop;
    unsigned char attached[VIS_MAX]; /* by the number of the VI */
};

static const vipl_host *host;

/* ---- the program's memory ---------------------------------------------------------------------- */

/* Copies within this process, by way of the kernel: program memory that is unmapped or read-only gives 0
 * instead of a fault (spec §10.4). A faster plug-in registers its own copy loop with host->guard. */
static int copy(void *to, const void *from, size_t bytes)
{
    struct iovec local, remote;

    local.iov_base = to, remote.iov_base = (void *)(uintptr_t)from;
    local.iov_len = remote.iov_len = bytes;
    return bytes == 0 || process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)bytes;
}

/* Whether this VI may use the range: inside the region that the handle names, and of the VI's tag. The
 * table may change at any time; an entry whose handle is the same before and after was read whole. */
static int permitted(const vipl_vi *vi, uint32_t handle, uint64_t base, uint64_t bytes)
{
    const vipl_region *region = &vi->nic->regions[handle & (vi->nic->region_count - 1)];
    uint64_t first, end;
    uint32_t tag;

    if (handle == 0 || __atomic_load_n(&region->handle, __ATOMIC_ACQUIRE) != handle)
        return 0;
    first = __atomic_load_n(&region->base, __ATOMIC_RELAXED);
    end = __atomic_load_n(&region->end, __ATOMIC_RELAXED);
    tag = (uint32_t)(__atomic_load_n(&region->access, __ATOMIC_RELAXED) >> 32);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (__atomic_load_n(&region->handle, __ATOMIC_RELAXED) != handle)
        return 0;
    if (base < first || base > end || bytes > end - base)
        return 0;
    return tag == vi->ptag || vi->ptag == VIPL_PTAG_ANY || tag == VIPL_PTAG_NONE;
}

/* ---- descriptors ------------------------------------------------------------------------------- */

/* Ends the connection. The partner hears of it through `closed`, the program through the library. */
static void fail(vipl_vi *vi, int cause, uint32_t operation, VIP_DESCRIPTOR *descriptor)
{
    struct link *link = vi->context;

    link->dead = 1;
    __atomic_store_n(&link->out->closed, BROKEN, __ATOMIC_RELEASE);
    host->fail(vi, cause, operation, descriptor);
}

/* The oldest descriptor of a queue that is not complete. */
static vipl_entry *oldest(const vipl_queue *queue)
{
    return &queue->entries[queue->completed & queue->mask];
}

/* Copies the oldest descriptor; 0 when its memory is gone, and with it the connection (E16). */
static int load(vipl_vi *vi, vipl_queue *queue, struct image *image)
{
    vipl_entry *entry = oldest(queue);
    uint64_t at = (uint64_t)(uintptr_t)entry->descriptor;
    int there = !(vi->nic->options & VIPL_OPTION_CHECK_DESCRIPTOR) || permitted(vi, entry->memory, at, 32);

    there = there && copy(&image->control, entry->descriptor, 32);
    if (there && image->control.SegCount <= SEGMENTS_MAX)
        there = copy(image->data, (const unsigned char *)entry->descriptor + 32, 16u * image->control.SegCount);
    if (!there)
        fail(vi, VIP_ERROR_COMP_PROT, queue->which ? VIP_STATUS_OP_RECEIVE : 0, entry->descriptor);
    return there;
}

/* Writes the result into the program's descriptor: everything else first, DONE last, as VIA hardware does. 0
 * when its memory is gone. Status is written twice: a copy by the kernel may go byte by byte, and a program
 * that polls must not see DONE before the rest. */
static int write_result(vipl_entry *entry, int which, uint32_t status, uint32_t length, uint32_t immediate)
{
    uint32_t result[3], done = status | VIP_STATUS_DONE;
    unsigned char *end = (unsigned char *)entry->descriptor + 32; /* the last words: immediate, length, status */

    result[0] = immediate, result[1] = length, result[2] = status;
    /* a send keeps what the program wrote */
    if (!(which == 1 ? copy(end - 12, result, 12) : copy(end - 4, &result[2], 4)))
        return 0;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    return copy(end - 4, &done, 4);
}

/* Completes the oldest descriptor. 0 when its memory is gone, and with it the connection (E16). */
static int complete(vipl_vi *vi, vipl_queue *queue, uint32_t status, uint32_t length, uint32_t immediate)
{
    vipl_entry *entry = oldest(queue);

    if (!write_result(entry, (int)queue->which, status, length, immediate)) {
        fail(vi, VIP_ERROR_COMP_PROT, status & VIP_STATUS_OP_MASK, entry->descriptor);
        return 0;
    }
    entry->status = status | VIP_STATUS_DONE;
    queue->completed++;
    if (queue->signal)
        host->completed(vi, queue);
    return 1;
}

/* A descriptor that cannot be processed: it tells why, and the connection ends (Reliable Delivery). */
static void refuse(vipl_vi *vi, vipl_queue *queue, uint32_t status)
{
    if (complete(vi, queue, status, 0, 0))
        fail(vi, VIPL_CAUSE_TOLD, 0, NULL);
}

/* Whether this VI may use the segments, as far as their first `bytes` bytes go. */
static int segments_permitted(const vipl_vi *vi, const struct image *image, uint64_t bytes)
{
    uint64_t piece;
    unsigned i;

    for (i = 0; i < image->control.SegCount; i++, bytes -= piece) {
        piece = image->data[i].Length < bytes ? image->data[i].Length : bytes;
        if (piece != 0 &&
            !permitted(vi, image->data[i].Handle, (uint64_t)(uintptr_t)image->data[i].Data.Address, piece))
            return 0;
    }
    return 1;
}

static uint64_t sum(const struct image *image)
{
    uint64_t bytes = 0;
    unsigned i;

    for (i = 0; i < image->control.SegCount; i++)
        bytes += image->data[i].Length;
    return bytes;
}

/* ---- sending ----------------------------------------------------------------------------------- */

/* The status bit of a send that breaks a rule, in the order of spec §5.7; 0: it is in order. */
static uint32_t fault_of_send(const vipl_vi *vi, const struct image *image)
{
    const VIP_CONTROL_SEGMENT *control = &image->control;

    if ((control->Control & (VIP_CONTROL_OP_MASK | VIP_CONTROL_RESERVED)) != VIP_CONTROL_OP_SENDRECV ||
        control->SegCount > SEGMENTS_MAX)
        return VIP_STATUS_FORMAT_ERROR;
    if (sum(image) != control->Length || control->Length > vi->max_transfer_size)
        return VIP_STATUS_LENGTH_ERROR;
    return segments_permitted(vi, image, UINT64_MAX) ? 0 : VIP_STATUS_PROTECTION_ERROR;
}

/* The VIP_STATUS_OP_* of what a send-queue descriptor asks for. */
static uint32_t operation_of(const struct image *image)
{
    static const uint32_t operation[4] = {VIP_STATUS_OP_SEND, VIP_STATUS_OP_RDMA_WRITE, VIP_STATUS_OP_RDMA_READ, 0};

    return operation[image->control.Control & VIP_CONTROL_OP_MASK];
}

/* Sends what is posted, as far as there is room. */
static void send_posted(vipl_vi *vi)
{
    struct link *link = vi->context;
    struct image image;
    struct slot *slot;
    uint32_t fault, at;
    unsigned i;

    while (!link->dead && vi->send.completed != vi->send.posted) {
        /* a partner that lies about `taken` only harms its own messages */
        if (link->sent - __atomic_load_n(&link->out->taken, __ATOMIC_ACQUIRE) >= SLOTS)
            return; /* `progress` goes on when the partner has taken some */
        if (!load(vi, &vi->send, &image))
            return;
        fault = fault_of_send(vi, &image);
        slot = &link->out->slots[link->sent % SLOTS];
        for (i = 0, at = 0; fault == 0 && i < image.control.SegCount; at += image.data[i++].Length)
            if (!copy(slot->data + at, image.data[i].Data.Address, image.data[i].Length))
                fault = VIP_STATUS_PROTECTION_ERROR;
        if (fault != 0) {
            refuse(vi, &vi->send, fault | operation_of(&image));
            return;
        }
        slot->length = image.control.Length;
        slot->flagged = (image.control.Control & VIP_CONTROL_IMMEDIATE) != 0;
        slot->immediate = slot->flagged || vi->nic->options & VIPL_OPTION_CARRY_IMMEDIATE
                              ? image.control.ImmediateData : 0;
        __atomic_store_n(&link->out->sent, ++link->sent, __ATOMIC_RELEASE);
        complete(vi, &vi->send, VIP_STATUS_OP_SEND, 0, 0); /* the data has left the program's buffers */
    }
}

/* ---- receiving --------------------------------------------------------------------------------- */

/* Puts one message into the oldest receive descriptor. */
static void receive(vipl_vi *vi, const struct slot *slot, uint32_t length)
{
    uint32_t immediate = slot->immediate, flagged = slot->flagged, at = 0, piece;
    struct image image;
    unsigned i;

    if (vi->recv.completed == vi->recv.posted) { /* E6 */
        fail(vi, VIP_ERROR_RECVQ_EMPTY, VIP_STATUS_OP_RECEIVE, NULL);
        return;
    }
    if (!load(vi, &vi->recv, &image))
        return;
    if ((image.control.Control & (VIP_CONTROL_OP_MASK | VIP_CONTROL_RESERVED)) != 0 ||
        image.control.SegCount > SEGMENTS_MAX) {
        refuse(vi, &vi->recv, VIP_STATUS_FORMAT_ERROR | VIP_STATUS_OP_RECEIVE);
        return;
    }
    /* a program may post more room than its region has, as long as its messages are short (spec §17) */
    if (!segments_permitted(vi, &image, vi->nic->options & VIPL_OPTION_CHECK_RECEIVE_WHOLE ? UINT64_MAX : length)) {
        refuse(vi, &vi->recv, VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_RECEIVE);
        return;
    }
    if (length > sum(&image)) {
        refuse(vi, &vi->recv, VIP_STATUS_LENGTH_ERROR | VIP_STATUS_OP_RECEIVE);
        return;
    }
    for (i = 0; at < length; i++, at += piece) {
        piece = image.data[i].Length < length - at ? image.data[i].Length : length - at;
        if (!copy(image.data[i].Data.Address, slot->data + at, piece)) {
            refuse(vi, &vi->recv, VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_RECEIVE);
            return;
        }
    }
    complete(vi, &vi->recv, VIP_STATUS_OP_RECEIVE | (flagged ? VIP_STATUS_IMMEDIATE : 0), length, immediate);
}

/* Takes all messages that have arrived. */
static void receive_arrived(vipl_vi *vi)
{
    struct link *link = vi->context;

    for (;;) {
        uint32_t there = __atomic_load_n(&link->in->sent, __ATOMIC_ACQUIRE) - link->taken;
        const struct slot *slot = &link->in->slots[link->taken % SLOTS];
        uint32_t length = __atomic_load_n(&slot->length, __ATOMIC_RELAXED);

        if (link->dead || there == 0)
            return;
        if (there > SLOTS || length > MESSAGE_MAX) { /* no partner of ours does that */
            fail(vi, VIP_ERROR_CONN_LOST, 0, NULL);
            return;
        }
        receive(vi, slot, length);
        if (!link->dead)
            __atomic_store_n(&link->in->taken, ++link->taken, __ATOMIC_RELEASE);
    }
}

/* ---- the operations ---------------------------------------------------------------------------- */

/* While the program is in no VIPL call somebody must still take messages: senders wait for room, and errors
 * are to be told. This thread looks at each connected VI a thousand times a second; a plug-in for real work
 * would sleep until it is woken. */
static void *keep_going(void *argument)
{
    static const struct timespec pause = {0, 1000000};
    struct nic *nic = argument;
    uint32_t i;

    while (!__atomic_load_n(&nic->stop, __ATOMIC_ACQUIRE)) {
        for (i = 0; i < VIS_MAX; i++)
            if (__atomic_load_n(&nic->attached[i], __ATOMIC_RELAXED))
                host->poll(nic->nic, i); /* locks the VI and calls `progress` */
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static int nic_open(const char *argument, vipl_nic *opened, vipl_nic_info *info)
{
    static const unsigned char address[6] = {0x02, 'e', 'x', 'm', 'p', 'l'}; /* one for all of this host */
    struct nic *nic;
    sigset_t all, before;
    int failed;

    if (argument[0] != '\0')
        return VIPL_E_INVALID; /* this device has no variants */
    strcpy(info->name, "example");
    memcpy(info->address, address, sizeof address);
    info->address_len = sizeof address;
    info->discriminator_max = 64;
    info->reliability_support = VIP_SERVICE_RELIABLE_DELIVERY;
    info->rdma_read_support = 0;
    info->register_bytes_max = info->register_block_max = (uint64_t)1 << 40; /* nothing is pinned */
    info->segments_max = SEGMENTS_MAX;
    info->vis_max = VIS_MAX;
    info->native_mtu = MESSAGE_MAX;
    info->transfer_max = MESSAGE_MAX;
    info->segment_bytes = sizeof(struct shared);

    nic = calloc(1, sizeof *nic);
    if (nic == NULL)
        return VIPL_E_RESOURCE;
    nic->nic = opened;
    sigfillset(&all); /* the program's signals are not for our thread, but faults that the library catches are */
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&nic->thread, NULL, keep_going, nic);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        free(nic);
        return VIPL_E_RESOURCE;
    }
    opened->context = nic;
    return VIPL_OK;
}

static void nic_close(vipl_nic *closed)
{
    struct nic *nic = closed->context;

    __atomic_store_n(&nic->stop, 1, __ATOMIC_RELEASE);
    pthread_join(nic->thread, NULL);
    free(nic);
}

/* Whether the thread is to look at this VI. */
static void set_attached(const vipl_vi *vi, int attached)
{
    struct nic *nic = vi->nic->context;

    __atomic_store_n(&nic->attached[vi->index], attached, __ATOMIC_RELAXED);
}

static int attach(vipl_vi *vi, const vipl_connection *connection)
{
    struct link *link = calloc(1, sizeof *link);
    void *memory;

    if (link == NULL || connection->segment_bytes < sizeof(struct shared)) {
        free(link);
        return VIPL_E_RESOURCE;
    }
    memory = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, connection->segment_fd, 0);
    if (memory == MAP_FAILED) {
        free(link);
        return VIPL_E_RESOURCE;
    }
    madvise(memory, sizeof(struct shared), MADV_DONTFORK); /* a forked child has no part in it */
    link->shared = memory;
    link->out = &link->shared->lane[connection->side];
    link->in = &link->shared->lane[1 - connection->side];
    vi->context = link;
    set_attached(vi, 1);
    return VIPL_OK;
}

/* No partner ever touches the memory of this process, so nothing is to be waited for. */
static void detach(vipl_vi *vi)
{
    struct link *link = vi->context;

    set_attached(vi, 0);
    if (!link->dead)
        __atomic_store_n(&link->out->closed, LEFT, __ATOMIC_RELEASE);
    munmap(link->shared, sizeof(struct shared));
    free(link);
    vi->context = NULL;
}

static void progress(vipl_vi *vi)
{
    struct link *link = vi->context;
    uint32_t closed;

    if (link->dead)
        return;
    closed = __atomic_load_n(&link->in->closed, __ATOMIC_ACQUIRE); /* before the look at what came before it */
    receive_arrived(vi);
    send_posted(vi);
    if (closed != OPEN && !link->dead)
        fail(vi, closed == LEFT ? VIPL_CAUSE_DISCONNECTED : VIP_ERROR_CONN_LOST, 0, NULL);
}

static void partner_gone(vipl_vi *vi, int orderly)
{
    struct link *link = vi->context;

    progress(vi);
    if (!link->dead)
        fail(vi, orderly ? VIPL_CAUSE_DISCONNECTED : VIP_ERROR_CONN_LOST, 0, NULL);
}

static void post_recv(vipl_vi *vi)
{
    (void)vi; /* messages are not held back for it: VIA has no flow control */
}

static int claim(const char *name, char *argument)
{
    argument[0] = '\0';
    return strcmp(name, "example") == 0 ? 10 : 0;
}

static int device(uint32_t number, char *name)
{
    if (number != 0)
        return VIPL_E_INVALID;
    strcpy(name, "example");
    return VIPL_OK;
}

static int init(const vipl_host *given, vipl_provider *out)
{
    vipl_provider ops;

    memset(&ops, 0, sizeof ops); /* what is NULL is not supported: the library puts its own in place */
    ops.size = sizeof ops;
    ops.claim = claim;
    ops.device = device;
    ops.nic_open = nic_open;
    ops.nic_close = nic_close;
    ops.attach = attach;
    ops.detach = detach;
    ops.partner_gone = partner_gone;
    ops.post_send = send_posted;
    ops.post_recv = post_recv;
    ops.progress = progress;
    host = given;
    memcpy(out, &ops, sizeof ops < out->size ? sizeof ops : out->size); /* an older library has a shorter table */
    return VIPL_OK;
}

/* The one symbol that a plug-in exports. It is data, and is checked before any code above runs. */
const vipl_plugin vipl_plugin_v1 = {
    .magic = VIPL_PLUGIN_MAGIC,
    .size = sizeof(vipl_plugin),
    .abi_major = VIPL_PLUGIN_ABI_MAJOR,
    .abi_minor = VIPL_PLUGIN_ABI_MINOR,
    .fingerprint = VIPL_PLUGIN_FINGERPRINT,
    .kind = VIPL_KIND_PROVIDER,
    .name = "example",
    .version = "1.0",
    .init = init,
};
