/* The manager of locks, one at each rank: lock n belongs to rank n % size. Rank 0 also manages the barrier.
 *
 * Who releases brings the notices that the manager lacks, and who acquires gets those that it lacks itself. That is at times more than it
 * needs, since there are those of what was written under other locks of this manager: an early invalidation, and never a wrong one. */

#include <string.h>
#include "state.h"

enum { NONE = -1 };

static notices known;
static struct {
    int holder, first, last; /* the ranks that wait are a list */
} locks[DSM_LOCKS];
static int next_waiting[RANKS_MAX];
static uint32_t since[RANKS_MAX][RANKS_MAX]; /* what a rank that waits knows */
static int arrived;

void manager_open(void)
{
    int i;

    notices_open(&known, job.size, memory.pages);
    for (i = 0; i < DSM_LOCKS; i++)
        locks[i].holder = locks[i].first = NONE;
}

void manager_close(void)
{
    notices_close(&known);
}

static void nothing(int rank, uint32_t page)
{
    (void)rank;
    (void)page;
}

static void grant(int to)
{
    size_t bytes = notices_pack(&known, since[to], talk.outbox);
    talk_answer(to, GRANT, talk.outbox, bytes);
}

static int is_ours(uint32_t lock)
{
    return lock < DSM_LOCKS && (int)(lock % (uint32_t)job.size) == job.rank;
}

int manager_lock(int from, uint32_t lock, const uint32_t *seen, size_t bytes)
{
    if (!is_ours(lock) || bytes != (size_t)job.size * sizeof *seen)
        return 0;
    memcpy(since[from], seen, bytes);
    if (locks[lock].holder == NONE) {
        locks[lock].holder = from;
        grant(from);
        return 1;
    }
    next_waiting[from] = NONE;
    if (locks[lock].first == NONE)
        locks[lock].first = from;
    else
        next_waiting[locks[lock].last] = from;
    locks[lock].last = from;
    return 1;
}

int manager_unlock(int from, uint32_t lock, const uint32_t *words, size_t bytes)
{
    int next;

    if (!is_ours(lock) || locks[lock].holder != from || !notices_unpack(&known, words, bytes, nothing))
        return 0;
    next = locks[lock].first;
    locks[lock].holder = next;
    if (next != NONE) {
        locks[lock].first = next_waiting[next];
        grant(next);
    }
    return 1;
}

int manager_arrive(int from, const uint32_t *words, size_t bytes)
{
    int rank;

    if (job.rank != 0 || !notices_unpack(&known, words, bytes, nothing))
        return 0;
    memcpy(since[from], words, (size_t)job.size * sizeof *words);
    if (++arrived == job.size) {
        arrived = 0;
        for (rank = 0; rank < job.size; rank++)
            grant(rank);
    }
    return 1;
}
