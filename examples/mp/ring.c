/* ring: a token goes around all ranks; each adds its own number. Then messages of all sizes do, from nothing to 1 MiB, and come back as they were. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "mp.h"

enum { ROUNDS = 100, MOST = 1 << 20 };

int main(void)
{
    long token = 0, sum;
    int rank, size, left, right, round, sizes = 0;
    char *sent = malloc(MOST), *back = malloc(MOST);
    size_t bytes;

    mp_start();
    rank = mp_rank();
    size = mp_size();
    right = (rank + 1) % size;
    left = (rank - 1 + size) % size;
    if (sent == NULL || back == NULL)
        mp_fail("no memory");

    for (round = 0; round < ROUNDS; round++) {
        if (rank != 0)
            mp_receive(&token, sizeof token, left, round, NULL);
        token += rank;
        mp_send(&token, sizeof token, right, round);
        if (rank == 0)
            mp_receive(&token, sizeof token, left, round, NULL);
    }
    sum = (long)ROUNDS * size * (size - 1) / 2;
    if (rank == 0 && token != sum)
        mp_fail("the token is %ld, not %ld", token, sum);

    for (bytes = 0; bytes <= MOST; bytes = bytes < 4 ? bytes + 1 : bytes * 4 - 5) {
        mp_status status;
        memset(sent, (int)(bytes % 251) + 1, bytes);
        memset(back, 0, bytes);
        if (rank == 0)
            mp_send(sent, bytes, right, sizes);
        mp_receive(back, MOST, left, sizes, &status);
        if (rank != 0)
            mp_send(back, bytes, right, sizes);
        if (status.bytes != bytes || memcmp(sent, back, bytes) != 0)
            mp_fail("%zu bytes are not as they were", bytes);
        sizes++;
    }
    if (rank == 0)
        printf("ring: %d ranks, the token is %ld, %d sizes came back\n", size, token, sizes);
    mp_finish();
    free(sent);
    free(back);
    return 0;
}
