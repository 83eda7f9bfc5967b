/* Collective operations of mp, over its messages. Their tags are negative, so that no MP_ANY of the program takes them. */

#include <stdlib.h>
#include <string.h>
#include "mp.h"

enum { BARRIER = -2, SUM = -3, ALL = -4 };

void mp_exchange(const void *send, int to, void *receive, int from, size_t bytes, int tag)
{
    mp_request *in = mp_start_receive(receive, bytes, from, tag), *out = mp_start_send(send, bytes, to, tag);
    mp_wait(out, NULL);
    mp_wait(in, NULL);
}

/* In round k a rank tells the one 2^k further that it, and all of which it knows, are here. */
void mp_barrier(void)
{
    int rank = mp_rank(), size = mp_size(), far;
    for (far = 1; far < size; far *= 2)
        mp_exchange(NULL, (rank + far) % size, NULL, (rank - far + size) % size, 0, BARRIER);
}

/* Along a binomial tree to rank 0 and back: all ranks get the same bits, since one rank adds in one order. */
void mp_sum(double *values, int count)
{
    int rank = mp_rank(), size = mp_size(), bit, i;
    size_t bytes = (size_t)count * sizeof *values;
    double *others = malloc(bytes);

    if (others == NULL && bytes > 0)
        mp_fail("no memory for a sum of %d values", count);
    for (bit = 1; bit < size && (rank & bit) == 0; bit *= 2)
        if (rank + bit < size) {
            mp_receive(others, bytes, rank + bit, SUM, NULL);
            for (i = 0; i < count; i++)
                values[i] += others[i];
        }
    if (rank != 0) {
        mp_send(values, bytes, rank - bit, SUM);
        mp_receive(values, bytes, rank - bit, SUM, NULL);
    }
    for (bit /= 2; bit > 0; bit /= 2)
        if (rank + bit < size)
            mp_send(values, bytes, rank + bit, SUM);
    mp_forget(others, bytes); /* free may unmap it */
    free(others);
}

/* In round k each rank sends to the one k further, so that no rank is the target of two. */
void mp_exchange_all(const void *send, void *receive, size_t bytes)
{
    int rank = mp_rank(), size = mp_size(), far;

    memcpy((char *)receive + (size_t)rank * bytes, (const char *)send + (size_t)rank * bytes, bytes);
    for (far = 1; far < size; far++) {
        int to = (rank + far) % size, from = (rank - far + size) % size;
        mp_exchange((const char *)send + (size_t)to * bytes, to, (char *)receive + (size_t)from * bytes, from, bytes, ALL);
    }
}
