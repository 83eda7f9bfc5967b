/* What conn.c and conn_many.c share: side 0 serves, side 1 asks. */
#ifndef CTEST_CONN_H
#define CTEST_CONN_H

#include "common.h"

#define LEVEL(w) tested_level((w)->side)
#define GRACE (strict_mode() ? 0.0 : 2000.0) /* how long a request waits for a waiter, at most (spec §17) */

struct world {
    struct side *side;
    struct node node;
    address other;
};

static inline address here(struct world *w, const char *name)
{
    return local_point(&w->node, w->side->run, name);
}

static inline address there(struct world *w, const char *name)
{
    return remote_point(&w->other, w->side->run, name);
}

static inline VIP_RETURN wait_at(struct world *w, const char *name, unsigned long timeout, address *remote,
                          VIP_VI_ATTRIBUTES *attributes, VIP_CONN_HANDLE *request)
{
    address local = here(w, name);

    return VipConnectWait(w->node.nic, &local.net, timeout, &remote->net, attributes, request);
}

/* Asks until a server waits; returns any other result. */
static inline VIP_RETURN ask_for(struct world *w, VIP_VI_HANDLE vi, const char *name, unsigned long timeout)
{
    address local = here(w, "client"), remote = there(w, name);
    VIP_VI_ATTRIBUTES attributes;
    VIP_RETURN code;
    double start = now_ms();

    while ((code = VipConnectRequest(vi, &local.net, &remote.net, timeout, &attributes)) == VIP_NO_MATCH) {
        CHECK(now_ms() - start < (double)PATIENCE, "a peer that waits");
        sleep_ms(1);
    }
    return code;
}

/* One message from side 1 to side 0 over these VIs. */
static inline void exchange(struct world *w, VIP_VI_HANDLE vi, const char *id)
{
    size_t mark = w->node.used;
    VIP_DESCRIPTOR *d = take_descriptor(&w->node, 1);
    unsigned char *buffer = take(&w->node, 100);

    if (w->side->number == 0) {
        post_recv(&w->node, vi, d, buffer, 100);
        meet(w->side);
        EXPECT_RECV(vi, d, STATUS_RECEIVED, id);
        CHECK(filled(buffer, 100, 1), id);
    } else {
        fill(buffer, 100, 1);
        meet(w->side);
        post_send(&w->node, vi, d, buffer, 100);
        EXPECT_SEND(vi, d, STATUS_SENT, id);
    }
    meet(w->side);
    w->node.used = mark;
}

/* Opens the device and learns the other side's address. */
static inline void open_world(struct world *w, struct side *side)
{
    memset(w, 0, sizeof *w);
    w->side = side;
    open_node(&w->node, side->device, 1 << 20);
    w->other = swap_addresses(side, &w->node);
}

#endif
