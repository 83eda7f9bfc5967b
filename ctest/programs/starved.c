/* Beside twice as many processes that compute as there are processors, no call outlives its timeout by more than a
 * second (R7), calls without one come to an end, and no peer is taken for dead.
 *
 * How much the machine itself delays a thread is measured in the same run, by a thread that only sleeps. */
#include "common.h"

#define TIMEOUT 40UL
#define CALLS 3 /* of each kind */
#define HOGS_MAX 64

struct control {
    int stop;
    double worst; /* how much later than asked for a sleep ended, in ms */
};

static void *sleep_and_measure(void *argument)
{
    struct control *control = (struct control *)argument;
    double start, late;

    while (!atomic_get(&control->stop)) {
        start = now_ms();
        sleep_ms(5);
        late = now_ms() - start - 5;
        if (late > control->worst)
            control->worst = late;
    }
    return NULL;
}

static int start_hogs(pid_t *hog)
{
    long count = 2 * sysconf(_SC_NPROCESSORS_ONLN);
    volatile unsigned long work = 0;
    int i;

    if (count > HOGS_MAX)
        count = HOGS_MAX;
    for (i = 0; i < (int)count; i++) {
        hog[i] = fork_child();
        if (hog[i] == 0)
            for (;;)
                work++;
    }
    return (int)count;
}

struct world {
    struct side *side;
    struct node node;
    address other;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *in, *out;
    unsigned char *buffer;
    double worst; /* of all calls: time beyond the timeout, in ms */
};

static void timed(struct world *w, double start, unsigned long timeout)
{
    double late = now_ms() - start - (double)timeout;

    if (late > w->worst)
        w->worst = late;
}

/* Asks for connections where no server waits. */
static void ask_in_vain(struct world *w)
{
    VIP_VI_HANDLE vi = make_vi(&w->node, tested_level(w->side), NULL, NULL);
    address no_server = remote_point(&w->other, w->side->run, "nowhere");
    address local = local_point(&w->node, w->side->run, w->side->number ? "asks1" : "asks0");
    VIP_VI_ATTRIBUTES attributes;
    VIP_RETURN code;
    double start = now_ms();

    code = VipConnectRequest(vi, &local.net, &no_server.net, TIMEOUT, &attributes);
    CHECK(code == VIP_NO_MATCH || code == VIP_NOT_REACHABLE || code == VIP_TIMEOUT, "set-up");
    timed(w, start, TIMEOUT);
    start = now_ms();
    MUST(VipConnectPeerRequest(vi, &local.net, &no_server.net, TIMEOUT));
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_TIMEOUT, "set-up");
    timed(w, start, TIMEOUT);
    MUST(VipDestroyVi(vi));
}

/* Waits for what does not come. */
static void wait_in_vain(struct world *w)
{
    VIP_CQ_HANDLE cq = NULL;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN receive;
    VIP_DESCRIPTOR *found;
    VIP_CONN_HANDLE request;
    VIP_VI_ATTRIBUTES attributes;
    address no_server = local_point(&w->node, w->side->run, w->side->number ? "nobody1" : "nobody0"), remote;
    double start;

    start = now_ms();
    CHECK_RETURN(VipRecvWait(w->vi, TIMEOUT, &found), VIP_TIMEOUT, "WAIT-02");
    timed(w, start, TIMEOUT);
    MUST(VipCreateCQ(w->node.nic, 16, &cq));
    start = now_ms();
    CHECK_RETURN(VipCQWait(cq, TIMEOUT, &vi, &receive), VIP_TIMEOUT, "set-up");
    timed(w, start, TIMEOUT);
    MUST(VipDestroyCQ(cq));
    start = now_ms();
    CHECK_RETURN(VipConnectWait(w->node.nic, &no_server.net, TIMEOUT, &remote.net, &attributes, &request),
                 VIP_TIMEOUT, "set-up");
    timed(w, start, TIMEOUT);
    ask_in_vain(w);
}

/* One message each way, however long it takes: neither side has been taken for dead. */
static void talk(struct world *w)
{
    post_send(&w->node, w->vi, w->out, w->buffer + 64, 8);
    EXPECT_SEND(w->vi, w->out, STATUS_SENT, "WAIT-01");
    EXPECT_RECV(w->vi, w->in, STATUS_RECEIVED, "WAIT-01");
    post_recv(&w->node, w->vi, w->in, w->buffer, 64);
    meet(w->side);
}

/* Calls that have no timeout of their own. */
static void leave(struct world *w)
{
    unsigned char *more = (unsigned char *)map_pages(4096);
    VIP_MEM_HANDLE handle = register_range(&w->node, more, 4096);
    double start = now_ms();

    MUST(VipDeregisterMem(w->node.nic, more, handle));
    timed(w, start, 0);
    munmap(more, 4096);
    meet(w->side);
    start = now_ms();
    MUST(VipDisconnect(w->vi));
    timed(w, start, 0);
    drain(w->vi);
    MUST(VipDestroyVi(w->vi));
}

static void starved(struct side *side)
{
    struct control control = {0, 0};
    struct world w;
    pthread_t thread;
    int i;

    memset(&w, 0, sizeof w);
    w.side = side;
    open_node(&w.node, side->device, 65536);
    w.other = swap_addresses(side, &w.node);
    w.vi = make_vi(&w.node, tested_level(side), NULL, NULL);
    w.in = take_descriptor(&w.node, 1);
    w.out = take_descriptor(&w.node, 1);
    w.buffer = take(&w.node, 128);
    post_recv(&w.node, w.vi, w.in, w.buffer, 64);
    join_sides(side, &w.node, w.vi, &w.other, "starved");
    thread = start_thread(sleep_and_measure, &control);
    meet(side);
    for (i = 0; i < CALLS; i++) {
        wait_in_vain(&w);
        meet(side);
        talk(&w);
    }
    leave(&w);
    atomic_set(&control.stop, 1);
    join_thread(thread);
    if (w.worst > 1000 + 4 * control.worst)
        printf("a call came %.0f ms late, a sleep %.0f ms\n", w.worst, control.worst);
    CHECK(w.worst <= 1000 + 4 * control.worst, "R7");
    meet(side);
    if (side->number == 0)
        ok("the latest call came %.1f ms late, the latest sleep %.1f ms", w.worst, control.worst);
    close_node(&w.node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    pid_t hog[HOGS_MAX];
    int i, hogs = start_hogs(hog);

    both_sides(&options, starved);
    for (i = 0; i < hogs; i++) {
        kill(hog[i], SIGKILL);
        CHECK_EQ(waitpid(hog[i], NULL, 0), hog[i], "waitpid");
    }
    return 0;
}
