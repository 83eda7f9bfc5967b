/* Four threads of each rank talk to all ranks at once, each under a tag of its own. Prints "ok: ...". */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>

enum { THREADS = 4, ROUNDS = 300 };

static int rank, ranks;

static void *talk(void *argument)
{
    int tag = *(int *)argument, round, step;
    for (round = 0; round < ROUNDS; round++)
        for (step = 1; step < ranks; step++) {
            int to = (rank + step) % ranks, from = (rank + ranks - step) % ranks;
            int out = rank * ROUNDS + round, in = -1;
            MPI_Sendrecv(&out, 1, MPI_INT, to, tag, &in, 1, MPI_INT, from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (in != from * ROUNDS + round)
                MPI_Abort(MPI_COMM_WORLD, 1);
        }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    int tags[THREADS], provided, at;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (provided != MPI_THREAD_MULTIPLE)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (at = 0; at < THREADS; at++) {
        tags[at] = at;
        if (pthread_create(&threads[at], NULL, talk, &tags[at]) != 0)
            MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (at = 0; at < THREADS; at++)
        pthread_join(threads[at], NULL);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("ok: %d ranks\n", ranks);
    MPI_Finalize();
    return 0;
}
