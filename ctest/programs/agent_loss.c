/* The Kernel Agent is killed under a busy transfer: connections go on; the next agent takes them over, so
 * that new connections work on the same NIC and every loss is noticed as before, also that of a peer
 * which died while there was no agent.
 *
 *   agent_loss [-d DEVICE] VIPKAD
 *
 * The main process is the supervisor: it starts and kills the agents and the victim, and never calls VIPL.
 * Its children: `here` and `there`, which live through it all, and the victim. */
#include "agent.h"

/* Longer than the time in which the next agent waits for a peer, and longer than the keeper's pauses. */
#define LONG_PATIENCE (4 * PATIENCE)
#define ROUNDS 200
/* Bytes of the last message of the transfer; no other has so few. */
#define LAST 1

/* How far everybody has come; each is set once. */
struct stages {
    int there_ready, victim_ready, held, here_ready, dead, parted, refused, again, checked, over;
    int rounds;
};

static struct stages *stages;
static const char *device;
static int run;

static address at(const struct node *node, const char *name)
{
    return local_point(node, run, name);
}

static void reach(int *stage, const char *what)
{
    double start = now_ms();

    while (!atomic_get(stage)) {
        CHECK(now_ms() - start < (double)LONG_PATIENCE, what);
        sleep_ms(1);
    }
}
#define REACH(stage) reach(&stages->stage, "stage " #stage)

/* ---- a busy transfer ------------------------------------------------------------------------- */

struct busy {
    struct node *node;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *in, *out;
    unsigned char *received, *sent;
};

static void busy_open(struct busy *b, struct node *node)
{
    b->node = node;
    b->vi = make_vi(node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    b->in = take_descriptor(node, 1);
    b->out = take_descriptor(node, 1);
    b->received = take(node, 30000);
    b->sent = take(node, 30000);
    post_recv(node, b->vi, b->in, b->received, 30000);
}

static void busy_send(struct busy *b, int round, size_t bytes)
{
    fill(b->sent, bytes, (unsigned long)round);
    post_send(b->node, b->vi, b->out, b->sent, bytes);
    EXPECT_SEND(b->vi, b->out, STATUS_SENT, "agent_loss: the transfer goes on");
}

static size_t busy_receive(struct busy *b, int round)
{
    size_t bytes;

    EXPECT_RECV(b->vi, b->in, STATUS_RECEIVED, "agent_loss: the transfer goes on");
    bytes = control(b->in)->Length;
    if (bytes != LAST)
        CHECK(filled(b->received, bytes, (unsigned long)round), "agent_loss: whole messages");
    post_recv(b->node, b->vi, b->in, b->received, 30000);
    return bytes;
}

static size_t size_of_round(int round) { return round % 3 == 0 ? 30000 : 40 + (size_t)round % 1000; }

static void *throw_and_catch(void *argument)
{
    struct busy *b = (struct busy *)argument;
    int round;

    for (round = 1; !atomic_get(&stages->checked); round++) {
        busy_send(b, round, size_of_round(round));
        CHECK_EQ(busy_receive(b, round), size_of_round(round), "agent_loss: whole messages");
        atomic_set(&stages->rounds, round);
    }
    busy_send(b, 0, LAST);
    return NULL;
}

static void *throw_back(void *argument)
{
    struct busy *b = (struct busy *)argument;
    int round = 1;
    size_t bytes;

    while ((bytes = busy_receive(b, round)) != LAST)
        busy_send(b, round++, bytes);
    return NULL;
}

/* ---- calls that wait while the agent is killed ----------------------------------------------- */

struct call {
    struct node *node;
    VIP_VI_HANDLE vi;
    const char *name;
};

static void *wait_and_accept(void *argument)
{
    struct call *c = (struct call *)argument;

    serve(c->node, c->vi, at(c->node, c->name));
    return NULL;
}

/* The other process has not found the next agent yet. */
static int no_server_yet(VIP_RETURN code)
{
    return code == VIP_NO_MATCH || code == VIP_NOT_REACHABLE;
}

static void *request(void *argument)
{
    struct call *c = (struct call *)argument;
    VIP_VI_ATTRIBUTES attributes;
    address local = at(c->node, "requester"), remote = at(c->node, c->name);

    VIP_RETURN code = VipConnectRequest(c->vi, &local.net, &remote.net, LONG_PATIENCE, &attributes);

    /* The library has asked the next agent; only a server that is very late is missed there. */
    while (no_server_yet(code))
        code = VipConnectRequest(c->vi, &local.net, &remote.net, LONG_PATIENCE, &attributes);
    CHECK_RETURN(code, VIP_SUCCESS, "agent_loss: the library asks the next agent");
    return NULL;
}

static void ask_peer(struct node *node, VIP_VI_HANDLE vi, const char *own, const char *other)
{
    address local = at(node, own), remote = at(node, other);

    MUST(VipConnectPeerRequest(vi, &local.net, &remote.net, LONG_PATIENCE));
}

static void end_peer(VIP_VI_HANDLE vi)
{
    VIP_VI_ATTRIBUTES attributes;

    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_SUCCESS, "agent_loss: peers meet at the next agent");
}

/* ---- who lives through it -------------------------------------------------------------------- */

static int lost(struct node *node, VIP_VI_HANDLE vi)
{
    int i, count = 0;

    pthread_mutex_lock(&node->errors.lock);
    for (i = 0; i < node->errors.count; i++)
        count += node->errors.list[i].ErrorCode == VIP_ERROR_CONN_LOST && node->errors.list[i].ViHandle == vi;
    pthread_mutex_unlock(&node->errors.lock);
    return count;
}

static void await_loss(struct node *node, VIP_VI_HANDLE vi, const char *what)
{
    double start = now_ms();

    while (vi_state(vi) != VIP_STATE_ERROR || lost(node, vi) == 0) {
        CHECK(now_ms() - start < (double)LONG_PATIENCE, what);
        sleep_ms(1);
    }
    CHECK_EQ(lost(node, vi), 1, what);
}

static VIP_VI_HANDLE connect_to(struct node *node, const char *name)
{
    VIP_VI_HANDLE vi = make_vi(node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);

    ask(vi, at(node, "here"), at(node, name));
    return vi;
}

static void here(void)
{
    static struct node node;
    static struct busy busy;
    static struct call held;
    VIP_VI_HANDLE victim, part, peer, again;
    VIP_VI_ATTRIBUTES attributes;
    address local, remote;
    pthread_t transfer, requester;
    VIP_RETURN code;
    double start;
    int rounds;

    open_node(&node, device, 1 << 20);
    busy_open(&busy, &node);
    ask(busy.vi, at(&node, "here"), at(&node, "busy"));
    part = connect_to(&node, "part");
    victim = connect_to(&node, "victim");
    peer = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    ask_peer(&node, peer, "peer0", "peer1");
    held.node = &node;
    held.vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    held.name = "held";
    requester = start_thread(request, &held);
    transfer = start_thread(throw_and_catch, &busy);
    REACH(held);
    atomic_set(&stages->here_ready, 1);

    REACH(dead);
    rounds = atomic_get(&stages->rounds);
    await(&stages->rounds, rounds + ROUNDS, "agent_loss: the transfer goes on without an agent");
    CHECK_EQ(vi_state(victim), VIP_STATE_CONNECTED, "agent_loss: nobody is there to tell");
    again = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    local = at(&node, "here");
    remote = at(&node, "again");
    CHECK_RETURN(VipConnectRequest(again, &local.net, &remote.net, PATIENCE, &attributes), VIP_ERROR_RESOURCE,
                 "agent_loss: no agent, no new connection");
    CHECK_EQ(vi_state(again), VIP_STATE_IDLE, "agent_loss: no agent, no new connection");
    ok("%d round trips without an agent, and no new connection", atomic_get(&stages->rounds) - rounds);
    atomic_set(&stages->refused, 1);

    REACH(again);
    start = now_ms();
    /* The try that is just under way may still find no server. */
    while ((code = VipConnectRequest(again, &local.net, &remote.net, PATIENCE, &attributes)) == VIP_ERROR_RESOURCE ||
           no_server_yet(code))
        CHECK(now_ms() - start < (double)LONG_PATIENCE, "agent_loss: new connections on the same NIC");
    CHECK_RETURN(code, VIP_SUCCESS, "agent_loss: new connections on the same NIC");
    end_peer(peer);
    join_thread(requester);
    ok("a new connection, two peers, and the request that was under way, at the next agent");
    AWAIT_STATE(part, VIP_STATE_ERROR, "agent_loss: a disconnect without an agent");
    await_loss(&node, victim, "agent_loss: a peer that died without an agent");
    CHECK_EQ(vi_state(busy.vi), VIP_STATE_CONNECTED, "agent_loss: the others stay");
    atomic_set(&stages->checked, 1);
    join_thread(transfer);
    ok("the death of a peer without an agent, after %d round trips", atomic_get(&stages->rounds));
    atomic_set(&stages->over, 1);
    await_loss(&node, busy.vi, "agent_loss: the death of a peer that was handed over");
    await_loss(&node, again, "agent_loss: the death of a new peer");
    ok("the death of a peer that was handed over");
    end_vi(busy.vi);
    end_vi(part);
    end_vi(victim);
    end_vi(peer);
    end_vi(held.vi);
    end_vi(again);
    close_node(&node);
}

static void there(void)
{
    static struct node node;
    static struct busy busy;
    static struct call waits;
    VIP_VI_HANDLE part, peer, held;
    VIP_CONN_HANDLE handle;
    VIP_VI_ATTRIBUTES attributes;
    address local, remote;
    pthread_t transfer, waiter;

    open_node(&node, device, 1 << 20);
    busy_open(&busy, &node);
    part = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    peer = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    held = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    waits.node = &node;
    waits.vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    waits.name = "again";
    atomic_set(&stages->there_ready, 1);
    serve(&node, busy.vi, at(&node, "busy"));
    serve(&node, part, at(&node, "part"));
    transfer = start_thread(throw_back, &busy);
    waiter = start_thread(wait_and_accept, &waits);
    local = at(&node, "held");
    MUST(VipConnectWait(node.nic, &local.net, PATIENCE, &remote.net, &attributes, &handle));
    atomic_set(&stages->held, 1);

    REACH(dead);
    CHECK_RETURN(VipConnectAccept(handle, held), VIP_TIMEOUT, "agent_loss: a request of the dead agent");
    CHECK_RETURN(VipConnectAccept(handle, held), VIP_INVALID_PARAMETER, "agent_loss: the handle is gone");
    CHECK_EQ(vi_state(held), VIP_STATE_IDLE, "agent_loss: a request of the dead agent");
    end_vi(part);
    atomic_set(&stages->parted, 1);

    REACH(again);
    serve(&node, held, local);
    join_thread(waiter);
    for (;;) {
        VIP_RETURN code;

        remote = at(&node, "peer0");
        local = at(&node, "peer1");
        code = VipConnectPeerRequest(peer, &local.net, &remote.net, LONG_PATIENCE);
        if (code == VIP_SUCCESS)
            break;
        CHECK_RETURN(code, VIP_ERROR_RESOURCE, "agent_loss: peers at the next agent");
    }
    end_peer(peer);
    join_thread(transfer);
    for (;;)
        pause(); /* until it is killed */
}

static void victim(void)
{
    static struct node node;
    VIP_VI_HANDLE vi;

    open_node(&node, device, 1 << 20);
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    atomic_set(&stages->victim_ready, 1);
    serve(&node, vi, at(&node, "victim"));
    for (;;)
        pause();
}

/* ---- the supervisor -------------------------------------------------------------------------- */

static pid_t start(void (*body)(void))
{
    pid_t pid = fork_child();

    if (pid == 0) {
        body();
        fflush(NULL);
        exit(0);
    }
    return pid;
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    char folder[] = "/tmp/vipl-agent-loss-XXXXXX", path[64], lock[80];
    pid_t agent, one, two, three;

    CHECK_EQ(options.words, 1, "agent_loss VIPKAD");
    CHECK(mkdtemp(folder) != NULL, "mkdtemp");
    snprintf(path, sizeof path, "%s/agent", folder);
    snprintf(lock, sizeof lock, "%s.lock", path);
    setenv("VIPL_AGENT", path, 1);
    stages = (struct stages *)mmap(NULL, sizeof *stages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(stages != (struct stages *)MAP_FAILED, "mmap");
    device = options.device;
    run = (int)getpid();
    agent = start_agent(options.word[0], path);
    two = start(there);
    three = start(victim);
    REACH(there_ready);
    REACH(victim_ready);
    one = start(here);
    REACH(here_ready);
    end_child(agent, SIGKILL);
    atomic_set(&stages->dead, 1);
    REACH(parted);
    REACH(refused);
    end_child(three, SIGKILL);
    agent = start_agent(options.word[0], path);
    atomic_set(&stages->again, 1);
    REACH(over);
    end_child(two, SIGKILL);
    reap(one);
    end_child(agent, SIGTERM);
    unlink(lock);
    CHECK_EQ(rmdir(folder), 0, "agent_loss: nothing stays behind");
    ok("the agents are gone");
    return 0;
}
