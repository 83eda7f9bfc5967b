/* Locks and barriers as the program sees them: a release sends the notices of what was written, an acquire takes those of others. */

#include "state.h"

static notices known;
static uint32_t manager_knows[RANKS_MAX][RANKS_MAX]; /* what the manager at each rank knows, as far as this rank knows */
static unsigned char held[DSM_LOCKS];

void sync_open(void)
{
    notices_open(&known, job.size, memory.pages);
}

void sync_close(void)
{
    notices_close(&known);
}

/* Ends an interval in which pages were written. */
static void end_interval(void)
{
    uint32_t *pages, count = pages_written(&pages), i;

    if (count == 0)
        return;
    known.seen[job.rank]++;
    for (i = 0; i < count; i++)
        notices_add(&known, job.rank, pages[i], known.seen[job.rank]);
}

/* Under the mutex: sends a manager the notices that it lacks, with a request. */
static void send_notices(int manager, enum kind kind, uint32_t lock)
{
    size_t bytes;

    talk_wait(manager, 1);
    bytes = notices_pack(&known, manager_knows[manager], talk.outbox);
    notices_join(manager_knows[manager], known.seen, job.size);
    talk_request(manager, kind, lock, talk.outbox, bytes);
}

/* Takes the notices that a manager has sent. */
static void take_notices(int manager)
{
    if (!notices_unpack(&known, talk.grant, talk.grant_bytes, pages_expire))
        job_fail("the notices of rank %d make no sense", manager);
    notices_join(manager_knows[manager], talk.grant, job.size);
    pages_invalidate();
}

static int manager_of(int lock, const char *call)
{
    if (lock < 0 || lock >= DSM_LOCKS)
        job_fail("%s(%d): locks are 0 to %d", call, lock, DSM_LOCKS - 1);
    return lock % job.size;
}

void dsm_acquire(int lock)
{
    int manager = manager_of(lock, "dsm_acquire");

    if (held[lock])
        job_fail("dsm_acquire(%d): this rank has the lock already", lock);
    pthread_mutex_lock(&talk.mutex);
    talk_wait(manager, 0);
    talk_request(manager, LOCK, (uint32_t)lock, known.seen, (size_t)job.size * sizeof *known.seen);
    talk_wait_grant();
    pthread_mutex_unlock(&talk.mutex);
    take_notices(manager);
    held[lock] = 1;
    costs.acquires++;
}

void dsm_release(int lock)
{
    int manager = manager_of(lock, "dsm_release");

    if (!held[lock])
        job_fail("dsm_release(%d): this rank does not have the lock", lock);
    held[lock] = 0;
    end_interval();
    pthread_mutex_lock(&talk.mutex);
    send_notices(manager, UNLOCK, (uint32_t)lock);
    pthread_mutex_unlock(&talk.mutex);
}

void dsm_barrier(void)
{
    end_interval();
    pthread_mutex_lock(&talk.mutex);
    send_notices(0, ARRIVE, 0);
    talk_wait_grant();
    pthread_mutex_unlock(&talk.mutex);
    take_notices(0);
    costs.barriers++;
}
