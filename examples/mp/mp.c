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
#include <stdlib.h>
#include <string.h>
#include "inside.h"

struct mp mp;

void mp_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    job_fail_with(format, arguments);
}

void *mp_allocate(size_t bytes)
{
    size_t unit = VIP_DESCRIPTOR_ALIGNMENT; /* of slots */
    void *memory = aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
    if (memory == NULL)
        mp_fail("no memory for %zu bytes", bytes);
    return memory;
}

int mp_rank(void) { return job.rank; }
int mp_size(void) { return job.size; }

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
    packet *kept = mp_allocate(sizeof *kept + bytes);
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
        packet *waiting = keep(job.rank, h, data, bytes);
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
        size_t left = r->bytes - r->posted, most = job.attributes.MaxTransferSize;
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

void mp_post_receive(peer *p, slot *s)
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
    mp_post_receive(p, s);
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
        for (i = 0; i < job.size; i++)
            if (i != job.rank)
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
    mp_request *r = mp_allocate(sizeof *r);
    memset(r, 0, sizeof *r);
    r->data = (char *)data;
    r->bytes = bytes;
    r->peer = peer;
    r->tag = tag;
    return r;
}

static void check_rank(int rank)
{
    if (rank < 0 || rank >= job.size)
        mp_fail("there is no rank %d of %d", rank, job.size);
}

/* Sends a message that is copied. */
static void send_eager(const void *data, size_t bytes, int to, int tag)
{
    head h = {DATA, 0, tag, (uint32_t)bytes, 0};
    if (to == job.rank)
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
    if (bytes <= EAGER || to == job.rank) {
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
    while (to != job.rank && mp.peers[to].credits == 0)
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
