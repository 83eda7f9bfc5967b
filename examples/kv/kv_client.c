/* kv_client: reads and changes a table on a server.
 *
 *     kv_client HOST DEVICE put KEY VALUE
 *     kv_client HOST DEVICE get KEY
 *     kv_client HOST DEVICE test NUMBER CLIENTS [STEPS]     as client NUMBER of CLIENTS: changes its own keys, reads those of all, checks
 *     kv_client HOST DEVICE bench                           GETs beside plain RDMA Reads of 8 bytes
 *
 * HOST is a name of the name service, such as localhost. */

#define _POSIX_C_SOURCE 200809L
#include <time.h>
#include "kv.h"

enum { KEYS = 8, ROUNDS = 9, READS = 50000 }; /* keys of one client of the test; of the benchmark */

static struct {
    VIP_DESCRIPTOR read, receive, send;
    entry found;
    window table;
    put_request request;
    put_answer answer;
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static device opened;
static VIP_MEM_HANDLE memory;
static VIP_VI_HANDLE vi;
static unsigned long torn; /* entries that were being written */

static void fail(const char *what, const char *key)
{
    fprintf(stderr, "%s: %.*s\n", what, KEY, key);
    exit(1);
}

static void connect_to(const char *host)
{
    address here = address_of(opened.nic, POINT), server = address_at(opened.nic, host, POINT);
    VIP_VI_ATTRIBUTES its_vi;
    VIP_DESCRIPTOR *done;

    describe(&m.receive, &m.table, memory, sizeof m.table);
    MUST(VipPostRecv(vi, &m.receive, memory));
    MUST(VipConnectRequest(vi, &here.net, &server.net, 20000, &its_vi));
    MUST(VipRecvWait(vi, VIP_INFINITE, &done));
    if (m.table.bytes != PLACES * sizeof(entry))
        fail("the server has a table of another size", "");
}

/* Posts the read that `m.read` describes and polls until it is complete: a reader with nothing else to do. */
static void do_read(void)
{
    VIP_DESCRIPTOR *done;
    VIP_RETURN result;

    m.read.CS.Status = 0;
    MUST(VipPostSend(vi, &m.read, memory));
    while ((result = VipSendDone(vi, &done)) == VIP_NOT_DONE)
        continue;
    MUST(result);
}

/* Reads one entry until it is whole. */
static void read_entry(uint32_t number)
{
    for (;;) {
        m.read.DS[0].Remote.Data.AddressBits = m.table.at + number * sizeof(entry);
        do_read();
        if (m.found.checksum == checksum_of(&m.found))
            return;
        torn++;
    }
}

/* The version of a key, with its entry in `m.found`; 0 if the table does not have it. */
static uint64_t get(const char *key)
{
    uint32_t first = place_of(key), i;

    for (i = 0; i < PROBES; i++) {
        read_entry((first + i) % PLACES);
        if (m.found.version == 0 || memcmp(m.found.key, key, KEY) == 0)
            return m.found.version;
    }
    return 0;
}

/* The version that the server has given to the value. */
static uint64_t put(const char *key, const char *value)
{
    VIP_DESCRIPTOR *done;

    memcpy(m.request.key, key, KEY);
    memcpy(m.request.value, value, VALUE);
    describe(&m.receive, &m.answer, memory, sizeof m.answer);
    MUST(VipPostRecv(vi, &m.receive, memory));
    describe(&m.send, &m.request, memory, sizeof m.request);
    post_and_wait(vi, &m.send, memory);
    MUST(VipRecvWait(vi, VIP_INFINITE, &done));
    if (m.answer.version == 0)
        fail("the table is full around this key", key);
    return m.answer.version;
}

/* ---- test --------------------------------------------------------------------------------------------------- */

static void key_of(char *key, int client, int number)
{
    memset(key, 0, KEY);
    snprintf(key, KEY, "c%d k%d", client, number);
}

/* The value of a version: every byte depends on it, so that halves of two versions do not look like one. */
static void value_of(char *value, const char *key, uint64_t version)
{
    uint64_t words[VALUE / sizeof(uint64_t)];
    size_t i;

    for (i = 0; i < sizeof words / sizeof words[0]; i++)
        words[i] = mix(place_of(key) + i, version);
    memcpy(value, words, VALUE);
}

/* Each key has one writer, so its versions count; what is read is one of them, whole, and never older than before. */
static void test(int own, int clients, int steps)
{
    static uint64_t seen[CLIENTS_MAX][KEYS];
    char key[KEY], value[VALUE];
    unsigned long gets = 0;
    unsigned random = (unsigned)own + 1;
    int step, i;

    for (step = 0; step < steps; step++) {
        int number = step % KEYS;
        key_of(key, own, number);
        value_of(value, key, seen[own][number] + 1);
        if (put(key, value) != seen[own][number] + 1)
            fail("another version than expected", key);
        for (i = 0; i < 10; i++) {
            int of = i == 0 ? own : (int)((random = random * 1103515245u + 12345u) >> 16) % clients;
            int which = i == 0 ? number : (int)(random >> 8) % KEYS;
            uint64_t version;

            key_of(key, of, which);
            version = get(key);
            gets++;
            if (version < seen[of][which] || (i == 0 && version != seen[of][which] + 1))
                fail("an old version", key);
            seen[of][which] = version;
            value_of(value, key, version);
            if (version != 0 && memcmp(value, m.found.value, VALUE) != 0)
                fail("a value that was never written", key);
        }
    }
    printf("client %d: %d PUTs, %lu GETs are right, %lu entries were read again\n", own, steps, gets, torn);
}

/* ---- bench -------------------------------------------------------------------------------------------------- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sets the size of the reads. */
static void describe_read(size_t bytes)
{
    describe_rdma(&m.read, VIP_CONTROL_OP_RDMAREAD, &m.table, &m.found, memory, bytes);
}

/* In turns: plain reads of 8 bytes, at the same places, and GETs. */
static void bench(void)
{
    static char keys[1024][KEY];
    double plain[ROUNDS], gets[ROUNDS], begin;
    char value[VALUE] = "a value";
    int round, i;

    for (i = 0; i < 1024; i++) {
        key_of(keys[i], i, 0);
        put(keys[i], value);
    }
    for (round = -1; round < ROUNDS; round++) { /* one more, for nothing */
        double a, b;
        describe_read(8);
        begin = now();
        for (i = 0; i < READS; i++) {
            m.read.DS[0].Remote.Data.AddressBits = m.table.at + place_of(keys[i % 1024]) * sizeof(entry);
            do_read();
        }
        a = READS / (now() - begin);
        describe_read(sizeof(entry));
        begin = now();
        for (i = 0; i < READS; i++)
            if (get(keys[i % 1024]) == 0)
                fail("there is no such key", keys[i % 1024]);
        b = READS / (now() - begin);
        if (round >= 0) {
            plain[round] = a;
            gets[round] = b;
        }
    }
    qsort(plain, ROUNDS, sizeof *plain, compare);
    qsort(gets, ROUNDS, sizeof *gets, compare);
    printf("RDMA Reads of 8 bytes: %.2f million a second, GETs: %.2f million, ratio %.2f\n", plain[ROUNDS / 2] / 1e6,
           gets[ROUNDS / 2] / 1e6, gets[ROUNDS / 2] / plain[ROUNDS / 2]);
}

/* Copies an argument, padded with zeroes. */
static void padded(char *to, const char *text, size_t room)
{
    memset(to, 0, room);
    memcpy(to, text, strlen(text) < room ? strlen(text) : room);
}

int main(int argc, char **argv)
{
    const char *what = argc > 3 ? argv[3] : "";
    char key[KEY], value[VALUE];
    int found = 1;

    if (argc < 4) {
        fprintf(stderr, "usage: kv_client HOST DEVICE put KEY VALUE | get KEY | test NUMBER CLIENTS [STEPS] | bench\n");
        return 2;
    }
    opened = open_device(argv[2]);
    memory = register_memory(&opened, &m, sizeof m, LOCAL);
    vi = create_vi(&opened, NULL);
    connect_to(argv[1]);
    describe_read(sizeof(entry));
    if (strcmp(what, "put") == 0 && argc == 6) {
        padded(key, argv[4], KEY);
        padded(value, argv[5], VALUE);
        printf("%s: version %llu\n", argv[4], (unsigned long long)put(key, value));
    } else if (strcmp(what, "get") == 0 && argc == 5) {
        padded(key, argv[4], KEY);
        found = get(key) != 0;
        if (found)
            printf("%.*s, version %llu\n", VALUE, m.found.value, (unsigned long long)m.found.version);
        else
            fprintf(stderr, "there is no %s\n", argv[4]);
    } else if (strcmp(what, "test") == 0 && argc > 5) {
        test(atoi(argv[4]), atoi(argv[5]), argc > 6 ? atoi(argv[6]) : 2000);
    } else if (strcmp(what, "bench") == 0) {
        bench();
    } else {
        fprintf(stderr, "kv_client does not know %s with these arguments\n", what);
        found = 0;
    }
    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    return !found;
}
