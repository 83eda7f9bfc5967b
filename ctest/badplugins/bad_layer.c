/* A layer with one thing wrong, chosen by a macro. The library must leave each out for the right reason, and the
 * program must run without it. */
#include <stddef.h>
#include <string.h>

#include "vipl_plugin.h"

static int init(const vipl_layer_host *host, vipl_layer *out)
{
    vipl_layer ops;

    (void)host;
    memset(&ops, 0, sizeof ops);
    ops.size = sizeof ops;
#ifdef BAD_SIZE
    ops.size -= 8;
#endif
    memcpy(out, &ops, out->size < sizeof ops ? out->size : sizeof ops);
#ifdef BAD_INIT
    return VIPL_E_RESOURCE;
#else
    return VIPL_OK;
#endif
}

const vipl_plugin vipl_plugin_v1 = {
#ifdef BAD_MAGIC
    VIPL_PLUGIN_MAGIC + 1,
#else
    VIPL_PLUGIN_MAGIC,
#endif
    sizeof(vipl_plugin),
#ifdef BAD_MAJOR
    VIPL_PLUGIN_ABI_MAJOR + 1,
#else
    VIPL_PLUGIN_ABI_MAJOR,
#endif
    VIPL_PLUGIN_ABI_MINOR,
    VIPL_PLUGIN_FINGERPRINT,
#ifdef BAD_KIND
    VIPL_KIND_PROVIDER,
#else
    VIPL_KIND_LAYER,
#endif
    0,
    NAME,
    "1",
    0,
    0,
    NULL,
    NULL,
    0,
    0,
#ifdef BAD_ABSENT
    NULL
#else
    init
#endif
};
#ifdef BAD_ABSENT
int (*const unused)(const vipl_layer_host *, vipl_layer *) = init;
#endif
