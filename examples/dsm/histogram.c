/* histogram: how often each byte occurs. The ranks take pieces of the text from a counter under a lock, when they have time, and add what they have
 * counted to the bins, under a lock for each group of bins. Many ranks store to each page. Rank 0 compares with one process.
 *
 *     mprun [-n COUNT] histogram [PIECES] */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dsm.h"

enum { PIECE = 10000, BINS = 256, GROUPS = 8, COUNTER = GROUPS /* a lock, after those of the groups */ };

static unsigned char byte_at(long i)
{
    return (unsigned char)(((unsigned long long)(i + 1) * 0x9e3779b97f4a7c15u >> 40) % 251);
}

static void count_piece(const unsigned char *text, unsigned *bins)
{
    int i;
    for (i = 0; i < PIECE; i++)
        bins[text[i]]++;
}

int main(int argc, char **argv)
{
    long pieces = argc > 1 ? atol(argv[1]) : 40, bytes, i, taken = 0;
    unsigned *bins, own[BINS] = {0};
    unsigned char *text;
    long *next;
    int group;

    if (pieces < 1 || pieces > 100000) {
        fprintf(stderr, "usage: histogram [PIECES], 1 to 100000 of them\n");
        return 2;
    }
    bytes = pieces * PIECE;
    dsm_start((size_t)bytes + 3 * DSM_PAGE);
    text = dsm_allocate((size_t)bytes, DSM_BLOCKS);
    bins = dsm_allocate(BINS * sizeof *bins, 0);
    next = dsm_allocate(sizeof *next, 0);
    /* Whole pieces, so that no two ranks store to bytes of one word. */
    for (i = pieces * dsm_rank() / dsm_size() * PIECE; i < pieces * (dsm_rank() + 1) / dsm_size() * PIECE; i++)
        text[i] = byte_at(i);
    dsm_barrier();
    for (;;) {
        dsm_acquire(COUNTER);
        i = (*next)++;
        dsm_release(COUNTER);
        if (i >= pieces)
            break;
        count_piece(text + i * PIECE, own);
        taken++;
    }
    for (group = 0; group < GROUPS; group++) {
        int which = (group + dsm_rank()) % GROUPS, bin;
        dsm_acquire(which);
        for (bin = which * BINS / GROUPS; bin < (which + 1) * BINS / GROUPS; bin++)
            bins[bin] += own[bin];
        dsm_release(which);
    }
    dsm_report("histogram");
    if (dsm_rank() == 0) {
        memset(own, 0, sizeof own);
        for (i = 0; i < bytes; i++)
            own[byte_at(i)]++;
        if (memcmp(bins, own, sizeof own) != 0)
            dsm_fail("the histogram is not that of one process");
        printf("histogram: %ld bytes are counted as by one process; rank 0 took %ld of %ld pieces\n", bytes, taken, pieces);
    }
    dsm_finish();
    return 0;
}
