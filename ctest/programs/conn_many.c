/* Many client/server connections: which request goes to which wait, and how many there can be
 * (spec §3.8, §9.1). */
#include "conn.h"

struct waiting {
    struct world *w;
    const unsigned char *discriminator;
    size_t length;
    int *got;
    unsigned long timeout;
    VIP_RETURN expected;
};

static void *wait_thread(void *argument)
{
    struct waiting *waiting = (struct waiting *)argument;
    struct world *w = waiting->w;
    address local, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE request;
    VIP_VI_HANDLE vi;
    VIP_RETURN code;

    set_address(&local, w->node.attributes.LocalNicAddress, w->node.attributes.NicAddressLen,
                waiting->discriminator, waiting->length);
    code = VipConnectWait(w->node.nic, &local.net, waiting->timeout, &remote.net, &attributes, &request);
    CHECK_RETURN(code, waiting->expected, "CONN-14");
    if (code == VIP_SUCCESS) {
        vi = make_vi(&w->node, LEVEL(w), NULL, NULL);
        MUST(VipConnectAccept(request, vi));
        atomic_add(waiting->got, 1);
        AWAIT_STATE(vi, VIP_STATE_ERROR, "DISC-05");
        end_vi(vi);
    }
    return NULL;
}

/* CONN-14, 24 to 28: which request goes to which wait. */
static void matching(struct world *w)
{
    static unsigned char zero[64];
    const size_t longest = w->node.attributes.MaxDiscriminatorLen;
    unsigned char base[16] = {0};
    struct waiting waiting[4];
    pthread_t thread[4];
    address local = here(w, "client"), remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE vi;
    VIP_RETURN code;
    int got = 0, i;
    size_t host = w->other.net.HostAddressLen;

    CHECK(longest >= 16 && longest <= sizeof zero, "MaxDiscriminatorLen that this test can hold");
    memcpy(base, &w->side->run, sizeof w->side->run);
    memcpy(base + 4, "abc", 3);
    if (w->side->number == 0) {
        /* "ab" and "abc"; all zero, as long as can be; and "abcd" for which no client asks */
        const size_t length[4] = {6, 7, longest, 8};

        for (i = 0; i < 4; i++) {
            waiting[i].w = w;
            waiting[i].discriminator = i == 2 ? zero : base;
            waiting[i].length = length[i];
            waiting[i].got = &got;
            waiting[i].timeout = i == 3 ? 1000 : PATIENCE;
            waiting[i].expected = i == 3 ? VIP_TIMEOUT : VIP_SUCCESS;
            thread[i] = start_thread(wait_thread, &waiting[i]);
        }
        await(&got, 3, "CONN-26");
        for (i = 0; i < 4; i++)
            join_thread(thread[i]);
        meet(w->side);

        /* two waits at one point, two requests (CONN-24) */
        for (got = 0, i = 0; i < 2; i++)
            thread[i] = start_thread(wait_thread, &waiting[1]);
        await(&got, 2, "CONN-24");
        for (i = 0; i < 2; i++)
            join_thread(thread[i]);
    } else {
        vi = make_vi(&w->node, LEVEL(w), NULL, NULL);
        for (i = 0; i < 3; i++) {
            set_address(&remote, w->other.bytes + 4, host, i == 2 ? zero : base,
                        i == 2 ? longest : 6 + (size_t)i);
            while ((code = VipConnectRequest(vi, &local.net, &remote.net, PATIENCE, &attributes)) == VIP_NO_MATCH)
                sleep_ms(1);
            CHECK_RETURN(code, VIP_SUCCESS, i == 2 ? "CONN-28" : "CONN-14");
            MUST(VipDisconnect(vi));
        }
        set_address(&remote, w->other.bytes + 4, host, base, 5);
        CHECK_RETURN(VipConnectRequest(vi, &local.net, &remote.net, PATIENCE, &attributes),
                     VIP_NO_MATCH, "CONN-14");
        meet(w->side);
        set_address(&remote, w->other.bytes + 4, host, base, 7);
        for (i = 0; i < 2; i++) {
            while ((code = VipConnectRequest(vi, &local.net, &remote.net, PATIENCE, &attributes)) == VIP_NO_MATCH)
                sleep_ms(1);
            CHECK_RETURN(code, VIP_SUCCESS, "CONN-24");
            MUST(VipDisconnect(vi));
        }
        MUST(VipDestroyVi(vi));
    }
    meet(w->side);
    sleep_ms(20);
    forget_errors(&w->node);
    ok("side %d: which request goes to which wait", w->side->number);
}

struct rivals {
    struct world *w;
    int *won;
};

static void *rival(void *argument)
{
    struct rivals *rivals = (struct rivals *)argument;
    struct world *w = rivals->w;
    VIP_VI_HANDLE vi = make_vi(&w->node, LEVEL(w), NULL, NULL);
    address local = here(w, "client"), remote = there(w, "one");
    VIP_VI_ATTRIBUTES attributes;
    VIP_RETURN code;

    do
        code = VipConnectRequest(vi, &local.net, &remote.net, PATIENCE, &attributes);
    while (code == VIP_NO_MATCH && atomic_get(rivals->won) == 0);
    if (code == VIP_SUCCESS)
        atomic_add(rivals->won, 1);
    else
        CHECK_RETURN(code, VIP_NO_MATCH, "CONN-25");
    end_vi(vi);
    return NULL;
}

/* CONN-25: two requests for one wait. */
static void two_for_one(struct world *w)
{
    struct rivals rivals;
    pthread_t thread[2];
    VIP_VI_HANDLE vi;
    int won = 0;

    if (w->side->number == 0) {
        vi = make_vi(&w->node, LEVEL(w), NULL, NULL);
        serve(&w->node, vi, here(w, "one"));
        meet(w->side);
        end_vi(vi);
    } else {
        rivals.w = w;
        rivals.won = &won;
        thread[0] = start_thread(rival, &rivals);
        thread[1] = start_thread(rival, &rivals);
        join_thread(thread[0]);
        join_thread(thread[1]);
        CHECK_EQ(won, 1, "CONN-25");
        meet(w->side);
    }
    meet(w->side);
    sleep_ms(20);
    forget_errors(&w->node);
    ok("side %d: two requests for one wait", w->side->number);
}

/* CONN-29: one VI of side 1, connected and disconnected, with two peers in turn. */
static void again_and_again(struct world *w)
{
    enum { N = 1000 };
    const int peers = w->side->number == 0 ? 2 : 1;
    VIP_VI_HANDLE vi[2];
    double start = now_ms();
    char name[24];
    int i;

    for (i = 0; i < peers; i++)
        vi[i] = make_vi(&w->node, LEVEL(w), NULL, NULL);
    for (i = 0; i < N; i++) {
        VIP_VI_HANDLE this = vi[i % peers];

        snprintf(name, sizeof name, "again%d", i % 2);
        join_sides(w->side, &w->node, this, &w->other, name);
        CHECK_EQ(vi_state(this), VIP_STATE_CONNECTED, "CONN-29");
        meet(w->side);
        if (i % 20 < 2)
            exchange(w, this, "CONN-29");
        if (w->side->number == i / 2 % 2) {
            MUST(VipDisconnect(this));
            meet(w->side);
        } else {
            meet(w->side);
            AWAIT_STATE(this, VIP_STATE_ERROR, "DISC-05");
            MUST(VipDisconnect(this));
        }
        CHECK_EQ(vi_state(this), VIP_STATE_IDLE, "DISC-08");
    }
    for (i = 0; i < peers; i++)
        MUST(VipDestroyVi(vi[i]));
    meet(w->side);
    sleep_ms(20);
    forget_errors(&w->node);
    ok("side %d: one VI connected %d times, %.2f ms each", w->side->number, N, (now_ms() - start) / N);
}

#define THREADS 8
#define EACH 32

struct crowd {
    struct world *w;
    int number;
    VIP_VI_HANDLE vi[EACH];
};

static void *crowd_thread(void *argument)
{
    struct crowd *c = (struct crowd *)argument;
    struct world *w = c->w;
    char name[24], mine[24];
    int k;

    for (k = 0; k < EACH; k++) {
        snprintf(name, sizeof name, "p%d.%d", c->number, k);
        snprintf(mine, sizeof mine, "c%d.%d", c->number, k);
        c->vi[k] = make_vi(&w->node, LEVEL(w), NULL, NULL);
        if (w->side->number == 0) {
            VIP_VI_ATTRIBUTES attributes;
            VIP_CONN_HANDLE request;
            address remote;

            MUST(wait_at(w, name, PATIENCE, &remote, &attributes, &request));
            CHECK(memcmp(remote.bytes + 4 + remote.net.HostAddressLen + 4, mine, strlen(mine)) == 0, "CONN-33");
            MUST(VipConnectAccept(request, c->vi[k]));
        } else {
            ask(c->vi[k], here(w, mine), there(w, name));
        }
    }
    return NULL;
}

/* CONN-33: 256 connections by 8 threads, each paired with the right peer. */
static void a_crowd(struct world *w)
{
    static struct crowd crowds[2][THREADS];
    struct crowd *crowd = crowds[w->side->number];
    VIP_DESCRIPTOR *d = take_descriptor(&w->node, 1);
    int *number = (int *)(void *)take(&w->node, sizeof(int));
    pthread_t thread[THREADS];
    int i, k;

    for (i = 0; i < THREADS; i++) {
        crowd[i].w = w;
        crowd[i].number = i;
        thread[i] = start_thread(crowd_thread, &crowd[i]);
    }
    for (i = 0; i < THREADS; i++)
        join_thread(thread[i]);
    for (i = 0; i < THREADS; i++) {
        for (k = 0; k < EACH; k++) {
            VIP_VI_HANDLE vi = crowd[i].vi[k];

            if (w->side->number == 0) {
                *number = -1;
                post_recv(&w->node, vi, d, number, sizeof *number);
                meet(w->side);
                EXPECT_RECV(vi, d, STATUS_RECEIVED, "CONN-33");
                CHECK_EQ(*number, i * EACH + k, "CONN-33");
            } else {
                *number = i * EACH + k;
                meet(w->side);
                post_send(&w->node, vi, d, number, sizeof *number);
                EXPECT_SEND(vi, d, STATUS_SENT, "CONN-33");
            }
        }
    }
    meet(w->side);
    for (i = 0; i < THREADS; i++)
        for (k = 0; k < EACH; k++)
            end_vi(crowd[i].vi[k]);
    meet(w->side);
    ok("side %d: %d connections by %d threads", w->side->number, THREADS * EACH, THREADS);
}

static void conn_many(struct side *side)
{
    struct world w;

    open_world(&w, side);
    matching(&w);
    two_for_one(&w);
    again_and_again(&w);
    a_crowd(&w);
    close_node(&w.node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, conn_many);
    return 0;
}
