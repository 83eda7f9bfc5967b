/* What it has cost. The ranks tell each other through the shared memory. */

#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "state.h"

enum { COSTS = sizeof(struct costs) / sizeof(uint64_t) };

struct costs costs;
static uint64_t (*all)[COSTS]; /* of each rank, in shared memory */
static double begin;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

size_t report_bytes(void)
{
    return ((size_t)job.size * sizeof *all + DSM_PAGE - 1) / DSM_PAGE * DSM_PAGE;
}

void report_open(void)
{
    all = dsm_allocate(report_bytes(), 0);
    begin = now();
}

static void line(const char *what, uint64_t a, const char *of_a, uint64_t b, const char *of_b)
{
    printf("    %-10s%10llu %-10s%12llu %s\n", what, (unsigned long long)a, of_a, (unsigned long long)b, of_b);
}

void dsm_report(const char *program)
{
    double seconds;
    uint64_t sum[COSTS] = {0};
    struct costs own, total;
    int rank, i;

    dsm_barrier();
    seconds = now() - begin;
    pthread_mutex_lock(&talk.mutex);
    own = costs;
    pthread_mutex_unlock(&talk.mutex);
    memcpy(all[job.rank], &own, sizeof own);
    dsm_barrier();
    if (job.rank == 0) {
        for (rank = 0; rank < job.size; rank++)
            for (i = 0; i < COSTS; i++)
                sum[i] += all[rank][i];
        memcpy(&total, sum, sizeof total);
        printf("%s: %d ranks, %.3f s, faults by %s\n", program, job.size, seconds, faults->name);
        line("faults", total.read_faults, "to read", total.write_faults, "to write");
        line("pages", total.fetches, "fetched", total.invalidations, "out of date");
        line("writes", total.twins, "twins", total.diffs, "diffs");
        line("diffs", total.runs, "pieces", total.diff_bytes, "bytes");
        line("messages", total.messages, "sent", total.message_bytes, "bytes");
        line("waits", total.acquires, "locks", total.barriers, "barriers");
        fflush(stdout);
    }
    dsm_barrier();
    pthread_mutex_lock(&talk.mutex);
    memset(&costs, 0, sizeof costs);
    pthread_mutex_unlock(&talk.mutex);
    begin = now();
}
