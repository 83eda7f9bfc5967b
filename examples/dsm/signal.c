/* Page faults by SIGSEGV: the view's pages have their rights by mprotect, and the handler does what the page needs.
 *
 *     load or store ─▶ SIGSEGV ─▶ caught ─▶ pages_fault: RDMA Read of the page into `wire`, a twin ─▶ mprotect ─▶ the instruction again
 *
 * No function of VIPL may be called in a handler that interrupts a function of VIPL. This one interrupts a load or store of the program, in
 * a thread that is not inside VIPL or this library: neither ever touches the view. */

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include "state.h"

static struct sigaction before; /* of the VIPL library, which finds faults of its own by it */
static pthread_t program;

/* Whether the processor says that it was a store. Where it does not, a page that is inaccessible faults twice for a store. */
static int is_store(const void *context)
{
#if defined(__x86_64__) || defined(__i386__)
    return (((const ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
    (void)context;
    return 0;
#endif
}

static void caught(int number, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr - (uintptr_t)memory.view;
    int error = errno;

    if (info->si_code != SEGV_ACCERR || at >= memory.bytes) {
        if (before.sa_flags & SA_SIGINFO)
            before.sa_sigaction(number, info, context);
        else
            sigaction(number, &before, NULL); /* the default: the instruction faults again */
        return;
    }
    if (!pthread_equal(pthread_self(), program))
        job_fail("only the thread that called dsm_start may use shared memory");
    pages_fault((uint32_t)(at / DSM_PAGE), is_store(context) || pages_is_readable((uint32_t)(at / DSM_PAGE)));
    errno = error;
}

static void set_rights(uint32_t first, uint32_t count, int rights)
{
    if (mprotect(memory.view + (size_t)first * DSM_PAGE, (size_t)count * DSM_PAGE, rights) != 0)
        job_fail("mprotect: %s; each change of rights between neighbouring pages counts for vm.max_map_count", strerror(errno));
}

static void admit(uint32_t page, int writable)
{
    set_rights(page, 1, writable ? PROT_READ | PROT_WRITE : PROT_READ);
}

static void protect(uint32_t first, uint32_t count)
{
    set_rights(first, count, PROT_READ);
}

static void hide(uint32_t first, uint32_t count)
{
    set_rights(first, count, PROT_NONE);
}

static int open_signal(void)
{
    struct sigaction action;

    memset(&action, 0, sizeof action);
    action.sa_sigaction = caught;
    /* The library may itself meet a fault in the handler, in its guarded copies. */
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    program = pthread_self();
    protect(0, memory.pages);
    return sigaction(SIGSEGV, &action, &before) == 0;
}

static void close_signal(void)
{
    sigaction(SIGSEGV, &before, NULL);
}

const fault_method by_signal = {"signal", open_signal, close_signal, admit, protect, hide};
