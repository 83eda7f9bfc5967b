/* What a program does that uses the device itself: the same work request as that of a VIPL send, and its completion. What is executed
 * inside `measured` is counted. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

#define MUST(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "bare: %s\n", #condition); \
            exit(1); \
        } \
    } while (0)

static char data[64], head[16];

__attribute__((noinline)) static int one(struct ibv_qp *qp, struct ibv_cq *cq, uint64_t number, struct ibv_mr *first,
                                         struct ibv_mr *second)
{
    struct ibv_sge list[2] = {
        {.addr = (uintptr_t)head, .length = sizeof head, .lkey = first->lkey},
        {.addr = (uintptr_t)data, .length = sizeof data, .lkey = second->lkey},
    };
    struct ibv_send_wr work = {
        .wr_id = number,
        .sg_list = list,
        .num_sge = 2,
        .opcode = IBV_WR_SEND,
        .send_flags = IBV_SEND_SIGNALED,
    };
    struct ibv_send_wr *bad;
    struct ibv_wc done;

    if (ibv_post_send(qp, &work, &bad) != 0)
        return 0;
    return ibv_poll_cq(cq, 1, &done) == 1 && done.status == IBV_WC_SUCCESS && done.wr_id == number;
}

__attribute__((noinline)) void measured(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mr *first, struct ibv_mr *second,
                                        unsigned long rounds)
{
    unsigned long number;

    for (number = 0; number < rounds; number++)
        MUST(one(qp, cq, number, first, second));
}

int main(int argc, char **argv)
{
    unsigned long rounds = strtoul(argv[argc - 1], NULL, 10);
    struct ibv_device **list;
    struct ibv_context *context;
    struct ibv_qp_init_attr attributes = {.qp_type = IBV_QPT_RC};
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *first, *second;
    int count;

    MUST((list = ibv_get_device_list(&count)) != NULL && count > 0);
    MUST((context = ibv_open_device(list[0])) != NULL);
    MUST((pd = ibv_alloc_pd(context)) != NULL);
    MUST((cq = ibv_create_cq(context, 128, NULL, NULL, 0)) != NULL);
    attributes.send_cq = attributes.recv_cq = cq;
    MUST((qp = ibv_create_qp(pd, &attributes)) != NULL);
    MUST((first = ibv_reg_mr(pd, head, sizeof head, IBV_ACCESS_LOCAL_WRITE)) != NULL);
    MUST((second = ibv_reg_mr(pd, data, sizeof data, IBV_ACCESS_LOCAL_WRITE)) != NULL);
    measured(qp, cq, first, second, rounds);
    printf("ok: %lu messages\n", rounds);
    return 0;
}
