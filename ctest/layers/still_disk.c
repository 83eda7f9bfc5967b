/* A disk that stands still, for LD_PRELOAD: a write to $STILL_FILE does not return, but the first one of the process. With
 * STILL_THREAD=first only those of the first thread do not, with STILL_THREAD=others only those of the others. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_int writes;

static int stands_still(int fd)
{
    const char *name = getenv("STILL_FILE"), *thread = getenv("STILL_THREAD");
    struct stat one, other;

    if (name == NULL || thread == NULL || fstat(fd, &one) != 0 || stat(name, &other) != 0)
        return 0;
    if (one.st_ino != other.st_ino || one.st_dev != other.st_dev || atomic_fetch_add(&writes, 1) == 0)
        return 0;
    return (strcmp(thread, "first") == 0) == (gettid() == getpid());
}

ssize_t write(int fd, const void *bytes, size_t count)
{
    union {
        void *symbol;
        ssize_t (*function)(int, const void *, size_t);
    } real;

    while (stands_still(fd))
        pause();
    real.symbol = dlsym(RTLD_NEXT, "write");
    return real.function(fd, bytes, count);
}
