/* A plug-in with one thing wrong, chosen by a macro. Without any it is in order, and its device `bad` cannot
 * be opened only because `nic_open` says so. The library must refuse each for the right reason, without
 * running any of its code before it was checked, and go on without it. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "vipl_plugin.h"

#ifndef NAME
#define NAME "bad"
#endif

#ifdef BAD_NO_SYMBOL
#define vipl_plugin_v1 vipl_plugin_v9
#endif

/* Compiled with the header of a newer minor version: what it has more is at the end. */
#ifdef BAD_NEWER
#define MINOR (VIPL_PLUGIN_ABI_MINOR + 1)
#define DESCRIPTION_SIZE (sizeof(vipl_plugin) + 64)
#define TABLE_SIZE (sizeof(vipl_provider) + 64)
#else
#define MINOR VIPL_PLUGIN_ABI_MINOR
#define DESCRIPTION_SIZE sizeof(vipl_plugin)
#define TABLE_SIZE sizeof(vipl_provider)
#endif

/* Code that runs too early shows by ending the process. */
#if defined(BAD_MAGIC) || defined(BAD_MAJOR) || defined(BAD_FINGERPRINT) || defined(BAD_SIZE) || \
    defined(BAD_REQUIRED) || defined(BAD_KIND) || defined(BAD_NAME) || defined(BAD_MINOR)
#define MUST_NOT_RUN() abort()
#else
#define MUST_NOT_RUN() (void)0
#endif

static int nic_open(const char *argument, vipl_nic *nic, vipl_nic_info *info)
{
    (void)argument, (void)nic, (void)info;
    if (info->size < offsetof(vipl_nic_info, link))
        abort(); /* a library from before there were sizes would have refused this file */
#ifdef BAD_INFO
    /* a device that could be, but for one thing */
    info->address_len = 6;
    info->reliability_support = 2;
    info->transfer_max = 65536;
    info->register_bytes_max = info->register_block_max = 1 << 20;
    BAD_INFO;
    return VIPL_OK;
#else
    return VIPL_E_INVALID;
#endif
}

static void nic_close(vipl_nic *nic) { (void)nic; }
static void a_doorbell(vipl_vi *vi) { (void)vi; }
static void peer_gone(vipl_vi *vi, bool orderly) { (void)vi, (void)orderly; }

static int attach(vipl_vi *vi, const vipl_connection *connection)
{
    (void)vi, (void)connection;
    return VIPL_E_RESOURCE;
}

static int claim(const char *name, char *argument)
{
    argument[0] = '\0';
    return strcmp(name, "bad") == 0;
}

#ifdef BAD_INIT_FAULT
static int *volatile no_argument;
#endif

static int init(const vipl_host *host, vipl_provider *out)
{
    vipl_provider ops;

    MUST_NOT_RUN();
    (void)host;
#ifdef BAD_INIT_FAULT
    *(volatile int *)no_argument = 1;
#endif
    memset(&ops, 0, sizeof ops);
    ops.size = TABLE_SIZE;
    ops.claim = claim;
    ops.nic_open = nic_open;
    ops.nic_close = nic_close;
    ops.attach = attach;
    ops.detach = a_doorbell;
    ops.peer_gone = peer_gone;
    ops.post_send = a_doorbell;
    ops.post_recv = a_doorbell;
    ops.progress = a_doorbell;
#ifdef BAD_MISSING_OP
    ops.progress = NULL;
#endif
    memcpy(out, &ops, sizeof ops);
#ifdef BAD_TABLE_SIZE
    out->size = offsetof(vipl_provider, attach);
#endif
#ifdef BAD_INIT
    return VIPL_E_RESOURCE;
#else
    return VIPL_OK;
#endif
}

#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const vipl_plugin vipl_plugin_v1 = {
#ifdef BAD_MAGIC
    .magic = VIPL_PLUGIN_MAGIC + 1,
#else
    .magic = VIPL_PLUGIN_MAGIC,
#endif
#if defined(BAD_MINOR)
    .size = sizeof(vipl_plugin) + 8,
#elif defined(BAD_SIZE)
    .size = 24, /* less than the first version had */
#else
    .size = (uint32_t)DESCRIPTION_SIZE,
#endif
#ifdef BAD_MAJOR
    .abi_major = VIPL_PLUGIN_ABI_MAJOR + 1,
#else
    .abi_major = VIPL_PLUGIN_ABI_MAJOR,
#endif
    .abi_minor = MINOR,
#ifdef BAD_FINGERPRINT
    .fingerprint = VIPL_PLUGIN_FINGERPRINT ^ 0xFF,
#else
    .fingerprint = VIPL_PLUGIN_FINGERPRINT,
#endif
#ifdef BAD_KIND
    .kind = 77,
#else
    .kind = VIPL_KIND_PROVIDER,
#endif
#ifdef BAD_NAME
    .name = "another",
#else
    .name = NAME,
#endif
    .version = "0",
#ifdef BAD_REQUIRED
    .required = (uint64_t)1 << 40,
#endif
    .optional = ~(uint64_t)0, /* unknown optional features are no reason to refuse */
#ifdef BAD_NO_INIT
    .init = 0 ? init : NULL,
#else
    .init = init,
#endif
};
