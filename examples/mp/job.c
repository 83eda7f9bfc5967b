/* The start and the end of a job: every pair of ranks is connected before the first message.
 *
 * mprun describes the job in the environment. Ranks on other hosts are found by the name service; the two of a pair meet as peers, under
 * a name that is made of the job and both ranks. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "inside.h"

enum {
    PATIENCE = 60,   /* seconds for all ranks to appear */
    RANKS_MAX = 4096 /* three hexadecimal digits of a discriminator */
};

/* An address: the lengths, the host's address, the discriminator. VIP_NET_ADDRESS has room for the first byte of these only. */
typedef union {
    VIP_NET_ADDRESS net;
    unsigned char bytes[4 + 16 + 16];
} address;

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    if (value == NULL)
        mp_fail("%s is not set: start the program by mprun", name);
    return value;
}

/* Where rank `from` meets rank `to`, seen from `from`: on its host, by the name of the pair in this job. */
static address meeting(int from, int to, unsigned long job, const char *hosts)
{
    char host[256], name[16];
    address result;
    int skip;

    memset(&result, 0, sizeof result);
    result.net.HostAddressLen = mp.attributes.NicAddressLen;
    memcpy(result.bytes + 4, mp.attributes.LocalNicAddress, mp.attributes.NicAddressLen);
    if (hosts[0] != '\0' && from != mp.rank) {
        for (skip = from; skip > 0 && strchr(hosts, ',') != NULL; skip--)
            hosts = strchr(hosts, ',') + 1;
        snprintf(host, sizeof host, "%.*s", (int)strcspn(hosts, ","), hosts);
        MUST(VipNSGetHostByName(mp.nic, host, &result.net, 0));
    }
    result.net.DiscriminatorLen =
        (VIP_UINT16)snprintf(name, sizeof name, "%06lx%03x%03x", job & 0xffffff, (unsigned)from & 0xfff, (unsigned)to & 0xfff);
    memcpy(result.bytes + 4 + result.net.HostAddressLen, name, result.net.DiscriminatorLen);
    return result;
}

/* A VI with all its slots. The receives are posted before the peer can send. */
static void create_peer(peer *p)
{
    VIP_VI_ATTRIBUTES attributes;
    slot *slots = mp_allocate((SLOTS + SENDS) * sizeof(slot));
    int i;

    memset(slots, 0, (SLOTS + SENDS) * sizeof(slot));
    p->receives = slots;
    p->sends = slots + SLOTS;
    p->memory = cache_register(slots, (SLOTS + SENDS) * sizeof(slot));
    p->credits = CREDITS;
    memset(&attributes, 0, sizeof attributes);
    attributes.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    attributes.MaxTransferSize = mp.attributes.MaxTransferSize;
    attributes.Ptag = mp.tag;
    attributes.EnableRdmaWrite = VIP_TRUE;
    MUST(VipCreateVi(mp.nic, &attributes, NULL, mp.cq, &p->vi));
    VipSetUserData(p->vi, p);
    for (i = 0; i < SLOTS; i++) {
        p->receives[i].d.CS.SegCount = 1;
        p->receives[i].d.DS[0].Local.Data.Address = &p->receives[i].h;
        p->receives[i].d.DS[0].Local.Handle = p->memory;
        p->receives[i].d.DS[0].Local.Length = sizeof(head) + EAGER;
        mp_post_receive(p, &p->receives[i]);
    }
}

/* Connects every pair as peers: all requests are on their way before the first is waited for, and no rank has to be first. */
static void connect_peers(unsigned long job, const char *hosts)
{
    VIP_VI_ATTRIBUTES its_vi;
    int i;

    for (i = 0; i < mp.size; i++) {
        address here = meeting(mp.rank, i, job, hosts), there = meeting(i, mp.rank, job, hosts);
        if (i == mp.rank)
            continue;
        create_peer(&mp.peers[i]);
        MUST(VipConnectPeerRequest(mp.peers[i].vi, &here.net, &there.net, PATIENCE * 1000));
    }
    for (i = 0; i < mp.size; i++)
        if (i != mp.rank && VipConnectPeerWait(mp.peers[i].vi, &its_vi) != VIP_SUCCESS)
            mp_fail("no connection with rank %d within %d s; has it started, on the same kind of device?", i, PATIENCE);
}

void mp_start(void)
{
    const char *device = variable("MP_DEVICE"), *hosts = variable("MP_HOSTS");
    int i;

    mp.rank = atoi(variable("MP_RANK"));
    mp.size = atoi(variable("MP_SIZE"));
    if (mp.size < 1 || mp.size > RANKS_MAX || mp.rank < 0 || mp.rank >= mp.size)
        mp_fail("MP_RANK and MP_SIZE are no rank of a job");
    MUST(VipOpenNic(device, &mp.nic));
    MUST(VipQueryNic(mp.nic, &mp.attributes));
    MUST(VipCreatePtag(mp.nic, &mp.tag));
    MUST(VipCreateCQ(mp.nic, (VIP_ULONG)mp.size * SLOTS, &mp.cq));
    if (hosts[0] != '\0')
        MUST(VipNSInit(mp.nic, NULL));
    cache_open(mp.nic, mp.tag);
    mp.peers = mp_allocate((size_t)mp.size * sizeof *mp.peers);
    memset(mp.peers, 0, (size_t)mp.size * sizeof *mp.peers);
    mp.last = mp.peers;
    CLEAR(&mp.receives);
    CLEAR(&mp.unexpected);
    for (i = 0; i < mp.size; i++) {
        CLEAR(&mp.peers[i].held);
        CLEAR(&mp.peers[i].asking);
        CLEAR(&mp.peers[i].writing);
        CLEAR(&mp.peers[i].filling);
    }
    connect_peers(strtoul(variable("MP_JOB"), NULL, 16), hosts);
}

void mp_finish(void)
{
    packet *left, *next; /* without a credit when the peer left */
    int i;

    mp.finishing = 1;
    mp_barrier();
    for (i = 0; i < mp.size; i++) {
        peer *p = &mp.peers[i];
        if (i == mp.rank)
            continue;
        MUST(VipDisconnect(p->vi));
        MUST(VipDestroyVi(p->vi));
        MUST(VipDeregisterMem(mp.nic, p->receives, p->memory));
        free(p->receives);
        for (left = p->held.first; left != NULL; left = next) {
            next = left->next;
            free(left);
        }
    }
    cache_close();
    if (mp.unexpected.first != NULL)
        mp_fail("a message of rank %d, tag %d, was never received", mp.unexpected.first->source, (int)mp.unexpected.first->h.tag);
    free(mp.peers);
    MUST(VipDestroyCQ(mp.cq));
    MUST(VipDestroyPtag(mp.nic, mp.tag));
    MUST(VipCloseNic(mp.nic));
}
