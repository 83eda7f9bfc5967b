/* Threads (rule R4): many on one VI, many on many VIs, and objects destroyed under waiting threads. */
#include "common.h"

#define THREADS 8
#define EACH 64                 /* messages per thread and round */
#define ROUND (THREADS * EACH)
#define ROUNDS 20
#define PINGS 500

struct message {
    int round, number;
};

struct world {
    struct side *side;
    struct node node;
    address other;
    VIP_VI_HANDLE vi;
    /* one round on one VI */
    int round;
    int done;           /* taken off so far */
    int posted;         /* index of the next descriptor to post */
    int seen[ROUND];    /* how often each message came; on the sender, each descriptor */
    VIP_DESCRIPTOR *d[ROUND];
    struct message *message[ROUND];
};

static int index_of(struct world *w, VIP_DESCRIPTOR *found)
{
    int i;

    for (i = 0; i < ROUND; i++)
        if (w->d[i] == found)
            return i;
    return -1;
}

/* Takes descriptors off until the round is over: any thread gets any of them, no thread gets one twice. */
static void take_all(struct world *w)
{
    VIP_DESCRIPTOR *found;
    VIP_RETURN code;
    double start = now_ms();
    int i;

    while (atomic_get(&w->done) < ROUND) {
        CHECK(now_ms() - start < (double)PATIENCE, "THR-01");
        code = w->side->number ? VipSendDone(w->vi, &found) : VipRecvDone(w->vi, &found);
        if (code == VIP_NOT_DONE || (code == VIP_DESCRIPTOR_ERROR && found == NULL))
            continue; /* another thread was quicker */
        CHECK_RETURN(code, VIP_SUCCESS, "THR-01");
        i = index_of(w, found);
        CHECK(i >= 0, "THR-01");
        if (w->side->number == 0) {
            CHECK_EQ(control(found)->Length, sizeof(struct message), "THR-01");
            CHECK_EQ(w->message[i]->round, w->round, "THR-01");
            i = w->message[i]->number;
            CHECK(i >= 0 && i < ROUND, "THR-01");
        }
        CHECK_EQ(atomic_add(&w->seen[i], 1), 0, "THR-01: nothing doubled");
        atomic_add(&w->done, 1);
    }
}

static void *one_vi_thread(void *argument)
{
    struct world *w = (struct world *)argument;
    int k, i;

    for (k = 0; k < EACH; k++) {
        i = atomic_add(&w->posted, 1);
        if (w->side->number == 0) {
            post_recv(&w->node, w->vi, w->d[i], w->message[i], sizeof(struct message));
        } else {
            w->message[i]->round = w->round;
            w->message[i]->number = i;
            post_send(&w->node, w->vi, w->d[i], w->message[i], sizeof(struct message));
        }
    }
    if (w->side->number == 1)
        take_all(w);
    return NULL;
}

static void *take_thread(void *argument)
{
    take_all((struct world *)argument);
    return NULL;
}

/* THR-01: eight threads post to one VI and poll it. */
static void one_vi(struct world *w)
{
    pthread_t thread[THREADS];
    int i;

    w->vi = make_vi(&w->node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    join_sides(w->side, &w->node, w->vi, &w->other, "one");
    for (i = 0; i < ROUND; i++) {
        w->d[i] = take_descriptor(&w->node, 1);
        w->message[i] = (struct message *)(void *)take(&w->node, sizeof(struct message));
    }
    for (w->round = 0; w->round < ROUNDS; w->round++) {
        w->done = w->posted = 0;
        memset(w->seen, 0, sizeof w->seen);
        if (w->side->number == 1)
            meet(w->side); /* the other side's receives are posted */
        for (i = 0; i < THREADS; i++)
            thread[i] = start_thread(one_vi_thread, w);
        for (i = 0; i < THREADS; i++)
            join_thread(thread[i]);
        if (w->side->number == 0) {
            meet(w->side);
            for (i = 0; i < THREADS; i++)
                thread[i] = start_thread(take_thread, w);
            for (i = 0; i < THREADS; i++)
                join_thread(thread[i]);
        }
        for (i = 0; i < ROUND; i++)
            CHECK_EQ(w->seen[i], 1, "THR-01: nothing lost");
        meet(w->side);
    }
    end_vi(w->vi);
    meet(w->side);
    ok("side %d: %d threads on one VI, %d messages", w->side->number, THREADS, ROUNDS * ROUND);
}

struct player {
    struct world *w;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *in, *out;
    int *ball_in, *ball_out;
};

static void *play(void *argument)
{
    struct player *p = (struct player *)argument;
    struct node *node = &p->w->node;
    int i;

    for (i = 0; i < PINGS; i++) {
        if (p->w->side->number == 1) {
            *p->ball_out = i;
            post_send(node, p->vi, p->out, p->ball_out, sizeof(int));
            EXPECT_SEND(p->vi, p->out, STATUS_SENT, "THR-02");
        }
        EXPECT_RECV(p->vi, p->in, STATUS_RECEIVED, "THR-02");
        CHECK_EQ(*p->ball_in, i, "THR-02");
        if (i + 1 < PINGS)
            post_recv(node, p->vi, p->in, p->ball_in, sizeof(int));
        if (p->w->side->number == 0) {
            *p->ball_out = i;
            post_send(node, p->vi, p->out, p->ball_out, sizeof(int));
            EXPECT_SEND(p->vi, p->out, STATUS_SENT, "THR-02");
        }
    }
    return NULL;
}

/* Eight pairs of VIs, a thread each, all at once (THR-02). */
static void many_vis(struct world *w)
{
    struct player player[THREADS];
    pthread_t thread[THREADS];
    char name[24];
    int i;

    for (i = 0; i < THREADS; i++) {
        struct player *p = &player[i];

        p->w = w;
        p->vi = make_vi(&w->node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
        p->in = take_descriptor(&w->node, 1);
        p->out = take_descriptor(&w->node, 1);
        p->ball_in = (int *)(void *)take(&w->node, sizeof(int));
        p->ball_out = (int *)(void *)take(&w->node, sizeof(int));
        post_recv(&w->node, p->vi, p->in, p->ball_in, sizeof(int));
        snprintf(name, sizeof name, "many%d", i);
        join_sides(w->side, &w->node, p->vi, &w->other, name);
    }
    for (i = 0; i < THREADS; i++)
        thread[i] = start_thread(play, &player[i]);
    for (i = 0; i < THREADS; i++)
        join_thread(thread[i]);
    meet(w->side);
    for (i = 0; i < THREADS; i++)
        end_vi(player[i].vi);
    meet(w->side);
    ok("side %d: %d threads on a VI each, %d round trips", w->side->number, THREADS, THREADS * PINGS);
}

/* Everything that makes and unmakes objects, by all threads at once (THR-02). */
static void *make_and_unmake(void *argument)
{
    struct world *w = (struct world *)argument;
    unsigned char page[512];
    int i;

    for (i = 0; i < 200; i++) {
        VIP_VI_ATTRIBUTES attributes = vi_attributes(&w->node, VIP_SERVICE_RELIABLE_DELIVERY);
        VIP_MEM_ATTRIBUTES memory = mem_attributes(&w->node);
        VIP_DESCRIPTOR *found;
        VIP_MEM_HANDLE handle;
        VIP_CQ_HANDLE cq;
        VIP_VI_HANDLE vi;

        MUST(VipCreatePtag(w->node.nic, &memory.Ptag));
        MUST(VipRegisterMem(w->node.nic, page, sizeof page, &memory, &handle));
        MUST(VipCreateCQ(w->node.nic, 4, &cq));
        attributes.Ptag = memory.Ptag;
        MUST(VipCreateVi(w->node.nic, &attributes, cq, NULL, &vi));
        VipSetUserData(vi, page);
        CHECK(VipGetUserData(vi) == page, "THR-02");
        CHECK_RETURN(VipRecvDone(vi, &found), VIP_DESCRIPTOR_ERROR, "THR-02");
        MUST(VipQueryMem(w->node.nic, page + 100, handle, &memory));
        CHECK(memory.Ptag == attributes.Ptag, "THR-02");
        MUST(VipDisconnect(vi));
        MUST(VipDestroyVi(vi));
        MUST(VipDestroyCQ(cq));
        MUST(VipDeregisterMem(w->node.nic, page, handle));
        MUST(VipDestroyPtag(w->node.nic, attributes.Ptag));
        if (i % 50 == 0) {
            VIP_NIC_HANDLE nic;

            MUST(VipOpenNic(w->side->device, &nic));
            MUST(VipCloseNic(nic));
        }
    }
    return NULL;
}

static void objects(struct world *w)
{
    pthread_t thread[THREADS];
    int i;

    for (i = 0; i < THREADS; i++)
        thread[i] = start_thread(make_and_unmake, w);
    for (i = 0; i < THREADS; i++)
        join_thread(thread[i]);
    meet(w->side);
    ok("side %d: %d threads make and unmake objects", w->side->number, THREADS);
}

struct victim {
    struct node node;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *d;
    VIP_RETURN code;
    int started;
};

static void *wait_for_ever(void *argument)
{
    struct victim *v = (struct victim *)argument;
    VIP_DESCRIPTOR *found = NULL;

    atomic_set(&v->started, 1);
    v->code = VipRecvWait(v->vi, VIP_INFINITE, &found);
    return NULL;
}

/* THR-03: a VI is destroyed under a thread that waits on it. In strict mode that takes a flush, which
 * ends the wait; in the compatible mode an Idle VI may be destroyed as it is. */
static void destroyed_under_a_waiter(struct world *w)
{
    struct victim v;
    pthread_t thread;

    memset(&v, 0, sizeof v);
    open_node(&v.node, w->side->device, 65536);
    v.vi = make_vi(&v.node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    v.d = take_descriptor(&v.node, 1);
    post_recv(&v.node, v.vi, v.d, NULL, 0);
    thread = start_thread(wait_for_ever, &v);
    await(&v.started, 1, "THR-03");
    sleep_ms(50);
    if (strict_mode())
        MUST(VipDisconnect(v.vi));
    else
        MUST(VipDestroyVi(v.vi));
    join_thread(thread);
    CHECK_RETURN(v.code, strict_mode() ? VIP_DESCRIPTOR_ERROR : VIP_INVALID_PARAMETER, "THR-03");
    if (strict_mode())
        MUST(VipDestroyVi(v.vi));
    close_node(&v.node);
    meet(w->side);
    ok("side %d: destroyed under a waiting thread", w->side->number);
}

static void threads(struct side *side)
{
    static struct world worlds[2];
    struct world *w = &worlds[side->number];

    w->side = side;
    open_node(&w->node, side->device, 1 << 20);
    w->other = swap_addresses(side, &w->node);
    one_vi(w);
    many_vis(w);
    objects(w);
    destroyed_under_a_waiter(w);
    close_node(&w->node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, threads);
    return 0;
}
