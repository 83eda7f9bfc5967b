/* Waits and polls of processes that are confined to one processor.
 *
 * apart: each side on a processor of its own. Waits poll as the settings say, although neither process may use
 * another processor.
 * together: both sides on one processor, and they never sleep or yield. Empty polls let the other side run:
 * a round trip takes far less of the processor than it does between processes that only spin, which lasts two
 * time slices. */
#include "common.h"

#include <sched.h>
#include <sys/resource.h>

#define ROUNDS 300
#define POLLS 100  /* round trips of an attempt */
#define ATTEMPTS 20
#define SPINS 30 /* round trips without the library */

static int *ball; /* shared by both sides */

struct world {
    struct side *side;
    struct node node;
    address other;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *in, *out;
    unsigned char *buffer;
};

/* The processors that this process may use; how many are put into `list`. */
static int processors(int *list, int room)
{
    cpu_set_t set;
    int cpu, found = 0;

    CHECK_EQ(sched_getaffinity(0, sizeof set, &set), 0, "sched_getaffinity");
    for (cpu = 0; cpu < CPU_SETSIZE && found < room; cpu++)
        if (CPU_ISSET(cpu, &set))
            list[found++] = cpu;
    return found;
}

static void confine(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    CHECK_EQ(sched_setaffinity(0, sizeof set, &set), 0, "sched_setaffinity");
}

/* How often this thread has slept. */
static long sleeps(void)
{
    struct rusage usage;

    CHECK_EQ(getrusage(RUSAGE_THREAD, &usage), 0, "getrusage");
    return usage.ru_nvcsw;
}

static void begin(struct world *w, struct side *side, const char *name)
{
    memset(w, 0, sizeof *w);
    w->side = side;
    open_node(&w->node, side->device, 65536);
    w->other = swap_addresses(side, &w->node);
    w->vi = make_vi(&w->node, tested_level(side), NULL, NULL);
    w->in = take_descriptor(&w->node, 1);
    w->out = take_descriptor(&w->node, 1);
    w->buffer = take(&w->node, 128);
    join_sides(side, &w->node, w->vi, &w->other, name);
    post_recv(&w->node, w->vi, w->in, w->buffer, 64);
    meet(side);
}

static void end(struct world *w)
{
    meet(w->side);
    end_vi(w->vi);
    close_node(&w->node);
}

static void receive_waiting(struct world *w)
{
    EXPECT_RECV(w->vi, w->in, STATUS_RECEIVED, "WAIT-01");
    post_recv(&w->node, w->vi, w->in, w->buffer, 64);
}

static void send_waiting(struct world *w)
{
    post_send(&w->node, w->vi, w->out, w->buffer + 64, 8);
    EXPECT_SEND(w->vi, w->out, STATUS_SENT, "WAIT-01");
}

static void apart(struct side *side)
{
    struct world w;
    long before;
    int cpu[2], i;

    CHECK_EQ(processors(cpu, 2), 2, "two processors");
    confine(cpu[side->number]);
    begin(&w, side, "apart");
    before = sleeps();
    for (i = 0; i < ROUNDS; i++) {
        if (side->number == 0)
            send_waiting(&w);
        receive_waiting(&w);
        if (side->number == 1)
            send_waiting(&w);
    }
    /* spin_us is longer than any answer takes */
    CHECK(sleeps() - before < ROUNDS / 4, "a wait polls before it sleeps");
    end(&w);
}

/* Processor time of this thread, in ms. */
static double busy_ms(void)
{
    struct timespec t;

    CHECK_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t), 0, "clock_gettime");
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* How long this thread has been waiting for a processor, in ms. */
static double waited_ms(void)
{
    unsigned long long ran = 0, waited = 0;
    FILE *file = fopen("/proc/thread-self/schedstat", "r");

    CHECK(file != NULL, "/proc/thread-self/schedstat");
    CHECK_EQ(fscanf(file, "%llu %llu", &ran, &waited), 2, "/proc/thread-self/schedstat");
    fclose(file);
    return (double)waited / 1e6;
}

/* What a round trip costs two threads of one processor that spin until the time slice of the other ends. */
static double spin(struct side *side)
{
    double before = busy_ms();
    int i;

    for (i = 0; i < SPINS; i++) {
        while (atomic_get(ball) != 2 * i + side->number)
            ;
        atomic_set(ball, 2 * i + side->number + 1);
    }
    return (busy_ms() - before) / SPINS;
}

static void receive_polling(struct world *w)
{
    VIP_DESCRIPTOR *found = NULL;
    VIP_RETURN code;

    while ((code = VipRecvDone(w->vi, &found)) == VIP_NOT_DONE)
        ;
    expect_taken(__FILE__, __LINE__, "DONE-02", "VipRecvDone", code, found, w->in, STATUS_RECEIVED);
    post_recv(&w->node, w->vi, w->in, w->buffer, 64);
}

static void send_polling(struct world *w)
{
    VIP_DESCRIPTOR *found = NULL;
    VIP_RETURN code;

    post_send(&w->node, w->vi, w->out, w->buffer + 64, 8);
    while ((code = VipSendDone(w->vi, &found)) == VIP_NOT_DONE)
        ;
    expect_taken(__FILE__, __LINE__, "DONE-02", "VipSendDone", code, found, w->out, STATUS_SENT);
}

/* What a round trip costs two sides that poll. */
static double poll_rounds(struct world *w)
{
    double before = busy_ms();
    int i;

    for (i = 0; i < POLLS; i++) {
        if (w->side->number == 0)
            send_polling(w);
        receive_polling(w);
        if (w->side->number == 1)
            send_polling(w);
    }
    return (busy_ms() - before) / POLLS;
}

/* Whether both sides are content. */
static void swap_verdicts(struct side *side, int *verdict)
{
    int other;

    side_send(side, verdict, sizeof *verdict);
    side_receive(side, &other, sizeof other);
    *verdict = *verdict && other;
}

static void together(struct side *side)
{
    struct world w;
    double spinning, polling = 0;
    int cpu, attempt, judged = 0, disturbed = 0;
    double waited;

    CHECK_EQ(processors(&cpu, 1), 1, "a processor");
    confine(cpu);
    begin(&w, side, "together");
    spinning = spin(side);
    meet(side);
    for (attempt = 0; attempt < ATTEMPTS && !judged; attempt++) {
        waited = waited_ms();
        polling = poll_rounds(&w);
        judged = polling <= spinning / 2;
        swap_verdicts(side, &judged);
        /* A third party on this processor takes a time slice of each yield. */
        disturbed = waited_ms() - waited > 2 * POLLS * polling;
        swap_verdicts(side, &disturbed);
    }
    if (!judged && disturbed) {
        if (side->number == 0)
            ok("nothing: other programs use the processor");
        end(&w);
        return;
    }
    if (!judged)
        printf("a round trip takes %.3f ms of the processor, and %.3f ms by spinning\n", polling, spinning);
    CHECK(judged, "an empty poll lets others run");
    end(&w);
    if (side->number == 0)
        ok("a polled round trip on one processor takes %.3f ms of it, spinning %.3f", polling, spinning);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    int cpu[2];

    if (options.words > 0 && strcmp(options.word[0], "together") == 0) {
        ball = (int *)mmap(NULL, sizeof *ball, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(ball != MAP_FAILED, "mmap");
        both_sides(&options, together);
    } else if (processors(cpu, 2) < 2) {
        ok("nothing: there is one processor only");
    } else {
        both_sides(&options, apart);
        ok("%d round trips between two confined processes, waiting", ROUNDS);
    }
    return 0;
}
