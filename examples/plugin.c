/* A VIPL plug-in: the device `example` connects processes of one host through memory that they share.
 *
 * Reliable Delivery with immediate data, no RDMA; with every check of spec 5.7 and error of 6.4 that it can meet.
 *
 * Compile:  cc -std=c99 -O2 -Wall -shared -fPIC -I../headers plugin.c -o libvipl_example.so
 * Use:      VIPL_PLUGIN_PATH=$PWD vip_pingpong --self -d example
 *
 * The library, called the host, owns handles, states, work queues, completion queues, waits, connecting, flushing and
 * asynchronous errors. A plug-in moves the bytes. The segment that the host gives at `attach` holds two lanes:
 *
 *   lane 0:  side 0 --> side 1     slots; `sent` is counted by the sender, `taken` by the receiver
 *   lane 1:  side 1 --> side 0
 *
 * Each word has one writer, so no lock is left held when a process is killed. What the peer writes may be anything:
 * it is read once and checked. */
#define _GNU_SOURCE 1
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "vipl_plugin.h"

#define MESSAGE_MAX 32768 /* the least that programs expect (spec 2.3) */
#define SLOTS 8           /* messages in transit in one direction; a power of two */

enum { OPEN, LEFT, BROKEN }; /* what has become of the sender of a lane */

struct slot {
    uint32_t length, immediate, flagged;
    unsigned char data[MESSAGE_MAX];
};

struct lane {
    uint32_t sent, closed; /* by the sender: messages put in; OPEN, LEFT or BROKEN, after the last one */
    unsigned char apart[56];
    uint32_t taken, apart_too[15]; /* by the receiver: messages taken out; on a cache line of its own */
    struct slot slots[SLOTS];
};

#define SEGMENT (2 * sizeof(struct lane))

/* This side of a connection: `vi->context` from attach to detach. */
struct link {
    struct lane *lanes, *out, *in;
    uint32_t sent, taken; /* our own counts; the shared copies are for the peer */
};

static const vipl_host *host;

static int is_connected(const vipl_vi *vi) { return vi->state == VIP_STATE_CONNECTED; }

/* Reports to the peer that an error has ended the connection. */
static void report_to_peer_if_broken(const vipl_vi *vi)
{
    const struct link *link = vi->context;

    if (!is_connected(vi))
        __atomic_store_n(&link->out->closed, BROKEN, __ATOMIC_RELEASE);
}

/* The send doorbell. Sends posted descriptors while there are free slots; `progress` continues when the peer has freed some. */
static void send_posted(vipl_vi *vi)
{
    struct link *link = vi->context;
    vipl_request request;
    struct slot *slot;

    request.size = sizeof request;
    /* a peer that lies about `taken` harms its own messages only */
    while (link->sent - __atomic_load_n(&link->out->taken, __ATOMIC_ACQUIRE) < SLOTS && host->next_send(vi, &request)) {
        slot = &link->out->slots[link->sent % SLOTS];
        if (request.operation != VIP_STATUS_OP_SEND) {
            host->refuse(vi, &vi->send, VIP_STATUS_FORMAT_ERROR | request.operation);
        } else if (host->gather(vi, &request, 0, slot->data, request.length)) {
            slot->length = request.length;
            slot->flagged = request.flagged;
            slot->immediate = request.immediate;
            __atomic_store_n(&link->out->sent, ++link->sent, __ATOMIC_RELEASE);
            host->complete(vi, &vi->send, VIP_STATUS_OP_SEND, 0, 0); /* the data has left the application's buffers */
        }
    }
    report_to_peer_if_broken(vi);
}

/* Takes all messages that have arrived. */
static void receive_arrived(vipl_vi *vi)
{
    struct link *link = vi->context;
    vipl_request request;

    request.size = sizeof request;
    while (is_connected(vi)) {
        uint32_t there = __atomic_load_n(&link->in->sent, __ATOMIC_ACQUIRE) - link->taken;
        const struct slot *slot = &link->in->slots[link->taken % SLOTS];
        uint32_t length = __atomic_load_n(&slot->length, __ATOMIC_RELAXED);
        uint32_t flag = slot->flagged ? VIP_STATUS_IMMEDIATE : 0;

        if (there == 0)
            return;
        if (there > SLOTS || length > MESSAGE_MAX) { /* no peer that follows the rules does that */
            host->fail(vi, VIP_ERROR_CONN_LOST, 0, NULL);
            return;
        }
        if (host->next_receive(vi, length, &request) && host->scatter(vi, &request, 0, slot->data, length))
            host->complete(vi, &vi->recv, VIP_STATUS_OP_RECEIVE | flag, length, slot->immediate);
        if (is_connected(vi))
            __atomic_store_n(&link->in->taken, ++link->taken, __ATOMIC_RELEASE);
    }
}

static void progress(vipl_vi *vi)
{
    const struct link *link = vi->context;
    uint32_t closed = __atomic_load_n(&link->in->closed, __ATOMIC_ACQUIRE); /* before the messages that precede it are taken */

    receive_arrived(vi);
    send_posted(vi);
    if (closed != OPEN && is_connected(vi))
        host->fail(vi, closed == LEFT ? VIPL_CAUSE_DISCONNECTED : VIP_ERROR_CONN_LOST, 0, NULL);
}

static int attach(vipl_vi *vi, const vipl_connection *connection)
{
    struct link *link = connection->segment_bytes < SEGMENT ? NULL : calloc(1, sizeof *link);
    void *memory;

    if (link == NULL)
        return VIPL_E_RESOURCE;
    memory = mmap(NULL, SEGMENT, PROT_READ | PROT_WRITE, MAP_SHARED, connection->segment_fd, 0);
    if (memory == MAP_FAILED) {
        free(link);
        return VIPL_E_RESOURCE;
    }
    madvise(memory, SEGMENT, MADV_DONTFORK); /* a forked child has no part in it */
    link->lanes = memory;
    link->out = &link->lanes[connection->side];
    link->in = &link->lanes[1 - connection->side];
    vi->context = link;
    return VIPL_OK;
}

/* No peer touches the memory of this process, so there is nothing to wait for. */
static void detach(vipl_vi *vi)
{
    struct link *link = vi->context;

    if (__atomic_load_n(&link->out->closed, __ATOMIC_RELAXED) == OPEN)
        __atomic_store_n(&link->out->closed, LEFT, __ATOMIC_RELEASE);
    munmap(link->lanes, SEGMENT);
    free(link);
    vi->context = NULL;
}

static int nic_open(const char *argument, vipl_nic *nic, vipl_nic_info *info)
{
    static const unsigned char address[6] = {0x02, 'e', 'x', 'm', 'p', 'l'}; /* one for all of this host */

    (void)nic;
    if (argument[0] != '\0')
        return VIPL_E_INVALID; /* this device has no variants */
    strcpy(info->name, "example");
    memcpy(info->address, address, sizeof address);
    info->address_len = sizeof address;
    info->reliability_support = VIP_SERVICE_RELIABLE_DELIVERY;
    info->register_bytes_max = info->register_block_max = (uint64_t)1 << 40; /* nothing is pinned */
    info->native_mtu = MESSAGE_MAX;
    info->transfer_max = MESSAGE_MAX;
    info->segment_bytes = SEGMENT;
    info->poll_us = 1000; /* the host calls `progress` while the application does not; a faster plug-in has a thread */
    return VIPL_OK;
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
    /* what is NULL is left out: the host has its own way */
    static const vipl_provider ops = {
        .size = sizeof ops, .device = device, .nic_open = nic_open, .attach = attach, .detach = detach,
        .post_send = send_posted, .progress = progress,
    };

    host = given; /* an older library has shorter tables than we know */
    memcpy(out, &ops, sizeof ops < out->size ? sizeof ops : out->size);
    return given->size < sizeof *given ? VIPL_E_NOT_SUPPORTED : VIPL_OK;
}

/* The one symbol of the file: data, which the host checks before any code above runs. */
const vipl_plugin vipl_plugin_v1 = {
    .magic = VIPL_PLUGIN_MAGIC, .size = sizeof(vipl_plugin), .fingerprint = VIPL_PLUGIN_FINGERPRINT,
    .abi_major = VIPL_PLUGIN_ABI_MAJOR, .abi_minor = VIPL_PLUGIN_ABI_MINOR, .kind = VIPL_KIND_PROVIDER,
    .name = "example", .version = "1.0", .init = init,
};
