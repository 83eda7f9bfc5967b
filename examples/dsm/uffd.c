/* Page faults by userfaultfd: the kernel stops the thread that faults and tells this library's thread, which does what the page needs.
 *
 *     load or store ─▶ the kernel ─▶ serve ─▶ pages_fault: RDMA Read of the page into `wire`, a twin ─▶ UFFDIO_CONTINUE ─▶ goes on
 *
 * The view maps the same memory as `wire`. A page that the view's page table lacks is a minor fault; one that is there and
 * write-protected faults at a store. So an invalid page is taken out of the view by MADV_DONTNEED, which leaves the memory alone, and put
 * back by UFFDIO_CONTINUE. Linux 6.4 has all of it, for every user: faults of the program only, none inside of system calls. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "state.h"

#ifndef UFFDIO_CONTINUE_MODE_WP /* since Linux 6.4 */
#define UFFDIO_CONTINUE_MODE_WP ((uint64_t)1 << 1)
#endif

static int fd;
static pthread_t thread;

static struct uffdio_range range_of(uint32_t first, uint32_t count)
{
    struct uffdio_range range = {(uintptr_t)memory.view + (uint64_t)first * DSM_PAGE, (uint64_t)count * DSM_PAGE};
    return range;
}

static void must_be_zero(int result, const char *what)
{
    if (result != 0)
        job_fail("%s: %s", what, strerror(errno));
}

static void set_protection(uint32_t first, uint32_t count, uint64_t mode)
{
    struct uffdio_writeprotect change = {range_of(first, count), mode};
    must_be_zero(ioctl(fd, UFFDIO_WRITEPROTECT, &change), "UFFDIO_WRITEPROTECT");
}

/* Puts pages into the view that are not there. */
static int put(uint32_t first, uint32_t count, int writable)
{
    struct uffdio_continue change = {range_of(first, count), writable ? 0 : UFFDIO_CONTINUE_MODE_WP, 0};

    while (ioctl(fd, UFFDIO_CONTINUE, &change) != 0) {
        if (errno != EAGAIN)
            return -1;
        if (change.mapped > 0) { /* a part of them, before the kernel had something else to do */
            change.range.start += (uint64_t)change.mapped;
            change.range.len -= (uint64_t)change.mapped;
        }
    }
    return 0;
}

/* In a fault; each way wakes the thread. */
static void admit(uint32_t page, int writable)
{
    struct uffdio_range range = range_of(page, 1);

    if (put(page, 1, writable) == 0)
        return;
    if (errno != EEXIST)
        must_be_zero(-1, "UFFDIO_CONTINUE");
    if (writable)
        set_protection(page, 1, 0);
    else
        must_be_zero(ioctl(fd, UFFDIO_WAKE, &range), "UFFDIO_WAKE");
}

static void protect(uint32_t first, uint32_t count)
{
    set_protection(first, count, UFFDIO_WRITEPROTECT_MODE_WP);
}

static void hide(uint32_t first, uint32_t count)
{
    char *at = memory.view + (size_t)first * DSM_PAGE;
    must_be_zero(madvise(at, (size_t)count * DSM_PAGE, MADV_DONTNEED), "madvise");
}

static void *serve(void *unused)
{
    struct uffd_msg message;

    (void)unused;
    for (;;) {
        ssize_t bytes = read(fd, &message, sizeof message);
        if (bytes < 0 && errno == EINTR)
            continue;
        must_be_zero(bytes != sizeof message, "read of the userfaultfd");
        if (message.event != UFFD_EVENT_PAGEFAULT)
            continue;
        pages_fault((uint32_t)((message.arg.pagefault.address - (uintptr_t)memory.view) / DSM_PAGE),
                    (message.arg.pagefault.flags & (UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP)) != 0);
    }
    return NULL;
}

static int open_userfaultfd(void)
{
    struct uffdio_api api = {UFFD_API, UFFD_FEATURE_MINOR_SHMEM | UFFD_FEATURE_WP_HUGETLBFS_SHMEM, 0};
    struct uffdio_register all = {range_of(0, memory.pages), UFFDIO_REGISTER_MODE_MINOR | UFFDIO_REGISTER_MODE_WP, 0};

    fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (fd < 0)
        return 0;
    if (mprotect(memory.view, memory.bytes, PROT_READ | PROT_WRITE) != 0 || ioctl(fd, UFFDIO_API, &api) != 0 ||
        ioctl(fd, UFFDIO_REGISTER, &all) != 0 || put(0, memory.pages, 0) != 0 || !start_thread(&thread, serve)) {
        close(fd); /* which ends the registration, too */
        return 0;
    }
    return 1;
}

static void close_userfaultfd(void)
{
    pthread_cancel(thread); /* it is in `read` */
    pthread_join(thread, NULL);
    close(fd);
}

const fault_method by_userfaultfd = {"userfaultfd", open_userfaultfd, close_userfaultfd, admit, protect, hide};
