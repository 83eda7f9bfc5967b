/* The table of errors.c: spec §6.4, row by row, on the three levels. */
#ifndef CTEST_ERRORS_TABLE_H
#define CTEST_ERRORS_TABLE_H

#include "common.h"

#define NONE (-1)
#define BUFFER 8192

/* What side 1 posts. */
enum action {
    SEND,            /* 100 bytes, in order */
    SEND_LARGE,      /* 6000 bytes, in order */
    SEND_BAD_OP,     /* operation 3 */
    SEND_BAD_BIT,    /* a bit of VIP_CONTROL_RESERVED */
    SEND_SEGMENTS,   /* more than MaxSegmentsPerDesc */
    SEND_BAD_BOTH,   /* operation 3 and an unknown handle */
    SEND_LENGTH,     /* Length is not the sum */
    SEND_TOO_LONG,   /* above the VI's MaxTransferSize */
    SEND_HANDLE,     /* unknown memory handle */
    WRITE_EMPTY,     /* RDMA Write without any segment */
    WRITE,           /* RDMA Write to what side 0 told */
    WRITE_IMMEDIATE, /* the same with immediate data */
    READ,            /* RDMA Read from what side 0 told */
    READ_IMMEDIATE,  /* RDMA Read with immediate data */
    READ_EMPTY       /* RDMA Read without any segment */
};

/* What side 0 has prepared. */
enum target {
    GOOD,           /* a receive of BUFFER bytes */
    NOTHING,        /* no receive */
    SMALL,          /* a receive of 50 bytes */
    RECV_HANDLE,    /* a receive with an unknown handle */
    RECV_OP,        /* a receive whose operation is RDMA Write */
    RECV_READ_OP,   /* a receive whose operation is RDMA Read */
    RECV_BIT,       /* a receive with a reserved control bit */
    RECV_GONE,      /* a receive whose descriptor memory was deregistered */
    REGION_CLOSED,  /* the target region admits no RDMA; a receive is posted */
    REGION_TAG,     /* the target region has another tag; a receive is posted */
    REGION_SHORT,   /* the remote range is longer than the region; a receive is posted */
    REGION_UNKNOWN, /* the handle told is of no region; a receive is posted */
    VI_CLOSED,      /* the target VI admits no RDMA; a receive is posted */
    REGION_CLOSED_NOTHING /* as REGION_CLOSED, and no receive */
};

/* One level's outcome. Status bits are those of VIP_STATUS_ERROR_MASK. */
struct outcome {
    int sender;       /* bits of what side 1 posted; NONE: success, or failed with `sender_or` */
    int sender_or;    /* with NONE: the bits that may come instead of success (0: success only) */
    int sender_async; /* code at side 1, NONE: none; with sender NONE: comes if success did */
    int receiver;     /* bits of the receive; NONE: it is not used, or there is none */
    int receiver_async;
    int dies;
};

/* One row. An identifier begins with the row of spec §6.4; `also` has the assertions that the row shows on
 * U, RD and RR. */
struct row {
    const char *id;
    const char *also[3];
    enum action action;
    enum target target;
    struct outcome outcome[3];
    int not_on;      /* levels on which the row does not apply */
    int strict_only;
};

#define FORMAT VIP_STATUS_FORMAT_ERROR
#define PROTECTION VIP_STATUS_PROTECTION_ERROR
#define LENGTH VIP_STATUS_LENGTH_ERROR
#define TRANSPORT VIP_STATUS_TRANSPORT_ERROR
#define RDMA_PROT VIP_STATUS_RDMA_PROT_ERROR
#define REMOTE VIP_STATUS_REMOTE_DESC_ERROR
#define FLUSHED VIP_STATUS_DESC_FLUSHED_ERROR
#define LOST VIP_ERROR_CONN_LOST
#define EMPTY VIP_ERROR_RECVQ_EMPTY
#define RDMAW VIP_ERROR_RDMAW_PROT
#define RDMAR VIP_ERROR_RDMAR_PROT

/* What rows of one kind show on U, RD and RR. */
#define OWN {"DERR-09 DERR-10", "DERR-09 DERR-11", "DERR-09 DERR-11"}
#define TOO_FEW {"DERR-17", "DERR-18", "DERR-19"}
#define RECV {"DERR-15", "DERR-15", "DERR-15 DERR-16"}
#define REFUSED {"RDMA-11", "RDMA-12", "RDMA-13"}
#define READING {"", "RDMA-20", "RDMA-20"}
#define NOTHING_MORE {"", "", ""}

/* The sender's own fault: Unreliable lives on, the reliable levels die (E1, E2, E3). */
#define OWN_FAULT(bits)                          \
    {                                            \
        {bits, 0, NONE, NONE, NONE, 0},          \
        {bits, 0, NONE, FLUSHED, LOST, 1},       \
        {bits, 0, NONE, FLUSHED, LOST, 1},       \
    }
/* The receive descriptor's fault (E7, E8). */
#define RECEIVE_FAULT(bits)                                      \
    {                                                            \
        {0, 0, NONE, bits, NONE, 0},                             \
        {NONE, TRANSPORT, LOST, bits, NONE, 1},                  \
        {REMOTE, 0, NONE, bits, NONE, 1},                        \
    }
/* The remote range's fault, no immediate data (E9). */
#define WRITE_FAULT                                              \
    {                                                            \
        {0, 0, NONE, NONE, RDMAW, 0},                            \
        {NONE, RDMA_PROT | TRANSPORT, LOST, FLUSHED, RDMAW, 1},  \
        {RDMA_PROT, 0, NONE, FLUSHED, RDMAW, 1},                 \
    }
#define READ_FAULT                                               \
    {                                                            \
        {0, 0, 0, 0, 0, 0},                                      \
        {RDMA_PROT, 0, NONE, FLUSHED, RDMAR, 1},                 \
        {RDMA_PROT, 0, NONE, FLUSHED, RDMAR, 1},                 \
    }

static const struct row rows[] = {
    {"E1 DERR-01", OWN, SEND_BAD_OP, GOOD, OWN_FAULT(FORMAT), 0, 0},
    {"E1 DERR-02", OWN, SEND_BAD_BIT, GOOD, OWN_FAULT(FORMAT), 0, 0},
    {"E1 DERR-03", OWN, SEND_SEGMENTS, GOOD, OWN_FAULT(FORMAT), 0, 0},
    {"E1 DERR-04", OWN, WRITE_EMPTY, GOOD, OWN_FAULT(FORMAT), 0, 0},
    {"E1 DERR-04", OWN, READ_EMPTY, GOOD, OWN_FAULT(FORMAT), 0, 0},
    {"E1 DERR-08", OWN, SEND_BAD_BOTH, GOOD, OWN_FAULT(FORMAT), 0, 0},
    {"E1 RDMA-19", OWN, READ_IMMEDIATE, GOOD, OWN_FAULT(FORMAT), 0, 0},
    {"E1 RDMA-19", OWN, READ, GOOD, OWN_FAULT(FORMAT), 0, 0}, /* where the level or the device has none */
    {"E2 DERR-07", OWN, SEND_HANDLE, GOOD, OWN_FAULT(PROTECTION), 0, 0},
    {"E3 DERR-05", OWN, SEND_LENGTH, GOOD, OWN_FAULT(LENGTH), 0, 0},
    {"E3 DERR-06", OWN, SEND_TOO_LONG, GOOD, OWN_FAULT(LENGTH), 0, 0},
    {"E6", TOO_FEW, SEND, NOTHING,
     {{0, 0, NONE, NONE, EMPTY, 0},
      {NONE, TRANSPORT, LOST, NONE, EMPTY, 1},
      {REMOTE, 0, NONE, NONE, EMPTY, 1}}, 0, 0},
    {"E6 large", TOO_FEW, SEND_LARGE, NOTHING,
     {{0, 0, NONE, NONE, EMPTY, 0},
      {NONE, TRANSPORT, LOST, NONE, EMPTY, 1},
      {REMOTE, 0, NONE, NONE, EMPTY, 1}}, 0, 0},
    {"E7 DERR-12", RECV, SEND, SMALL, RECEIVE_FAULT(LENGTH), 0, 0},
    {"E7 DERR-12 large", RECV, SEND_LARGE, SMALL, RECEIVE_FAULT(LENGTH), 0, 0},
    {"E8 DERR-13", RECV, SEND, RECV_HANDLE, RECEIVE_FAULT(PROTECTION), 0, 0},
    {"E8 DERR-13 large", RECV, SEND_LARGE, RECV_HANDLE, RECEIVE_FAULT(PROTECTION), 0, 0},
    {"E8 DERR-14 RDMA-22", RECV, SEND, RECV_OP, RECEIVE_FAULT(FORMAT), 0, 0},
    {"E8 DERR-14 RDMA-22", RECV, SEND, RECV_READ_OP, RECEIVE_FAULT(FORMAT), 0, 0},
    {"E8 DERR-14", RECV, SEND_LARGE, RECV_BIT, RECEIVE_FAULT(FORMAT), 0, 0},
    {"E9 RDMA-08", REFUSED, WRITE, REGION_CLOSED, WRITE_FAULT, 0, 0},
    {"E9 RDMA-09", REFUSED, WRITE, REGION_TAG, WRITE_FAULT, 0, 0},
    {"E9 RDMA-10", REFUSED, WRITE, REGION_SHORT, WRITE_FAULT, 0, 0},
    {"E9 RDMA-10", REFUSED, WRITE, REGION_UNKNOWN, WRITE_FAULT, 0, 0},
    {"E9 RDMA-07", REFUSED, WRITE, VI_CLOSED, WRITE_FAULT, 0, 0},
    {"E10 RDMA-14", NOTHING_MORE, WRITE_IMMEDIATE, REGION_CLOSED,
     {{0, 0, NONE, RDMA_PROT, NONE, 0},
      {NONE, RDMA_PROT | TRANSPORT, LOST, RDMA_PROT, NONE, 1},
      {RDMA_PROT, 0, NONE, RDMA_PROT, NONE, 1}}, 0, 0},
    {"E10", NOTHING_MORE, WRITE_IMMEDIATE, REGION_CLOSED_NOTHING,
     {{0, 0, NONE, NONE, RDMAW, 0},
      {NONE, RDMA_PROT | TRANSPORT, LOST, NONE, RDMAW, 1},
      {RDMA_PROT, 0, NONE, NONE, RDMAW, 1}}, 0, 0},
    {"E11 RDMA-15", NOTHING_MORE, WRITE_IMMEDIATE, NOTHING,
     {{0, 0, NONE, NONE, EMPTY, 0},
      {NONE, TRANSPORT, LOST, NONE, EMPTY, 1},
      {REMOTE, 0, NONE, NONE, EMPTY, 1}}, 0, 0},
    {"E13 RDMA-20", READING, READ, REGION_CLOSED, READ_FAULT, VIP_SERVICE_UNRELIABLE, 0},
    {"E13 RDMA-20", READING, READ, REGION_TAG, READ_FAULT, VIP_SERVICE_UNRELIABLE, 0},
    {"E13 RDMA-20", READING, READ, REGION_SHORT, READ_FAULT, VIP_SERVICE_UNRELIABLE, 0},
    {"E13 RDMA-20", READING, READ, REGION_UNKNOWN, READ_FAULT, VIP_SERVICE_UNRELIABLE, 0},
    {"E13 RDMA-20", READING, READ, VI_CLOSED, READ_FAULT, VIP_SERVICE_UNRELIABLE, 0},
    {"E16 ERR-07", NOTHING_MORE, SEND, RECV_GONE,
     {{0, 0, LOST, NONE, VIP_ERROR_COMP_PROT, 1},
      {NONE, TRANSPORT | FLUSHED, LOST, NONE, VIP_ERROR_COMP_PROT, 1},
      {NONE, REMOTE | TRANSPORT | FLUSHED, LOST, NONE, VIP_ERROR_COMP_PROT, 1}}, 0, 1},
};

/* The rows that two sides alone cannot bring about, and what it would take. */
static const struct {
    const char *id, *needs;
} out_of_reach[] = {
    {"E4", "loss of frames"},
    {"E5", "loss of frames"},
    {"E12", "loss of frames"},
    {"E17", "loss of frames"},
    {"E18", "failure of the whole NIC"},
};

#endif
