/* What the engine of mp shares with its start and end. */

#ifndef INSIDE_H
#define INSIDE_H

#include <stddef.h>
#include <stdint.h>
#include <vipl.h>
#include "cache.h"
#include "job.h"
#include "mp.h"

enum {
    EAGER = 4096,        /* longest message that is copied */
    CREDITS = 32,        /* slots that a rank may fill at a peer */
    SPARE = 3,           /* further ones for messages that only return credits: one for each half of CREDITS, and one on its way */
    SLOTS = CREDITS + SPARE,
    SENDS = 64,          /* sends in progress at a time, to one peer */
    WRITES = 4           /* of these, RDMA Writes: more wait in the device, and messages behind them */
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

extern struct mp {
    VIP_CQ_HANDLE cq;
    int finishing, leaving;
    peer *peers, *last; /* the one that a message came from last */
    uint32_t next_id;
    int writing;        /* sends of all peers that have GO and are not complete */
    requests receives; /* that nothing has matched */
    packets unexpected;
} mp;

void *mp_allocate(size_t bytes);
void mp_post_receive(peer *p, slot *s);

#endif
