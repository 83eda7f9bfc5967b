/* A libibverbs.so.1 with one device, which connects the queue pairs of this process: a post of a send moves the message
 * into the peer's oldest receive, and both are complete. Without a receive the message is lost. It stands for the provider where
 * instructions, copies and wake-ups are counted, which takes a device that does everything at once. RDMA completes and moves
 * nothing. Events of completion queues are there with FAKE_EVENTS; without them nothing polls but the application. */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#undef ibv_query_port
#undef ibv_reg_mr

#define EXPORT __attribute__((visibility("default")))
#define ROOM 1024
#define PAIRS 1024
#define SEGMENTS 8
#define FIRST 100

/* A completion queue: positions count completions. */
struct queue {
    struct ibv_cq cq;
    unsigned first, end;
    int armed, reported;
    struct ibv_wc done[ROOM];
};

struct receive {
    uint64_t number;
    int segments;
    struct ibv_sge list[SEGMENTS];
};

struct pair {
    struct ibv_qp qp;
    uint32_t peer;
    unsigned first, end;
    struct receive receives[ROOM];
};

static struct ibv_device the_device;
static uint32_t numbers = FIRST;
static struct pair *pairs[PAIRS];
static struct queue *queues[PAIRS];
static char lock;

/* No function of another library: its instructions would count as the application's. */
static void enter(void)
{
    while (__atomic_test_and_set(&lock, __ATOMIC_ACQUIRE))
        ;
}

static void leave(void)
{
    __atomic_clear(&lock, __ATOMIC_RELEASE);
}

static void complete(struct ibv_cq *cq, uint64_t number, uint32_t bytes, uint32_t qp)
{
    struct queue *queue = (struct queue *)cq;
    struct ibv_wc *done = &queue->done[queue->end++ % ROOM];

    done->wr_id = number;
    done->status = IBV_WC_SUCCESS;
    done->byte_len = bytes;
    done->qp_num = qp;
    if (queue->armed) {
        const uint64_t one = 1;

        queue->armed = 0;
        queue->reported = 1;
        if (write(queue->cq.channel->fd, &one, sizeof one) != sizeof one)
            abort();
    }
}

/* Into the peer's oldest receive. */
static void deliver(const struct pair *from, const struct ibv_send_wr *work)
{
    struct pair *to = from->peer >= FIRST && from->peer < FIRST + PAIRS ? pairs[from->peer - FIRST] : NULL;
    struct receive *receive;
    uint32_t bytes = 0, at = 0;
    int i, place = 0;

    if (to == NULL || to->first == to->end)
        return;
    receive = &to->receives[to->first++ % ROOM];
    for (i = 0; i < work->num_sge; i++) {
        const struct ibv_sge *piece = &work->sg_list[i];
        uint32_t done = 0;

        while (done < piece->length && place < receive->segments) {
            const struct ibv_sge *room = &receive->list[place];
            uint32_t part = piece->length - done;

            if (part > room->length - at)
                part = room->length - at;
            memcpy((char *)(uintptr_t)room->addr + at, (char *)(uintptr_t)piece->addr + done, part);
            done += part;
            at += part;
            if (at == room->length) {
                place++;
                at = 0;
            }
        }
        bytes += done;
    }
    complete(to->qp.recv_cq, receive->number, bytes, to->qp.qp_num);
}

static int poll_cq(struct ibv_cq *cq, int room, struct ibv_wc *done)
{
    struct queue *queue = (struct queue *)cq;
    int count = 0;

    enter();
    while (count < room && queue->first != queue->end)
        done[count++] = queue->done[queue->first++ % ROOM];
    leave();
    return count;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
    (void)solicited;
    enter();
    ((struct queue *)cq)->armed = getenv("FAKE_EVENTS") != NULL;
    leave();
    return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *work, struct ibv_send_wr **bad)
{
    (void)bad;
    enter();
    for (; work != NULL; work = work->next) {
        if (work->opcode == IBV_WR_SEND)
            deliver((struct pair *)qp, work);
        if (work->send_flags & IBV_SEND_SIGNALED)
            complete(qp->send_cq, work->wr_id, 0, qp->qp_num);
    }
    leave();
    return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *work, struct ibv_recv_wr **bad)
{
    struct pair *pair = (struct pair *)qp;

    (void)bad;
    enter();
    for (; work != NULL; work = work->next) {
        struct receive *receive = &pair->receives[pair->end++ % ROOM];

        if (work->num_sge > SEGMENTS)
            abort();
        receive->number = work->wr_id;
        receive->segments = work->num_sge;
        memcpy(receive->list, work->sg_list, (size_t)work->num_sge * sizeof work->sg_list[0]);
    }
    leave();
    return 0;
}

EXPORT struct ibv_device **ibv_get_device_list(int *count)
{
    struct ibv_device **list = calloc(2, sizeof *list);

    if (list == NULL)
        return NULL;
    list[0] = &the_device;
    *count = 1;
    return list;
}

EXPORT void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
    (void)device;
    return "fake0";
}

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct ibv_context *context = calloc(1, sizeof *context);

    if (context == NULL)
        return NULL;
    context->device = device;
    context->ops.poll_cq = poll_cq;
    context->ops.req_notify_cq = req_notify_cq;
    context->ops.post_send = post_send;
    context->ops.post_recv = post_recv;
    context->cmd_fd = eventfd(0, EFD_CLOEXEC);
    context->async_fd = eventfd(0, EFD_CLOEXEC);
    return context;
}

EXPORT int ibv_close_device(struct ibv_context *context)
{
    close(context->cmd_fd);
    close(context->async_fd);
    free(context);
    return 0;
}

EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes)
{
    (void)context;
    memset(attributes, 0, sizeof *attributes);
    attributes->max_sge = 32;
    attributes->max_qp_wr = ROOM;
    return 0;
}

EXPORT int ibv_query_port(struct ibv_context *context, uint8_t number, struct _compat_ibv_port_attr *compatible)
{
    struct ibv_port_attr *attributes = (struct ibv_port_attr *)compatible;

    (void)context;
    (void)number;
    attributes->state = IBV_PORT_ACTIVE;
    attributes->active_mtu = IBV_MTU_4096;
    attributes->link_layer = IBV_LINK_LAYER_ETHERNET;
    return 0;
}

EXPORT ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t room,
                                    uint32_t flags, size_t size)
{
    static const unsigned char gid[16] = {[10] = 0xFF, [11] = 0xFF, [12] = 10, [15] = 1};

    (void)context;
    (void)flags;
    if (room == 0 || size < sizeof *entries)
        return -EINVAL;
    memset(entries, 0, sizeof *entries);
    memcpy(entries->gid.raw, gid, sizeof gid);
    entries->port_num = 1;
    entries->gid_type = IBV_GID_TYPE_ROCE_V2;
    return 1;
}

EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    (void)context;
    (void)event;
    errno = EAGAIN;
    return -1;
}

EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
    (void)event;
}

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *pd = calloc(1, sizeof *pd);

    if (pd != NULL)
        pd->context = context;
    return pd;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
    free(pd);
    return 0;
}

EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *base, size_t bytes, int access)
{
    struct ibv_mr *mr = calloc(1, sizeof *mr);

    (void)access;
    if (mr == NULL)
        return NULL;
    mr->context = pd->context;
    mr->pd = pd;
    mr->addr = base;
    mr->length = bytes;
    mr->lkey = mr->rkey = numbers++;
    return mr;
}

EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
    free(mr);
    return 0;
}

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    struct ibv_comp_channel *channel = calloc(1, sizeof *channel);

    if (channel == NULL)
        return NULL;
    channel->context = context;
    channel->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    return channel;
}

EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    close(channel->fd);
    free(channel);
    return 0;
}

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context)
{
    uint64_t one;
    int i;

    if (read(channel->fd, &one, sizeof one) != sizeof one)
        return -1;
    enter();
    for (i = 0; i < PAIRS; i++) {
        if (queues[i] != NULL && queues[i]->reported) {
            queues[i]->reported = 0;
            *cq = &queues[i]->cq;
            *context = (*cq)->cq_context;
            break;
        }
    }
    leave();
    if (i == PAIRS)
        errno = EAGAIN;
    return i == PAIRS ? -1 : 0;
}

EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count)
{
    (void)cq;
    (void)count;
}

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *cq_context,
                                    struct ibv_comp_channel *channel, int vector)
{
    struct queue *queue = calloc(1, sizeof *queue);
    int i;

    (void)vector;
    if (queue == NULL || entries > ROOM)
        return NULL;
    queue->cq.context = context;
    queue->cq.channel = channel;
    queue->cq.cq_context = cq_context;
    enter();
    for (i = 0; i < PAIRS && queues[i] != NULL; i++)
        ;
    if (i < PAIRS)
        queues[i] = queue;
    leave();
    return i < PAIRS ? &queue->cq : NULL;
}

EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
    int i;

    enter();
    for (i = 0; i < PAIRS; i++) {
        if (queues[i] == (struct queue *)cq)
            queues[i] = NULL;
    }
    leave();
    free(cq);
    return 0;
}

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes)
{
    struct pair *pair = calloc(1, sizeof *pair);
    unsigned i;

    if (pair == NULL)
        return NULL;
    pair->qp.context = pd->context;
    pair->qp.pd = pd;
    pair->qp.send_cq = attributes->send_cq;
    pair->qp.recv_cq = attributes->recv_cq;
    enter();
    for (i = 0; i < PAIRS && pairs[i] != NULL; i++)
        ;
    if (i < PAIRS) {
        pairs[i] = pair;
        pair->qp.qp_num = FIRST + i;
    }
    leave();
    return i < PAIRS ? &pair->qp : NULL;
}

EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask)
{
    if (mask & IBV_QP_DEST_QPN)
        ((struct pair *)qp)->peer = attributes->dest_qp_num;
    return 0;
}

EXPORT int ibv_destroy_qp(struct ibv_qp *qp)
{
    enter();
    pairs[qp->qp_num - FIRST] = NULL;
    leave();
    free(qp);
    return 0;
}
