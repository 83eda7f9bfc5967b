/* dsm: memory that the processes of a job share, on one host or several, over VIPL.
 *
 * mprun starts the processes. All of them see the shared memory at the same address and use it by loads and stores. What one stores,
 * another sees after the two have synchronised: by a lock that one has released and the other acquires, or by a barrier. Between
 * synchronisations no two may use one word of 4 bytes if one of them stores to it.
 *
 * One thread of each process, the one that calls dsm_start, uses these functions and the memory. System calls do not load the pages
 * that they touch: copy to or from private memory for `read` and `write`. What fails ends the process, and mprun the job. */

#ifndef DSM_H
#define DSM_H

#include <stddef.h>

enum {
    DSM_PAGE = 4096,
    DSM_BLOCKS = -1, /* homes: a part of the pages for each rank, in the order of the ranks */
    DSM_LOCKS = 1024
};

void dsm_start(size_t bytes); /* joins the job; there are so many bytes of shared memory, the same number on all ranks */
void dsm_finish(void);        /* leaves it; all ranks call this */
int dsm_rank(void);           /* 0 to dsm_size() - 1 */
int dsm_size(void);

/* Whole pages of zeroes, whose homes are at one rank, or DSM_BLOCKS. All ranks make the same calls in the same order and get the same
 * addresses. Nothing is freed before the end. */
void *dsm_allocate(size_t bytes, int home);

void dsm_acquire(int lock); /* 0 to DSM_LOCKS - 1 */
void dsm_release(int lock);
void dsm_barrier(void); /* all ranks call it */

/* Rank 0 prints what the shared memory has cost all ranks since the last report. All ranks call it; it is a barrier. */
void dsm_report(const char *program);

/* Ends the job. */
_Noreturn void dsm_fail(const char *format, ...);

#endif
