/* dsm_bench: what a page of another rank costs above its two parts, in one run of two ranks, in turns.
 *
 *   - a remote page fault of dsm: a load from a page that the other rank has written, until it has its value
 *   - a fault alone: the same way into a handler, which only permits the access
 *   - an RDMA Read of 4 KiB of memory that the other rank has written, by VipPostSend and VipSendDone alone
 *
 *     mprun [-d DEVICE] dsm_bench [ROUNDS]
 *
 * Each figure is the median of so many rounds of PAGES pages. The plain side has a VI of its own, on a NIC handle of its own. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "../example.h"
#include "dsm.h"

enum { PAGES = 512, ROUNDS_MAX = 100, BYTES = PAGES * DSM_PAGE };

static device opened;
static VIP_VI_HANDLE vi;
static VIP_MEM_HANDLE plain_memory, descriptor_memory;
static VIP_DESCRIPTOR d __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));
static window *there;        /* the other rank's memory, in shared memory */
static char *plain, *view;   /* memory for the plain reads, and a second mapping of it for the plain faults */
static volatile char *shared; /* of dsm */
static int rank, rounds = 15, fd = -1;
static volatile char sink;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- a fault alone ------------------------------------------------------------------------------------------ */

static void permit(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    mprotect((void *)((uintptr_t)info->si_addr / DSM_PAGE * DSM_PAGE), DSM_PAGE, PROT_READ);
}

static void *serve(void *unused)
{
    struct uffd_msg message;

    (void)unused;
    while (read(fd, &message, sizeof message) == sizeof message) {
        struct uffdio_continue change = {{message.arg.pagefault.address / DSM_PAGE * DSM_PAGE, DSM_PAGE}, 0, 0};
        if (ioctl(fd, UFFDIO_CONTINUE, &change) != 0)
            dsm_fail("UFFDIO_CONTINUE: %s", strerror(errno));
    }
    return NULL;
}

/* Faults come by the method that those of dsm come by. */
static void open_faults(void)
{
    const char *method = getenv("DSM_FAULTS");
    struct uffdio_api api = {UFFD_API, UFFD_FEATURE_MINOR_SHMEM, 0};
    struct uffdio_register all = {{(uintptr_t)view, BYTES}, UFFDIO_REGISTER_MODE_MINOR, 0};
    pthread_t thread;

    if (method == NULL || strcmp(method, "userfaultfd") != 0)
        return;
    fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0 || ioctl(fd, UFFDIO_REGISTER, &all) != 0 ||
        pthread_create(&thread, NULL, serve, NULL) != 0)
        dsm_fail("userfaultfd: %s", strerror(errno));
}

static double time_faults(void)
{
    struct sigaction action, before;
    double begin;
    int i;

    memset(&action, 0, sizeof action);
    action.sa_sigaction = permit;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &before);
    if (fd >= 0)
        madvise(view, BYTES, MADV_DONTNEED);
    else
        mprotect(view, BYTES, PROT_NONE);
    begin = now();
    for (i = 0; i < PAGES; i++)
        sink = *(volatile char *)(view + i * DSM_PAGE);
    begin = now() - begin;
    sigaction(SIGSEGV, &before, NULL);
    return begin / PAGES * 1e6;
}

/* ---- RDMA Read alone ---------------------------------------------------------------------------------------- */

static void open_plain(void)
{
    VIP_VI_ATTRIBUTES its_vi;
    address here, other;
    VIP_PVOID at;
    char name[32];

    opened = open_device(getenv("MP_DEVICE"));
    if (!has_rdma_read(&opened))
        dsm_fail("this device has no RDMA Read");
    MUST(vipl_alloc(BYTES, &at));
    plain = at;
    view = mremap(plain, 0, BYTES, MREMAP_MAYMOVE);
    if (view == MAP_FAILED)
        dsm_fail("mremap: %s", strerror(errno));
    plain_memory = register_memory(&opened, plain, BYTES, READABLE);
    descriptor_memory = register_memory(&opened, &d, sizeof d, LOCAL);
    vi = create_vi(&opened, NULL);
    snprintf(name, sizeof name, "bench%.8s%d", getenv("MP_JOB"), rank);
    here = address_of(opened.nic, name);
    name[strlen(name) - 1] ^= 1; /* '0' and '1' */
    other = address_of(opened.nic, name);
    MUST(VipConnectPeerRequest(vi, &here.net, &other.net, 20000));
    MUST(VipConnectPeerWait(vi, &its_vi));
    if (rank == 1)
        *there = window_of(plain, plain_memory, BYTES);
    dsm_barrier();
}

static void close_plain(void)
{
    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened.nic, plain, plain_memory));
    MUST(VipDeregisterMem(opened.nic, &d, descriptor_memory));
    munmap(view, BYTES);
    MUST(vipl_free(plain));
    close_device(&opened);
}

static double time_reads(void)
{
    window from = *there;
    double begin = now();
    VIP_DESCRIPTOR *done;
    VIP_RETURN result;
    int i;

    for (i = 0; i < PAGES; i++) {
        from.at = there->at + (unsigned)i * DSM_PAGE;
        describe_rdma(&d, VIP_CONTROL_OP_RDMAREAD, &from, plain + i * DSM_PAGE, plain_memory, DSM_PAGE);
        MUST(VipPostSend(vi, &d, descriptor_memory));
        while ((result = VipSendDone(vi, &done)) == VIP_NOT_DONE)
            continue;
        MUST(result);
        sink = plain[i * DSM_PAGE];
    }
    return (now() - begin) / PAGES * 1e6;
}

/* ---- figures ------------------------------------------------------------------------------------------------ */

static double time_dsm(void)
{
    double begin = now();
    int i;
    for (i = 0; i < PAGES; i++)
        sink = shared[i * DSM_PAGE];
    return (now() - begin) / PAGES * 1e6;
}

/* Rank 1 has written what rank 0 reads next. */
static void write_pages(int round)
{
    int i;
    dsm_barrier();
    for (i = 0; rank == 1 && i < BYTES; i += (int)sizeof(int)) {
        *(int *)(plain + i) = round;
        *(volatile int *)(shared + i) = round;
    }
    dsm_barrier();
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, (size_t)rounds, sizeof *values, compare);
    return values[rounds / 2];
}

int main(int argc, char **argv)
{
    double page[ROUNDS_MAX], fault[ROUNDS_MAX], reading[ROUNDS_MAX], a, b, c;
    int i;

    dsm_start(BYTES + DSM_PAGE);
    rank = dsm_rank();
    rounds = argc > 1 ? atoi(argv[1]) : rounds;
    if (dsm_size() != 2 || rounds < 1 || rounds > ROUNDS_MAX)
        dsm_fail("dsm_bench needs two ranks, and 1 to %d rounds", (int)ROUNDS_MAX);
    there = dsm_allocate(sizeof *there, 1);
    shared = dsm_allocate(BYTES, 1);
    open_plain();
    open_faults();
    for (i = -1; i < rounds; i++) { /* once for nothing */
        int at = i < 0 ? 0 : i;
        write_pages(i);
        if (rank == 0) {
            page[at] = time_dsm();
            fault[at] = time_faults();
            reading[at] = time_reads();
        }
        dsm_barrier();
    }
    if (rank == 0) {
        a = median(page), b = median(fault), c = median(reading);
        printf("a page of another rank: %.2f us; a fault %.2f us, an RDMA Read of 4 KiB %.2f us: ratio %.2f\n", a, b, c, a / (b + c));
    }
    close_plain();
    dsm_report("dsm_bench");
    dsm_finish();
    return 0;
}
