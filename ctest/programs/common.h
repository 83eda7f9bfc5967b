/* What the test programs share: checks, options, time, and two sides that talk to each other.
 *
 * Every program prints a line `ok: ...` for each thing it has shown and ends with 0, or prints one line
 * `FAIL file:line: ...` with what was expected and what was found, and ends with 1. The identifiers in
 * the checks (NIC-01, XFER-03, ...) are the assertions of the conformance checklist, spec §15; at its
 * good end a program lists those whose checks it has passed, in a line `shown: ...` (shown.h).
 *
 *   program [-1] [-d DEVICE] [-l LEVEL] [words]
 *     -1   both sides in one process, on two threads (otherwise two processes)
 *     -d   the device to open; otherwise $VIPL_DEVICE, otherwise /dev/via_lo
 *     -l   U, RD or RR: this reliability level only; otherwise all that the device has
 */
#ifndef CTEST_COMMON_H
#define CTEST_COMMON_H

#define _GNU_SOURCE 1

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "vipl.h"

/* How many times as fast as that of the kernel the library's time passes; builds with debug assertions have this. */
static inline unsigned long time_factor(void)
{
    const char *text = getenv("VIPL_TEST_TIME");
    unsigned long factor = text != NULL ? strtoul(text, NULL, 10) : 1;

    return factor > 0 ? factor : 1;
}

/* How long to wait, in ms, for something that is certain to happen. The machine does not become faster with time. */
#define PATIENCE (20000UL * time_factor())

#include "shown.h"

/* ---- checks ---------------------------------------------------------------------------------- */

static inline void give_up(void)
{
    fflush(NULL);
    _exit(1); /* not exit(): other threads may be anywhere */
}

static inline void fail(const char *file, int line, const char *id, const char *what,
                        const char *expected, const char *found)
{
    printf("FAIL %s:%d: %s: %s: expected %s, found %s\n", file, line, id, what, expected, found);
    give_up();
}

static inline const char *return_name(long code)
{
    static const char *const names[] = {
        "VIP_SUCCESS", "VIP_NOT_DONE", "VIP_INVALID_PARAMETER", "VIP_ERROR_RESOURCE", "VIP_TIMEOUT",
        "VIP_REJECT", "VIP_INVALID_RELIABILITY_LEVEL", "VIP_INVALID_MTU", "VIP_INVALID_QOS",
        "VIP_INVALID_PTAG", "VIP_INVALID_RDMAREAD", "VIP_DESCRIPTOR_ERROR", "VIP_INVALID_STATE",
        "VIP_ERROR_NAMESERVICE", "VIP_NO_MATCH", "VIP_NOT_REACHABLE", "VIP_ERROR_NOT_SUPPORTED",
    };
    return code >= 0 && code < 17 ? names[code] : "no VIP_RETURN at all";
}

static inline void check_return(const char *file, int line, const char *id, const char *what,
                                long found, long expected)
{
    if (found != expected)
        fail(file, line, id, what, return_name(expected), return_name(found));
    shows(id);
}

static inline void check_number(const char *file, int line, const char *id, const char *what,
                                long long found, long long expected)
{
    char a[32], b[32];

    if (found == expected) {
        shows(id);
        return;
    }
    snprintf(a, sizeof a, "%lld", expected);
    snprintf(b, sizeof b, "%lld", found);
    fail(file, line, id, what, a, b);
}

static inline void check_status(const char *file, int line, const char *id, const char *what,
                                unsigned long found, unsigned long expected)
{
    char a[32], b[32];

    if (found == expected) {
        shows(id);
        return;
    }
    snprintf(a, sizeof a, "status 0x%05lx", expected);
    snprintf(b, sizeof b, "status 0x%05lx", found);
    fail(file, line, id, what, a, b);
}

/* A condition holds. */
#define CHECK(condition, id) \
    ((condition) ? shows(id) : fail(__FILE__, __LINE__, id, #condition, "true", "false"))
/* A number has a value. */
#define CHECK_EQ(found, expected, id) \
    check_number(__FILE__, __LINE__, id, #found, (long long)(found), (long long)(expected))
/* A call returns a code. */
#define CHECK_RETURN(call, expected, id) \
    check_return(__FILE__, __LINE__, id, #call, (long)(call), (long)(expected))
/* A descriptor has a status. */
#define CHECK_STATUS(found, expected, id) \
    check_status(__FILE__, __LINE__, id, #found, (unsigned long)(found), (unsigned long)(expected))
/* A call that the test needs to work. */
#define MUST(call) CHECK_RETURN(call, VIP_SUCCESS, "set-up")

/* Says what has been shown. */
static inline void ok(const char *format, ...)
{
    char line[256];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    printf("ok: %s\n", line);
    fflush(stdout);
}

/* ---- time: the library's --------------------------------------------------------------------- */

static inline double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return ((double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6) * (double)time_factor();
}

static inline void sleep_ms(unsigned long ms)
{
    unsigned long us = ms * 1000 / time_factor();
    struct timespec t;

    t.tv_sec = (time_t)(us / 1000000);
    t.tv_nsec = (long)(us % 1000000) * 1000;
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}

/* Something took at least `least` ms (rule R7) and came to its end. How much later than that is no matter
 * of a test: the 50 ms of R7 hold on an idle machine only. */
#define CHECK_TOOK(start, least, id)                             \
    do {                                                         \
        double took_ = now_ms() - (start);                       \
        CHECK(took_ >= (double)(least), id);                     \
        CHECK(took_ < (double)(least) + (double)PATIENCE, id);             \
    } while (0)

/* ---- options --------------------------------------------------------------------------------- */

struct options {
    const char *device;
    int one_process;
    int level;           /* VIP_SERVICE_..., or 0 for all */
    int words;           /* what else stood on the command line */
    char **word;
    char **arguments;    /* all of it */
};

/* U, RD or RR; 0 for anything else. */
static inline int level_of(const char *name)
{
    return strcmp(name, "U") == 0    ? VIP_SERVICE_UNRELIABLE
           : strcmp(name, "RD") == 0 ? VIP_SERVICE_RELIABLE_DELIVERY
           : strcmp(name, "RR") == 0 ? VIP_SERVICE_RELIABLE_RECEPTION
                                     : 0;
}

/* No program of these outlives this, not even one whose library has lost its way or whose parent waits for ever. */
#define LIFE_SECONDS 1800

static inline struct options parse_options(int argc, char **argv)
{
    struct options options;
    int letter;

    options.device = getenv("VIPL_DEVICE");
    if (options.device == NULL)
        options.device = "/dev/via_lo";
    options.one_process = 0;
    options.level = 0;
    start_showing();
    alarm(LIFE_SECONDS);
    while ((letter = getopt(argc, argv, "1d:l:")) != -1) {
        if (letter == '1') {
            options.one_process = 1;
        } else if (letter == 'd') {
            options.device = optarg;
        } else if (letter == 'l' && level_of(optarg) != 0) {
            options.level = level_of(optarg);
        } else {
            fprintf(stderr, "usage: %s [-1] [-d DEVICE] [-l U|RD|RR]\n", argv[0]);
            exit(2);
        }
    }
    options.words = argc - optind;
    options.word = argv + optind;
    options.arguments = argv;
    return options;
}

/* Whether $CTEST_LACKS names this among the things that the device cannot do. No attribute tells of RDMA
 * Write, which VIPL takes for granted. */
static inline int device_lacks(const char *what)
{
    const char *lacks = getenv("CTEST_LACKS");

    return lacks != NULL && strstr(lacks, what) != NULL;
}

static inline int strict_mode(void)
{
    const char *strict = getenv("VIPL_STRICT");

    return strict != NULL && strcmp(strict, "1") == 0;
}

/* ---- threads --------------------------------------------------------------------------------- */

static inline pthread_t start_thread(void *(*body)(void *), void *argument)
{
    pthread_t thread;

    CHECK_EQ(pthread_create(&thread, NULL, body, argument), 0, "pthread_create");
    return thread;
}

static inline void join_thread(pthread_t thread)
{
    CHECK_EQ(pthread_join(thread, NULL), 0, "pthread_join");
}

/* Atomic operations; C99 has none of its own. */
static inline int atomic_get(int *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void atomic_set(int *p, int value) { __atomic_store_n(p, value, __ATOMIC_RELEASE); }
static inline int atomic_add(int *p, int n) { return __atomic_fetch_add(p, n, __ATOMIC_ACQ_REL); }

/* Waits until *p is at least `value`. */
static inline void await(int *p, int value, const char *id)
{
    double start = now_ms();

    while (atomic_get(p) < value) {
        CHECK(now_ms() - start < (double)PATIENCE, id);
        sleep_ms(1);
    }
    shows(id);
}

/* ---- processes ------------------------------------------------------------------------------- */

/* fork, with a child that dies together with the thread that made it. */
static inline pid_t fork_child(void)
{
    pid_t parent = getpid(), pid;

    fflush(NULL);
    pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        alarm(LIFE_SECONDS);
    }
    return pid;
}

/* The child ends with exit status 0. */
static inline void reap(pid_t pid)
{
    int status = -1;

    CHECK_EQ(waitpid(pid, &status, 0), pid, "waitpid");
    CHECK(WIFEXITED(status), "end of the other process");
    CHECK_EQ(WEXITSTATUS(status), 0, "end of the other process");
}

/* ---- two sides ------------------------------------------------------------------------------- */

/* One side of a test. The two sides meet at points the test sets, and exchange data, over a
 * socket that has nothing to do with VIPL. */
struct side {
    int number; /* 0 or 1 */
    int link;   /* socket to the other side */
    int run;    /* makes discriminators unique on this host */
    int threads; /* both sides are threads of one process */
    int level;   /* the one to test, or 0 for all */
    const char *device;
    void *extra;
};

static inline void side_send(struct side *side, const void *data, size_t bytes)
{
    CHECK_EQ(send(side->link, data, bytes, MSG_NOSIGNAL), (long long)bytes, "send to the other side");
}

static inline void side_receive(struct side *side, void *data, size_t bytes)
{
    CHECK_EQ(recv(side->link, data, bytes, MSG_WAITALL), (long long)bytes, "receive from the other side");
}

/* Both sides have come to this point. */
static inline void meet(struct side *side)
{
    char c = 'm';

    side_send(side, &c, 1);
    side_receive(side, &c, 1);
    CHECK_EQ(c, 'm', "both sides at one point");
}

struct second_side {
    void (*body)(struct side *);
    struct side *side;
};

static inline void *run_second_side(void *argument)
{
    struct second_side *second = (struct second_side *)argument;

    second->body(second->side);
    return NULL;
}

/* Side 1 may be another build of the program, for instance for another word size: its file is $CTEST_SECOND, and
 * $CTEST_SECOND_PRELOAD what is loaded before it. */
static inline void become_second(const struct options *options, const struct side *side)
{
    const char *file = getenv("CTEST_SECOND"), *preload = getenv("CTEST_SECOND_PRELOAD");
    char text[32];

    if (file == NULL)
        return;
    snprintf(text, sizeof text, "%d %d", side->link, side->run);
    setenv("CTEST_SIDE", text, 1);
    if (preload != NULL)
        setenv("LD_PRELOAD", preload, 1);
    else
        unsetenv("LD_PRELOAD");
    execv(file, options->arguments);
    CHECK(0, "exec of the other build");
}

/* Whether this is that build; then it is side 1 and nothing else. */
static inline int is_second(struct side *side)
{
    const char *text = getenv("CTEST_SIDE");

    return text != NULL && sscanf(text, "%d %d", &side->link, &side->run) == 2;
}

/* Runs one body as side 0 and side 1. Call it before any VIPL function. */
static inline void both_sides(const struct options *options, void (*body)(struct side *))
{
    struct side sides[2];
    int ends[2], i;

    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0, "socketpair");
    for (i = 0; i < 2; i++) {
        sides[i].number = i;
        sides[i].link = ends[i];
        sides[i].run = (int)getpid();
        sides[i].threads = options->one_process;
        sides[i].level = options->level;
        sides[i].device = options->device;
        sides[i].extra = NULL;
    }
    if (is_second(&sides[1])) {
        body(&sides[1]);
        exit(0);
    }
    if (options->one_process) {
        struct second_side second;
        pthread_t thread;

        second.body = body;
        second.side = &sides[1];
        thread = start_thread(run_second_side, &second);
        body(&sides[0]);
        join_thread(thread);
        close(ends[0]);
        close(ends[1]);
    } else {
        pid_t pid = fork_child();

        if (pid == 0) {
            close(ends[0]);
            become_second(options, &sides[1]);
            body(&sides[1]);
            fflush(NULL);
            exit(0);
        }
        close(ends[1]);
        body(&sides[0]);
        reap(pid);
        close(ends[0]);
    }
}

#include "node.h"

#include "connect.h"

#endif
