/* The least that a plug-in must do: connect, send, receive, wait, completion queue, disconnect. Runs over
 * any device that offers Reliable Delivery. */
#include "common.h"

#define N 100

static void simple(struct side *side)
{
    const int level = VIP_SERVICE_RELIABLE_DELIVERY;
    size_t size[5], largest;
    VIP_DESCRIPTOR *in[8], *out, *found;
    unsigned char *received, *sent;
    address other;
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi, named;
    VIP_BOOLEAN recv_queue;
    struct node node;
    int i, k;

    open_node(&node, side->device, 4 << 20);
    other = swap_addresses(side, &node);
    largest = node.attributes.MaxTransferSize < 65536 ? node.attributes.MaxTransferSize : 65536;
    CHECK(largest >= 32768, "NIC-07");
    MUST(VipCreateCQ(node.nic, 64, &cq));
    vi = make_vi(&node, level, NULL, cq);
    out = take_descriptor(&node, 3);
    sent = take(&node, largest);
    received = take(&node, 8 * largest);
    for (i = 0; i < 8; i++) {
        in[i] = take_descriptor(&node, 1);
        post_recv(&node, vi, in[i], received + (size_t)i * largest, largest);
    }
    join_sides(side, &node, vi, &other, "simple");
    ok("side %d: connected over %s", side->number, node.attributes.Name);

    /* ping-pong of growing messages, taken by way of the completion queue */
    size[0] = 0, size[1] = 1, size[2] = 1000, size[3] = 32768, size[4] = largest;
    for (i = 0; i < N; i++) {
        size_t bytes = size[i % 5];
        unsigned long seed = (unsigned long)i;

        for (k = 0; k < 2; k++) {
            if (k == side->number) {
                fill(sent, bytes, seed);
                start_descriptor(out, VIP_CONTROL_OP_SENDRECV);
                if (bytes > 2) { /* in pieces, with immediate data */
                    add_data(out, sent, node.handle, 1);
                    add_data(out, sent + 1, node.handle, bytes / 2);
                    add_data(out, sent + 1 + bytes / 2, node.handle, bytes - 1 - bytes / 2);
                } else if (bytes != 0) {
                    add_data(out, sent, node.handle, bytes);
                }
                set_immediate(out, (VIP_UINT32)i);
                MUST(VipPostSend(vi, out, node.handle));
                EXPECT_SEND(vi, out, STATUS_SENT, "XFER-02 MEM-26"); /* all of it lies in one region */
            } else {
                VIP_DESCRIPTOR *d = in[i % 8];

                MUST(VipCQWait(cq, PATIENCE, &named, &recv_queue));
                CHECK(named == vi && recv_queue, "CQ-03");
                CHECK_RETURN(VipRecvDone(vi, &found), VIP_SUCCESS, "CQ-04");
                CHECK(found == d, "XFER-13 MEM-26");
                CHECK_STATUS(control(d)->Status, STATUS_RECEIVED | VIP_STATUS_IMMEDIATE, "XFER-07");
                CHECK_EQ(control(d)->Length, bytes, "XFER-01");
                CHECK_EQ(control(d)->ImmediateData, i, "XFER-07");
                CHECK(filled((unsigned char *)segment(d, 0)->Data.Address, bytes, seed), "XFER-01");
                MUST(VipPostRecv(vi, d, node.handle));
            }
        }
    }
    ok("side %d: %d round trips", side->number, N);

    /* more than fits anywhere at once, while the receiver looks elsewhere */
    meet(side);
    if (side->number == 0) {
        for (i = 0; i < 8; i++) {
            fill(sent, largest, (unsigned long)i);
            post_send(&node, vi, out, sent, largest);
            EXPECT_SEND(vi, out, STATUS_SENT, "XFER-11");
        }
    } else {
        for (i = 0; i < 8; i++) {
            VIP_DESCRIPTOR *d = in[(N + i) % 8];

            MUST(VipCQWait(cq, PATIENCE, &named, &recv_queue));
            CHECK_RETURN(VipRecvDone(vi, &found), VIP_SUCCESS, "CQ-04");
            CHECK(found == d && filled(segment(d, 0)->Data.Address, largest, (unsigned long)i), "XFER-11");
        }
    }
    meet(side);

    if (side->number == 0) {
        NO_ERROR(&node, 0, "no asynchronous error so far");
        meet(side);
        AWAIT_STATE(vi, VIP_STATE_ERROR, "DISC-05");
        for (i = 0; i < 8; i++) {
            CHECK_RETURN(VipRecvDone(vi, &found), VIP_DESCRIPTOR_ERROR, "DISC-05");
            CHECK(found == in[(N + i) % 8], "DISC-05");
            CHECK_STATUS(control(found)->Status, STATUS_FLUSHED_RECEIVE, "DISC-05");
        }
    } else {
        meet(side);
        MUST(VipDisconnect(vi));
    }
    meet(side);
    end_vi(vi);
    MUST(VipDestroyCQ(cq));

    /* a message for an empty queue breaks the connection (E6) */
    vi = make_vi(&node, level, NULL, NULL);
    join_sides(side, &node, vi, &other, "empty");
    forget_errors(&node);
    meet(side);
    if (side->number == 0) {
        NEXT_ERROR(&node, VIP_ERROR_RECVQ_EMPTY, vi, "E6 DERR-18");
    } else {
        post_send(&node, vi, out, sent, 10);
        VipSendWait(vi, PATIENCE, &found);
    }
    AWAIT_STATE(vi, VIP_STATE_ERROR, "E6 DERR-18");
    meet(side);
    end_vi(vi);
    ok("side %d: disconnect, and an empty receive queue", side->number);
    close_node(&node);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);

    both_sides(&options, simple);
    return 0;
}
