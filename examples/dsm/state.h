/* What the parts of dsm share. They import downwards:
 *
 *     begin.c, report.c   the life of a process in a job
 *     sync.c              locks and barriers, as the program sees them
 *     faults.c            a page fault becomes a call: signal.c or uffd.c
 *     pages.c             the states of the pages, twins and diffs
 *     talk.c, manager.c   messages, and the thread that answers them
 *     transfer.c          RDMA between the homes' pages and this process
 *     notices.c           who wrote what, and who knows
 *
 * The program's thread runs all but the answers. The service thread of talk.c and manager.c answers others while the program computes; what both
 * touch is guarded by `talk.mutex`. */

#ifndef STATE_H
#define STATE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include "../mp/job.h"
#include "dsm.h"
#include "notices.h"

enum {
    RANKS_MAX = 64,
    WORD = 4 /* the unit of a diff */
};

/* Where a rank's copy of the shared memory is, for RDMA. */
typedef struct {
    uint64_t at;
    VIP_MEM_HANDLE memory;
} place;

/* ---- memory and threads (begin.c) --------------------------------------------------------------------------- */

/* The shared memory of this process is mapped twice. The program uses `view`, which has one address on all ranks, and whose pages
 * are inaccessible, readable or writable. RDMA and this library use `wire`, which is always writable and is registered: a page
 * arrives there as a whole before the program may see it, and nothing here ever faults. */
extern struct memory {
    char *view, *wire;
    size_t bytes;
    uint32_t pages;
    VIP_MEM_HANDLE handle; /* of `wire` */
} memory;

void *map_memory(size_t bytes); /* private pages of zeroes, which need memory when they are used */
void unmap_memory(void *at, size_t bytes);

/* Starts a thread that leaves all signals to the program's; 0: there is none left. */
int start_thread(pthread_t *thread, void *(*run)(void *));
VIP_MEM_HANDLE register_memory(void *at, size_t bytes, int for_peers);

/* A VI to another rank, which may write to what is registered for peers, and read if `reads`. */
VIP_VI_HANDLE create_vi(VIP_CQ_HANDLE receives, int reads);

/* ---- costs (report.c) --------------------------------------------------------------------------------------- */

/* What dsm has done on this rank, for dsm_report. */
extern struct costs {
    uint64_t read_faults, write_faults; /* of the program */
    uint64_t fetches, twins;            /* pages */
    uint64_t diffs, runs, diff_bytes;   /* pages, pieces that differ, and their bytes */
    uint64_t invalidations;             /* pages */
    uint64_t messages, message_bytes;   /* sent to others */
    uint64_t acquires, barriers;
} costs;

size_t report_bytes(void); /* of the shared memory, for the report */
void report_open(void);

/* ---- transfer.c --------------------------------------------------------------------------------------------- */

int transfer_can_read(void);    /* the device has RDMA Read, and the environment does not say DSM_FETCH=request */
void transfer_open(int rank);   /* creates the VI and calls that rank */
void transfer_meet(int rank);
void transfer_close(int rank);
void transfer_know(int rank, place copy);
void transfer_read(int home, uint32_t page);                       /* until the page is here */
void transfer_write(int home, size_t offset, uint32_t bytes);      /* begins to write what is here */
void transfer_finish(void);                                        /* until all that was begun is in the homes' memory */

/* ---- talk.c ------------------------------------------------------------------------------------------------- */

/* A request is answered by one message: DONE, or GRANT, which has notices. */
enum kind { HELLO, LOCK, UNLOCK, ARRIVE, DIFF, FETCH, DONE, GRANT };

extern struct talk {
    pthread_mutex_t mutex;
    uint32_t *outbox; /* where notices are packed for talk_request and talk_answer */
    uint32_t *grant;  /* of the last GRANT */
    size_t grant_bytes;
    int granted, released, leaving; /* `released`: the last barrier is over; `leaving`: this rank goes */
    int finishing;
} talk;

void talk_open(void);
void talk_close(void);

/* Under the mutex. A rank may have WINDOW requests at another that are not answered, notices only alone: first wait for room. */
void talk_wait(int rank, int all_answered);
void talk_request(int rank, enum kind kind, uint32_t subject, const void *data, size_t bytes);
void talk_answer(int rank, enum kind kind, const void *data, size_t bytes);
void talk_wait_grant(void);

/* ---- manager.c ---------------------------------------------------------------------------------------------- */

/* Under the mutex: the requests of ranks about the locks that this rank manages, and on rank 0 about barriers. 0: they make no sense. */
void manager_open(void);
void manager_close(void);
int manager_lock(int from, uint32_t lock, const uint32_t *since, size_t bytes);
int manager_unlock(int from, uint32_t lock, const uint32_t *words, size_t bytes);
int manager_arrive(int from, const uint32_t *words, size_t bytes);

/* ---- sync.c ------------------------------------------------------------------------------------------------- */

void sync_open(void);
void sync_close(void);

/* ---- pages.c ------------------------------------------------------------------------------------------------ */

void pages_open(void);
void pages_close(void);
void pages_fault(uint32_t page, int is_write);
int pages_is_readable(uint32_t page);
uint32_t pages_written(uint32_t **list); /* in this interval; their diffs are in the homes, and their writes fault again */
void pages_expire(int rank, uint32_t page); /* another rank has written it */
void pages_invalidate(void);                /* all that have expired */
int pages_apply(uint32_t page, const void *runs, size_t bytes); /* to this home's copy, what DIFF has; 0: it makes no sense */

/* ---- faults.c ----------------------------------------------------------------------------------------------- */

/* How page faults reach this library, and how the view's pages change their rights. */
typedef struct {
    const char *name;
    int (*open)(void); /* all pages become readable; 0: this system does not permit it */
    void (*close)(void);
    void (*admit)(uint32_t page, int writable); /* in a fault */
    void (*protect)(uint32_t first, uint32_t count);
    void (*hide)(uint32_t first, uint32_t count);
} fault_method;

extern const fault_method by_signal, by_userfaultfd, *faults;
void faults_open(void);

#endif
