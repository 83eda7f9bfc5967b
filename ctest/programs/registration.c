/* Protection tags and memory registration (spec §3.16 to §3.19). */
#include "common.h"

static struct node node;

static void tags(void)
{
    static VIP_PROTECTION_HANDLE tag[65536];
    VIP_PROTECTION_HANDLE gone;
    size_t i, k, n = 0, most = node.attributes.MaxPtags;

    CHECK(most <= 65536, "MaxPtags that this test can hold");
    while (n < most - 1) /* the node has one */
        MUST(VipCreatePtag(node.nic, &tag[n++]));
    CHECK_RETURN(VipCreatePtag(node.nic, &gone), VIP_ERROR_RESOURCE, "MEM-01");
    for (i = 0; i < n; i++)
        for (k = i + 1; k < n; k++)
            CHECK(tag[i] != tag[k] && tag[i] != node.ptag && tag[i] != NULL, "MEM-01");
    gone = tag[--n];
    MUST(VipDestroyPtag(node.nic, gone));
    MUST(VipCreatePtag(node.nic, &tag[n++]));
    CHECK(tag[n - 1] != gone, "spec §3.16: a destroyed tag's value is not issued again");
    CHECK_RETURN(VipDestroyPtag(node.nic, gone), VIP_INVALID_PTAG, "MEM-03");
    CHECK_RETURN(VipDestroyPtag(node.nic, NULL), VIP_INVALID_PTAG, "MEM-03");
    while (n > 0)
        MUST(VipDestroyPtag(node.nic, tag[--n]));
    CHECK_RETURN(VipDestroyPtag(node.nic, node.ptag), VIP_ERROR_RESOURCE, "MEM-02"); /* a region uses it */
    ok("%lu protection tags", (unsigned long)most);
}

static void ranges(void)
{
    VIP_MEM_ATTRIBUTES attributes = mem_attributes(&node);
    unsigned char *pages = (unsigned char *)map_pages(3 * 4096);
    VIP_MEM_HANDLE one = 0, two = 0, refused = 77;

    CHECK_RETURN(VipRegisterMem(node.nic, pages + 4095, 1, &attributes, &one), VIP_SUCCESS, "MEM-04");
    MUST(VipDeregisterMem(node.nic, pages + 4095, one));
    CHECK_RETURN(VipRegisterMem(node.nic, pages + 1, 4097, &attributes, &one), VIP_SUCCESS, "MEM-04");
    CHECK_RETURN(VipRegisterMem(node.nic, pages + 1, 4097, &attributes, &two), VIP_SUCCESS, "MEM-10");
    CHECK(one != 0 && two != 0, "MEM-09");
    CHECK(one != two, "MEM-10");
    MUST(VipDeregisterMem(node.nic, pages + 1, one));
    CHECK_RETURN(VipQueryMem(node.nic, pages + 1, two, &attributes), VIP_SUCCESS, "MEM-10");
    MUST(VipDeregisterMem(node.nic, pages + 1, two));

    attributes = mem_attributes(&node);
    CHECK_RETURN(VipRegisterMem(node.nic, pages, 0, &attributes, &refused), VIP_INVALID_PARAMETER, "MEM-05");
    CHECK_RETURN(VipRegisterMem(node.nic, NULL, 64, &attributes, &refused), VIP_INVALID_PARAMETER, "MEM-05");
    CHECK_RETURN(VipRegisterMem(node.nic, pages, 64, &attributes, NULL), VIP_INVALID_PARAMETER, "MEM-05");
    if (strict_mode())
        CHECK_RETURN(VipRegisterMem(node.nic, pages, 64, NULL, &refused), VIP_INVALID_PARAMETER, "MEM-05");
    CHECK_RETURN(VipRegisterMem(node.nic, (VIP_PVOID)(uintptr_t)-4096, 8192, &attributes, &refused),
                 VIP_INVALID_PARAMETER, "spec §3.17: wrap-around");
    CHECK_RETURN(VipRegisterMem(node.nic, pages, (VIP_ULONG)-1, &attributes, &refused),
                 VIP_INVALID_PARAMETER, "spec §3.17: wrap-around");

    munmap(pages + 4096, 4096); /* a hole */
    CHECK_RETURN(VipRegisterMem(node.nic, pages, 3 * 4096, &attributes, &refused),
                 VIP_INVALID_PARAMETER, "MEM-06");
    CHECK_RETURN(VipRegisterMem(node.nic, pages + 4096, 1, &attributes, &refused),
                 VIP_INVALID_PARAMETER, "MEM-06");
    CHECK_RETURN(VipRegisterMem(node.nic, pages + 4095, 2, &attributes, &refused),
                 VIP_INVALID_PARAMETER, "MEM-06");
    CHECK_RETURN(VipRegisterMem(node.nic, pages + 8191, 2, &attributes, &refused),
                 VIP_INVALID_PARAMETER, "MEM-06");
    CHECK_EQ(refused, 77, "R1: outputs are written on success only");
    MUST(VipRegisterMem(node.nic, pages + 8192, 4096, &attributes, &one));
    MUST(VipDeregisterMem(node.nic, pages + 8192, one));
    munmap(pages, 3 * 4096);
    ok("ranges that can be registered and ranges that cannot");
}

static void deregister(void)
{
    VIP_MEM_HANDLE handle = register_range(&node, node.memory + 100, 200);
    VIP_MEM_ATTRIBUTES attributes;

    CHECK_RETURN(VipDeregisterMem(node.nic, node.memory + 101, handle), VIP_INVALID_PARAMETER, "MEM-12");
    CHECK_RETURN(VipDeregisterMem(node.nic, node.memory + 100, handle ^ 1), VIP_INVALID_PARAMETER, "MEM-12");
    CHECK_RETURN(VipDeregisterMem(node.nic, node.memory + 100, handle + 0x10000), VIP_INVALID_PARAMETER,
                 "MEM-12");
    CHECK_RETURN(VipQueryMem(node.nic, node.memory + 100, handle, &attributes), VIP_SUCCESS, "MEM-12");
    CHECK_RETURN(VipDeregisterMem(node.nic, node.memory + 100, handle), VIP_SUCCESS, "MEM-13");
    CHECK_RETURN(VipDeregisterMem(node.nic, node.memory + 100, handle), VIP_INVALID_PARAMETER, "MEM-13");
    ok("deregistering");
}

static int same(const VIP_MEM_ATTRIBUTES *x, const VIP_MEM_ATTRIBUTES *y)
{
    return x->Ptag == y->Ptag && !x->EnableRdmaWrite == !y->EnableRdmaWrite &&
           !x->EnableRdmaRead == !y->EnableRdmaRead;
}

static void attributes(void)
{
    VIP_MEM_ATTRIBUTES given = mem_attributes(&node), found, other;
    VIP_PROTECTION_HANDLE tag;
    unsigned char *base = node.memory + 1000;
    VIP_MEM_HANDLE handle;

    given.EnableRdmaRead = VIP_FALSE;
    MUST(VipCreatePtag(node.nic, &tag));
    MUST(VipRegisterMem(node.nic, base, 1000, &given, &handle));
    memset(&found, 0x55, sizeof found);
    CHECK_RETURN(VipQueryMem(node.nic, base, handle, &found), VIP_SUCCESS, "MEM-14");
    CHECK(same(&found, &given), "MEM-14");
    CHECK_RETURN(VipQueryMem(node.nic, base + 999, handle, &found), VIP_SUCCESS, "MEM-14");
    CHECK_RETURN(VipQueryMem(node.nic, base + 1000, handle, &found), VIP_INVALID_PARAMETER, "MEM-15");
    CHECK_RETURN(VipQueryMem(node.nic, base - 1, handle, &found), VIP_INVALID_PARAMETER, "MEM-15");

    other.Ptag = tag;
    other.EnableRdmaWrite = VIP_FALSE;
    other.EnableRdmaRead = node.attributes.RDMAReadSupport != 0;
    CHECK_RETURN(VipSetMemAttributes(node.nic, base + 500, handle, &other), VIP_SUCCESS, "MEM-16");
    MUST(VipQueryMem(node.nic, base, handle, &found));
    CHECK(same(&found, &other), "MEM-16");
    CHECK_RETURN(VipDestroyPtag(node.nic, tag), VIP_ERROR_RESOURCE, "MEM-02");

    given.Ptag = (VIP_PVOID)-1; /* no tag at all */
    CHECK_RETURN(VipSetMemAttributes(node.nic, base, handle, &given), VIP_INVALID_PTAG, "MEM-17");
    CHECK_RETURN(VipSetMemAttributes(node.nic, base + 1000, handle, &other), VIP_INVALID_PARAMETER,
                 "spec §3.19");
    MUST(VipQueryMem(node.nic, base, handle, &found));
    CHECK(same(&found, &other), "MEM-17");

    CHECK_RETURN(VipRegisterMem(node.nic, base, 10, &given, &handle), VIP_INVALID_PTAG, "MEM-07");
    if (node.attributes.RDMAReadSupport == 0) {
        given = mem_attributes(&node);
        given.EnableRdmaRead = VIP_TRUE;
        CHECK_RETURN(VipRegisterMem(node.nic, base, 10, &given, &handle), VIP_INVALID_RDMAREAD, "MEM-08");
    }
    MUST(VipDeregisterMem(node.nic, base, handle));
    MUST(VipDestroyPtag(node.nic, tag));
    ok("attributes of regions");
}

static void limits(void)
{
    static VIP_MEM_HANDLE handle[65536];
    VIP_MEM_ATTRIBUTES given = mem_attributes(&node);
    VIP_MEM_HANDLE refused;
    size_t n = 0, most = node.attributes.MaxRegisterRegions;

    CHECK(most <= 65536, "MaxRegisterRegions that this test can hold");
    while (n < most - 1) { /* the node has one */
        MUST(VipRegisterMem(node.nic, node.memory + n % 512, 1, &given, &handle[n]));
        CHECK(handle[n] != 0, "MEM-09");
        n++;
    }
    CHECK_RETURN(VipRegisterMem(node.nic, node.memory, 1, &given, &refused), VIP_ERROR_RESOURCE, "MEM-11");
    CHECK_RETURN(VipQueryMem(node.nic, node.memory, handle[0], &given), VIP_SUCCESS, "MEM-11");
    n--;
    MUST(VipDeregisterMem(node.nic, node.memory + n % 512, handle[n]));
    MUST(VipRegisterMem(node.nic, node.memory, 1, &given, &handle[n]));
    MUST(VipDeregisterMem(node.nic, node.memory, handle[n]));
    while (n-- > 0)
        MUST(VipDeregisterMem(node.nic, node.memory + n % 512, handle[n]));
    ok("%lu regions", (unsigned long)most);
}

/* MaxRegisterBlockBytes and MaxRegisterBytes, where so much memory can be mapped (nothing of it is used). */
static void bytes(void)
{
    const size_t block = node.attributes.MaxRegisterBlockBytes, most = node.attributes.MaxRegisterBytes;
    VIP_MEM_ATTRIBUTES given = mem_attributes(&node);
    size_t left = most - node.bytes, part = left < block ? left : block;
    VIP_MEM_HANDLE refused, handle[64];
    unsigned char *room;
    int n = 0;

    CHECK(most >= block && most > node.bytes, "spec §2.3");
    if (block >= (sizeof block > 4 ? SIZE_MAX >> 24 : SIZE_MAX / 2)) {
        ok("MaxRegisterBlockBytes is beyond what can be mapped here");
        return;
    }
    room = (unsigned char *)mmap(NULL, block + 4096, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) { /* a host that promises no memory it has not */
        ok("MaxRegisterBlockBytes is beyond what can be mapped here");
        return;
    }
    CHECK_RETURN(VipRegisterMem(node.nic, room, block + 1, &given, &refused), VIP_ERROR_RESOURCE, "MEM-11");

    /* the same memory as often as it takes: overlaps count each time (spec §10.3) */
    while (left > 0 && n < 64) {
        size_t piece = left < part ? left : part;

        MUST(VipRegisterMem(node.nic, room, piece, &given, &handle[n++]));
        left -= piece;
    }
    CHECK_EQ(left, 0, "MaxRegisterBytes that this test can fill");
    CHECK_RETURN(VipRegisterMem(node.nic, room, 1, &given, &refused), VIP_ERROR_RESOURCE, "MEM-11");
    MUST(VipDeregisterMem(node.nic, room, handle[--n]));
    CHECK_RETURN(VipRegisterMem(node.nic, room, 1, &given, &handle[n]), VIP_SUCCESS, "MEM-11");
    for (; n >= 0; n--)
        MUST(VipDeregisterMem(node.nic, room, handle[n]));
    munmap(room, block + 4096);
    ok("regions of up to %lu bytes, %lu in all, and not one more", (unsigned long)block, (unsigned long)most);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    open_node(&node, options.device, 1 << 20);
    tags();
    ranges();
    deregister();
    attributes();
    limits();
    bytes();
    close_node(&node);
    return 0;
}
