/* kill -9 of one peer at a random moment of a busy transfer (DISC-11), twenty times: the survivor sees
 * Error, the flush and one CONN_LOST, keeps an undisturbed connection with a third process all the while, and
 * goes on with the next peer.
 *
 *   kill [-d DEVICE] [SEED]
 *
 * Four kinds of process: this one never calls VIPL; it starts the survivor, a steady peer, and one
 * victim after the other. */
#include "common.h"

#define ROUNDS 20
#define TOKENS 16
#define BYTES 30000

struct party {
    const char *device;
    int run, round, level;
    int from_main, to_main; /* pipes */
    struct node node;
};

/* A word between processes: a round is ready, over, ... */
static void say(int to, int word)
{
    CHECK_EQ(write(to, &word, sizeof word), sizeof word, "pipe");
}

static int listen_to(int from)
{
    int word = -1;

    CHECK_EQ(read(from, &word, sizeof word), sizeof word, "pipe");
    return word;
}

static address at(const struct node *node, int run, const char *what, int round)
{
    char name[24];

    snprintf(name, sizeof name, "%s%d", what, round);
    return local_point(node, run, name);
}

/* ---- a busy transfer ------------------------------------------------------------------------- */

/* Each side begins with TOKENS messages and from then on answers every message with one, small or large, so
 * that never more than 2 * TOKENS are under way to anybody. */
struct traffic {
    struct node *node;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *in[2 * TOKENS], *out[2 * TOKENS], *idle[2 * TOKENS];
    unsigned char *received[2 * TOKENS], *sent;
    int idles, unreliable;
    long completions;
};

static void traffic_open(struct traffic *t, struct node *node, int level)
{
    int i;

    memset(t, 0, sizeof *t);
    t->node = node;
    t->unreliable = level == VIP_SERVICE_UNRELIABLE;
    t->sent = take(node, BYTES);
    fill(t->sent, BYTES, 0);
    for (i = 0; i < 2 * TOKENS; i++) {
        t->in[i] = take_descriptor(node, 1);
        t->out[i] = take_descriptor(node, 1);
        t->received[i] = take(node, BYTES);
    }
}

/* Posts all receives; the VI is not connected yet. */
static void traffic_ready(struct traffic *t, VIP_VI_HANDLE vi)
{
    int i;

    t->vi = vi;
    t->completions = 0;
    for (i = 0; i < 2 * TOKENS; i++) {
        post_recv(t->node, vi, t->in[i], t->received[i], BYTES);
        t->idle[i] = t->out[i];
    }
    t->idles = 2 * TOKENS;
}

/* The first descriptor that failed was flushed: the loss of the peer is no fault of a descriptor. But a receive of
 * Unreliable that the end of the peer caught in the middle of a message says so (spec §6.2). */
static int traffic_over(const struct traffic *t, VIP_DESCRIPTOR *found)
{
    const VIP_UINT32 cut = VIP_STATUS_OP_RECEIVE | VIP_STATUS_PARTIAL_ERROR;
    VIP_UINT32 status;

    if (found == NULL)
        return 0;
    status = control(found)->Status & (VIP_STATUS_ERROR_MASK | VIP_STATUS_OP_MASK);
    if (t->unreliable && status == cut)
        return 0;
    CHECK_STATUS(status & VIP_STATUS_ERROR_MASK, VIP_STATUS_DESC_FLUSHED_ERROR, "DISC-11");
    return 0;
}

/* Sends one message; 0 when the connection has gone. */
static int traffic_send(struct traffic *t)
{
    VIP_DESCRIPTOR *found;
    VIP_RETURN code;

    while (t->idles == 0) {
        code = VipSendDone(t->vi, &found);
        if (code == VIP_SUCCESS)
            t->idle[t->idles++] = found;
        else if (code != VIP_NOT_DONE)
            return traffic_over(t, found);
    }
    post_send(t->node, t->vi, t->idle[--t->idles], t->sent, t->completions % 3 ? 64 : BYTES);
    return 1;
}

/* Runs until the connection is lost. */
static void traffic_run(struct traffic *t)
{
    VIP_DESCRIPTOR *found;
    VIP_RETURN code;
    int i;

    for (i = 0; i < TOKENS; i++)
        if (!traffic_send(t))
            return;
    for (;;) {
        code = VipRecvWait(t->vi, PATIENCE, &found);
        CHECK(code != VIP_TIMEOUT, "kill: no standstill");
        if (code != VIP_SUCCESS) {
            traffic_over(t, found);
            return;
        }
        t->completions++;
        for (i = 0; t->in[i] != found; i++)
            ;
        CHECK(filled(t->received[i], control(found)->Length, 0), "kill: whole messages");
        memset(t->received[i], 0, 64);
        post_recv(t->node, t->vi, found, t->received[i], BYTES);
        if (!traffic_send(t))
            return;
    }
}

/* ---- the victims ----------------------------------------------------------------------------- */

static void victim(struct party *p)
{
    static struct traffic traffic;
    VIP_VI_HANDLE vi;

    open_node(&p->node, p->device, 4 << 20);
    traffic_open(&traffic, &p->node, p->level);
    vi = make_vi(&p->node, p->level, NULL, NULL);
    traffic_ready(&traffic, vi);
    if (p->round % 2 == 0)
        ask(vi, at(&p->node, p->run, "victim", p->round), at(&p->node, p->run, "round", p->round));
    else
        serve(&p->node, vi, at(&p->node, p->run, "round", p->round));
    say(p->to_main, p->round);
    traffic_run(&traffic);
    fail(__FILE__, __LINE__, "kill", "the victim's connection", "busy until the end", "lost");
}

/* ---- the steady peer ---------------------------------------------------------------------- */

/* A ping-pong that nothing may disturb. It pauses, because on some kernels (Linux 6.18 among them) several pairs of
 * processes that only wake each other keep the scheduler from the kernel thread rcu_preempt for as long as they
 * last, pipes as well as VIPL. A killed victim with a packet socket waits for that thread before it has exited. */
struct steady {
    struct node node;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *in, *out;
    int *ball, *sent;
    int stop, count;
};

static void steady_open(struct steady *s, const char *device)
{
    open_node(&s->node, device, 65536);
    s->vi = make_vi(&s->node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    s->in = take_descriptor(&s->node, 1);
    s->out = take_descriptor(&s->node, 1);
    s->ball = (int *)(void *)take(&s->node, sizeof(int));
    s->sent = (int *)(void *)take(&s->node, sizeof(int));
    post_recv(&s->node, s->vi, s->in, s->ball, sizeof(int));
}

static void steady_send(struct steady *s, int value)
{
    *s->sent = value;
    post_send(&s->node, s->vi, s->out, s->sent, sizeof(int));
    EXPECT_SEND(s->vi, s->out, STATUS_SENT, "kill: the steady peer");
}

static int steady_receive(struct steady *s)
{
    int value;

    EXPECT_RECV(s->vi, s->in, STATUS_RECEIVED, "kill: the steady peer");
    value = *s->ball;
    post_recv(&s->node, s->vi, s->in, s->ball, sizeof(int));
    return value;
}

static void steady_peer(struct party *p)
{
    static struct steady s;
    int value;

    steady_open(&s, p->device);
    serve(&s.node, s.vi, at(&s.node, p->run, "steady", 0));
    do {
        value = steady_receive(&s);
        steady_send(&s, value);
    } while (value != -1);
    listen_to(p->from_main);
    end_vi(s.vi);
    close_node(&s.node);
}

static void *steady_thread(void *argument)
{
    struct steady *s = (struct steady *)argument;

    while (!atomic_get(&s->stop)) {
        steady_send(s, s->count);
        CHECK_EQ(steady_receive(s), s->count, "kill: the steady peer");
        s->count++;
        sleep_ms(1);
    }
    steady_send(s, -1);
    CHECK_EQ(steady_receive(s), -1, "kill: the steady peer");
    return NULL;
}

/* ---- the survivor ---------------------------------------------------------------------------- */

static void survivor(struct party *p)
{
    static struct steady s;
    static struct traffic traffic;
    pthread_t thread;
    int round;

    steady_open(&s, p->device);
    ask(s.vi, at(&s.node, p->run, "survivor", 0), at(&s.node, p->run, "steady", 0));
    thread = start_thread(steady_thread, &s);
    open_node(&p->node, p->device, 4 << 20);
    traffic_open(&traffic, &p->node, p->level);
    for (round = 0; round < ROUNDS; round++) {
        VIP_VI_HANDLE vi = make_vi(&p->node, p->level, NULL, NULL);
        double start;

        traffic_ready(&traffic, vi);
        if (round % 2 == 0)
            serve(&p->node, vi, at(&p->node, p->run, "round", round));
        else
            ask(vi, at(&p->node, p->run, "survivor", round), at(&p->node, p->run, "round", round));
        say(p->to_main, round);
        traffic_run(&traffic);
        start = now_ms();
        AWAIT_STATE(vi, VIP_STATE_ERROR, "DISC-11");
        NEXT_ERROR(&p->node, VIP_ERROR_CONN_LOST, vi, "DISC-11");
        CHECK(now_ms() - start < (double)PATIENCE, "DISC-11"); /* 10 s, on a machine that has time */
        drain(vi); /* everything that is left had arrived or was flushed */
        end_vi(vi);
        NO_ERROR(&p->node, 0, "ERR-08");
        printf("round %d: %ld messages, then the peer was killed\n", round, traffic.completions);
        say(p->to_main, round);
    }
    atomic_set(&s.stop, 1);
    join_thread(thread);
    say(p->to_main, s.count);
    listen_to(p->from_main);
    end_vi(s.vi);
    close_node(&s.node);
    close_node(&p->node);
}

/* ---- the process that starts them all -------------------------------------------------------- */

struct child {
    pid_t pid;
    int to, from;
};

static struct child start(struct party *p, void (*body)(struct party *))
{
    struct child child;
    int down[2], up[2];

    CHECK(pipe(down) == 0 && pipe(up) == 0, "pipe");
    child.pid = fork_child();
    if (child.pid == 0) {
        close(down[1]);
        close(up[0]);
        p->from_main = down[0];
        p->to_main = up[1];
        body(p);
        fflush(NULL);
        exit(0);
    }
    close(down[0]);
    close(up[1]);
    child.to = down[1];
    child.from = up[0];
    return child;
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    unsigned seed = options.words > 0 ? (unsigned)strtoul(options.word[0], NULL, 0) : (unsigned)getpid();
    struct child survives, steady;
    static struct party party;
    int round;

    printf("seed %u\n", seed);
    srand(seed);
    party.device = options.device;
    party.run = (int)getpid();
    party.level = options.level != 0 ? options.level : VIP_SERVICE_RELIABLE_DELIVERY;
    steady = start(&party, steady_peer);
    survives = start(&party, survivor);
    for (round = 0; round < ROUNDS; round++) {
        struct child child;
        struct timespec moment;
        int status;

        party.round = round;
        child = start(&party, victim);
        CHECK_EQ(listen_to(child.from), round, "a connected victim");
        CHECK_EQ(listen_to(survives.from), round, "a connected survivor");
        moment.tv_sec = 0;
        moment.tv_nsec = rand() % 20000 * 1000L;
        nanosleep(&moment, NULL);
        kill(child.pid, SIGKILL);
        waitpid(child.pid, &status, 0);
        CHECK(WIFSIGNALED(status), "the victim was killed and did not end by itself");
        CHECK_EQ(listen_to(survives.from), round, "the survivor goes on");
        close(child.to);
        close(child.from);
    }
    ok("%d peers killed, %d round trips with the steady one", ROUNDS, listen_to(survives.from));
    say(survives.to, 0);
    say(steady.to, 0);
    reap(survives.pid);
    reap(steady.pid);
    return 0;
}
