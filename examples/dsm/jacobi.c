/* jacobi: heat spreads over a plate. In each step every point becomes the mean of its four neighbours; each rank has a strip of rows and
 * reads one row of each neighbour. Rank 0 compares the result with that of one process, bit for bit.
 *
 *     mprun [-n COUNT] jacobi [SIDE [STEPS]] */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dsm.h"

static int side = 256, steps = 20;

static void step_rows(const double *from, double *to, int first, int end)
{
    int x, y;
    for (y = first; y < end; y++)
        for (x = 1; x < side - 1; x++) {
            const double *at = from + (size_t)y * side + x;
            to[(size_t)y * side + x] = (at[-1] + at[1] + at[-side] + at[side]) / 4;
        }
}

/* What both plates begin with: a pattern, so that every point changes in every step. */
static void heat(double *plate)
{
    long i;
    for (i = 0; i < (long)side * side; i++)
        plate[i] = (double)(i * 7919 % 1000);
}

static void check(const double *plate)
{
    size_t bytes = (size_t)side * side * sizeof(double);
    double *from = calloc(1, bytes), *to = calloc(1, bytes), *other;
    int step;

    if (from == NULL || to == NULL)
        dsm_fail("no memory");
    heat(from);
    heat(to);
    for (step = 0; step < steps; step++) {
        step_rows(from, to, 1, side - 1);
        other = from, from = to, to = other;
    }
    if (memcmp(from, plate, bytes) != 0)
        dsm_fail("the plate is not that of one process");
    free(from);
    free(to);
}

int main(int argc, char **argv)
{
    double *from, *to, *other;
    size_t bytes;
    int step, first, end;

    side = argc > 1 ? atoi(argv[1]) : side;
    steps = argc > 2 ? atoi(argv[2]) : steps;
    if (side < 3 || side > 16384 || steps < 0) {
        fprintf(stderr, "usage: jacobi [SIDE [STEPS]], with a side of 3 to 16384\n");
        return 2;
    }
    bytes = (size_t)side * side * sizeof(double);
    dsm_start(2 * (bytes + DSM_PAGE));
    from = dsm_allocate(bytes, DSM_BLOCKS);
    to = dsm_allocate(bytes, DSM_BLOCKS);
    first = 1 + (side - 2) * dsm_rank() / dsm_size();
    end = 1 + (side - 2) * (dsm_rank() + 1) / dsm_size();
    if (dsm_rank() == 0) {
        heat(from);
        heat(to);
    }
    dsm_barrier();
    for (step = 0; step < steps; step++) {
        step_rows(from, to, first, end);
        dsm_barrier();
        other = from, from = to, to = other;
    }
    dsm_report("jacobi");
    if (dsm_rank() == 0) {
        check(from);
        printf("jacobi: %d steps of %d x %d points are those of one process\n", steps, side, side);
    }
    dsm_finish();
    return 0;
}
