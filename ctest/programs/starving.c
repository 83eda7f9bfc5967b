/* Loaded before a program: malloc and its like give nothing from the N-th call on, until the program says otherwise.
 * `STARVE_FROM` is N, 0: never. Counts from the mark of `marks.h` on. At the end `STARVE_COUNT` names a file for the number
 * of calls. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "marks.h"

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static long calls, from;
static int counting;

/* The program's mark: the system call by its function of the C library. */
long starving_mark(long what)
{
    const char *text = getenv("STARVE_FROM");

    from = text != NULL ? atol(text) : 0;
    __atomic_store_n(&counting, what == COUNT_FROM_HERE, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&calls, __ATOMIC_SEQ_CST);
}

static int starved(void)
{
    long call;

    if (!__atomic_load_n(&counting, __ATOMIC_SEQ_CST))
        return 0;
    call = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    if (from == 0 || call < from)
        return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t bytes)
{
    return starved() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return starved() ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    return starved() ? NULL : __libc_realloc(memory, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    if (starved())
        return ENOMEM;
    *memory = __libc_memalign(alignment, bytes);
    return *memory == NULL ? ENOMEM : 0;
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return starved() ? NULL : __libc_memalign(alignment, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    return starved() ? NULL : __libc_memalign(alignment, bytes);
}
