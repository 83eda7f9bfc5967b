/* mergesort: each rank sorts its part, then pairs of parts are merged, half as many each round. Every byte changes in every round, so
 * whole pages go to their homes. Rank 0 compares with one process.
 *
 *     mprun [-n COUNT] mergesort [KEYS] */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dsm.h"

static int compare(const void *a, const void *b)
{
    unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
    return (x > y) - (x < y);
}

static void merge(const unsigned *a, const unsigned *end_a, const unsigned *b, const unsigned *end_b, unsigned *to)
{
    while (a < end_a || b < end_b)
        *to++ = b == end_b || (a < end_a && *a <= *b) ? *a++ : *b++;
}

/* The same keys on all ranks. */
static void fill(unsigned *keys, long from, long end)
{
    long i;
    for (i = from; i < end; i++)
        keys[i - from] = (unsigned)((unsigned long long)(i + 1) * 0x9e3779b97f4a7c15u >> 29);
}

int main(int argc, char **argv)
{
    long count = argc > 1 ? atol(argv[1]) : 200000, bytes = count * (long)sizeof(unsigned), width;
    unsigned *from, *to, *other, *own;
    int rank, size;

    if (count < 1 || count > 1 << 28) {
        fprintf(stderr, "usage: mergesort [KEYS], 1 to 268435456 of them\n");
        return 2;
    }
    dsm_start(2 * ((size_t)bytes + DSM_PAGE));
    from = dsm_allocate((size_t)bytes, DSM_BLOCKS);
    to = dsm_allocate((size_t)bytes, DSM_BLOCKS);
    rank = dsm_rank();
    size = dsm_size();
    own = malloc((size_t)bytes);
    if (own == NULL)
        dsm_fail("no memory");
#define BOUND(part) (count * ((part) < size ? (part) : size) / size)
    fill(own, BOUND(rank), BOUND(rank + 1));
    qsort(own, (size_t)(BOUND(rank + 1) - BOUND(rank)), sizeof *own, compare);
    memcpy(from + BOUND(rank), own, (size_t)(BOUND(rank + 1) - BOUND(rank)) * sizeof *own);
    dsm_barrier();
    for (width = 1; width < size; width *= 2) {
        if (rank % (2 * width) == 0)
            merge(from + BOUND(rank), from + BOUND(rank + width), from + BOUND(rank + width), from + BOUND(rank + 2 * width), to + BOUND(rank));
        dsm_barrier();
        other = from, from = to, to = other;
    }
    dsm_report("mergesort");
    if (rank == 0) {
        fill(own, 0, count);
        qsort(own, (size_t)count, sizeof *own, compare);
        if (memcmp(from, own, (size_t)bytes) != 0)
            dsm_fail("the order is not that of one process");
        printf("mergesort: %ld keys are in the order of one process\n", count);
    }
    dsm_finish();
    free(own);
    return 0;
}
