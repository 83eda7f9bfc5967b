/* A layer in C: counts the calls of the program, and says so at its end.
 *
 *   cc -shared -fPIC -O2 -o libvipl_layer_example.so layer.c
 *   VIPL_PLUGIN_PATH=$PWD VIPL_LAYERS=example VIPL_LOG=info ./program
 *
 * docs/LAYERS.md describes layers, vipl_plugin.h each structure. */
#include <stdio.h>
#include <string.h>

#include "vipl_plugin.h"

#define FUNCTIONS 64

static const vipl_host *library;
static const char *names[FUNCTIONS];
static unsigned long counts[FUNCTIONS];

/* Calls may end on several threads at once. */
static void after(const vipl_call *call, uint64_t (*local)[VIPL_LAYER_WORDS], int result)
{
    (void)local, (void)result;
    if (call->function < FUNCTIONS) {
        names[call->function] = call->name;
        __atomic_fetch_add(&counts[call->function], 1, __ATOMIC_RELAXED);
    }
}

static void end(void)
{
    char line[80];
    int function;

    for (function = 0; function < FUNCTIONS; function++) {
        if (counts[function] == 0)
            continue;
        sprintf(line, "calls of %.40s : %lu", names[function], counts[function]);
        library->log(VIPL_LOG_INFO, line);
    }
}

static int init(const vipl_layer_host *host, vipl_layer *out)
{
    vipl_layer layer;

    library = host->host;
    memset(counts, 0, sizeof counts); /* again in a child made by fork */
    memset(&layer, 0, sizeof layer);
    layer.size = sizeof layer;
    layer.after = after;
    layer.end = end;
    memcpy(out, &layer, out->size < sizeof layer ? out->size : sizeof layer);
    out->size = sizeof layer;
    return VIPL_OK;
}

const vipl_plugin vipl_plugin_v1 = {
    VIPL_PLUGIN_MAGIC,
    sizeof(vipl_plugin),
    VIPL_PLUGIN_ABI_MAJOR,
    VIPL_PLUGIN_ABI_MINOR,
    VIPL_PLUGIN_FINGERPRINT,
    VIPL_KIND_LAYER,
    0,
    "example",
    "1",
    0, /* needs no features */
    0,
    NULL, /* no init of a transport */
    NULL, /* no settings */
    0,
    0,
    init
};
