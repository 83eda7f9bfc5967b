/* allreduce: sums over all ranks, here the digits of pi: each rank integrates its part of 4 / (1 + x * x). */

#include <stdio.h>
#include <stdlib.h>
#include "mp.h"

enum { STEPS = 1000000, LONG = 20000 };

int main(void)
{
    double pi = 0, *values;
    int rank, size, i;

    mp_start();
    rank = mp_rank();
    size = mp_size();
    for (i = rank; i < STEPS; i += size) {
        double x = (i + 0.5) / STEPS;
        pi += 4 / (1 + x * x) / STEPS;
    }
    mp_sum(&pi, 1);
    if (pi < 3.14159265 || pi > 3.14159266)
        mp_fail("pi is not %.10f", pi);

    /* Long enough for a rendezvous; the sums are whole numbers. */
    values = malloc(LONG * sizeof *values);
    if (values == NULL)
        mp_fail("no memory");
    for (i = 0; i < LONG; i++)
        values[i] = (double)i * (rank + 1);
    mp_sum(values, LONG);
    for (i = 0; i < LONG; i++)
        if (values[i] != (double)i * size * (size + 1) / 2)
            mp_fail("value %d is %f", i, values[i]);
    if (rank == 0)
        printf("allreduce: %d ranks, pi is %.8f, %d sums are right\n", size, pi, LONG);
    mp_finish();
    free(values);
    return 0;
}
