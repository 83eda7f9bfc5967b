/* A region has whole pages, so that neighbours find it. If the cache is full, the region that was not used for longest goes.
 *
 * A registration names addresses, not pages of memory: what is unmapped has to leave the cache (mp_forget), what the program frees
 * and allocates again is as good as before. */

#include <stdint.h>
#include <string.h>
#include "cache.h"
#include "job.h"
#include "mp.h"

enum { REGIONS = 64, PAGE = 4096 };

static struct {
    uintptr_t from, to; /* both 0: there is none */
    VIP_MEM_HANDLE handle;
    unsigned long used;
    int users; /* transfers in progress */
} regions[REGIONS];

static VIP_NIC_HANDLE nic;
static VIP_PROTECTION_HANDLE tag;
static unsigned long now;

void cache_open(VIP_NIC_HANDLE of, VIP_PROTECTION_HANDLE with)
{
    nic = of;
    tag = with;
}

VIP_MEM_HANDLE cache_register(void *memory, size_t bytes)
{
    VIP_MEM_ATTRIBUTES attributes;
    VIP_MEM_HANDLE handle;

    memset(&attributes, 0, sizeof attributes);
    attributes.Ptag = tag;
    attributes.EnableRdmaWrite = VIP_TRUE;
    MUST(VipRegisterMem(nic, memory, (VIP_ULONG)bytes, &attributes, &handle));
    return handle;
}

static void drop(int region)
{
    if (regions[region].to != 0)
        MUST(VipDeregisterMem(nic, (void *)regions[region].from, regions[region].handle));
    memset(&regions[region], 0, sizeof regions[region]);
}

int cache_use(const void *data, size_t bytes)
{
    uintptr_t from = (uintptr_t)data / PAGE * PAGE, to = ((uintptr_t)data + bytes + PAGE - 1) / PAGE * PAGE;
    int i, oldest = -1;

    for (i = 0; i < REGIONS; i++) {
        if (regions[i].from <= from && to <= regions[i].to)
            break;
        if (regions[i].users == 0 && (oldest < 0 || regions[i].used < regions[oldest].used))
            oldest = i;
    }
    if (i == REGIONS) {
        if (oldest < 0)
            mp_fail("more than %d large messages at a time", REGIONS);
        i = oldest;
        drop(i);
        regions[i].handle = cache_register((void *)from, to - from);
        regions[i].from = from;
        regions[i].to = to;
    }
    regions[i].used = ++now;
    regions[i].users++;
    return i;
}

void cache_release(int region)
{
    regions[region].users--;
}

VIP_MEM_HANDLE cache_handle(int region)
{
    return regions[region].handle;
}

void mp_forget(const void *data, size_t bytes)
{
    uintptr_t from = (uintptr_t)data, to = from + bytes;
    int i;

    for (i = 0; i < REGIONS; i++)
        if (regions[i].from < to && from < regions[i].to)
            drop(i);
}

void cache_close(void)
{
    int i;
    for (i = 0; i < REGIONS; i++)
        drop(i);
}
