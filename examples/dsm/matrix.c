/* matrix: the product of two matrices. Rank 0 fills them, each rank computes a strip of rows; rank 0 compares with one process, bit for bit.
 *
 *     mprun [-n COUNT] matrix [SIDE] */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dsm.h"

static int side = 160;

static void multiply_rows(const double *a, const double *b, double *c, int first, int end)
{
    int x, y, k;
    for (y = first; y < end; y++)
        for (x = 0; x < side; x++) {
            double sum = 0;
            for (k = 0; k < side; k++)
                sum += a[(size_t)y * side + k] * b[(size_t)k * side + x];
            c[(size_t)y * side + x] = sum;
        }
}

int main(int argc, char **argv)
{
    double *a, *b, *c, *alone;
    size_t bytes, i;

    side = argc > 1 ? atoi(argv[1]) : side;
    if (side < 1 || side > 8192) {
        fprintf(stderr, "usage: matrix [SIDE], of 1 to 8192\n");
        return 2;
    }
    bytes = (size_t)side * side * sizeof(double);
    dsm_start(3 * (bytes + DSM_PAGE));
    a = dsm_allocate(bytes, 0);
    b = dsm_allocate(bytes, 0);
    c = dsm_allocate(bytes, DSM_BLOCKS);
    for (i = 0; dsm_rank() == 0 && i < (size_t)side * side; i++) {
        a[i] = (double)(i % 97) / 7;
        b[i] = (double)(i % 89) / 11;
    }
    dsm_barrier();
    multiply_rows(a, b, c, side * dsm_rank() / dsm_size(), side * (dsm_rank() + 1) / dsm_size());
    dsm_report("matrix");
    if (dsm_rank() == 0) {
        alone = malloc(bytes);
        if (alone == NULL)
            dsm_fail("no memory");
        multiply_rows(a, b, alone, 0, side);
        if (memcmp(c, alone, bytes) != 0)
            dsm_fail("the product is not that of one process");
        printf("matrix: the product of %d x %d is that of one process\n", side, side);
        free(alone);
    }
    dsm_finish();
    return 0;
}
