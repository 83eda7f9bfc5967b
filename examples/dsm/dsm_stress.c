/* dsm_stress: programs made of random numbers, without data races, compared with one process.
 *
 *     mprun [-n COUNT] dsm_stress [SEED [SEEDS]]
 *
 * Each seed is a program of some phases between barriers. Its words are scattered over few pages, so ranks store to the same pages at the same time:
 *
 *   turns     In each phase a word belongs to one rank, which stores to it, or to all, which read it. What it has to be, each rank computes for
 *             itself.
 *   guarded   A word belongs to a lock. Ranks read and store to the words of locks that they have, one or two at a time, and values depend on the
 *             order. Each lock has a log, in shared memory, of who had it. At the end of the phase every rank does the same again
 *             alone, in the order of the logs, and compares all words. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dsm.h"

enum { WORDS = 3072, GUARDS = 5, PHASES = 4, STEPS = 12, LOG = 64 * STEPS * 2, PAGES_MOST = 40 };

/* A log: how many had the lock in this phase, and who. */
typedef struct {
    uint32_t count;
    uint32_t who[LOG];
} guard_log;

/* A random number from what it is for: the same on all ranks. */
static uint32_t mix(uint64_t seed, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + a * 0xbf58476d1ce4e5b9u + b * 0x94d049bb133111ebu + c * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ (x >> 31)) >> 16);
}

static uint64_t seed;
static int rank, size;
static uint32_t *shared, *model; /* all words: as the ranks see them; as one process would */
static guard_log *logs;          /* shared; not in the model */
static uint32_t place[WORDS];    /* of a word in the memory */
static uint32_t span;            /* words of the memory */

/* Words are of a guard, or belong to someone in turns; WORDS of them are in `span` places. */
static int guard_of(int word) { return word % 3 == 0 ? (int)(mix(seed, 1, (unsigned)word, 0) % GUARDS) : -1; }
static int owner_of(int word, int phase) { return (int)(mix(seed, 2, (unsigned)word, (unsigned)phase) % (unsigned)(size + 1)) - 1; }

/* Different places for all words, in an order that the seed gives. */
static void scatter(void)
{
    static uint32_t all[PAGES_MOST * DSM_PAGE / sizeof(uint32_t)];
    uint32_t i, other, swap;

    for (i = 0; i < span; i++)
        all[i] = i;
    for (i = 0; i < WORDS; i++) {
        other = i + mix(seed, 3, i, 0) % (span - i);
        swap = all[i], all[i] = all[other], all[other] = swap;
        place[i] = all[i];
    }
}

/* The new values of the words in turns that a rank owns in a phase: of their old ones, and of words that all read. */
static void do_turns(uint32_t *words, int who, int phase)
{
    int word, read;

    for (word = 0; word < WORDS; word++) {
        if (guard_of(word) >= 0 || owner_of(word, phase) != who || mix(seed, 4, (unsigned)word, (unsigned)phase) % 4 == 0)
            continue;
        read = (int)(mix(seed, 5, (unsigned)word, (unsigned)phase) % WORDS);
        words[place[word]] += mix(seed, 6, (unsigned)word, (unsigned)phase);
        if (guard_of(read) < 0 && owner_of(read, phase) < 0)
            words[place[word]] ^= words[place[read]];
    }
}

/* What a rank does when it has a lock for the `turn`th time in a phase: some of its words change, by others of them. */
static void do_guarded(uint32_t *words, int guard, int who, int phase, uint32_t turn)
{
    uint32_t sum = 0;
    int i, word;

    for (i = 0; i < 12; i++) {
        word = (int)(mix(seed, 7 + (unsigned)i, (unsigned)(guard * 64 + who), (unsigned)phase * 1000 + turn) % WORDS);
        if (guard_of(word) != guard)
            continue;
        sum = sum * 31 + words[place[word]];
        if (i % 3 != 0)
            words[place[word]] = sum + (uint32_t)who + turn;
    }
}

static void use_guard(int guard, int phase, uint32_t *turns)
{
    guard_log *log = &logs[guard];

    if (log->count >= LOG)
        dsm_fail("seed %llu: the log of lock %d has %u entries", (unsigned long long)seed, guard, log->count);
    log->who[log->count++] = (uint32_t)rank;
    do_guarded(shared, guard, rank, phase, turns[guard]++);
}

static void run_phase(int phase)
{
    uint32_t turns[GUARDS] = {0};
    int step, part = (int)(mix(seed, 40, (unsigned)rank, (unsigned)phase) % STEPS);

    for (step = 0; step < STEPS; step++) {
        uint32_t random = mix(seed, 41, (unsigned)(rank * STEPS + step), (unsigned)phase);
        int guard = (int)(random % GUARDS), second = guard + 1;

        if (step == part)
            do_turns(shared, rank, phase);
        if (random >> 8 & 1)
            continue;
        dsm_acquire(guard);
        use_guard(guard, phase, turns);
        if ((random >> 9 & 1) && second < GUARDS) { /* in the order of the locks, as always */
            dsm_acquire(second);
            use_guard(second, phase, turns);
            if (random >> 10 & 1)
                use_guard(guard, phase, turns);
            dsm_release(second);
        }
        dsm_release(guard);
    }
}

/* The same by one process. */
static void run_model(int phase)
{
    uint32_t turns[GUARDS][64] = {{0}}, i;
    int who, guard;

    for (who = 0; who < size; who++)
        do_turns(model, who, phase);
    for (guard = 0; guard < GUARDS; guard++)
        for (i = 0; i < logs[guard].count; i++) {
            who = (int)logs[guard].who[i];
            if (who >= size)
                dsm_fail("seed %llu: lock %d was held by rank %d of %d", (unsigned long long)seed, guard, who, size);
            do_guarded(model, guard, who, phase, turns[guard][who]++);
        }
}

static void compare(int phase)
{
    int word;
    for (word = 0; word < WORDS; word++)
        if (shared[place[word]] != model[place[word]])
            dsm_fail("seed %llu, phase %d: word %d at %u is %08x, and %08x in one process", (unsigned long long)seed, phase, word,
                     (unsigned)place[word], (unsigned)shared[place[word]], (unsigned)model[place[word]]);
}

static void run_seed(void)
{
    int phase, i;

    span = (uint32_t)(1 + mix(seed, 50, 0, 0) % (PAGES_MOST - 4) + 3) * DSM_PAGE / sizeof(uint32_t);
    scatter();
    /* The memory is as the seed before has left it: the model begins so, too. */
    for (phase = 0; phase < PHASES; phase++) {
        run_phase(phase);
        dsm_barrier();
        run_model(phase);
        compare(phase);
        dsm_barrier();
        if (rank == phase % size)
            for (i = 0; i < GUARDS; i++)
                logs[i].count = 0;
        dsm_barrier();
    }
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, seeds = argc > 2 ? strtoull(argv[2], NULL, 10) : 5;
    uint32_t i;

    model = calloc(PAGES_MOST, DSM_PAGE);
    dsm_start(PAGES_MOST * DSM_PAGE + GUARDS * sizeof *logs + DSM_PAGE);
    rank = dsm_rank();
    size = dsm_size();
    if (model == NULL)
        dsm_fail("no memory");
    /* Homes at one rank, or by blocks. */
    shared = dsm_allocate(PAGES_MOST * DSM_PAGE, first % 3 == 0 ? (int)(first % (unsigned)size) : DSM_BLOCKS);
    logs = dsm_allocate(GUARDS * sizeof *logs, DSM_BLOCKS);
    for (i = 0; i < seeds; i++) {
        seed = first + i;
        run_seed();
    }
    dsm_report("dsm_stress");
    if (rank == 0)
        printf("dsm_stress: seeds %llu to %llu are those of one process\n", (unsigned long long)first,
               (unsigned long long)(first + seeds - 1));
    dsm_finish();
    free(model);
    return 0;
}
