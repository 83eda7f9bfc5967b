/* The Kernel Agent is stopped (SIGSTOP): calls with a Timeout return in time (R7), also when the socket to the agent is
 * full, and when it goes on nothing is left of what was given up. Waits last as long as they were asked to.
 *
 *   agent_stopped [-d DEVICE] VIPKAD
 *   agent_stopped [-d DEVICE] VIPKAD close   calls without a Timeout end after a while, too: 30 s, which VIPL_TEST_TIME
 *                                            shortens
 */
#include "agent.h"

#define SHORT 300UL
/* Waits of one millisecond that fill the socket to the agent. */
#define THREADS 50
#define WAITS 25

struct stages {
    int ready, ask, asked, held, checked;
};

static struct stages *stages;
static const char *device;
static int run;
static pid_t agent;
static struct node node;

static address at(const char *name) { return local_point(&node, run, name); }

static void stop(void) { CHECK_EQ(kill(agent, SIGSTOP), 0, "kill"); }

static void go_on(void) { CHECK_EQ(kill(agent, SIGCONT), 0, "kill"); }

static VIP_RETURN wait_for(const char *name, unsigned long timeout, VIP_CONN_HANDLE *handle)
{
    address local = at(name), remote;
    VIP_VI_ATTRIBUTES attributes;

    return VipConnectWait(node.nic, &local.net, timeout, &remote.net, &attributes, handle);
}

static VIP_RETURN ask_for(VIP_VI_HANDLE vi, const char *name, unsigned long timeout)
{
    address local = at("asker"), remote = at(name);
    VIP_VI_ATTRIBUTES attributes;

    return VipConnectRequest(vi, &local.net, &remote.net, timeout, &attributes);
}

/* A call that ends by itself: neither too early, nor after the time in which a library notices a silent agent. */
#define ENDS(call, code, id)                                                  \
    do {                                                                      \
        double begun_ = now_ms();                                             \
        CHECK_RETURN(call, code, id);                                         \
        CHECK(now_ms() - begun_ >= (double)SHORT - 1, id);                    \
        CHECK(now_ms() - begun_ < (double)PATIENCE, id);                      \
    } while (0)

/* ---- another process ------------------------------------------------------------------------- */

static void reach(int *stage) { await(stage, 1, "the other process"); }

/* A client, once more when it is asked to. */
static void client(void)
{
    VIP_VI_HANDLE vi;

    open_node(&node, device, 1 << 16);
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    atomic_set(&stages->ready, 1);
    reach(&stages->ask);
    atomic_set(&stages->asked, 1);
    /* Begun while the agent is stopped; a wait that was given up does not swallow it. */
    CHECK_RETURN(ask_for(vi, "first", PATIENCE), VIP_SUCCESS, "agent_stopped: the next wait gets the client");
    reach(&stages->held);
    end_vi(vi);
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    CHECK_RETURN(ask_for(vi, "second", SHORT), VIP_TIMEOUT, "agent_stopped: a server that holds a request");
    atomic_set(&stages->checked, 1);
    end_vi(vi);
    close_node(&node);
}

/* ---- this process ---------------------------------------------------------------------------- */

static void *many_waits(void *nothing)
{
    VIP_CONN_HANDLE handle;
    int i;

    for (i = 0; i < WAITS; i++)
        CHECK_RETURN(wait_for("many", 1, &handle), VIP_TIMEOUT, "R7");
    return nothing;
}

static void calls_end_in_time(VIP_VI_HANDLE vi)
{
    VIP_CONN_HANDLE handle;
    VIP_VI_ATTRIBUTES attributes;
    address local = at("peer0"), remote = at("peer1");
    double start;
    VIP_RETURN code;

    ENDS(wait_for("first", SHORT, &handle), VIP_TIMEOUT, "R7: VipConnectWait");
    ENDS(ask_for(vi, "nobody", SHORT), VIP_TIMEOUT, "R7: VipConnectRequest");
    CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "R7: VipConnectRequest");
    ENDS(ask_for(vi, "nobody", SHORT), VIP_TIMEOUT, "R7: VipConnectRequest, again");
    CHECK_RETURN(VipConnectPeerRequest(vi, &local.net, &remote.net, SHORT), VIP_SUCCESS, "VipConnectPeerRequest");
    ENDS(VipConnectPeerWait(vi, &attributes), VIP_TIMEOUT, "R7: VipConnectPeerWait");
    CHECK_RETURN(VipConnectPeerRequest(vi, &local.net, &remote.net, SHORT), VIP_SUCCESS, "VipConnectPeerRequest");
    start = now_ms();
    while ((code = VipConnectPeerDone(vi, &attributes)) == VIP_NOT_DONE) {
        CHECK(now_ms() - start < (double)PATIENCE, "R7: VipConnectPeerDone");
        sleep_ms(1);
    }
    CHECK_RETURN(code, VIP_TIMEOUT, "R7: VipConnectPeerDone");
    CHECK_EQ(vi_state(vi), VIP_STATE_IDLE, "R7: VipConnectPeerDone");
}

static void socket_is_full(void)
{
    pthread_t threads[THREADS];
    int i;

    for (i = 0; i < THREADS; i++)
        threads[i] = start_thread(many_waits, NULL);
    for (i = 0; i < THREADS; i++)
        join_thread(threads[i]);
}

static void calls_without_a_timeout(void)
{
    VIP_NIC_HANDLE nic;
    VIP_VI_HANDLE vi;
    address local, remote;

    open_node(&node, device, 1 << 16);
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    local = at("peer0");
    remote = at("peer1");
    stop();
    MUST(VipConnectPeerRequest(vi, &local.net, &remote.net, VIP_INFINITE));
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS, "agent_stopped: VipDisconnect");
    end_vi(vi);
    close_node(&node);
    CHECK_RETURN(VipOpenNic(device, &nic), VIP_ERROR_RESOURCE, "agent_stopped: VipOpenNic");
    go_on();
    open_node(&node, device, 1 << 16);
    close_node(&node);
    ok("calls without a Timeout end as well");
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    char folder[] = "/tmp/vipl-agent-stopped-XXXXXX", path[64], lock[80];
    VIP_CONN_HANDLE handle;
    VIP_VI_HANDLE vi;
    pid_t other;

    CHECK(options.words >= 1, "agent_stopped VIPKAD [close]");
    CHECK(mkdtemp(folder) != NULL, "mkdtemp");
    snprintf(path, sizeof path, "%s/agent", folder);
    snprintf(lock, sizeof lock, "%s.lock", path);
    setenv("VIPL_AGENT", path, 1);
    stages = (struct stages *)mmap(NULL, sizeof *stages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(stages != (struct stages *)MAP_FAILED, "mmap");
    device = options.device;
    run = (int)getpid();
    agent = start_agent(options.word[0], path);
    if (options.words > 1) {
        calls_without_a_timeout();
        end_child(agent, SIGTERM);
        unlink(lock);
        CHECK_EQ(rmdir(folder), 0, "agent_stopped: nothing stays behind");
        return 0;
    }
    other = fork_child();
    if (other == 0) {
        client();
        fflush(NULL);
        exit(0);
    }
    open_node(&node, device, 1 << 16);
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    reach(&stages->ready);

    stop();
    calls_end_in_time(vi);
    ok("waits, requests and peer requests end in time");
    socket_is_full();
    calls_end_in_time(vi);
    ok("also when the agent has more to read than the socket holds");
    atomic_set(&stages->ask, 1);
    reach(&stages->asked);
    go_on();
    MUST(wait_for("first", PATIENCE, &handle));
    CHECK_RETURN(VipConnectAccept(handle, vi), VIP_SUCCESS, "agent_stopped: the next wait gets the client");
    CHECK_RETURN(wait_for("nobody", SHORT, &handle), VIP_TIMEOUT, "agent_stopped: a request that was given up");
    ok("nothing is left of them when it goes on");

    atomic_set(&stages->held, 1);
    MUST(wait_for("second", PATIENCE, &handle));
    stop();
    reach(&stages->checked);
    go_on();
    end_vi(vi);
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    CHECK_RETURN(VipConnectAccept(handle, vi), VIP_TIMEOUT, "agent_stopped: the client has given up");
    ok("a client gives up while the agent is stopped, and its server learns it");

    reap(other);
    end_vi(vi);
    close_node(&node);
    end_child(agent, SIGTERM);
    unlink(lock);
    CHECK_EQ(rmdir(folder), 0, "agent_stopped: nothing stays behind");
    return 0;
}
