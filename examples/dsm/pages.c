/* The states of the pages, and home-based lazy release consistency.
 *
 *   home      Each page has a home, where all that is released comes together. The home's own program uses that copy and never
 *             waits for it.
 *   twin      Elsewhere, the first store to a page faults, and the page as it was is kept. What differs from the twin is what this rank has
 *             stored; only that goes to the home, so two ranks may store to different words of one page.
 *   release   At the end of an interval all differences go to the homes, by RDMA Write into the home's copy; a page with many
 *             small ones goes in one message, which the home applies. When they are there, and not before, others learn by notices that the pages
 *             were written.
 *   acquire   A page of which a notice comes is out of date. It becomes inaccessible, and the next access reads it from its home.
 */

#include <string.h>
#include "state.h"

enum { WORDS = DSM_PAGE / WORD, DIRECT = 8 /* pieces of one page that are written one by one */ };

enum state { INVALID, READABLE, WRITABLE };

typedef struct {
    uint8_t state;
    uint8_t written; /* in this interval: it is in the list */
    uint8_t expired; /* it is in that list */
    uint8_t home;
} page_entry;

/* A piece of a page that differs, in words. */
typedef struct {
    uint16_t first, count;
} run;

/* Pieces have an equal word between them, so with their heads they are never longer than a page and one head. */
typedef struct {
    char bytes[DSM_PAGE + sizeof(run)];
} packed;

static page_entry *table;
static char *twins; /* of each page, where it is needed */
static uint32_t *written, *expired, written_count, expired_count;
static uint32_t allocated;
static int can_read; /* by RDMA */

void pages_open(void)
{
    uint32_t i;

    _Static_assert(RANKS_MAX <= 256, "a home is a byte");
    table = map_memory(memory.pages * sizeof *table);
    twins = map_memory(memory.bytes);
    written = map_memory(memory.pages * sizeof *written);
    expired = map_memory(memory.pages * sizeof *expired);
    for (i = 0; i < memory.pages; i++)
        table[i].state = READABLE; /* zeroes, as at the home */
    can_read = transfer_can_read();
}

void pages_close(void)
{
    unmap_memory(table, memory.pages * sizeof *table);
    unmap_memory(twins, memory.bytes);
    unmap_memory(written, memory.pages * sizeof *written);
    unmap_memory(expired, memory.pages * sizeof *expired);
}

void *dsm_allocate(size_t bytes, int home)
{
    uint32_t first = allocated, count = (uint32_t)((bytes + DSM_PAGE - 1) / DSM_PAGE), i;

    if (home != DSM_BLOCKS && (home < 0 || home >= job.size))
        job_fail("dsm_allocate: there is no rank %d of %d", home, job.size);
    if (bytes > memory.bytes || count > memory.pages - allocated)
        job_fail("dsm_allocate: no %zu bytes are left of %zu of shared memory; give dsm_start more", bytes, memory.bytes);
    for (i = 0; i < count; i++)
        table[first + i].home = (uint8_t)(home == DSM_BLOCKS ? (int)((uint64_t)i * (uint32_t)job.size / count) : home);
    allocated += count;
    return memory.view + (size_t)first * DSM_PAGE;
}

/* ---- faults ------------------------------------------------------------------------------------------------- */

static void fetch(uint32_t page)
{
    int home = table[page].home;

    costs.fetches++;
    if (can_read) {
        transfer_read(home, page);
        return;
    }
    pthread_mutex_lock(&talk.mutex);
    talk_wait(home, 0);
    talk_request(home, FETCH, page, NULL, 0);
    talk_wait(home, 1);
    pthread_mutex_unlock(&talk.mutex);
}

int pages_is_readable(uint32_t page)
{
    return table[page].state != INVALID;
}

void pages_fault(uint32_t page, int is_write)
{
    page_entry *p = &table[page];
    size_t at = (size_t)page * DSM_PAGE;

    if (p->state == INVALID) {
        costs.read_faults += !is_write;
        fetch(page);
        p->state = READABLE;
    }
    if (is_write && p->state == READABLE) {
        costs.write_faults++;
        if (p->home != job.rank) {
            memcpy(twins + at, memory.wire + at, DSM_PAGE);
            costs.twins++;
        }
        p->state = WRITABLE;
        if (!p->written) {
            p->written = 1;
            written[written_count++] = page;
        }
    }
    faults->admit(page, p->state == WRITABLE);
}

/* ---- release ------------------------------------------------------------------------------------------------ */

/* The pieces in which a page differs from its twin. */
static int compare(uint32_t page, run *runs)
{
    const uint32_t *old = (const uint32_t *)(twins + (size_t)page * DSM_PAGE);
    const uint32_t *now = (const uint32_t *)(memory.wire + (size_t)page * DSM_PAGE);
    int count = 0, i = 0;

    while (i < WORDS) {
        int first = i;
        while (i < WORDS && old[i] != now[i])
            i++;
        if (i > first) {
            runs[count].first = (uint16_t)first;
            runs[count++].count = (uint16_t)(i - first);
        }
        while (i < WORDS && old[i] == now[i])
            i++;
    }
    return count;
}

/* Writes the heads and the words of all pieces one after the other. */
static size_t pack(uint32_t page, const run *runs, int count, packed *into)
{
    const char *now = memory.wire + (size_t)page * DSM_PAGE;
    char *end = into->bytes;
    int i;

    for (i = 0; i < count; i++) {
        memcpy(end, &runs[i], sizeof *runs);
        end += sizeof *runs;
        memcpy(end, now + runs[i].first * WORD, (size_t)runs[i].count * WORD);
        end += runs[i].count * WORD;
    }
    return (size_t)(end - into->bytes);
}

int pages_apply(uint32_t page, const void *data, size_t bytes)
{
    const char *at = data, *end = at + bytes;
    char *own = memory.wire + (size_t)page * DSM_PAGE;
    run r;

    while ((size_t)(end - at) >= sizeof r) {
        memcpy(&r, at, sizeof r);
        at += sizeof r;
        if (r.first + r.count > WORDS || r.count * WORD > end - at)
            return 0;
        memcpy(own + r.first * WORD, at, (size_t)r.count * WORD);
        at += r.count * WORD;
    }
    return at == end;
}

/* Begins to send what this rank has stored in a page to its home. */
static void send_diff(uint32_t page)
{
    run runs[WORDS / 2 + 1];
    packed message;
    int count = compare(page, runs), home = table[page].home, i;

    costs.diffs++;
    costs.runs += (unsigned)count;
    for (i = 0; i < count; i++) {
        costs.diff_bytes += (unsigned)runs[i].count * WORD;
        if (count <= DIRECT)
            transfer_write(home, (size_t)page * DSM_PAGE + runs[i].first * WORD, runs[i].count * WORD);
    }
    if (count > DIRECT) {
        size_t bytes = pack(page, runs, count, &message);
        pthread_mutex_lock(&talk.mutex);
        talk_wait(home, 0);
        talk_request(home, DIFF, page, message.bytes, bytes);
        pthread_mutex_unlock(&talk.mutex);
    }
}

/* Waits until the homes have all that was sent. */
static void finish_diffs(void)
{
    int rank;

    transfer_finish();
    pthread_mutex_lock(&talk.mutex);
    for (rank = 0; rank < job.size; rank++)
        talk_wait(rank, 1);
    pthread_mutex_unlock(&talk.mutex);
}

/* Changes the state of all pages of a list that have the state `from`; neighbours with one call. */
static void change(const uint32_t *list, uint32_t count, enum state from, enum state to, void (*act)(uint32_t, uint32_t))
{
    uint32_t first = 0, length = 0, i;

    for (i = 0; i < count; i++) {
        if (table[list[i]].state != from)
            continue;
        table[list[i]].state = (uint8_t)to;
        if (length > 0 && list[i] == first + length) {
            length++;
            continue;
        }
        if (length > 0)
            act(first, length);
        first = list[i];
        length = 1;
    }
    if (length > 0)
        act(first, length);
}

uint32_t pages_written(uint32_t **list)
{
    uint32_t count = written_count, i;

    for (i = 0; i < count; i++) {
        page_entry *p = &table[written[i]];
        p->written = 0;
        if (p->home != job.rank && p->state == WRITABLE)
            send_diff(written[i]);
    }
    finish_diffs();
    change(written, count, WRITABLE, READABLE, faults->protect);
    written_count = 0;
    *list = written;
    return count;
}

/* ---- acquire ------------------------------------------------------------------------------------------------ */

void pages_expire(int rank, uint32_t page)
{
    page_entry *p = &table[page];

    if (rank == job.rank || p->home == job.rank || p->state == INVALID || p->expired)
        return;
    p->expired = 1;
    expired[expired_count++] = page;
}

void pages_invalidate(void)
{
    uint32_t i;

    for (i = 0; i < expired_count; i++) {
        page_entry *p = &table[expired[i]];
        p->expired = 0;
        if (p->state == WRITABLE) { /* stores of this interval to other words; the page stays among the written ones */
            send_diff(expired[i]);
            p->state = READABLE;
        }
    }
    if (expired_count > 0)
        finish_diffs();
    change(expired, expired_count, READABLE, INVALID, faults->hide);
    costs.invalidations += expired_count;
    expired_count = 0;
}
