/* Messages between the ranks, and the service thread, which answers while the program computes.
 *
 *     program's thread ── request ─▶ service thread of the other rank ── answer ─▶ service thread here ─▶ wakes the program's thread
 *
 *   flow control   Each request has one answer. A rank has at most WINDOW requests at another that are not answered, and each rank has
 *                  posted receives for as many requests and as many answers of every other one. So no message finds its peer
 *                  without a receive, no credits are counted, and the service thread never waits.
 *   long data      Notices for which a message has no room go ahead of it by RDMA Write, into the inbox that the receiver has for this
 *                  sender. Requests with notices are sent when all others are answered, and a rank waits for one GRANT at a time, so
 *                  an inbox is free when it is written.
 *   self           A request to the own rank is a call.
 */

#include <stdlib.h>
#include <string.h>
#include "state.h"

enum {
    WINDOW = 8,
    SLOTS = 2 * WINDOW + 2, /* requests, answers, HELLO, and the one that is being read */
    SENDS = 64,
    ROOM = DSM_PAGE + WORD  /* bytes of data in a message: the longest diff */
};

typedef struct {
    uint32_t kind, subject; /* a lock, a page */
    uint32_t bytes, reserved;
} head;

typedef struct {
    _Alignas(VIP_DESCRIPTOR_ALIGNMENT) VIP_DESCRIPTOR d;
    head h;
    char data[ROOM];
} slot;

/* The data of HELLO. */
typedef struct {
    place copy, inbox;
    uint64_t bytes;
} hello;

typedef struct {
    VIP_VI_HANDLE vi;
    slot *receives, *sends;
    VIP_MEM_HANDLE slot_memory;
    unsigned posted, taken;    /* sends */
    int open;                  /* requests that are not answered */
    int gone;
    char *inbox;               /* for requests, then for answers */
    VIP_MEM_HANDLE inbox_memory;
    place its_inbox, its_copy;
} peer;

struct talk talk;
static peer peers[RANKS_MAX];
static VIP_CQ_HANDLE cq;
static VIP_MEM_HANDLE outbox_memory;
static size_t most; /* bytes of notices */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_t thread;
static int hellos, left; /* ranks that have said it; ranks that are still here */

/* A rank has ended. At the end of the job they all do: rank 0 after all have come to the last barrier, the others after rank 0 has told them so. */
static void gone(int rank)
{
    if (!peers[rank].gone)
        left--;
    peers[rank].gone = 1;
    if (!talk.leaving && !talk.released && !(talk.finishing && rank != 0 && job.rank != 0))
        job_fail("rank %d has gone", rank);
}

/* ---- sending ------------------------------------------------------------------------------------------------ */

/* Takes back the oldest send, if it is complete. */
static void reap(peer *p)
{
    VIP_DESCRIPTOR *d;
    VIP_RETURN result = VipSendDone(p->vi, &d);

    if (result == VIP_NOT_DONE)
        return;
    if (result != VIP_SUCCESS)
        gone((int)(p - peers));
    p->taken++;
}

static slot *next_slot(peer *p)
{
    while (p->posted - p->taken == SENDS)
        reap(p);
    return &p->sends[p->posted % SENDS];
}

static void post(peer *p, slot *s)
{
    s->d.CS.Status = 0;
    MUST(VipPostSend(p->vi, &s->d, p->slot_memory));
    p->posted++;
}

/* Writes memory of this rank into memory of the other. */
static void write_to(peer *p, place to, size_t offset, const void *from, VIP_MEM_HANDLE handle, size_t bytes)
{
    size_t at, piece;

    for (at = 0; at < bytes; at += piece) {
        slot *s = next_slot(p);
        piece = bytes - at < job.attributes.MaxTransferSize ? bytes - at : job.attributes.MaxTransferSize;
        s->d.CS.Control = VIP_CONTROL_OP_RDMAWRITE;
        s->d.CS.SegCount = 2;
        s->d.CS.Length = s->d.DS[1].Local.Length = (VIP_UINT32)piece;
        s->d.DS[0].Remote.Data.AddressBits = to.at + offset + at;
        s->d.DS[0].Remote.Handle = to.memory;
        s->d.DS[1].Local.Data.AddressBits = (uintptr_t)from + at;
        s->d.DS[1].Local.Handle = handle;
        post(p, s);
    }
}

static void send(peer *p, enum kind kind, uint32_t subject, const void *data, size_t bytes)
{
    size_t here = bytes;
    slot *s;

    if (bytes > ROOM) { /* notices in the outbox, which is used again afterwards */
        write_to(p, p->its_inbox, kind == GRANT ? most : 0, data, outbox_memory, bytes);
        while (p->posted != p->taken)
            reap(p);
        here = 0;
    }
    s = next_slot(p);
    s->h.kind = kind;
    s->h.subject = subject;
    s->h.bytes = (uint32_t)bytes;
    if (here > 0)
        memcpy(s->data, data, here);
    s->d.CS.Control = VIP_CONTROL_OP_SENDRECV;
    s->d.CS.SegCount = 1;
    s->d.CS.Length = s->d.DS[0].Local.Length = (VIP_UINT32)(sizeof(head) + here);
    s->d.DS[0].Local.Data.AddressBits = (uintptr_t)&s->h;
    s->d.DS[0].Local.Handle = p->slot_memory;
    post(p, s);
    costs.messages++;
    costs.message_bytes += sizeof(head) + bytes;
}

/* ---- receiving ---------------------------------------------------------------------------------------------- */

static int greet(int from, const void *data, size_t bytes)
{
    hello its;

    if (bytes != sizeof its)
        return 0;
    memcpy(&its, data, sizeof its);
    if (its.bytes != memory.bytes)
        job_fail("dsm_start: rank %d has not asked for as much shared memory as this one", from);
    peers[from].its_inbox = its.inbox;
    peers[from].its_copy = its.copy;
    transfer_know(from, its.copy);
    hellos++;
    pthread_cond_broadcast(&changed);
    return 1;
}

static int send_page(int to, uint32_t page)
{
    size_t at = (size_t)page * DSM_PAGE;

    if (page >= memory.pages)
        return 0;
    write_to(&peers[to], peers[to].its_copy, at, memory.wire + at, memory.handle, DSM_PAGE);
    talk_answer(to, DONE, NULL, 0); /* after the page, since it is on the same VI */
    return 1;
}

/* The answer to a request of this rank. */
static int take_answer(int from, enum kind kind, const void *data, size_t bytes)
{
    if (peers[from].open == 0)
        return 0;
    peers[from].open--;
    if (kind == GRANT) {
        memcpy(talk.grant, data, bytes);
        talk.grant_bytes = bytes;
        talk.granted = 1;
        talk.released |= talk.finishing;
    }
    pthread_cond_broadcast(&changed);
    return 1;
}

/* Does what a message asks for; 0 if it makes no sense. */
static int handle(int from, enum kind kind, uint32_t subject, const void *data, size_t bytes)
{
    switch (kind) {
    case HELLO:
        return greet(from, data, bytes);
    case LOCK:
        return manager_lock(from, subject, data, bytes);
    case UNLOCK:
        if (!manager_unlock(from, subject, data, bytes))
            return 0;
        talk_answer(from, DONE, NULL, 0);
        return 1;
    case ARRIVE:
        return manager_arrive(from, data, bytes);
    case DIFF:
        if (subject >= memory.pages || !pages_apply(subject, data, bytes))
            return 0;
        talk_answer(from, DONE, NULL, 0);
        return 1;
    case FETCH:
        return send_page(from, subject);
    case DONE:
    case GRANT:
        return take_answer(from, kind, data, bytes);
    }
    return 0;
}

static void post_receive(peer *p, slot *s)
{
    s->d.CS.SegCount = 1;
    s->d.CS.Length = s->d.DS[0].Local.Length = sizeof(head) + ROOM;
    s->d.CS.Status = 0;
    s->d.DS[0].Local.Data.AddressBits = (uintptr_t)&s->h;
    s->d.DS[0].Local.Handle = p->slot_memory;
    MUST(VipPostRecv(p->vi, &s->d, p->slot_memory));
}

static void receive(peer *p)
{
    int from = (int)(p - peers), good;
    VIP_DESCRIPTOR *d;
    size_t here;
    slot *s;

    if (VipRecvDone(p->vi, &d) != VIP_SUCCESS) {
        gone(from);
        return;
    }
    s = (slot *)d;
    here = d->CS.Length - sizeof(head);
    if (d->CS.Length < sizeof(head))
        good = 0;
    else if (s->h.bytes > ROOM)
        good = here == 0 && s->h.bytes <= most &&
               handle(from, (enum kind)s->h.kind, s->h.subject, p->inbox + (s->h.kind == GRANT ? most : 0), s->h.bytes);
    else
        good = here == s->h.bytes && handle(from, (enum kind)s->h.kind, s->h.subject, s->data, here);
    if (!good)
        job_fail("rank %d sends what is no message of dsm", from);
    post_receive(p, s);
}

static void *serve(void *unused)
{
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN is_receive;
    int over;

    (void)unused;
    do {
        MUST(VipCQWait(cq, VIP_INFINITE, &vi, &is_receive));
        pthread_mutex_lock(&talk.mutex);
        receive(VipGetUserData(vi));
        over = talk.leaving || left == 0;
        pthread_mutex_unlock(&talk.mutex);
    } while (!over);
    return NULL;
}

/* ---- the calls ---------------------------------------------------------------------------------------------- */

void talk_wait(int rank, int all_answered)
{
    while (peers[rank].open >= (all_answered ? 1 : WINDOW))
        pthread_cond_wait(&changed, &talk.mutex);
}

void talk_request(int rank, enum kind kind, uint32_t subject, const void *data, size_t bytes)
{
    peers[rank].open++;
    if (rank != job.rank)
        send(&peers[rank], kind, subject, data, bytes);
    else if (!handle(rank, kind, subject, data, bytes))
        job_fail("a request to the own rank makes no sense");
}

void talk_answer(int rank, enum kind kind, const void *data, size_t bytes)
{
    if (rank != job.rank)
        send(&peers[rank], kind, 0, data, bytes);
    else
        take_answer(rank, kind, data, bytes);
}

void talk_wait_grant(void)
{
    while (!talk.granted)
        pthread_cond_wait(&changed, &talk.mutex);
    talk.granted = 0;
}

/* ---- start and end ------------------------------------------------------------------------------------------ */

static size_t bytes_of_slots(void) { return (SLOTS + SENDS) * sizeof(slot); }

static void create_peer(peer *p)
{
    int i;

    p->receives = map_memory(bytes_of_slots());
    p->sends = p->receives + SLOTS;
    p->slot_memory = register_memory(p->receives, bytes_of_slots(), 0);
    p->inbox = map_memory(2 * most);
    p->inbox_memory = register_memory(p->inbox, 2 * most, 1);
    p->vi = create_vi(cq, 0);
    VipSetUserData(p->vi, p);
    for (i = 0; i < SLOTS; i++)
        post_receive(p, &p->receives[i]);
}

void talk_open(void)
{
    hello own;
    notices shape;
    int i;

    if (job.attributes.MaxTransferSize < sizeof(head) + ROOM)
        job_fail("dsm needs a MaxTransferSize of %zu bytes, not %lu", sizeof(head) + ROOM, job.attributes.MaxTransferSize);
    pthread_mutex_init(&talk.mutex, NULL);
    shape.ranks = job.size;
    shape.pages = memory.pages;
    most = notices_most(&shape);
    talk.outbox = map_memory(most);
    talk.grant = map_memory(most);
    outbox_memory = register_memory(talk.outbox, most, 0);
    MUST(VipCreateCQ(job.nic, (VIP_ULONG)job.size * SLOTS, &cq));
    for (i = 0; i < job.size; i++) {
        if (i == job.rank)
            continue;
        create_peer(&peers[i]);
        job_call(peers[i].vi, i, 0);
        transfer_open(i);
    }
    left = job.size - 1;
    if (left > 0 && !start_thread(&thread, serve))
        job_fail("there is no thread left for the service of others");
    pthread_mutex_lock(&talk.mutex);
    memset(&own, 0, sizeof own);
    own.copy.at = (uintptr_t)memory.wire;
    own.copy.memory = memory.handle;
    own.bytes = memory.bytes;
    for (i = 0; i < job.size; i++) {
        if (i == job.rank)
            continue;
        job_meet(peers[i].vi, i);
        transfer_meet(i);
        own.inbox.at = (uintptr_t)peers[i].inbox;
        own.inbox.memory = peers[i].inbox_memory;
        send(&peers[i], HELLO, 0, &own, sizeof own);
    }
    while (hellos < job.size - 1)
        pthread_cond_wait(&changed, &talk.mutex);
    pthread_mutex_unlock(&talk.mutex);
}

void talk_close(void)
{
    int i;

    pthread_mutex_lock(&talk.mutex);
    for (i = 0; i < job.size; i++)
        while (peers[i].posted != peers[i].taken) /* complete: the others have them */
            reap(&peers[i]);
    talk.leaving = 1;
    pthread_mutex_unlock(&talk.mutex);
    for (i = 0; i < job.size; i++)
        if (i != job.rank)
            MUST(VipDisconnect(peers[i].vi)); /* which wakes the service thread */
    if (job.size > 1)
        pthread_join(thread, NULL);
    for (i = 0; i < job.size; i++) {
        peer *p = &peers[i];
        if (i == job.rank)
            continue;
        MUST(VipDestroyVi(p->vi));
        MUST(VipDeregisterMem(job.nic, p->receives, p->slot_memory));
        MUST(VipDeregisterMem(job.nic, p->inbox, p->inbox_memory));
        unmap_memory(p->receives, bytes_of_slots());
        unmap_memory(p->inbox, 2 * most);
        transfer_close(i);
    }
    MUST(VipDestroyCQ(cq));
    MUST(VipDeregisterMem(job.nic, talk.outbox, outbox_memory));
    unmap_memory(talk.outbox, most);
    unmap_memory(talk.grant, most);
}
