/* A partner that connects, sends and leaves on request: another process, or with -1 VIs of this one. The
 * program that uses it is the one under test; the partner has no will of its own. */
#ifndef CTEST_PARTNER_H
#define CTEST_PARTNER_H

#include "common.h"

#define PARTNER_LEVEL VIP_SERVICE_RELIABLE_DELIVERY

struct partner {
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

static inline address partner_point(struct partner *p, const struct node *node, int number)
{
    char name[24];

    snprintf(name, sizeof name, "partner%d", number);
    return local_point(node, p->run, name);
}

static inline void partner_open(struct partner *p, const char *device)
{
    open_node(&p->node, device, 65536);
    p->in = take_descriptor(&p->node, 1);
    p->out = take_descriptor(&p->node, 1);
    p->buffer = take(&p->node, 64);
}

/* A new VI, ready to receive one message. */
static inline void partner_vi(struct partner *p)
{
    p->vi = make_vi(&p->node, PARTNER_LEVEL, NULL, NULL);
    post_recv(&p->node, p->vi, p->in, p->buffer, 64);
}

/* Sends 8 bytes, with immediate data unless it is negative. */
static inline void partner_sends(struct partner *p, int immediate)
{
    start_descriptor(p->out, VIP_CONTROL_OP_SENDRECV);
    add_data(p->out, p->buffer, p->node.handle, 8);
    if (immediate >= 0)
        set_immediate(p->out, (VIP_UINT32)immediate);
    MUST(VipPostSend(p->vi, p->out, p->node.handle));
    EXPECT_SEND(p->vi, p->out, STATUS_SENT, "set-up");
}

static inline void partner_leaves(struct partner *p)
{
    end_vi(p->vi);
    forget_errors(&p->node);
}

/* The other process: does what it is asked, and says when it is done. */
static inline void partner_process(struct partner *p, int link, const char *device)
{
    struct request request;

    partner_open(p, device);
    do {
        CHECK_EQ(recv(link, &request, sizeof request, MSG_WAITALL), sizeof request, "a request to the partner");
        if (request.what == 'j') {
            partner_vi(p);
            ask(p->vi, local_point(&p->node, p->run, "client"), request.where);
        } else if (request.what == 's') {
            partner_sends(p, request.immediate);
        } else if (request.what == 'l') {
            partner_leaves(p);
        }
        CHECK_EQ(send(link, &request, 1, MSG_NOSIGNAL), 1, "an answer of the partner");
    } while (request.what != 'e');
    close_node(&p->node);
    fflush(NULL);
    exit(0);
}

/* Comes before the first call of VIPL. */
static inline void partner_start(struct partner *p, const struct options *options)
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
        partner_process(p, ends[1], options->device);
    }
    close(ends[1]);
    p->link = ends[0];
}

static inline void partner_request(struct partner *p, char what, const address *where, int immediate)
{
    struct request request;

    memset(&request, 0, sizeof request);
    request.what = what;
    request.immediate = immediate;
    if (where != NULL)
        request.where = *where;
    CHECK_EQ(send(p->link, &request, sizeof request, MSG_NOSIGNAL), sizeof request, "a request to the partner");
}

static inline void partner_answer(struct partner *p)
{
    char done;

    CHECK_EQ(recv(p->link, &done, 1, MSG_WAITALL), 1, "an answer of the partner");
}

/* Connects a VI of this process with a new one of the partner, which is at most one at a time. */
static inline void partner_join(struct partner *p, struct node *node, VIP_VI_HANDLE vi, const char *device)
{
    int number = p->joined++;
    address where = partner_point(p, node, number);

    if (p->link < 0) {
        if (number == 0)
            partner_open(p, device);
        partner_vi(p);
        join_vis(node, vi, &p->node, p->vi);
    } else {
        partner_request(p, 'j', &where, 0);
        serve(node, vi, where);
        partner_answer(p);
    }
}

/* One message of 8 bytes, which has left when this returns. */
static inline void partner_send(struct partner *p, int immediate)
{
    if (p->link < 0) {
        partner_sends(p, immediate);
    } else {
        partner_request(p, 's', NULL, immediate);
        partner_answer(p);
    }
}

/* The partner disconnects and destroys its VI. */
static inline void partner_leave(struct partner *p)
{
    if (p->link < 0) {
        partner_leaves(p);
    } else {
        partner_request(p, 'l', NULL, 0);
        partner_answer(p);
    }
}

static inline void partner_end(struct partner *p)
{
    if (p->link < 0) {
        close_node(&p->node);
    } else {
        partner_request(p, 'e', NULL, 0);
        partner_answer(p);
        reap(p->pid);
        close(p->link);
    }
}

#endif
