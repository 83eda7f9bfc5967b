/* mp: messages between the processes of a job, with tags, over VIPL.
 *
 * mprun.c starts the processes. A message goes from one rank to another, or to itself, and is received by source and tag; messages
 * of one rank that a receive matches arrive in their order. Every call may be made by one thread only. What fails ends the process, and mprun the
 * job. */

#ifndef MP_H
#define MP_H

#include <stddef.h>

enum { MP_ANY = -1 }; /* as a source or a tag of a receive; tags of messages are 0 or more */

/* What was received. */
typedef struct {
    int source, tag;
    size_t bytes;
} mp_status;

/* A send or a receive in progress. */
typedef struct mp_request mp_request;

void mp_start(void);  /* joins the job that mprun describes in the environment */
void mp_finish(void); /* leaves it; all ranks call this */
int mp_rank(void);    /* 0 to mp_size() - 1 */
int mp_size(void);

/* Send returns when the data may be changed. A message that is longer than the room of its receive ends the job. `status` may be NULL. */
void mp_send(const void *data, size_t bytes, int to, int tag);
void mp_receive(void *data, size_t room, int from, int tag, mp_status *status);

/* The same in two steps: the data belong to the library until the wait returns, which frees the request. */
mp_request *mp_start_send(const void *data, size_t bytes, int to, int tag);
mp_request *mp_start_receive(void *data, size_t room, int from, int tag);
void mp_wait(mp_request *request, mp_status *status);

/* Memory that was sent or received in a large message stays registered. Call this before such memory is unmapped. */
void mp_forget(const void *data, size_t bytes);

/* Collective operations: all ranks call them, in the same order. */
void mp_barrier(void);
void mp_sum(double *values, int count);                                    /* every rank gets the sums */
void mp_exchange_all(const void *send, void *receive, size_t bytes);       /* block r of `send` goes to rank r */
void mp_exchange(const void *send, int to, void *receive, int from, size_t bytes, int tag);

/* Ends the job. */
_Noreturn void mp_fail(const char *format, ...);

#endif
