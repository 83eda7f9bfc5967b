/* What a job does while something goes wrong.
 *   faults late        rank 1 asks for messages when all others have sent everything they have
 *   faults never       rank 1 ends the job while all others send messages that it never asks for
 *   faults steady FILE messages between all until FILE is removed; FILE.RANK exists when a rank has begun */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MANY = 3000, LONG = 100000 };

static int rank, ranks;

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "rank %d: %s\n", rank, what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* Short and long messages to rank 1. */
static void send_all(int forever)
{
    static int words[LONG];
    int at;
    words[LONG - 1] = rank;
    for (at = 0; forever || at < MANY; at++) {
        words[0] = at;
        MPI_Send(words, at % 100 == 99 ? LONG : 8, MPI_INT, 1, 0, MPI_COMM_WORLD);
    }
}

static void late(void)
{
    static int words[LONG];
    int at, from;
    if (rank != 1) {
        send_all(0);
        return;
    }
    sleep(1); /* no call of MPI meanwhile: the senders wait, in the middle of what they have */
    for (from = 0; from < ranks; from++)
        for (at = 0; from != 1 && at < MANY; at++) {
            MPI_Recv(words, LONG, MPI_INT, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check(words[0] == at, "order");
            check(at % 100 != 99 || words[LONG - 1] == from, "contents");
        }
}

static void never(void)
{
    if (rank != 1)
        send_all(1);
    sleep(1);
    MPI_Abort(MPI_COMM_WORLD, 7);
}

static void steady(const char *file)
{
    char own[4096];
    int round, sum, last = 0, all_last = 0;
    FILE *begun;
    for (round = 0; !all_last; round++) {
        MPI_Allreduce(&round, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        check(sum == round * ranks, "sum");
        if (round == 10) {
            snprintf(own, sizeof own, "%s.%d", file, rank);
            begun = fopen(own, "w");
            check(begun != NULL && fclose(begun) == 0, "a file");
        }
        last = access(file, F_OK) != 0;
        MPI_Allreduce(&last, &all_last, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc > 1 && strcmp(argv[1], "late") == 0)
        late();
    else if (argc > 1 && strcmp(argv[1], "never") == 0)
        never();
    else if (argc > 2 && strcmp(argv[1], "steady") == 0)
        steady(argv[2]);
    else
        check(0, "no such fault");
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("ok: %d ranks\n", ranks);
    MPI_Finalize();
    return 0;
}
