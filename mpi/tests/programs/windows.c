/* One-sided calls on memory of the program's own go over VIPL: the counters of the library, which the provider has loaded,
 * grow by what was put. Prints "ok: ...". */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 4 << 20 };

static int rank, ranks;

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "rank %d: %s\n", rank, what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* Bytes that loopback has copied for this process, on whichever way. */
static double copied(void)
{
    static char text[1 << 16];
    static const char *names[] = {"ring_copy_bytes", "single_copy_bytes", "helped_copy_bytes"};
    int (*describe)(const char *, char *, unsigned long *);
    void *library = dlopen("libvipl.so.1", RTLD_NOW | RTLD_NOLOAD);
    unsigned long length = sizeof text;
    double sum = 0;
    size_t at;
    check(library != NULL, "the provider has not loaded the library");
    *(void **)&describe = dlsym(library, "vipl_describe");
    check(describe != NULL && describe("counters", text, &length) == 0, "vipl_describe");
    for (at = 0; at < sizeof names / sizeof *names; at++) {
        const char *found = strstr(text, names[at]);
        found = found == NULL ? NULL : strchr(found, ':');
        check(found != NULL, "a counter");
        sum += strtod(found + 1, NULL);
    }
    return sum;
}

int main(int argc, char **argv)
{
    unsigned char *memory = calloc(1, BYTES), *out = malloc(BYTES);
    double before, grown, all;
    size_t at;
    MPI_Win window;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    check(memory != NULL && out != NULL, "no memory");
    for (at = 0; at < BYTES; at++)
        out[at] = (unsigned char)(at * 31 + at / 251 + (size_t)rank);
    MPI_Win_create(memory, BYTES, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    /* Before the fence: in it, what the other rank puts may come already. */
    before = copied();
    MPI_Win_fence(0, window);
    MPI_Put(out, BYTES, MPI_BYTE, (rank + 1) % ranks, 0, BYTES, MPI_BYTE, window);
    MPI_Win_fence(0, window);
    grown = copied() - before;
    for (at = 0; at < BYTES; at++)
        check(memory[at] == (unsigned char)(at * 31 + at / 251 + (size_t)((rank + ranks - 1) % ranks)), "put");
    MPI_Allreduce(&grown, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    check(all >= (double)BYTES * ranks, "one-sided calls do not go over VIPL");
    MPI_Win_free(&window);
    if (rank == 0)
        printf("ok: %d ranks\n", ranks);
    MPI_Finalize();
    return 0;
}
