/* What one rank, or the manager of locks, knows of the writes of all ranks.
 *
 * A rank's time is divided into intervals, which end when it releases a lock or enters a barrier. To know the interval 7 of a
 * rank is to know all that came before: one number for each rank says what is known, a vector timestamp. A notice is a page that the rank has
 * written in an interval. Only the last notice of each page and rank counts, so the notices of a rank are a list of pages, each
 * once, in the order of their last intervals. To collect what another rank lacks is to walk the end of each list, and no notice is ever
 * freed. */

#ifndef NOTICES_H
#define NOTICES_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t interval; /* the last in which the rank wrote the page; 0: it is not in the list */
    uint32_t previous, next;
} notice;

typedef struct {
    int ranks;
    uint32_t pages;
    uint32_t *seen;  /* the vector timestamp */
    notice *notices; /* of each rank: the two ends of its list, then its pages */
} notices;

void notices_open(notices *n, int ranks, uint32_t pages);
void notices_close(notices *n);

/* A page was written in an interval that is not older than those in the rank's list. */
void notices_add(notices *n, int rank, uint32_t page, uint32_t interval);

/* Writes the vector timestamp, and all notices that a rank with the timestamp `since` lacks. Returns the number of bytes, which is
 * notices_most() at most. */
size_t notices_pack(const notices *n, const uint32_t *since, uint32_t *words);
size_t notices_most(const notices *n);

/* Adds what was packed and calls `each` for every page of a new notice. Returns 0 if it makes no sense. */
int notices_unpack(notices *n, const uint32_t *words, size_t bytes, void (*each)(int rank, uint32_t page));

/* Raises a vector timestamp to the later of both. */
void notices_join(uint32_t *seen, const uint32_t *other, int ranks);

#endif
