/* Packed notices are words: the vector timestamp; then, again and again, a rank, an interval, a number of pages, and these pages. */

#include <string.h>
#include "notices.h"
#include "state.h"

enum { GROUP = 3 }; /* words before the pages of one interval */

/* The list of a rank; its entry 0 links both ends, page p is entry p + 1. */
static notice *list_of(const notices *n, int rank)
{
    return n->notices + (size_t)rank * (n->pages + 1);
}

void notices_open(notices *n, int ranks, uint32_t pages)
{
    n->ranks = ranks;
    n->pages = pages;
    n->seen = map_memory((size_t)ranks * sizeof *n->seen);
    n->notices = map_memory((size_t)ranks * (pages + 1) * sizeof *n->notices);
}

void notices_close(notices *n)
{
    unmap_memory(n->seen, (size_t)n->ranks * sizeof *n->seen);
    unmap_memory(n->notices, (size_t)n->ranks * (n->pages + 1) * sizeof *n->notices);
}

void notices_add(notices *n, int rank, uint32_t page, uint32_t interval)
{
    notice *list = list_of(n, rank), *own = &list[page + 1];

    if (own->interval != 0) {
        list[own->previous].next = own->next;
        list[own->next].previous = own->previous;
    }
    own->interval = interval;
    own->previous = list[0].previous;
    own->next = 0;
    list[own->previous].next = page + 1;
    list[0].previous = page + 1;
}

size_t notices_most(const notices *n)
{
    return ((size_t)n->ranks + (size_t)n->ranks * n->pages * (GROUP + 1)) * sizeof(uint32_t);
}

size_t notices_pack(const notices *n, const uint32_t *since, uint32_t *words)
{
    uint32_t *end = words, *count = NULL;
    int rank;

    for (rank = 0; rank < n->ranks; rank++)
        *end++ = n->seen[rank];
    for (rank = 0; rank < n->ranks; rank++) {
        const notice *list = list_of(n, rank);
        uint32_t at = list[0].previous, interval = 0;

        while (at != 0 && list[at].interval > since[rank])
            at = list[at].previous;
        for (at = list[at].next; at != 0; at = list[at].next) {
            if (list[at].interval != interval) {
                interval = list[at].interval;
                *end++ = (uint32_t)rank;
                *end++ = interval;
                count = end++;
                *count = 0;
            }
            *end++ = at - 1;
            ++*count;
        }
    }
    return (size_t)(end - words) * sizeof *words;
}

int notices_unpack(notices *n, const uint32_t *words, size_t bytes, void (*each)(int rank, uint32_t page))
{
    const uint32_t *end = words + bytes / sizeof *words, *seen = words;

    if (bytes % sizeof *words != 0 || bytes < (size_t)n->ranks * sizeof *words)
        return 0;
    words += n->ranks;
    while (end - words >= GROUP) {
        uint32_t rank = words[0], interval = words[1], count = words[2];

        words += GROUP;
        if (rank >= (uint32_t)n->ranks || interval == 0 || count > (size_t)(end - words))
            return 0;
        for (; count > 0; count--, words++) {
            if (*words >= n->pages)
                return 0;
            if (interval > n->seen[rank]) {
                notices_add(n, (int)rank, *words, interval);
                each((int)rank, *words);
            }
        }
    }
    notices_join(n->seen, seen, n->ranks);
    return words == end;
}

void notices_join(uint32_t *seen, const uint32_t *other, int ranks)
{
    int rank;
    for (rank = 0; rank < ranks; rank++)
        if (seen[rank] < other[rank])
            seen[rank] = other[rank];
}
