/* At rest: how often a connected process wakes up while its program sleeps or waits for a message, and the agent and the
 * device process that serve it. Counts voluntary context switches of all threads, no times.
 *
 *   rest [-d DEVICE] MOST    MOST: wake-ups a second of one process
 */
#include "peer.h"

#include <dirent.h>
#include <poll.h>

#include "vipl_ext.h"

/* What the connection has left to do is done by then. */
#define SETTLE_MS 1000UL
#define COUNT_MS 5000UL
#define SERVERS 4
#define FIRST_OF_CQ 2 /* of the ways to rest */

static struct node node;
static struct peer peer;
static VIP_CQ_HANDLE cq;
static VIP_VI_HANDLE plain, queued; /* connected with the peer, one after the other */

/* Voluntary context switches of all threads of a process; 0 if it cannot be seen. */
static long wakeups(pid_t process)
{
    char path[300], line[128];
    struct dirent *entry;
    DIR *tasks;
    FILE *status;
    long sum = 0, one;

    snprintf(path, sizeof path, "/proc/%d/task", (int)process);
    tasks = opendir(path);
    while (tasks != NULL && (entry = readdir(tasks)) != NULL) {
        snprintf(path, sizeof path, "/proc/%d/task/%s/status", (int)process, entry->d_name);
        status = entry->d_name[0] != '.' ? fopen(path, "r") : NULL;
        while (status != NULL && fgets(line, sizeof line, status) != NULL)
            if (sscanf(line, "voluntary_ctxt_switches: %ld", &one) == 1)
                sum += one;
        if (status != NULL)
            fclose(status);
    }
    if (tasks != NULL)
        closedir(tasks);
    return sum;
}

/* The processes at the other ends of this one's sockets: the agent, and a device process. */
static int find_servers(pid_t *found)
{
    struct ucred who;
    socklen_t size;
    int fd, i, count = 0;

    for (fd = 0; fd < 1024 && count < SERVERS; fd++) {
        size = sizeof who;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 || who.pid <= 0 || who.pid == getpid() ||
            who.pid == getppid() || who.pid == peer.pid)
            continue;
        for (i = 0; i < count && found[i] != who.pid; i++)
            ;
        if (i == count)
            found[count++] = who.pid;
    }
    return count;
}

static void sleeps(void)
{
    sleep_ms(COUNT_MS);
}

static void waits(void)
{
    VIP_DESCRIPTOR *found;

    CHECK_RETURN(VipRecvWait(plain, COUNT_MS, &found), VIP_TIMEOUT, "WAIT-02");
}

static void waits_for_cq(void)
{
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN is_receive;

    CHECK_RETURN(VipCQWait(cq, COUNT_MS, &vi, &is_receive), VIP_TIMEOUT, "WAIT-02");
}

/* As an event loop rests. */
static void polls_descriptor(void)
{
    struct pollfd event = {-1, POLLIN, 0};

    MUST(vipl_cq_fd(cq, &event.fd));
    MUST(vipl_cq_arm(cq));
    CHECK_EQ(poll(&event, 1, (int)(COUNT_MS / time_factor())), 0, "nothing completes");
}

static const struct {
    const char *name;
    void (*rest)(void);
} ways[] = {{"sleeps", sleeps}, {"VipRecvWait", waits}, {"VipCQWait", waits_for_cq}, {"vipl_cq_arm", polls_descriptor}};

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    long most, before[SERVERS + 1], woke;
    pid_t of[SERVERS + 1];
    VIP_DESCRIPTOR *in[2];
    unsigned char *buffer;
    size_t way;
    int i, count;

    CHECK(options.words == 1, "usage: rest [-d DEVICE] MOST");
    most = strtol(options.word[0], NULL, 10);
    peer_start(&peer, &options);
    open_node(&node, options.device, 65536);
    MUST(VipCreateCQ(node.nic, 16, &cq));
    plain = make_vi(&node, PEER_LEVEL, NULL, NULL);
    queued = make_vi(&node, PEER_LEVEL, NULL, cq);
    for (i = 0; i < 2; i++)
        in[i] = take_descriptor(&node, 1);
    buffer = take(&node, 64);
    for (way = 0; way < sizeof ways / sizeof ways[0]; way++) {
        VIP_VI_HANDLE vi = way < FIRST_OF_CQ ? plain : queued;

        if (way == 0 || way == FIRST_OF_CQ) {
            if (way != 0) {
                MUST(VipDisconnect(plain));
                peer_leave(&peer);
            }
            post_recv(&node, vi, in[vi == queued], buffer, 64);
            peer_join(&peer, &node, vi, options.device);
        }
        sleep_ms(SETTLE_MS);
        of[0] = getpid();
        count = 1 + find_servers(of + 1);
        for (i = 0; i < count; i++)
            before[i] = wakeups(of[i]);
        ways[way].rest();
        for (i = 0; i < count; i++) {
            woke = wakeups(of[i]) - before[i];
            printf("%s: %s: %.1f wake-ups a second\n", ways[way].name, i == 0 ? "this process" : "one that serves it",
                   (double)woke * 1000 / COUNT_MS);
            CHECK(woke <= most * (long)COUNT_MS / 1000, "a process at rest sleeps");
        }
        ok("%s", ways[way].name);
    }
    _exit(0);
}
