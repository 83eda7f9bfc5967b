/* Calls of MPI that need different things of the provider, with every byte checked. Prints "ok: ...". */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

static void fail(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void check(int holds, const char *what)
{
    if (!holds)
        fail(what);
}

static unsigned char value(size_t at, int seed)
{
    return (unsigned char)(at * 31 + at / 251 + (size_t)seed * 7);
}

static void fill(unsigned char *to, size_t bytes, int seed)
{
    size_t at;
    for (at = 0; at < bytes; at++)
        to[at] = value(at, seed);
}

static void compare(const unsigned char *found, size_t bytes, int seed, const char *what)
{
    size_t at;
    for (at = 0; at < bytes; at++)
        check(found[at] == value(at, seed), what);
}

/* Round and round the ring, every size: eager, rendezvous, above one transfer of the device. */
static void ring(size_t largest)
{
    unsigned char *out = malloc(largest), *in = malloc(largest);
    int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    size_t bytes;
    check(out != NULL && in != NULL, "no memory");
    for (bytes = 0; bytes <= largest; bytes = bytes < 4 ? bytes + 1 : bytes * 4 - 5) {
        fill(out, bytes, rank);
        memset(in, 0, bytes);
        MPI_Sendrecv(out, (int)bytes, MPI_BYTE, right, 1, in, (int)bytes, MPI_BYTE, left, 1, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        compare(in, bytes, left, "ring");
    }
    free(out);
    free(in);
}

/* Rank 0 gets many messages from all others before it asks for any, and takes the last kind first. */
static void flood(int messages)
{
    int at, from, found[16];
    for (at = 0; rank != 0 && at < messages; at++) {
        int words[16];
        words[0] = rank;
        words[15] = at;
        MPI_Send(words, 16, MPI_INT, 0, at % 2, MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (from = 1; rank == 0 && from < ranks; from++) {
        int tag;
        for (tag = 1; tag >= 0; tag--)
            for (at = tag; at < messages; at += 2) {
                MPI_Recv(found, 16, MPI_INT, from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                check(found[0] == from && found[15] == at, "flood");
            }
    }
}

/* A message that is longer than its receive is an error of MPI, and nothing else. */
static void truncated(void)
{
    char bytes[256] = {0};
    if (rank == 0) {
        int code, class;
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        code = MPI_Recv(bytes, 16, MPI_BYTE, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Error_class(code, &class);
        check(class == MPI_ERR_TRUNCATE, "a message that does not fit");
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    } else if (rank == 1) {
        MPI_Send(bytes, 256, MPI_BYTE, 0, 3, MPI_COMM_WORLD);
    }
}

static void collectives(int count)
{
    int *out = malloc(sizeof(int) * (size_t)count * (size_t)ranks), *in = malloc(sizeof(int) * (size_t)count * (size_t)ranks);
    int at, from;
    check(out != NULL && in != NULL, "no memory");
    for (at = 0; at < count * ranks; at++)
        out[at] = rank * 1000003 + at;
    MPI_Alltoall(out, count, MPI_INT, in, count, MPI_INT, MPI_COMM_WORLD);
    for (from = 0; from < ranks; from++)
        for (at = 0; at < count; at++)
            check(in[from * count + at] == from * 1000003 + rank * count + at, "alltoall");
    MPI_Allreduce(out, in, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (at = 0; at < count; at++)
        check(in[at] == ranks * (ranks - 1) / 2 * 1000003 + ranks * at, "allreduce");
    MPI_Bcast(out, count, MPI_INT, ranks - 1, MPI_COMM_WORLD);
    check(out[count - 1] == (ranks - 1) * 1000003 + count - 1, "bcast");
    free(out);
    free(in);
}

/* In a window of the MPI's memory, which may be shared within a host, or of the program's own. */
static void one_sided(int count, int own)
{
    int *memory = own ? malloc(sizeof(int) * (size_t)(count + 1)) : NULL, *buffer = malloc(sizeof(int) * (size_t)count), at, sum = 1, left = (rank + ranks - 1) % ranks;
    MPI_Win window;
    check(buffer != NULL && (!own || memory != NULL), "no memory");
    if (own)
        MPI_Win_create(memory, (MPI_Aint)sizeof(int) * (count + 1), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    else
        MPI_Win_allocate((MPI_Aint)sizeof(int) * (count + 1), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    memset(memory, 0, sizeof(int) * (size_t)(count + 1));
    MPI_Win_fence(0, window);
    for (at = 0; at < count; at++)
        buffer[at] = rank * 7919 + at;
    MPI_Put(buffer, count, MPI_INT, (rank + 1) % ranks, 0, count, MPI_INT, window);
    MPI_Accumulate(&sum, 1, MPI_INT, 0, count, 1, MPI_INT, MPI_SUM, window);
    MPI_Win_fence(0, window);
    for (at = 0; at < count; at++)
        check(memory[at] == left * 7919 + at, "put");
    check(rank != 0 || memory[count] == ranks, "accumulate");
    MPI_Win_lock_all(0, window);
    memset(buffer, 0, sizeof(int) * (size_t)count);
    MPI_Get(buffer, count, MPI_INT, left, 0, count, MPI_INT, window);
    MPI_Win_flush(left, window);
    for (at = 0; at < count; at++)
        check(buffer[at] == (left + ranks - 1) % ranks * 7919 + at, "get");
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    if (own)
        free(memory);
    free(buffer);
}

int main(int argc, char **argv)
{
    size_t largest = argc > 1 ? (size_t)atol(argv[1]) : 4u << 20;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    ring(largest);
    flood(600);
    truncated();
    collectives(1);
    collectives(5000);
    one_sided(1, 1);
    one_sided(100000, 0);
    one_sided(100000, 1);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("ok: %d ranks\n", ranks);
    MPI_Finalize();
    return 0;
}
