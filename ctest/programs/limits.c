/* Limits of the system are reached and lifted again: calls fail with VIP_ERROR_RESOURCE, what exists goes
 * on, and afterwards everything works.
 *
 *   limits [-d DEVICE] opening | files | space | locked | size
 *
 * One process with both ends of every connection, so that the limit meets both. */
#include "common.h"

#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>

static struct rlimit before;

/* Lowers the soft limit; the hard one stays, so that it can be lifted. */
static void limit(int resource, rlim_t most)
{
    struct rlimit lower;

    MUST(getrlimit((__rlimit_resource_t)resource, &before));
    lower = before;
    lower.rlim_cur = most;
    MUST(setrlimit((__rlimit_resource_t)resource, &lower));
}

static void lift(int resource)
{
    MUST(setrlimit((__rlimit_resource_t)resource, &before));
}

/* ---- a connection ---------------------------------------------------------------------------- */

struct pair {
    struct node *node;
    VIP_VI_HANDLE a, b;
    VIP_DESCRIPTOR *in, *out;
    unsigned char *received, *sent;
};

static void make_pair(struct pair *p, struct node *node)
{
    p->node = node;
    p->a = make_vi(node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    p->b = make_vi(node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    p->in = take_descriptor(node, 1);
    p->out = take_descriptor(node, 1);
    p->received = take(node, 30000);
    p->sent = take(node, 30000);
}

static void transfer(struct pair *p, unsigned long seed, const char *id)
{
    fill(p->sent, 30000, seed);
    post_recv(p->node, p->b, p->in, p->received, 30000);
    post_send(p->node, p->a, p->out, p->sent, 30000);
    EXPECT_RECV(p->b, p->in, STATUS_RECEIVED, id);
    EXPECT_SEND(p->a, p->out, STATUS_SENT, id);
    CHECK(filled(p->received, 30000, seed), id);
}

struct attempt {
    struct pair *pair;
    int ready; /* the thread runs and has its own heap */
    VIP_RETURN accepted;
    address at;
};

static void *accept_one(void *argument)
{
    struct attempt *attempt = (struct attempt *)argument;
    VIP_CONN_HANDLE request = NULL;
    VIP_VI_ATTRIBUTES attributes;
    address remote;

    free(malloc(100));
    atomic_set(&attempt->ready, 1);
    MUST(VipConnectWait(attempt->pair->node->nic, &attempt->at.net, PATIENCE, &remote.net, &attributes, &request));
    attempt->accepted = VipConnectAccept(request, attempt->pair->b);
    return NULL;
}

/* Neither end can take up the connection, or the first to know has told the other. */
static void expect_no_connection(struct pair *p, const char *name, const char *id)
{
    struct attempt attempt;
    VIP_VI_ATTRIBUTES attributes;
    address local = local_point(p->node, (int)getpid(), "client");
    pthread_t thread;

    attempt.pair = p;
    attempt.ready = 0;
    attempt.at = local_point(p->node, (int)getpid(), name);
    thread = start_thread(accept_one, &attempt);
    CHECK_RETURN(VipConnectRequest(p->a, &local.net, &attempt.at.net, PATIENCE, &attributes), VIP_ERROR_RESOURCE, id);
    join_thread(thread);
    CHECK_RETURN(attempt.accepted, VIP_ERROR_RESOURCE, id);
    CHECK_EQ(vi_state(p->a), VIP_STATE_IDLE, id);
    CHECK_EQ(vi_state(p->b), VIP_STATE_IDLE, id);
}

static void end_pair(struct pair *p)
{
    end_vi(p->a);
    end_vi(p->b);
}

/* ---- the limits ------------------------------------------------------------------------------ */

/* A process that may have so many descriptors opens a NIC; when it cannot, it can after the limit is lifted.
 * Says so if it cannot. */
static void open_with(const char *device, rlim_t most)
{
    static struct node node;
    VIP_NIC_HANDLE nic;
    VIP_RETURN code;
    struct pair pair;

    limit(RLIMIT_NOFILE, most);
    code = VipOpenNic(device, &nic);
    lift(RLIMIT_NOFILE);
    if (code != VIP_SUCCESS) {
        CHECK_RETURN(code, VIP_ERROR_RESOURCE, "limits: files");
        printf("refused: process %d\n", (int)getpid());
    } else {
        MUST(VipCloseNic(nic));
    }
    open_node(&node, device, 1 << 20);
    make_pair(&pair, &node);
    join_vis(&node, pair.a, &node, pair.b);
    transfer(&pair, 1, "limits: afterwards all is well");
    end_pair(&pair);
    close_node(&node);
}

/* Descriptors run out at every point of VipOpenNic in turn. */
static void opening(const char *device)
{
    rlim_t most;

    for (most = 3; most < 24; most++) {
        pid_t pid = fork_child();

        if (pid == 0) {
            open_with(device, most);
            fflush(NULL);
            exit(0);
        }
        reap(pid);
    }
    ok("3 to 23 file descriptors");
}

/* No new file descriptor. */
static void files(const char *device)
{
    static struct node node;
    struct pair old, fresh;
    VIP_NIC_HANDLE nic;

    open_node(&node, device, 1 << 20);
    make_pair(&old, &node);
    make_pair(&fresh, &node);
    join_vis(&node, old.a, &node, old.b);
    limit(RLIMIT_NOFILE, 3);
    CHECK_RETURN(VipOpenNic(device, &nic), VIP_ERROR_RESOURCE, "limits: files");
    transfer(&old, 1, "limits: what is connected goes on");
    expect_no_connection(&fresh, "files", "limits: files");
    transfer(&old, 2, "limits: what is connected goes on");
    lift(RLIMIT_NOFILE);
    join_vis(&node, fresh.a, &node, fresh.b);
    transfer(&fresh, 3, "limits: afterwards all is well");
    MUST(VipOpenNic(device, &nic));
    MUST(VipCloseNic(nic));
    transfer(&old, 4, "limits: afterwards all is well");
    end_pair(&old);
    end_pair(&fresh);
    close_node(&node);
    ok("no file descriptors, and then some again");
}

/* Bytes of address space in use. */
static rlim_t address_space(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    CHECK(file != NULL && fscanf(file, "%lu", &pages) == 1, "/proc/self/statm");
    fclose(file);
    return (rlim_t)pages * 4096;
}

/* Room for small things: what is freed here stays with the process. */
static void fill_heap(void)
{
    static void *pieces[64];
    int i;

    mallopt(M_TRIM_THRESHOLD, 64 << 20);
    for (i = 0; i < 64; i++)
        CHECK((pieces[i] = malloc(64 << 10)) != NULL, "malloc");
    for (i = 0; i < 64; i++)
        free(pieces[i]);
}

/* No room for the memory of a connection; some for small things. */
static void space(const char *device)
{
    static struct node node;
    struct pair old, fresh;
    VIP_NIC_HANDLE nic;

    open_node(&node, device, 1 << 20);
    make_pair(&old, &node);
    make_pair(&fresh, &node);
    join_vis(&node, old.a, &node, old.b);
    transfer(&old, 1, "set-up");
    {
        struct attempt attempt;
        VIP_VI_ATTRIBUTES attributes;
        address local = local_point(&node, (int)getpid(), "client");
        pthread_t thread;

        attempt.pair = &fresh;
        attempt.ready = 0;
        attempt.at = local_point(&node, (int)getpid(), "space");
        thread = start_thread(accept_one, &attempt);
        await(&attempt.ready, 1, "set-up");
        fill_heap();
        limit(RLIMIT_AS, address_space() + (64 << 10));
        CHECK_RETURN(VipConnectRequest(fresh.a, &local.net, &attempt.at.net, PATIENCE, &attributes),
                     VIP_ERROR_RESOURCE, "limits: space");
        join_thread(thread);
        CHECK_RETURN(attempt.accepted, VIP_ERROR_RESOURCE, "limits: space");
        CHECK_EQ(vi_state(fresh.a), VIP_STATE_IDLE, "limits: space");
        CHECK_EQ(vi_state(fresh.b), VIP_STATE_IDLE, "limits: space");
    }
    CHECK_RETURN(VipOpenNic(device, &nic), VIP_ERROR_RESOURCE, "limits: space");
    transfer(&old, 2, "limits: what is connected goes on");
    lift(RLIMIT_AS);
    join_vis(&node, fresh.a, &node, fresh.b);
    transfer(&fresh, 3, "limits: afterwards all is well");
    transfer(&old, 4, "limits: afterwards all is well");
    MUST(VipOpenNic(device, &nic));
    MUST(VipCloseNic(nic));
    end_pair(&old);
    end_pair(&fresh);
    close_node(&node);
    ok("no address space, and then some again");
}

/* No locked memory: none is needed. */
static void locked(const char *device)
{
    static struct node node;
    struct pair pair;

    limit(RLIMIT_MEMLOCK, 0);
    open_node(&node, device, 1 << 20);
    make_pair(&pair, &node);
    join_vis(&node, pair.a, &node, pair.b);
    transfer(&pair, 1, "limits: locked memory");
    CHECK(node.attributes.MaxRegisterBytes >= 64UL << 20, "limits: MaxRegisterBytes without locked memory");
    end_pair(&pair);
    close_node(&node);
    ok("no locked memory");
}

/* Files may have 4 KiB. The kernel sends SIGXFSZ with the error, which would end this program. */
static void file_size(const char *device)
{
    static struct node node;
    struct pair pair;
    VIP_NIC_HANDLE nic;
    sigset_t pending;

    open_node(&node, device, 1 << 20);
    make_pair(&pair, &node);
    limit(RLIMIT_FSIZE, 4096);
    CHECK_RETURN(VipOpenNic(device, &nic), VIP_ERROR_RESOURCE, "limits: file size");
    MUST(sigpending(&pending));
    CHECK(!sigismember(&pending, SIGXFSZ), "limits: file size");
    join_vis(&node, pair.a, &node, pair.b);
    transfer(&pair, 1, "limits: what is open goes on");
    lift(RLIMIT_FSIZE);
    MUST(VipOpenNic(device, &nic));
    MUST(VipCloseNic(nic));
    end_pair(&pair);
    close_node(&node);
    ok("no large files, and then some again");
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    const char *what = options.words == 1 ? options.word[0] : "";

    if (strcmp(what, "files") == 0)
        files(options.device);
    else if (strcmp(what, "opening") == 0)
        opening(options.device);
    else if (strcmp(what, "space") == 0)
        space(options.device);
    else if (strcmp(what, "locked") == 0)
        locked(options.device);
    else if (strcmp(what, "size") == 0)
        file_size(options.device);
    else
        fail(__FILE__, __LINE__, "limits", "argument", "opening, files, space, locked or size", what);
    return 0;
}
