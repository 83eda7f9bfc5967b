/* A peer that connects, sends and leaves on request: another process, or with -1 VIs of this one. The
 * program that uses it is the one under test; the peer has no will of its own. */
#ifndef CTEST_PEER_H
#define CTEST_PEER_H

#include "common.h"

#define PEER_LEVEL VIP_SERVICE_RELIABLE_DELIVERY

struct peer {
    struct node node;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *in, *out;
    unsigned char *buffer;
    int link; /* to the other process; -1: there is none */
    pid_t pid;
    int run, joined;
};

struct request {
    char what; /* j: join, s: send, l: leave, e: end */
    int immediate;
    address where; /* to join */
};

static inline address peer_point(struct peer *p, const struct node *node, int number)
{
    char name[24];

    snprintf(name, sizeof name, "peer%d", number);
    return local_point(node, p->run, name);
}

static inline void peer_open(struct peer *p, const char *device)
{
    open_node(&p->node, device, 65536);
    p->in = take_descriptor(&p->node, 1);
    p->out = take_descriptor(&p->node, 1);
    p->buffer = take(&p->node, 64);
}

/* A new VI, ready to receive one message. */
static inline void peer_vi(struct peer *p)
{
    p->vi = make_vi(&p->node, PEER_LEVEL, NULL, NULL);
    post_recv(&p->node, p->vi, p->in, p->buffer, 64);
}

/* Sends 8 bytes, with immediate data unless it is negative. */
static inline void peer_sends(struct peer *p, int immediate)
{
    start_descriptor(p->out, VIP_CONTROL_OP_SENDRECV);
    add_data(p->out, p->buffer, p->node.handle, 8);
    if (immediate >= 0)
        set_immediate(p->out, (VIP_UINT32)immediate);
    MUST(VipPostSend(p->vi, p->out, p->node.handle));
    EXPECT_SEND(p->vi, p->out, STATUS_SENT, "set-up");
}

static inline void peer_leaves(struct peer *p)
{
    end_vi(p->vi);
    forget_errors(&p->node);
}

/* The other process: does what it is asked, and says when it is done. */
static inline void peer_process(struct peer *p, int link, const char *device)
{
    struct request request;

    peer_open(p, device);
    do {
        CHECK_EQ(recv(link, &request, sizeof request, MSG_WAITALL), sizeof request, "a request to the peer");
        if (request.what == 'j') {
            peer_vi(p);
            ask(p->vi, local_point(&p->node, p->run, "client"), request.where);
        } else if (request.what == 's') {
            peer_sends(p, request.immediate);
        } else if (request.what == 'l') {
            peer_leaves(p);
        }
        CHECK_EQ(send(link, &request, 1, MSG_NOSIGNAL), 1, "an answer of the peer");
    } while (request.what != 'e');
    close_node(&p->node);
    fflush(NULL);
    exit(0);
}

/* Comes before the first call of VIPL. */
static inline void peer_start(struct peer *p, const struct options *options)
{
    int ends[2];

    memset(p, 0, sizeof *p);
    p->run = (int)getpid();
    p->link = -1;
    if (options->one_process)
        return;
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0, "socketpair");
    p->pid = fork_child();
    if (p->pid == 0) {
        close(ends[0]);
        peer_process(p, ends[1], options->device);
    }
    close(ends[1]);
    p->link = ends[0];
}

static inline void peer_request(struct peer *p, char what, const address *where, int immediate)
{
    struct request request;

    memset(&request, 0, sizeof request);
    request.what = what;
    request.immediate = immediate;
    if (where != NULL)
        request.where = *where;
    CHECK_EQ(send(p->link, &request, sizeof request, MSG_NOSIGNAL), sizeof request, "a request to the peer");
}

static inline void peer_answer(struct peer *p)
{
    char done;

    CHECK_EQ(recv(p->link, &done, 1, MSG_WAITALL), 1, "an answer of the peer");
}

/* Connects a VI of this process with a new one of the peer, which is at most one at a time. */
static inline void peer_join(struct peer *p, struct node *node, VIP_VI_HANDLE vi, const char *device)
{
    int number = p->joined++;
    address where = peer_point(p, node, number);

    if (p->link < 0) {
        if (number == 0)
            peer_open(p, device);
        peer_vi(p);
        join_vis(node, vi, &p->node, p->vi);
    } else {
        peer_request(p, 'j', &where, 0);
        serve(node, vi, where);
        peer_answer(p);
    }
}

/* One message of 8 bytes, which has left when this returns. */
static inline void peer_send(struct peer *p, int immediate)
{
    if (p->link < 0) {
        peer_sends(p, immediate);
    } else {
        peer_request(p, 's', NULL, immediate);
        peer_answer(p);
    }
}

/* The peer disconnects and destroys its VI. */
static inline void peer_leave(struct peer *p)
{
    if (p->link < 0) {
        peer_leaves(p);
    } else {
        peer_request(p, 'l', NULL, 0);
        peer_answer(p);
    }
}

static inline void peer_end(struct peer *p)
{
    if (p->link < 0) {
        close_node(&p->node);
    } else {
        peer_request(p, 'e', NULL, 0);
        peer_answer(p);
        reap(p->pid);
        close(p->link);
    }
}

#endif
