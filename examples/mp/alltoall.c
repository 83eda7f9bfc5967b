/* alltoall: every rank sends a block to every other one, of sizes on both sides of the limit between eager and rendezvous. */

#include <stdio.h>
#include <stdlib.h>
#include "mp.h"

static const size_t SIZES[] = {0, 1, 8, 100, 4095, 4096, 4097, 20000, 65536, 200001};

enum { COUNT = sizeof SIZES / sizeof SIZES[0], REPEATS = 5, MOST = 200001 };

/* The byte at a place of what one rank sends to another. */
static char byte_of(int from, int to, size_t place)
{
    return (char)(from * 31 + to * 17 + (int)(place % 127));
}

int main(void)
{
    char *send, *receive;
    int i, r, repeat, rank, size;
    size_t place;

    mp_start();
    rank = mp_rank();
    size = mp_size();
    send = malloc((size_t)size * MOST);
    receive = malloc((size_t)size * MOST);
    if (send == NULL || receive == NULL)
        mp_fail("no memory");
    for (repeat = 0; repeat < REPEATS; repeat++)
        for (i = 0; i < COUNT; i++) {
            size_t bytes = SIZES[i];
            for (r = 0; r < size; r++)
                for (place = 0; place < bytes; place++) {
                    send[(size_t)r * bytes + place] = byte_of(rank, r, place);
                    receive[(size_t)r * bytes + place] = 0;
                }
            mp_exchange_all(send, receive, bytes);
            for (r = 0; r < size; r++)
                for (place = 0; place < bytes; place++)
                    if (receive[(size_t)r * bytes + place] != byte_of(r, rank, place))
                        mp_fail("byte %zu of %zu from rank %d is wrong", place, bytes, r);
        }
    if (rank == 0)
        printf("alltoall: %d ranks, %d sizes, every byte is right\n", size, (int)COUNT);
    mp_finish();
    free(send);
    free(receive);
    return 0;
}
