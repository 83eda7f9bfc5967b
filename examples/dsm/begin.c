/* The start and the end of a job, and the memory that it shares. */

#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vipl_ext.h>
#include "state.h"

/* Where programs see the shared memory: far from all that the system maps on its own. */
#define VIEW ((void *)(sizeof(void *) == 8 ? (uintptr_t)0x200000000000 : (uintptr_t)0x60000000))

struct memory memory;

void dsm_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    job_fail_with(format, arguments);
}

int dsm_rank(void) { return job.rank; }
int dsm_size(void) { return job.size; }

void *map_memory(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        job_fail("no memory for %zu bytes", bytes);
    return at;
}

void unmap_memory(void *at, size_t bytes)
{
    munmap(at, bytes);
}

int start_thread(pthread_t *thread, void *(*run)(void *))
{
    sigset_t most, before;
    int result;

    sigfillset(&most);
    sigdelset(&most, SIGSEGV); /* the library finds faults of its own by these two */
    sigdelset(&most, SIGBUS);
    pthread_sigmask(SIG_BLOCK, &most, &before);
    result = pthread_create(thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result == 0;
}

VIP_MEM_HANDLE register_memory(void *at, size_t bytes, int for_peers)
{
    VIP_MEM_ATTRIBUTES attributes;
    VIP_MEM_HANDLE handle;

    memset(&attributes, 0, sizeof attributes);
    attributes.Ptag = job.tag;
    attributes.EnableRdmaWrite = for_peers ? VIP_TRUE : VIP_FALSE;
    attributes.EnableRdmaRead = for_peers && transfer_can_read() ? VIP_TRUE : VIP_FALSE;
    MUST(VipRegisterMem(job.nic, at, (VIP_ULONG)bytes, &attributes, &handle));
    return handle;
}

VIP_VI_HANDLE create_vi(VIP_CQ_HANDLE receives, int reads)
{
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE vi;

    memset(&attributes, 0, sizeof attributes);
    attributes.ReliabilityLevel = VIP_SERVICE_RELIABLE_RECEPTION;
    attributes.MaxTransferSize = job.attributes.MaxTransferSize;
    attributes.Ptag = job.tag;
    attributes.EnableRdmaWrite = VIP_TRUE;
    attributes.EnableRdmaRead = reads ? VIP_TRUE : VIP_FALSE;
    MUST(VipCreateVi(job.nic, &attributes, NULL, receives, &vi));
    return vi;
}

/* Memory of vipl_alloc, which peers on this host reach fastest, is shared memory: mremap with an old size of 0 maps it a second
 * time. */
static void open_memory(size_t bytes)
{
    VIP_PVOID wire;

    memory.pages = (uint32_t)((bytes + DSM_PAGE - 1) / DSM_PAGE);
    memory.bytes = (size_t)memory.pages * DSM_PAGE;
    if (vipl_alloc((VIP_ULONG)memory.bytes, &wire) != VIP_SUCCESS)
        job_fail("dsm_start: no memory for %zu bytes", memory.bytes);
    memory.wire = wire;
    memory.view = mmap(VIEW, memory.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory.view != VIEW)
        job_fail("dsm_start: something else is mapped at %p", VIEW);
    if (mremap(memory.wire, 0, memory.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, memory.view) != VIEW)
        job_fail("dsm_start: the memory cannot be mapped twice: %s", strerror(errno));
    memory.handle = register_memory(memory.wire, memory.bytes, 1);
}

static void close_memory(void)
{
    MUST(VipDeregisterMem(job.nic, memory.wire, memory.handle));
    munmap(memory.view, memory.bytes);
    MUST(vipl_free(memory.wire));
}

void dsm_start(size_t bytes)
{
    job_open();
    if (job.size > RANKS_MAX)
        job_fail("dsm is for up to %d ranks", (int)RANKS_MAX);
    if (sysconf(_SC_PAGESIZE) != DSM_PAGE)
        job_fail("dsm needs pages of %d bytes, not %ld", (int)DSM_PAGE, sysconf(_SC_PAGESIZE));
    if (bytes == 0 || bytes / DSM_PAGE >= INT32_MAX || bytes > SIZE_MAX / 4)
        job_fail("dsm_start: there can be no %zu bytes of shared memory", bytes);
    open_memory(bytes + report_bytes());
    pages_open();
    sync_open();
    manager_open();
    talk_open();
    faults_open();
    report_open();
}

void dsm_finish(void)
{
    pthread_mutex_lock(&talk.mutex);
    talk.finishing = 1;
    pthread_mutex_unlock(&talk.mutex);
    dsm_barrier();
    faults->close();
    talk_close();
    manager_close();
    sync_close();
    pages_close();
    close_memory();
    job_close();
}
