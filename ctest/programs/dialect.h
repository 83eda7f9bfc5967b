/* What dialect_clan.c and dialect_intel.c share: everything that does not name a member of a descriptor
 * (ABI-11). A server and a client, of either dialect each, exchange messages and RDMA.
 *
 *   dialect_... [-d DEVICE] server NUMBER
 *   dialect_... [-d DEVICE] client NUMBER      the same number as the server's */
#ifndef CTEST_DIALECT_H
#define CTEST_DIALECT_H

#include "common.h"

/* These are the dialect's own. */
static void build(VIP_DESCRIPTOR *d, int operation, void *data, VIP_MEM_HANDLE handle, unsigned bytes);
static void build_rdma(VIP_DESCRIPTOR *d, uint64_t target, VIP_MEM_HANDLE target_handle, void *data,
                       VIP_MEM_HANDLE handle, unsigned bytes);
static unsigned length_of(const VIP_DESCRIPTOR *d);
static unsigned status_of(const VIP_DESCRIPTOR *d);

struct told {
    uint64_t address;
    VIP_MEM_HANDLE handle;
};

static int run_dialect(int argc, char **argv, const char *dialect)
{
    struct options options = parse_options(argc, argv);
    VIP_DESCRIPTOR *in, *out, *done;
    unsigned char *received, *sent;
    struct told *told;
    struct node node;
    VIP_VI_HANDLE vi;
    int server, run;

    if (options.words != 2) {
        fprintf(stderr, "usage: %s [-d DEVICE] server|client NUMBER\n", argv[0]);
        return 2;
    }
    server = strcmp(options.word[0], "server") == 0;
    run = atoi(options.word[1]);
    open_node(&node, options.device, 65536);
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    in = take_descriptor(&node, 2);
    out = take_descriptor(&node, 2);
    received = take(&node, 1000);
    sent = take(&node, 1000);
    build(in, VIP_CONTROL_OP_SENDRECV, received, node.handle, 1000);
    MUST(VipPostRecv(vi, in, node.handle));
    if (server)
        serve(&node, vi, local_point(&node, run, "dialect"));
    else
        ask(vi, local_point(&node, run, "client"), local_point(&node, run, "dialect"));

    /* each tells the other where it may write, and writes there, then says so */
    told = (struct told *)(void *)sent;
    told->address = (uint64_t)(uintptr_t)received + 500;
    told->handle = node.handle;
    build(out, VIP_CONTROL_OP_SENDRECV, sent, node.handle, sizeof *told);
    MUST(VipPostSend(vi, out, node.handle));
    MUST(VipSendWait(vi, PATIENCE, &done));
    CHECK(done == out && status_of(out) == STATUS_SENT, "ABI-11");
    MUST(VipRecvWait(vi, PATIENCE, &done));
    CHECK(done == in && status_of(in) == STATUS_RECEIVED, "ABI-11");
    CHECK_EQ(length_of(in), sizeof *told, "ABI-11");
    told = (struct told *)(void *)take(&node, sizeof *told);
    memcpy(told, received, sizeof *told);

    build(in, VIP_CONTROL_OP_SENDRECV, received, node.handle, 100);
    MUST(VipPostRecv(vi, in, node.handle));
    build(out, VIP_CONTROL_OP_SENDRECV, sent, node.handle, 4); /* ready for what follows */
    MUST(VipPostSend(vi, out, node.handle));
    MUST(VipSendWait(vi, PATIENCE, &done));
    MUST(VipRecvWait(vi, PATIENCE, &done));
    CHECK_EQ(length_of(in), 4, "ABI-11");

    build(in, VIP_CONTROL_OP_SENDRECV, received, node.handle, 100);
    MUST(VipPostRecv(vi, in, node.handle));
    build(out, VIP_CONTROL_OP_SENDRECV, sent, node.handle, 0);
    MUST(VipPostSend(vi, out, node.handle));
    MUST(VipSendWait(vi, PATIENCE, &done));
    MUST(VipRecvWait(vi, PATIENCE, &done));
    build(in, VIP_CONTROL_OP_SENDRECV, received, node.handle, 100);
    MUST(VipPostRecv(vi, in, node.handle));
    build(out, VIP_CONTROL_OP_SENDRECV, sent, node.handle, 0);
    MUST(VipPostSend(vi, out, node.handle));
    MUST(VipSendWait(vi, PATIENCE, &done));
    MUST(VipRecvWait(vi, PATIENCE, &done)); /* both have posted what the last message needs */
    build(in, VIP_CONTROL_OP_SENDRECV, received, node.handle, 100);
    MUST(VipPostRecv(vi, in, node.handle));
    fill(sent, 400, server ? 1 : 2);
    build_rdma(out, told->address, told->handle, sent, node.handle, 400);
    MUST(VipPostSend(vi, out, node.handle));
    MUST(VipSendWait(vi, PATIENCE, &done));
    CHECK(done == out && status_of(out) == STATUS_WRITTEN, "ABI-11");
    sleep_ms(0);
    end_vi(vi);
    (void)in;
    close_node(&node);
    ok("%s: descriptors of %d bytes", dialect, (int)sizeof(VIP_DESCRIPTOR));
    return 0;
}

#endif
