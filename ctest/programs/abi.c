/* Sizes, offsets and values of the header, as spec §2 gives them (ABI-01 to ABI-10). Needs no device. What a
 * 32-bit host has is checked by the compiler, in layout_ilp32.c. */
#include "common.h"

#include <stddef.h>

#define SIZE(type, bytes, id) CHECK_EQ(sizeof(type), bytes, id)
#define FIELD(type, field, offset, id) CHECK_EQ(offsetof(type, field), offset, id)
#define VALUE(name, value, id) CHECK_EQ(name, value, id)

/* Sizes of types with pointers or longs: on LP64, on ILP32. */
static long long wide(long long lp64, long long ilp32)
{
    return sizeof(void *) == 8 ? lp64 : ilp32;
}

static void layouts(void)
{
    SIZE(VIP_DESCRIPTOR, 64, "ABI-01");
    SIZE(VIP_CONTROL_SEGMENT, 32, "ABI-01");
    SIZE(VIP_ADDRESS_SEGMENT, 16, "ABI-01");
    SIZE(VIP_DATA_SEGMENT, 16, "ABI-01");
    SIZE(VIP_DESCRIPTOR_SEGMENT, 16, "ABI-01");
    FIELD(VIP_DESCRIPTOR, CS, 0, "ABI-01");
    FIELD(VIP_DESCRIPTOR, DS, 32, "ABI-01");
    VALUE(VIP_DESCRIPTOR_ALIGNMENT, 64, "ABI-01");
    FIELD(VIP_CONTROL_SEGMENT, Next, 0, "ABI-02");
    FIELD(VIP_CONTROL_SEGMENT, NextHandle, 8, "ABI-02");
    FIELD(VIP_CONTROL_SEGMENT, SegCount, 12, "ABI-02");
    FIELD(VIP_CONTROL_SEGMENT, Control, 14, "ABI-02");
    FIELD(VIP_CONTROL_SEGMENT, Reserved, 16, "ABI-02");
    FIELD(VIP_CONTROL_SEGMENT, ImmediateData, 20, "ABI-02");
    FIELD(VIP_CONTROL_SEGMENT, Length, 24, "ABI-02");
    FIELD(VIP_CONTROL_SEGMENT, Status, 28, "ABI-02");
    SIZE(VIP_NIC_ATTRIBUTES, wide(200, 136), "ABI-03");
    SIZE(VIP_VI_ATTRIBUTES, wide(40, 24), "ABI-04");
    SIZE(VIP_MEM_ATTRIBUTES, wide(16, 12), "ABI-04");
    SIZE(VIP_ERROR_DESCRIPTOR, wide(48, 28), "ABI-05");
    FIELD(VIP_NET_ADDRESS, HostAddressLen, 0, "ABI-06");
    FIELD(VIP_NET_ADDRESS, DiscriminatorLen, 2, "ABI-06");
    FIELD(VIP_NET_ADDRESS, HostAddress, 4, "ABI-06");
    ok("sizes and offsets of a host with pointers of %d bytes", (int)sizeof(void *));
}

static void enumerations(void)
{
    static const int returns[] = {
        VIP_SUCCESS, VIP_NOT_DONE, VIP_INVALID_PARAMETER, VIP_ERROR_RESOURCE, VIP_TIMEOUT, VIP_REJECT,
        VIP_INVALID_RELIABILITY_LEVEL, VIP_INVALID_MTU, VIP_INVALID_QOS, VIP_INVALID_PTAG,
        VIP_INVALID_RDMAREAD, VIP_DESCRIPTOR_ERROR, VIP_INVALID_STATE, VIP_ERROR_NAMESERVICE,
        VIP_NO_MATCH, VIP_NOT_REACHABLE, VIP_ERROR_NOT_SUPPORTED,
    };
    static const int errors[] = {
        VIP_ERROR_POST_DESC, VIP_ERROR_CONN_LOST, VIP_ERROR_RECVQ_EMPTY, VIP_ERROR_VI_OVERRUN,
        VIP_ERROR_RDMAW_PROT, VIP_ERROR_RDMAW_DATA, VIP_ERROR_RDMAW_ABORT, VIP_ERROR_RDMAR_PROT,
        VIP_ERROR_COMP_PROT, VIP_ERROR_RDMA_TRANSPORT, VIP_ERROR_CATASTROPHIC,
    };
    int i;

    for (i = 0; i < 17; i++)
        VALUE(returns[i], i, "ABI-07");
    VALUE(VIP_STATE_IDLE, 0, "ABI-08");
    VALUE(VIP_STATE_CONNECTED, 1, "ABI-08");
    VALUE(VIP_STATE_CONNECT_PENDING, 2, "ABI-08");
    VALUE(VIP_STATE_ERROR, 3, "ABI-08");
    for (i = 0; i < 11; i++)
        VALUE(errors[i], i, "ABI-10");
    VALUE(VIP_RESOURCE_NIC, 0, "ABI-10");
    VALUE(VIP_RESOURCE_VI, 1, "ABI-10");
    VALUE(VIP_RESOURCE_CQ, 2, "ABI-10");
    VALUE(VIP_RESOURCE_DESCRIPTOR, 3, "ABI-10");
    SIZE(VIP_RETURN, 4, "spec §2.1");
    ok("return codes, states, errors and resources");
}

/* Table 2.5. */
static void control_and_status(void)
{
    static const struct {
        unsigned long found, expected;
    } words[] = {
        {VIP_CONTROL_OP_SENDRECV, 0x0000}, {VIP_CONTROL_OP_RDMAWRITE, 0x0001},
        {VIP_CONTROL_OP_RDMAREAD, 0x0002}, {VIP_CONTROL_OP_RESERVED, 0x0003},
        {VIP_CONTROL_OP_MASK, 0x0003}, {VIP_CONTROL_IMMEDIATE, 0x0004},
        {VIP_CONTROL_QFENCE, 0x0008}, {VIP_CONTROL_RESERVED, 0xFFF0},
        {VIP_STATUS_DONE, 0x00000001}, {VIP_STATUS_FORMAT_ERROR, 0x00000002},
        {VIP_STATUS_PROTECTION_ERROR, 0x00000004}, {VIP_STATUS_LENGTH_ERROR, 0x00000008},
        {VIP_STATUS_PARTIAL_ERROR, 0x00000010}, {VIP_STATUS_DESC_FLUSHED_ERROR, 0x00000020},
        {VIP_STATUS_TRANSPORT_ERROR, 0x00000040}, {VIP_STATUS_RDMA_PROT_ERROR, 0x00000080},
        {VIP_STATUS_REMOTE_DESC_ERROR, 0x00000100}, {VIP_STATUS_ERROR_MASK, 0x000001FE},
        {VIP_STATUS_OP_SEND, 0x00000000}, {VIP_STATUS_OP_RECEIVE, 0x00010000},
        {VIP_STATUS_OP_RDMA_WRITE, 0x00020000}, {VIP_STATUS_OP_REMOTE_RDMA_WRITE, 0x00030000},
        {VIP_STATUS_OP_RDMA_READ, 0x00040000}, {VIP_STATUS_OP_MASK, 0x00070000},
        {VIP_STATUS_IMMEDIATE, 0x00080000}, {VIP_STATUS_RESERVED, 0xFFF0FE00},
    };
    size_t i;

    for (i = 0; i < sizeof words / sizeof words[0]; i++)
        CHECK_STATUS(words[i].found, words[i].expected, "ABI-09");
    ok("control and status words");
}

int main(int argc, char **argv)
{
    parse_options(argc, argv);
    layouts();
    enumerations();
    control_and_status();
    return 0;
}
