/* What dialect_clan.c and dialect_intel.c share: everything that does not name a member of a descriptor
 * (ABI-11). A server and a client, of either dialect each, exchange messages and RDMA.
 *
 *   dialect_... [-d DEVICE] server NUMBER
 *   dialect_... [-d DEVICE] client NUMBER      the same number as the server's */
#ifndef CTEST_DIALECT_H
#define CTEST_DIALECT_H

#include "common.h"

/* These are the dialect's own. */
static void build(VIP_DESCRIPTOR *d, void *data, VIP_MEM_HANDLE handle, unsigned bytes);
static void build_write(VIP_DESCRIPTOR *d, uint64_t target, VIP_MEM_HANDLE target_handle, void *data,
                        VIP_MEM_HANDLE handle, unsigned bytes);
static unsigned length_of(const VIP_DESCRIPTOR *d);
static unsigned status_of(const VIP_DESCRIPTOR *d);

struct report {
    uint64_t address;
    VIP_MEM_HANDLE handle;
};

static void send_it(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d, VIP_MEM_HANDLE handle, unsigned status)
{
    VIP_DESCRIPTOR *done;

    MUST(VipPostSend(vi, d, handle));
    MUST(VipSendWait(vi, PATIENCE, &done));
    CHECK(done == d, "ABI-11");
    CHECK_STATUS(status_of(d), status, "ABI-11");
}

static void receive_it(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d, unsigned bytes)
{
    VIP_DESCRIPTOR *done;

    MUST(VipRecvWait(vi, PATIENCE, &done));
    CHECK(done == d, "ABI-11");
    CHECK_STATUS(status_of(d), STATUS_RECEIVED, "ABI-11");
    CHECK_EQ(length_of(d), bytes, "ABI-11");
}

static int run_dialect(int argc, char **argv, const char *dialect)
{
    struct options options = parse_options(argc, argv);
    struct report mine, theirs;
    VIP_DESCRIPTOR *in[3], *out;
    unsigned char *received[3], *sent, *target;
    struct node node;
    VIP_VI_HANDLE vi;
    int server, run, i;

    if (options.words != 2) {
        fprintf(stderr, "usage: %s [-d DEVICE] server|client NUMBER\n", argv[0]);
        return 2;
    }
    server = strcmp(options.word[0], "server") == 0;
    run = atoi(options.word[1]);
    open_node(&node, options.device, 65536);
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    out = take_descriptor(&node, 2);
    sent = take(&node, 1000);
    target = take(&node, 1000);
    for (i = 0; i < 3; i++) {
        in[i] = take_descriptor(&node, 2);
        received[i] = take(&node, 1000);
        build(in[i], received[i], node.handle, 1000);
        MUST(VipPostRecv(vi, in[i], node.handle));
    }
    if (server)
        serve(&node, vi, local_point(&node, run, "dialect"));
    else
        ask(vi, local_point(&node, run, "client"), local_point(&node, run, "dialect"));

    mine.address = (uint64_t)(uintptr_t)target;
    mine.handle = node.handle;
    memcpy(sent, &mine, sizeof mine);
    build(out, sent, node.handle, sizeof mine);
    send_it(vi, out, node.handle, STATUS_SENT);
    receive_it(vi, in[0], sizeof theirs);
    memcpy(&theirs, received[0], sizeof theirs);

    fill(sent, 1000, server ? 1 : 2);
    build_write(out, theirs.address, theirs.handle, sent, node.handle, 1000);
    send_it(vi, out, node.handle, STATUS_WRITTEN);
    build(out, sent, node.handle, 700);
    send_it(vi, out, node.handle, STATUS_SENT);
    receive_it(vi, in[1], 700);
    CHECK(filled(received[1], 700, server ? 2 : 1), "ABI-11");
    CHECK(filled(target, 1000, server ? 2 : 1), "ABI-11");

    build(out, sent, node.handle, 0); /* neither side leaves before the other has seen everything */
    send_it(vi, out, node.handle, STATUS_SENT);
    receive_it(vi, in[2], 0);
    end_vi(vi);
    close_node(&node);
    ok("%s dialect: descriptors of %d bytes", dialect, (int)sizeof(VIP_DESCRIPTOR));
    return 0;
}

#endif
