/* The engine of mp.
 *
 *   eager        Up to EAGER bytes are copied into a registered slot, sent, and copied out of the receiver's slot. Each rank has posted
 *                CREDITS slots for every other one, and VIA has no flow control: a sender counts the slots that it may still use (its
 *                credits) and gets them back in the heads of messages, or in a message of their own if there are none.
 *   rendezvous   A longer message is announced (ASK). When the receiver has found its buffer it says where that is (GO); the sender
 *                writes there by RDMA, and DONE follows the data on the same VI. No byte is copied by this code.
 *   progress     One completion queue reports what arrives from all ranks. Nothing else is waited for: sends complete in order, and
 *                are taken back when their slots are needed.
 */

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <vipl.h>
#include <vipl_ext.h>
#include "cache.h"
#include "mp.h"

enum {
    EAGER = 4096,        /* longest message that is copied */
    CREDITS = 32,        /* slots that a rank may fill at a peer */
    SPARE = 3,           /* further ones for messages that only return credits: one for each half of CREDITS, and one on its way */
    SLOTS = CREDITS + SPARE,
    SENDS = 64,          /* sends in progress at a time, to one peer */
    WRITES = 4,          /* of these, RDMA Writes: more wait in the device, and messages behind them */
    PATIENCE = 60,       /* seconds for all ranks to appear */
    RANKS_MAX = 4096     /* three hexadecimal digits of a discriminator */
};

enum kind { DATA, ASK, GO, DONE, CREDIT };

/* What a message begins with: 16 bytes, so that with 8 of data a message is one cache line on its way. */
typedef struct {
    uint16_t kind, credits; /* credits that it returns */
    int32_t tag;
    uint32_t bytes;         /* of the whole message, ASK and DATA; of the receiver's room, GO */
    uint32_t id;            /* of the request at the sender; at the receiver, DONE */
} head;

/* The rest of GO. */
typedef struct {
    uint64_t at;
    uint32_t memory, id; /* of the request at the receiver */
} place;

/* A slot of registered memory, for one message or one RDMA Write. */
typedef struct {
    _Alignas(VIP_DESCRIPTOR_ALIGNMENT) VIP_DESCRIPTOR d;
    head h;
    char data[EAGER];
    mp_request *writes; /* the request whose data this one writes */
} slot;

/* A message that has no credit yet, or that no receive has matched yet. */
typedef struct packet {
    struct packet *next;
    int source;
    size_t bytes; /* of the data here */
    head h;
    char data[];
} packet;

struct mp_request {
    mp_request *next; /* in one list at a time */
    char *data;
    size_t bytes;     /* of the message; of the room of a receive */
    size_t posted;    /* bytes whose RDMA Writes are posted */
    int unfinished;   /* of these */
    int peer, tag;    /* MP_ANY in a receive */
    uint32_t id;
    place to;         /* where GO wants the data */
    int region;       /* of the registration cache */
    int done;
    mp_status status;
};

/* Lists in order of arrival; `end` points to the last link. */
typedef struct { mp_request *first, **end; } requests;
typedef struct { packet *first, **end; } packets;
#define CLEAR(list) ((list)->end = &(list)->first, (list)->first = NULL)
#define APPEND(list, item) ((item)->next = NULL, *(list)->end = (item), (list)->end = &(item)->next)
#define REMOVE(list, link) \
    ((list)->end = (list)->end == &(*(link))->next ? (link) : (list)->end, *(link) = (*(link))->next)

typedef struct {
    VIP_VI_HANDLE vi;
    slot *receives, *sends;
    VIP_MEM_HANDLE memory;
    int credits, owed;            /* what may be sent; slots that it may fill again, which it does not know yet */
    unsigned posted, taken;       /* sends, in all */
    packets held;            /* messages without a credit */
    requests asking;      /* sends that wait for GO */
    requests writing;     /* sends whose RDMA Writes are being posted, one after the other */
    requests filling;     /* receives that wait for DONE */
} peer;

static struct {
    VIP_NIC_HANDLE nic;
    VIP_PROTECTION_HANDLE tag;
    VIP_NIC_ATTRIBUTES attributes;
    VIP_CQ_HANDLE cq;
    int rank, size, finishing, leaving;
    peer *peers, *last; /* the one that a message came from last */
    uint32_t next_id;
    int writing;        /* sends of all peers that have GO and are not complete */
    requests receives; /* that nothing has matched */
    packets unexpected;
} mp;

void mp_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "rank %d: ", mp.rank);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(1);
}

void mp_must(VIP_RETURN result, const char *call)
{
    if (result != VIP_SUCCESS)
        mp_fail("%s:\n    %s", call, vipl_strerror((int)result));
}

static void *allocate(size_t bytes)
{
    size_t unit = VIP_DESCRIPTOR_ALIGNMENT; /* of slots */
    void *memory = aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
    if (memory == NULL)
        mp_fail("no memory for %zu bytes", bytes);
    return memory;
}

int mp_rank(void) { return mp.rank; }
int mp_size(void) { return mp.size; }

/* ---- sending ------------------------------------------------------------------------------------------------ */

/* A connection has ended. A rank that finishes leaves when it knows that all others finish, too, so a rank that sees it leave
 * knows as much and waits no longer: what the other had still to say may be lost. */
static void gone(peer *p)
{
    mp_request *r;

    if (!mp.finishing)
        mp_fail("rank %d has gone", (int)(p - mp.peers));
    mp.leaving = 1;
    for (r = mp.receives.first; r != NULL; r = r->next)
        r->done = 1;
    CLEAR(&mp.receives);
}

/* A send is complete when all that it has posted is. */
static void end_write(mp_request *r)
{
    if (--r->unfinished > 0 || r->posted < r->bytes)
        return;
    cache_release(r->region);
    mp.writing--;
    r->done = 1;
}

/* Takes back the oldest send, if it is complete. */
static int reap(peer *p)
{
    VIP_DESCRIPTOR *d;
    VIP_RETURN result = VipSendDone(p->vi, &d);
    slot *s = (slot *)d;

    if (result == VIP_NOT_DONE)
        return 0;
    if (result != VIP_SUCCESS)
        gone(p);
    p->taken++;
    if (s->writes != NULL)
        end_write(s->writes);
    return 1;
}

static slot *next_slot(peer *p)
{
    while (p->posted - p->taken == SENDS)
        reap(p);
    return &p->sends[p->posted % SENDS];
}

static void post(peer *p, slot *s, mp_request *writes)
{
    s->writes = writes;
    s->d.CS.Status = 0;
    MUST(VipPostSend(p->vi, &s->d, p->memory));
    p->posted++;
}

/* Sends a message to a rank that has a slot for it. */
static void post_message(peer *p, const head *h, const void *data, size_t bytes)
{
    slot *s = next_slot(p);
    s->h = *h;
    s->h.credits = (uint16_t)p->owed;
    p->owed = 0;
    memcpy(s->data, data, bytes);
    s->d.CS.Control = VIP_CONTROL_OP_SENDRECV;
    s->d.CS.SegCount = 1;
    s->d.CS.Length = s->d.DS[0].Local.Length = (VIP_UINT32)(sizeof *h + bytes);
    s->d.DS[0].Local.Data.Address = &s->h;
    s->d.DS[0].Local.Handle = p->memory;
    post(p, s, NULL);
}

static packet *keep(int source, const head *h, const void *data, size_t bytes)
{
    packet *kept = allocate(sizeof *kept + bytes);
    kept->source = source;
    kept->bytes = bytes;
    kept->h = *h;
    memcpy(kept->data, data, bytes);
    return kept;
}

/* The same with a credit; without one it waits for its turn. */
static void transmit(peer *p, const head *h, const void *data, size_t bytes)
{
    if (p->credits > 0 && p->held.first == NULL) {
        p->credits--;
        post_message(p, h, data, bytes);
    } else {
        packet *waiting = keep(mp.rank, h, data, bytes);
        APPEND(&p->held, waiting);
    }
}

static void send_held(peer *p)
{
    while (p->credits > 0 && p->held.first != NULL) {
        packet *waiting = p->held.first;
        p->credits--;
        post_message(p, &waiting->h, waiting->data, waiting->bytes);
        REMOVE(&p->held, &p->held.first);
        free(waiting);
    }
}

/* Posts the next part of a peer's rendezvous data; DONE follows the last byte. */
static void write_data(peer *p)
{
    mp_request *r;

    while (p->posted != p->taken && reap(p))
        continue;
    while ((r = p->writing.first) != NULL && p->posted - p->taken < WRITES) {
        size_t left = r->bytes - r->posted, most = mp.attributes.MaxTransferSize;
        VIP_UINT32 bytes = (VIP_UINT32)(left < most ? left : most);
        slot *s = next_slot(p);

        s->d.CS.Control = VIP_CONTROL_OP_RDMAWRITE;
        s->d.CS.SegCount = 2;
        s->d.CS.Length = s->d.DS[1].Local.Length = bytes;
        s->d.DS[0].Remote.Data.AddressBits = r->to.at + r->posted;
        s->d.DS[0].Remote.Handle = r->to.memory;
        s->d.DS[1].Local.Data.Address = r->data + r->posted;
        s->d.DS[1].Local.Handle = cache_handle(r->region);
        r->posted += bytes;
        r->unfinished++;
        post(p, s, r);
        if (r->posted == r->bytes) {
            head h = {DONE, 0, 0, 0, r->to.id};
            REMOVE(&p->writing, &p->writing.first);
            transmit(p, &h, NULL, 0);
        }
    }
}

/* ---- receiving ---------------------------------------------------------------------------------------------- */

static int fits(const mp_request *r, int source, int tag)
{
    return (r->peer == source || r->peer == MP_ANY) && (r->tag == tag || (r->tag == MP_ANY && tag >= 0));
}

/* A receive has found its message: takes the data of DATA, or asks for those of ASK. */
static void take(mp_request *r, int source, const head *h, const void *data)
{
    peer *p = &mp.peers[source];

    if (h->bytes > r->bytes)
        mp_fail("a message of %u bytes from rank %d, tag %d, for a receive of %zu", (unsigned)h->bytes, source, (int)h->tag,
                r->bytes);
    r->status.source = source;
    r->status.tag = h->tag;
    r->status.bytes = h->bytes;
    if (h->kind == DATA) {
        memcpy(r->data, data, h->bytes);
        r->done = 1;
    } else {
        head answer = {GO, 0, 0, 0, h->id};
        place here;
        r->region = cache_use(r->data, h->bytes);
        r->id = mp.next_id++;
        here.at = (uint64_t)(uintptr_t)r->data;
        here.memory = cache_handle(r->region);
        here.id = r->id;
        APPEND(&p->filling, r);
        transmit(p, &answer, &here, sizeof here);
    }
}

/* A message that can be received now. */
static void offer(int source, const head *h, const void *data)
{
    mp_request **link, *r;
    packet *kept;

    for (link = &mp.receives.first; (r = *link) != NULL; link = &r->next)
        if (fits(r, source, h->tag)) {
            REMOVE(&mp.receives, link);
            take(r, source, h, data);
            return;
        }
    /* Its slot is needed: a rank that never receives needs memory, but keeps no other waiting. */
    kept = keep(source, h, data, h->kind == DATA ? h->bytes : 0);
    APPEND(&mp.unexpected, kept);
}

/* Takes the request with this number out of a list of a peer. */
static mp_request *find(peer *p, requests *list, uint32_t id)
{
    mp_request **link, *r;

    for (link = &list->first; (r = *link) != NULL; link = &r->next)
        if (r->id == id) {
            REMOVE(list, link);
            return r;
        }
    mp_fail("rank %d speaks of a message that does not exist", (int)(p - mp.peers));
}

static void post_receive(peer *p, slot *s)
{
    s->d.CS.Length = sizeof(head) + EAGER;
    s->d.CS.Status = 0;
    MUST(VipPostRecv(p->vi, &s->d, p->memory));
}

/* What has arrived in a slot; afterwards the slot is free for the next message. */
static void arrive(peer *p, slot *s)
{
    size_t bytes = s->d.CS.Length - sizeof(head);
    enum kind kind = (enum kind)s->h.kind;
    mp_request *r;

    if (s->d.CS.Length < sizeof(head) || (kind == DATA && bytes != s->h.bytes) || (kind == GO && bytes != sizeof(place)))
        mp_fail("rank %d sends what is no message of mp", (int)(p - mp.peers));
    p->credits += s->h.credits;
    switch (kind) {
    case DATA:
    case ASK:
        offer((int)(p - mp.peers), &s->h, s->data);
        break;
    case GO:
        r = find(p, &p->asking, s->h.id);
        memcpy(&r->to, s->data, sizeof r->to);
        r->region = cache_use(r->data, r->bytes);
        APPEND(&p->writing, r);
        mp.writing++;
        break;
    case DONE:
        r = find(p, &p->filling, s->h.id);
        cache_release(r->region);
        r->done = 1;
        break;
    case CREDIT:
        break;
    }
    post_receive(p, s);
    if (kind != CREDIT)
        p->owed++;
    if (p->held.first != NULL)
        send_held(p);
    if (p->owed >= CREDITS / 2) {
        head h = {CREDIT, 0, 0, 0, 0};
        post_message(p, &h, NULL, 0);
    }
}

/* Does what can be done now. */
static void progress(void)
{
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN is_receive;
    VIP_DESCRIPTOR *d;
    VIP_RETURN result;
    int i;

    if (mp.writing > 0)
        for (i = 0; i < mp.size; i++)
            if (i != mp.rank)
                write_data(&mp.peers[i]);
    result = VipCQDone(mp.cq, &vi, &is_receive);
    if (result == VIP_NOT_DONE)
        return;
    MUST(result);
    if (mp.last->vi != vi)
        mp.last = VipGetUserData(vi);
    if (VipRecvDone(vi, &d) == VIP_SUCCESS)
        arrive(mp.last, (slot *)d);
    else
        gone(mp.last);
}

/* ---- the calls ---------------------------------------------------------------------------------------------- */

static mp_request *create_request(const void *data, size_t bytes, int peer, int tag)
{
    mp_request *r = allocate(sizeof *r);
    memset(r, 0, sizeof *r);
    r->data = (char *)data;
    r->bytes = bytes;
    r->peer = peer;
    r->tag = tag;
    return r;
}

static void check_rank(int rank)
{
    if (rank < 0 || rank >= mp.size)
        mp_fail("there is no rank %d of %d", rank, mp.size);
}

/* Sends a message that is copied. */
static void send_eager(const void *data, size_t bytes, int to, int tag)
{
    head h = {DATA, 0, tag, (uint32_t)bytes, 0};
    if (to == mp.rank)
        offer(to, &h, data);
    else
        transmit(&mp.peers[to], &h, data, bytes);
}

mp_request *mp_start_send(const void *data, size_t bytes, int to, int tag)
{
    mp_request *r = create_request(data, bytes, to, tag);
    check_rank(to);
    if (bytes > UINT32_MAX)
        mp_fail("a message has up to 4 GiB");
    if (bytes <= EAGER || to == mp.rank) {
        send_eager(data, bytes, to, tag);
        r->done = 1;
    } else {
        head h = {ASK, 0, tag, (uint32_t)bytes, mp.next_id};
        r->id = mp.next_id++;
        APPEND(&mp.peers[to].asking, r);
        transmit(&mp.peers[to], &h, NULL, 0);
    }
    return r;
}

/* Begins a receive: with a message that is here already, or later. */
static void begin_receive(mp_request *r)
{
    packet **link, *kept;

    for (link = &mp.unexpected.first; (kept = *link) != NULL; link = &kept->next)
        if (fits(r, kept->source, kept->h.tag)) {
            REMOVE(&mp.unexpected, link);
            take(r, kept->source, &kept->h, kept->data);
            free(kept);
            return;
        }
    r->done = mp.leaving;
    if (!r->done)
        APPEND(&mp.receives, r);
}

mp_request *mp_start_receive(void *data, size_t room, int from, int tag)
{
    mp_request *r = create_request(data, room, from, tag);
    if (from != MP_ANY)
        check_rank(from);
    begin_receive(r);
    return r;
}

void mp_wait(mp_request *r, mp_status *status)
{
    while (!r->done)
        progress();
    if (status != NULL)
        *status = r->status;
    free(r);
}

void mp_send(const void *data, size_t bytes, int to, int tag)
{
    check_rank(to);
    if (bytes > EAGER) {
        mp_wait(mp_start_send(data, bytes, to, tag), NULL);
        return;
    }
    /* One that sends faster than its peer receives waits here, and needs no memory. */
    while (to != mp.rank && mp.peers[to].credits == 0)
        progress();
    send_eager(data, bytes, to, tag);
}

void mp_receive(void *data, size_t room, int from, int tag, mp_status *status)
{
    mp_request r;
    if (from != MP_ANY)
        check_rank(from);
    r.data = data;
    r.bytes = room;
    r.peer = from;
    r.tag = tag;
    r.done = 0;
    begin_receive(&r);
    while (!r.done)
        progress();
    if (status != NULL)
        *status = r.status;
}

/* ---- the job ------------------------------------------------------------------------------------------------ */

/* An address: the lengths, the host's address, the discriminator. VIP_NET_ADDRESS has room for the first byte of these only. */
typedef union {
    VIP_NET_ADDRESS net;
    unsigned char bytes[4 + 16 + 16];
} address;

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    if (value == NULL)
        mp_fail("%s is not set: start the program by mprun", name);
    return value;
}

/* Where rank `from` meets rank `to`, seen from `from`: on its host, by the name of the pair in this job. */
static address meeting(int from, int to, unsigned long job, const char *hosts)
{
    char host[256], name[16];
    address result;
    int skip;

    memset(&result, 0, sizeof result);
    result.net.HostAddressLen = mp.attributes.NicAddressLen;
    memcpy(result.bytes + 4, mp.attributes.LocalNicAddress, mp.attributes.NicAddressLen);
    if (hosts[0] != '\0' && from != mp.rank) {
        for (skip = from; skip > 0 && strchr(hosts, ',') != NULL; skip--)
            hosts = strchr(hosts, ',') + 1;
        snprintf(host, sizeof host, "%.*s", (int)strcspn(hosts, ","), hosts);
        MUST(VipNSGetHostByName(mp.nic, host, &result.net, 0));
    }
    result.net.DiscriminatorLen =
        (VIP_UINT16)snprintf(name, sizeof name, "%06lx%03x%03x", job & 0xffffff, (unsigned)from & 0xfff, (unsigned)to & 0xfff);
    memcpy(result.bytes + 4 + result.net.HostAddressLen, name, result.net.DiscriminatorLen);
    return result;
}

/* A VI with all its slots. The receives are posted before the peer can send. */
static void create_peer(peer *p)
{
    VIP_VI_ATTRIBUTES attributes;
    slot *slots = allocate((SLOTS + SENDS) * sizeof(slot));
    int i;

    memset(slots, 0, (SLOTS + SENDS) * sizeof(slot));
    p->receives = slots;
    p->sends = slots + SLOTS;
    p->memory = cache_register(slots, (SLOTS + SENDS) * sizeof(slot));
    p->credits = CREDITS;
    memset(&attributes, 0, sizeof attributes);
    attributes.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    attributes.MaxTransferSize = mp.attributes.MaxTransferSize;
    attributes.Ptag = mp.tag;
    attributes.EnableRdmaWrite = VIP_TRUE;
    MUST(VipCreateVi(mp.nic, &attributes, NULL, mp.cq, &p->vi));
    VipSetUserData(p->vi, p);
    for (i = 0; i < SLOTS; i++) {
        p->receives[i].d.CS.SegCount = 1;
        p->receives[i].d.DS[0].Local.Data.Address = &p->receives[i].h;
        p->receives[i].d.DS[0].Local.Handle = p->memory;
        p->receives[i].d.DS[0].Local.Length = sizeof(head) + EAGER;
        post_receive(p, &p->receives[i]);
    }
}

/* Connects every pair as peers: all requests are on their way before the first is waited for, and no rank has to be first. */
static void connect_peers(unsigned long job, const char *hosts)
{
    VIP_VI_ATTRIBUTES its_vi;
    int i;

    for (i = 0; i < mp.size; i++) {
        address here = meeting(mp.rank, i, job, hosts), there = meeting(i, mp.rank, job, hosts);
        if (i == mp.rank)
            continue;
        create_peer(&mp.peers[i]);
        MUST(VipConnectPeerRequest(mp.peers[i].vi, &here.net, &there.net, PATIENCE * 1000));
    }
    for (i = 0; i < mp.size; i++)
        if (i != mp.rank && VipConnectPeerWait(mp.peers[i].vi, &its_vi) != VIP_SUCCESS)
            mp_fail("no connection with rank %d within %d s; has it started, on the same kind of device?", i, PATIENCE);
}

void mp_start(void)
{
    const char *device = variable("MP_DEVICE"), *hosts = variable("MP_HOSTS");
    int i;

    mp.rank = atoi(variable("MP_RANK"));
    mp.size = atoi(variable("MP_SIZE"));
    if (mp.size < 1 || mp.size > RANKS_MAX || mp.rank < 0 || mp.rank >= mp.size)
        mp_fail("MP_RANK and MP_SIZE are no rank of a job");
    MUST(VipOpenNic(device, &mp.nic));
    MUST(VipQueryNic(mp.nic, &mp.attributes));
    MUST(VipCreatePtag(mp.nic, &mp.tag));
    MUST(VipCreateCQ(mp.nic, (VIP_ULONG)mp.size * SLOTS, &mp.cq));
    if (hosts[0] != '\0')
        MUST(VipNSInit(mp.nic, NULL));
    cache_open(mp.nic, mp.tag);
    mp.peers = allocate((size_t)mp.size * sizeof *mp.peers);
    memset(mp.peers, 0, (size_t)mp.size * sizeof *mp.peers);
    mp.last = mp.peers;
    CLEAR(&mp.receives);
    CLEAR(&mp.unexpected);
    for (i = 0; i < mp.size; i++) {
        CLEAR(&mp.peers[i].held);
        CLEAR(&mp.peers[i].asking);
        CLEAR(&mp.peers[i].writing);
        CLEAR(&mp.peers[i].filling);
    }
    connect_peers(strtoul(variable("MP_JOB"), NULL, 16), hosts);
}

void mp_finish(void)
{
    packet *left, *next; /* without a credit when the peer left */
    int i;

    mp.finishing = 1;
    mp_barrier();
    for (i = 0; i < mp.size; i++) {
        peer *p = &mp.peers[i];
        if (i == mp.rank)
            continue;
        MUST(VipDisconnect(p->vi));
        MUST(VipDestroyVi(p->vi));
        MUST(VipDeregisterMem(mp.nic, p->receives, p->memory));
        free(p->receives);
        for (left = p->held.first; left != NULL; left = next) {
            next = left->next;
            free(left);
        }
    }
    cache_close();
    if (mp.unexpected.first != NULL)
        mp_fail("a message of rank %d, tag %d, was never received", mp.unexpected.first->source, (int)mp.unexpected.first->h.tag);
    free(mp.peers);
    MUST(VipDestroyCQ(mp.cq));
    MUST(VipDestroyPtag(mp.nic, mp.tag));
    MUST(VipCloseNic(mp.nic));
}
