/* The life of two connections, in one process with both of their ends, while the system refuses something: any call may
 * fail, none may lie. Then once more, when nothing is refused: all must work.
 *
 *   refusable [-d DEVICE] twice | space:BYTES | messages     twice: the first time under `refusing` or `starving`;
 *                                        space: the first time with so many bytes of address space; messages: once, with
 *                                        the messages under `starving`
 *
 * Prints what failed, and ends with 0 if it was told honestly. */
#include "common.h"

#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "marks.h"

#define BYTES 65472 /* as many as every device takes */
#define AWHILE 8000

struct life {
    const char *device;
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES attributes;
    VIP_PROTECTION_HANDLE ptag;
    VIP_MEM_HANDLE handle;
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi[4];
    int has_ptag, has_memory, joined[2];
    int failed; /* calls that have */
    int hungry; /* the marks are around its messages */
};

static unsigned char memory[1 << 20] __attribute__((aligned(4096)));
static int wrong;

/* The thread that accepts is made in advance: its own making is not the library's. */
static struct accepting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct life *life;
    address at;
    int asked, answered;
    VIP_RETURN code;
} accepting = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, { { 0, 0, { 0 } } }, 0, 0, VIP_SUCCESS };

static int worked(struct life *life, const char *call, VIP_RETURN code)
{
    if (code == VIP_SUCCESS)
        return 1;
    life->failed++;
    printf("%s: %s\n", call, return_name((long)code));
    fflush(stdout);
    return 0;
}
#define WORKED(call) worked(life, #call, call)

static void must_not(const char *what)
{
    printf("WRONG: %s\n", what);
    fflush(stdout);
    wrong = 1;
}

static void *accept_them(void *unused)
{
    struct accepting *a = &accepting;

    (void)unused;
    pthread_mutex_lock(&a->lock);
    for (;;) {
        VIP_CONN_HANDLE request = NULL;
        VIP_VI_ATTRIBUTES attributes;
        address remote;
        struct life *life;

        while (a->asked == a->answered)
            pthread_cond_wait(&a->changed, &a->lock);
        life = a->life;
        pthread_mutex_unlock(&a->lock);
        a->code = VipConnectWait(life->nic, &a->at.net, AWHILE, &remote.net, &attributes, &request);
        if (worked(life, "VipConnectWait", a->code))
            worked(life, "VipConnectAccept", a->code = VipConnectAccept(request, life->vi[2]));
        pthread_mutex_lock(&a->lock);
        a->answered = a->asked;
        pthread_cond_broadcast(&a->changed);
    }
    return NULL;
}

static address place(const struct life *life, const char *name)
{
    return point(life->attributes.LocalNicAddress, life->attributes.NicAddressLen, (int)getpid(), name);
}

/* Both ends agree that they are connected, or neither is for long. */
static void note_states(struct life *life, int pair)
{
    life->joined[pair] = vi_state(life->vi[2 * pair]) == VIP_STATE_CONNECTED &&
                         vi_state(life->vi[2 * pair + 1]) == VIP_STATE_CONNECTED;
}

static void join_peers(struct life *life)
{
    address a = place(life, "peer a"), b = place(life, "peer b");
    VIP_VI_ATTRIBUTES attributes;
    int asked = WORKED(VipConnectPeerRequest(life->vi[0], &a.net, &b.net, AWHILE));

    asked &= WORKED(VipConnectPeerRequest(life->vi[1], &b.net, &a.net, AWHILE));
    if (asked) {
        WORKED(VipConnectPeerWait(life->vi[0], &attributes));
        WORKED(VipConnectPeerWait(life->vi[1], &attributes));
    }
    note_states(life, 0);
}

static void join_client(struct life *life)
{
    struct accepting *a = &accepting;
    address local = place(life, "client");
    VIP_VI_ATTRIBUTES attributes;
    VIP_RETURN code;
    double start = now_ms();

    pthread_mutex_lock(&a->lock);
    a->life = life;
    a->at = place(life, "server");
    a->asked++;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    do
        code = VipConnectRequest(life->vi[3], &local.net, &a->at.net, AWHILE, &attributes);
    while (code == VIP_NO_MATCH && now_ms() - start < AWHILE);
    worked(life, "VipConnectRequest", code);
    pthread_mutex_lock(&a->lock);
    while (a->asked != a->answered)
        pthread_cond_wait(&a->changed, &a->lock);
    pthread_mutex_unlock(&a->lock);
    note_states(life, 1);
}

static VIP_DESCRIPTOR *descriptor(int number, int operation)
{
    VIP_DESCRIPTOR *made = (VIP_DESCRIPTOR *)(memory + 128 * number);

    start_descriptor(made, operation);
    return made;
}

/* Done without an error. */
static int done(struct life *life, const char *what, VIP_RETURN code, VIP_DESCRIPTOR **found, VIP_DESCRIPTOR *expected)
{
    if (!worked(life, what, code))
        return 0;
    if (*found != expected || control(*found)->Status & VIP_STATUS_ERROR_MASK)
        must_not("a descriptor that is not the one, or failed with VIP_SUCCESS");
    return 1;
}

static void transfer(struct life *life, VIP_VI_HANDLE from, VIP_VI_HANDLE to, unsigned long seed)
{
    unsigned char *sent = memory + 65536, *received = sent + 65536, *target = received + 65536;
    VIP_DESCRIPTOR *in = descriptor(0, VIP_CONTROL_OP_SENDRECV), *out = descriptor(1, VIP_CONTROL_OP_SENDRECV);
    VIP_DESCRIPTOR *found = NULL;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;

    memset(received, 0, 2 * 65536);
    fill(sent, BYTES, seed);
    add_data(in, received, life->handle, BYTES);
    add_data(out, sent, life->handle, BYTES);
    if (!WORKED(VipPostRecv(to, in, life->handle)) || !WORKED(VipPostSend(from, out, life->handle)))
        return;
    if (to == life->vi[1]) {
        /* Its receive queue has a completion queue. */
        if (!WORKED(VipCQWait(life->cq, AWHILE, &vi, &recv)))
            return;
        if (!done(life, "VipRecvDone", VipRecvDone(to, &found), &found, in))
            return;
    } else if (!done(life, "VipRecvWait", VipRecvWait(to, AWHILE, &found), &found, in)) {
        return;
    }
    if (control(in)->Length != BYTES || !filled(received, BYTES, seed))
        must_not("what was received is not what was sent");
    done(life, "VipSendWait", VipSendWait(from, AWHILE, &found), &found, out);
    out = descriptor(1, VIP_CONTROL_OP_RDMAWRITE);
    add_remote(out, (uint64_t)(uintptr_t)target, life->handle);
    add_data(out, sent, life->handle, BYTES);
    if (WORKED(VipPostSend(from, out, life->handle)) &&
        done(life, "VipSendWait", VipSendWait(from, AWHILE, &found), &found, out)) {
        /* Complete when it has left; this one says that it is there. */
        double start = now_ms();
        while (!filled(target, BYTES, seed) && vi_state(from) == VIP_STATE_CONNECTED && now_ms() - start < AWHILE)
            sleep_ms(1);
        if (!filled(target, BYTES, seed) && vi_state(from) == VIP_STATE_CONNECTED)
            must_not("an RDMA Write that has not arrived");
    }
}

static void end_one(struct life *life, VIP_VI_HANDLE vi)
{
    double start = now_ms();

    if (vi_state(vi) != VIP_STATE_IDLE)
        WORKED(VipDisconnect(vi));
    drain(vi);
    while (VipDestroyVi(vi) != VIP_SUCCESS)
        if (now_ms() - start > AWHILE) {
            must_not("a VI that cannot be destroyed");
            return;
        } else {
            sleep_ms(1);
        }
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

static void bound(rlim_t most)
{
    struct rlimit limit;

    MUST(getrlimit(RLIMIT_AS, &limit));
    limit.rlim_cur = most;
    MUST(setrlimit(RLIMIT_AS, &limit));
}

/* For `refusing`, and for `starving` if that is loaded. */
static void mark(long what)
{
    long (*starving)(long) = (long (*)(long))(uintptr_t)dlsym(RTLD_DEFAULT, "starving_mark");

    syscall(SYS_getpgid, what);
    if (starving != NULL)
        printf("allocations: %ld\n", starving(what));
}

static void ignore(VIP_PVOID unused, VIP_ERROR_DESCRIPTOR *error)
{
    (void)unused;
    (void)error;
}

/* How many calls failed. */
static int live(struct life *life)
{
    VIP_MEM_ATTRIBUTES region;
    VIP_VI_ATTRIBUTES attributes;
    int i;

    if (!WORKED(VipOpenNic(life->device, &life->nic)))
        return life->failed;
    WORKED(VipQueryNic(life->nic, &life->attributes));
    WORKED(VipErrorCallback(life->nic, NULL, ignore));
    life->has_ptag = WORKED(VipCreatePtag(life->nic, &life->ptag));
    region.Ptag = life->ptag;
    region.EnableRdmaWrite = VIP_TRUE;
    region.EnableRdmaRead = VIP_FALSE;
    life->has_memory = WORKED(VipRegisterMem(life->nic, memory, sizeof memory, &region, &life->handle));
    if (!WORKED(VipCreateCQ(life->nic, 16, &life->cq)))
        life->cq = NULL;
    memset(&attributes, 0, sizeof attributes);
    attributes.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    attributes.MaxTransferSize = BYTES;
    attributes.Ptag = life->ptag;
    attributes.EnableRdmaWrite = VIP_TRUE;
    for (i = 0; i < 4; i++)
        if (!WORKED(VipCreateVi(life->nic, &attributes, NULL, i == 1 ? life->cq : NULL, &life->vi[i])))
            life->vi[i] = NULL;
    if (life->failed == 0) {
        join_peers(life);
        join_client(life);
        if (life->hungry)
            mark(COUNT_FROM_HERE);
        for (i = 0; i < 2; i++)
            if (life->joined[i]) {
                transfer(life, life->vi[2 * i], life->vi[2 * i + 1], 1 + (unsigned long)i);
                if (vi_state(life->vi[2 * i]) == VIP_STATE_CONNECTED)
                    transfer(life, life->vi[2 * i], life->vi[2 * i + 1], 3 + (unsigned long)i);
            } else if (life->failed == 0) {
                must_not("two ends that do not agree");
            }
        if (life->hungry)
            mark(COUNT_NO_MORE);
    }
    for (i = 0; i < 4; i++)
        if (life->vi[i] != NULL)
            end_one(life, life->vi[i]);
    if (life->cq != NULL)
        WORKED(VipDestroyCQ(life->cq));
    if (life->has_memory)
        WORKED(VipDeregisterMem(life->nic, memory, life->handle));
    if (life->has_ptag)
        WORKED(VipDestroyPtag(life->nic, life->ptag));
    WORKED(VipCloseNic(life->nic));
    return life->failed;
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    const char *word = options.words == 1 ? options.word[0] : "";
    long space = strncmp(word, "space:", 6) == 0 ? atol(word + 6) : -1;
    int twice = space >= 0 || strcmp(word, "twice") == 0;
    static struct life first, second;
    int failed;

    first.device = second.device = options.device;
    second.hungry = strcmp(word, "messages") == 0;
    start_thread(accept_them, NULL);
    if (twice) {
        mark(COUNT_FROM_HERE);
        if (space >= 0)
            bound(address_space() + (rlim_t)space);
        failed = live(&first);
        if (space >= 0)
            bound(RLIM_INFINITY);
        mark(COUNT_NO_MORE);
        printf("failed: %d\n", failed);
        fflush(stdout);
    }
    if (live(&second) != 0)
        must_not("something failed when nothing was refused");
    if (wrong)
        return 1;
    ok("two connections");
    return 0;
}
