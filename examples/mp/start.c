/* The start and the end of mp: every pair of ranks is connected before the first message. */

#include <stdlib.h>
#include <string.h>
#include "inside.h"

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
    attributes.MaxTransferSize = job.attributes.MaxTransferSize;
    attributes.Ptag = job.tag;
    attributes.EnableRdmaWrite = VIP_TRUE;
    MUST(VipCreateVi(job.nic, &attributes, NULL, mp.cq, &p->vi));
    VipSetUserData(p->vi, p);
    for (i = 0; i < SLOTS; i++) {
        p->receives[i].d.CS.SegCount = 1;
        p->receives[i].d.DS[0].Local.Data.Address = &p->receives[i].h;
        p->receives[i].d.DS[0].Local.Handle = p->memory;
        p->receives[i].d.DS[0].Local.Length = sizeof(head) + EAGER;
        mp_post_receive(p, &p->receives[i]);
    }
}

void mp_start(void)
{
    int i;

    job_open();
    MUST(VipCreateCQ(job.nic, (VIP_ULONG)job.size * SLOTS, &mp.cq));
    cache_open(job.nic, job.tag);
    mp.peers = mp_allocate((size_t)job.size * sizeof *mp.peers);
    memset(mp.peers, 0, (size_t)job.size * sizeof *mp.peers);
    mp.last = mp.peers;
    CLEAR(&mp.receives);
    CLEAR(&mp.unexpected);
    for (i = 0; i < job.size; i++) {
        CLEAR(&mp.peers[i].held);
        CLEAR(&mp.peers[i].asking);
        CLEAR(&mp.peers[i].writing);
        CLEAR(&mp.peers[i].filling);
        if (i != job.rank) {
            create_peer(&mp.peers[i]);
            job_call(mp.peers[i].vi, i, 0);
        }
    }
    for (i = 0; i < job.size; i++)
        if (i != job.rank)
            job_meet(mp.peers[i].vi, i);
}

/* Takes what VipDisconnect has flushed off the queues: a VI with descriptors on them cannot be destroyed. */
static void take_off(VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *done;

    do
        (void)VipRecvDone(vi, &done);
    while (done != NULL);
    do
        (void)VipSendDone(vi, &done);
    while (done != NULL);
}

void mp_finish(void)
{
    packet *left, *next; /* without a credit when the peer left */
    int i;

    mp.finishing = 1;
    mp_barrier();
    for (i = 0; i < job.size; i++) {
        peer *p = &mp.peers[i];
        if (i == job.rank)
            continue;
        MUST(VipDisconnect(p->vi));
        take_off(p->vi);
        MUST(VipDestroyVi(p->vi));
        MUST(VipDeregisterMem(job.nic, p->receives, p->memory));
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
    job_close();
}
