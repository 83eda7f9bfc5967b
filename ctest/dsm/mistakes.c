/* What dsm says of programs that are wrong, and of ranks that die: `mistakes WHAT`, on each rank of a job. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "dsm.h"

static volatile int *shared;

static void *touch(void *unused)
{
    (void)unused;
    shared[0] = 1;
    return NULL;
}

static void on_another_thread(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, touch, NULL) == 0)
        pthread_join(thread, NULL);
}

static void die(void)
{
    if (dsm_rank() == 1)
        raise(SIGKILL);
}

static void read_into_shared(void)
{
    int fd = open("/dev/zero", O_RDONLY);
    if (read(fd, (void *)(uintptr_t)shared, sizeof *shared) < 0)
        printf("a read into a page that may not be written: %s\n", strerror(errno));
    close(fd);
}

/* Lets this process map so many bytes more, and no others. */
static void limit_memory(size_t bytes)
{
    unsigned long pages;
    FILE *statm = fopen("/proc/self/statm", "r");
    struct rlimit limit;

    if (statm == NULL || fscanf(statm, "%lu", &pages) != 1)
        abort();
    fclose(statm);
    limit.rlim_cur = limit.rlim_max = pages * DSM_PAGE + bytes;
    setrlimit(RLIMIT_AS, &limit);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    const char *rank = getenv("MP_RANK");
    size_t bytes = 8 * DSM_PAGE;

    if (strcmp(what, "nothing") == 0)
        bytes = 0;
    if (strcmp(what, "all") == 0)
        bytes = (size_t)-1;
    if (strcmp(what, "differ") == 0 && rank != NULL && rank[0] == '1')
        bytes *= 2;
    if (strcmp(what, "memory") == 0) {
        bytes = (size_t)64 << 20;
        limit_memory((size_t)32 << 20);
    }
    dsm_start(bytes);
    shared = dsm_allocate(4 * DSM_PAGE, 1 % dsm_size());
    dsm_barrier();
    if (strcmp(what, "allocate") == 0)
        dsm_allocate(5 * DSM_PAGE, 0);
    else if (strcmp(what, "home") == 0)
        dsm_allocate(1, dsm_size());
    else if (strcmp(what, "lock") == 0)
        dsm_acquire(DSM_LOCKS);
    else if (strcmp(what, "twice") == 0)
        dsm_acquire(dsm_rank()), dsm_acquire(dsm_rank());
    else if (strcmp(what, "release") == 0)
        dsm_release(3);
    else if (strcmp(what, "thread") == 0)
        on_another_thread();
    else if (strcmp(what, "beyond") == 0)
        shared[1 << 20] = 1;
    else if (strcmp(what, "call") == 0)
        read_into_shared();
    else if (strcmp(what, "at-the-barrier") == 0)
        die(), dsm_barrier();
    else if (strcmp(what, "with-a-lock") == 0) {
        if (dsm_rank() == 1)
            dsm_acquire(1);
        dsm_barrier();
        die();
        dsm_acquire(1);
    } else if (strcmp(what, "while-others-compute") == 0) {
        die();
        for (;;)
            pause();
    } else if (strcmp(what, "at-the-end") == 0)
        die();
    dsm_finish();
    printf("rank %s ends well\n", rank);
    return 0;
}
