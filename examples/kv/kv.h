/* kv: a key-value store in the memory of a server, which clients read by RDMA.
 *
 *   GET   The client reads an entry out of the server's table, and the server does nothing. The server may be writing the entry at this moment:
 *         the checksum of the entry then does not fit, and the client reads again. (Pilaf and FaRM look up keys in this way.)
 *   PUT   A message to the server, which alone writes the table, and an answer.
 *
 * The table is an array of entries. A key is in the first place that was free of PROBES places, which begin where its hash says. */

#ifndef KV_H
#define KV_H

#include "../example.h"

#define POINT "kv" /* the discriminator at which the server waits */

enum { KEY = 16, VALUE = 32, PROBES = 16, PLACES = 1 << 16, CLIENTS_MAX = 64 };

/* One place of the table, which begins a cache line. A free one has version 0, and a checksum that fits as well. */
typedef struct {
    _Alignas(64) uint64_t checksum; /* of all the rest */
    uint64_t version;               /* counts the changes of this entry */
    char key[KEY];                  /* padded with zeroes */
    char value[VALUE];
} entry;

/* What a client asks for, and what it gets: a version of 0 if all places for the key are taken. */
typedef struct {
    char key[KEY];
    char value[VALUE];
} put_request;

typedef struct {
    uint64_t version;
} put_answer;

/* Mixes words: each bit of the input changes half of the result. */
static inline uint64_t mix(uint64_t sum, uint64_t word)
{
    sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
    return sum ^ (sum >> 32);
}

static inline uint64_t checksum_of(const entry *e)
{
    uint64_t words[(sizeof(entry) - sizeof(uint64_t)) / sizeof(uint64_t)], a = 1, b = 2;
    size_t i;

    memcpy(words, &e->version, sizeof words);
    for (i = 0; i + 1 < sizeof words / sizeof words[0]; i += 2) { /* two chains, which the processor computes together */
        a = mix(a, words[i]);
        b = mix(b, words[i + 1]);
    }
    return mix(mix(a, b), words[i]);
}

/* The first place of a key. */
static inline uint32_t place_of(const char *key)
{
    uint64_t words[KEY / sizeof(uint64_t)], sum = 3;
    size_t i;

    memcpy(words, key, sizeof words);
    for (i = 0; i < sizeof words / sizeof words[0]; i++)
        sum = mix(sum, words[i]);
    return (uint32_t)(sum % PLACES);
}

#endif
