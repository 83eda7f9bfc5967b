/* kv_server: owns the table; executes PUTs.
 *
 *     kv_server [DEVICE [CLIENTS [slow]]]       ends after so many clients, otherwise after CLIENTS_MAX
 *
 * `slow` pauses in the middle of each entry, so that readers meet halves. Needs a device with RDMA Read. The table is memory of
 * vipl_alloc, which readers on the same host map. */

#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <time.h>
#include "kv.h"

typedef struct {
    VIP_DESCRIPTOR receive, send;
    put_request request;
    put_answer answer;
    VIP_VI_HANDLE vi;
} client;

static client clients[CLIENTS_MAX] __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));
static device opened;
static VIP_MEM_HANDLE memory, table_memory;
static VIP_CQ_HANDLE cq;
static entry *table;
static window place; /* of the table, for all clients */
static int wanted, slow;

/* Readers may look at any moment: until the checksum is written the entry does not fit, whatever they see of it. */
static void write_entry(entry *at, const put_request *request)
{
    entry next;

    memset(&next, 0, sizeof next);
    next.version = at->version + 1;
    memcpy(next.key, request->key, KEY);
    memcpy(next.value, request->value, VALUE);
    next.checksum = checksum_of(&next);
    memcpy(at, &next, sizeof next / 2);
    if (slow) {
        struct timespec pause = {0, 20000};
        nanosleep(&pause, NULL);
    }
    memcpy((char *)at + sizeof next / 2, (char *)&next + sizeof next / 2, sizeof next / 2);
}

/* Where a key is, or the free place where it belongs; NULL if there is none. */
static entry *find(const char *key)
{
    uint32_t first = place_of(key), i;

    for (i = 0; i < PROBES; i++) {
        entry *at = &table[(first + i) % PLACES];
        if (at->version == 0 || memcmp(at->key, key, KEY) == 0)
            return at;
    }
    return NULL;
}

static void post_receive(client *c)
{
    describe(&c->receive, &c->request, memory, sizeof c->request);
    MUST(VipPostRecv(c->vi, &c->receive, memory));
}

/* Serves one PUT; false if the client has left instead. */
static int serve(client *c)
{
    VIP_DESCRIPTOR *done;
    entry *at;

    if (VipRecvDone(c->vi, &done) != VIP_SUCCESS) {
        MUST(VipDisconnect(c->vi));
        MUST(VipDestroyVi(c->vi));
        return 0;
    }
    c->answer.version = 0;
    if (done->CS.Length == sizeof c->request && (at = find(c->request.key)) != NULL) {
        write_entry(at, &c->request);
        c->answer.version = at->version;
    }
    /* First the receive for the next request, then the answer that lets the client send it. */
    post_receive(c);
    describe(&c->send, &c->answer, memory, sizeof c->answer);
    if (VipPostSend(c->vi, &c->send, memory) == VIP_SUCCESS)
        (void)VipSendWait(c->vi, VIP_INFINITE, &done);
    return 1;
}

/* Accepts one client after the other, and sends it the place of the table. */
static void *accept_clients(void *unused)
{
    VIP_DESCRIPTOR *d = aligned_alloc(VIP_DESCRIPTOR_ALIGNMENT, 128);
    window *message = (window *)(d + 1);
    VIP_MEM_HANDLE own;
    int i;

    (void)unused;
    if (d == NULL)
        exit(1);
    own = register_memory(&opened, d, 128, LOCAL);
    *message = place;
    for (i = 0; i < wanted; i++) {
        client *c = &clients[i];
        c->vi = create_vi(&opened, cq);
        VipSetUserData(c->vi, c);
        post_receive(c);
        accept_client(&opened, c->vi, POINT);
        describe(d, message, own, sizeof *message);
        post_and_wait(c->vi, d, own);
    }
    MUST(VipDeregisterMem(opened.nic, d, own));
    free(d);
    return NULL;
}

int main(int argc, char **argv)
{
    size_t bytes = PLACES * sizeof(entry);
    unsigned long puts = 0;
    pthread_t thread;
    VIP_PVOID at;
    int left, i;

    wanted = argc > 2 ? atoi(argv[2]) : CLIENTS_MAX;
    slow = argc > 3 && strcmp(argv[3], "slow") == 0;
    if (wanted < 1 || wanted > CLIENTS_MAX) {
        fprintf(stderr, "usage: kv_server [DEVICE [CLIENTS [slow]]], with 1 to %d clients\n", CLIENTS_MAX);
        return 2;
    }
    opened = open_device(device_name(argc, argv));
    if (!has_rdma_read(&opened)) {
        fprintf(stderr, "this device has no RDMA Read; vipinfo -v shows which one has\n");
        return 1;
    }
    MUST(vipl_alloc((VIP_ULONG)bytes, &at));
    table = at;
    for (i = 0; i < PLACES; i++)
        table[i].checksum = checksum_of(&table[i]);
    table_memory = register_memory(&opened, table, bytes, READABLE);
    place = window_of(table, table_memory, bytes);
    memory = register_memory(&opened, clients, sizeof clients, LOCAL);
    MUST(VipCreateCQ(opened.nic, CLIENTS_MAX * 2, &cq));
    if (pthread_create(&thread, NULL, accept_clients, NULL) != 0)
        exit(1);
    printf("waiting at \"%s\" on %s\n", POINT, device_name(argc, argv));
    fflush(stdout);

    for (left = wanted; left > 0;) {
        VIP_VI_HANDLE vi;
        VIP_BOOLEAN is_receive;
        MUST(VipCQWait(cq, VIP_INFINITE, &vi, &is_receive));
        if (serve(VipGetUserData(vi)))
            puts++;
        else
            left--;
    }
    pthread_join(thread, NULL);
    printf("%d clients have left, %lu PUTs\n", wanted, puts);
    MUST(VipDestroyCQ(cq));
    MUST(VipDeregisterMem(opened.nic, clients, memory));
    MUST(VipDeregisterMem(opened.nic, table, table_memory));
    MUST(vipl_free(table));
    close_device(&opened);
    return 0;
}
