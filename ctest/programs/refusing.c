/* Runs a program and refuses one of its system calls: the N-th one of number NR, of the program and of what it starts,
 * gives ERRNO. All others are made.
 *
 *   refusing NR N ERRNO COMMAND [ARGUMENT...]    NR is -1: none is refused
 *
 * Counts between marks of the program (`marks.h`). At the end it writes `refused: NAME` if there was such a call, `calls: NR:COUNT ...`, and ends as the
 * program did. Exit status 77: the system has no such filter.
 *
 * Not refused: what never fails; futex, rseq and brk, at whose unexpected errors the C library aborts or faults; writing to 1
 * and 2. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "marks.h"

#define NUMBERS 1024
#define CANNOT 77

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define SAME(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), yes, no)
#define PASS(number) SAME(number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static unsigned long counts[NUMBERS];
static int counting;

static void die(const char *what)
{
    fprintf(stderr, "refusing: %s: %s\n", what, strerror(errno));
    _exit(CANNOT);
}

/* The listener's descriptor, of this process. */
static int install(void)
{
    struct sock_filter code[] = {
        LOAD(nr),
        PASS(SYS_futex), PASS(SYS_exit), PASS(SYS_exit_group), PASS(SYS_rt_sigreturn), PASS(SYS_restart_syscall),
        PASS(SYS_sched_yield), PASS(SYS_getpid), PASS(SYS_gettid), PASS(SYS_getppid), PASS(SYS_getuid),
        PASS(SYS_geteuid), PASS(SYS_getgid), PASS(SYS_getegid), PASS(SYS_umask), PASS(SYS_clock_gettime),
        PASS(SYS_rseq), PASS(SYS_brk), PASS(SYS_clock_nanosleep), PASS(SYS_nanosleep), PASS(SYS_sched_getaffinity), PASS(SYS_munmap), PASS(SYS_close),
        SAME(SYS_write, 0, 3),
        LOAD(args[0]),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 2, 1, 0), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
    };
    struct sock_fprog program = { sizeof code / sizeof code[0], code };

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return -1;
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

/* Whether this call begins the count, or ends it. */
static int is_mark(const struct seccomp_data *call)
{
    int found = call->nr == SYS_getpgid && (call->args[0] == COUNT_FROM_HERE || call->args[0] == COUNT_NO_MORE);

    if (found)
        counting = call->args[0] == COUNT_FROM_HERE;
    return found;
}

static int has_ended(pid_t child)
{
    siginfo_t ended;

    ended.si_pid = 0;
    return waitid(P_PID, (id_t)child, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid == child;
}

static void serve(int listener, pid_t child, long nr, long which, long error)
{
    struct seccomp_notif request;
    struct seccomp_notif_resp answer;
    struct pollfd ready;
    int rounds = 0;

    for (;;) {
        ready.fd = listener;
        ready.events = POLLIN;
        /* The last process that has the filter has ended: POLLHUP. */
        if (poll(&ready, 1, 20) != 0 && ready.revents & POLLHUP)
            return;
        if (rounds != 0 || has_ended(child)) {
            /* What it has left behind is served to its end: without this process all of its calls would fail. */
            if (rounds++ == 0) {
                signal(SIGTERM, SIG_IGN);
                kill(0, SIGTERM);
            }
            if (rounds > 100000)
                return;
        }
        if (!(ready.revents & POLLIN))
            continue;
        memset(&request, 0, sizeof request);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &request) != 0)
            continue;
        memset(&answer, 0, sizeof answer);
        answer.id = request.id;
        answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        if (!is_mark(&request.data) && counting && request.data.nr >= 0 && request.data.nr < NUMBERS) {
            unsigned long number = ++counts[request.data.nr];
            if (request.data.nr == nr && (long)number == which) {
                char path[64], name[32] = "?";
                FILE *comm;

                snprintf(path, sizeof path, "/proc/%u/comm", request.pid);
                comm = fopen(path, "r");
                if (comm != NULL && fgets(name, sizeof name, comm) != NULL)
                    name[strcspn(name, "\n")] = 0;
                if (comm != NULL)
                    fclose(comm);
                fprintf(stderr, "refused: %s\n", name);
                answer.flags = 0;
                answer.error = (int)-error;
            }
        }
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
}

int main(int argc, char **argv)
{
    int *shared, listener, process, status = 0, i;
    pid_t child;

    if (argc < 5)
        return 2;
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        die("mmap");
    child = fork();
    if (child == 0) {
        int made;

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        made = install();
        /* From here on every call waits for the parent. */
        __atomic_store_n(shared, made < 0 ? -errno : made + 1, __ATOMIC_RELEASE);
        if (made >= 0)
            execvp(argv[4], argv + 4);
        _exit(CANNOT);
    }
    while ((listener = __atomic_load_n(shared, __ATOMIC_ACQUIRE)) == 0)
        usleep(100);
    if (listener < 0) {
        errno = -listener;
        die("seccomp");
    }
    process = (int)syscall(SYS_pidfd_open, child, 0);
    listener = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, listener - 1, 0);
    if (listener < 0) {
        kill(child, SIGKILL);
        die("pidfd_getfd");
    }
    serve(listener, child, atol(argv[1]), atol(argv[2]), atol(argv[3]));
    waitpid(child, &status, 0);
    fprintf(stderr, "calls:");
    for (i = 0; i < NUMBERS; i++)
        if (counts[i] != 0)
            fprintf(stderr, " %d:%lu", i, counts[i]);
    fprintf(stderr, "\n");
    if (WIFSIGNALED(status)) {
        fprintf(stderr, "ended by signal %d\n", WTERMSIG(status));
        return 128 + WTERMSIG(status);
    }
    return WEXITSTATUS(status);
}
