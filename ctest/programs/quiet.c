/* Posts and completions make no system call, from the very first one on (but for memory, when a ring of the queue
 * doubles): the kernel refuses every other one to this thread, and says which it was.
 *
 * One thread with both ends of a connection. Where no filter can be installed, nothing is shown. */
#include "common.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

#define MESSAGES 300
/* After about 125 ms without a message the thread that receives for a program at work goes to sleep, and the next message
 * has to wake it. */
#define AWAKE_MS 100

static double last_ms;

static void on_trap(int signal, siginfo_t *info, void *context)
{
    static const char slow[] = "ok: SKIP: the machine stood still between two messages\n";
    char text[] = "FAIL: system call 000 while a descriptor was posted or taken\n";
    int number = info->si_syscall;

    (void)signal;
    (void)context;
    if (number == SYS_futex && now_ms() - last_ms > AWAKE_MS) {
        (void)!write(1, slow, sizeof slow - 1);
        _exit(0);
    }
    text[18] = (char)('0' + number / 100 % 10);
    text[19] = (char)('0' + number / 10 % 10);
    text[20] = (char)('0' + number % 10);
    (void)!write(2, text, sizeof text - 1);
    _exit(1);
}

#define ALLOW(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), \
                    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* From now on this thread may end, print, ask for memory, and leave its processor to a thread that has just taken the VI's
 * lock: the one that receives for programs at work polls each VI now and then. */
static int silence(void)
{
    static struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(write), ALLOW(exit_group), ALLOW(brk), ALLOW(mmap), ALLOW(munmap), ALLOW(mremap), ALLOW(mprotect),
        ALLOW(madvise), ALLOW(rt_sigreturn), ALLOW(sched_yield),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    };
    static struct sock_fprog program = {sizeof rules / sizeof rules[0], rules};
    struct sigaction action;

    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_trap;
    action.sa_flags = SA_SIGINFO;
    MUST(sigaction(SIGSYS, &action, NULL));
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static VIP_DESCRIPTOR *poll_done(VIP_RETURN (*done)(VIP_VI_HANDLE, VIP_DESCRIPTOR **), VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *found = NULL;
    VIP_RETURN code;

    while ((code = done(vi, &found)) == VIP_NOT_DONE)
        ;
    CHECK_RETURN(code, VIP_SUCCESS, "POST-11");
    return found;
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    static struct node node;
    VIP_VI_HANDLE a, b;
    VIP_DESCRIPTOR *in[MESSAGES], *out;
    unsigned char *received, *sent;
    int i;

    open_node(&node, options.device, 1 << 20);
    a = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    b = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    for (i = 0; i < MESSAGES; i++)
        in[i] = take_descriptor(&node, 1);
    out = take_descriptor(&node, 1);
    received = take(&node, 1000);
    sent = take(&node, 1000);
    join_vis(&node, a, &node, b);
    last_ms = now_ms();
    fflush(stdout);
    if (!silence()) {
        ok("SKIP: no system call filters here");
        return 0;
    }
    for (i = 0; i < MESSAGES; i++)
        post_recv(&node, b, in[i], received, 1000);
    for (i = 0; i < MESSAGES; i++) {
        post_send(&node, a, out, sent, (size_t)i % 100);
        CHECK(poll_done(VipRecvDone, b) == in[i], "POST-11");
        CHECK(poll_done(VipSendDone, a) == out, "POST-11");
        last_ms = now_ms();
    }
    (void)!write(1, "ok: no system call\n", 19);
    _exit(0);
}
