/* Handlers that leave: by pthread_exit, by cancelling their thread, by longjmp inside of themselves; and those after them,
 * which are called all the same.
 *
 *   handlers [-d DEVICE] */
#include "common.h"

#include <setjmp.h>

static struct node node;
static VIP_VI_HANDLE vi, peer, on_cq;
static VIP_CQ_HANDLE cq;
static int calls, cleaned, ended;
static pthread_key_t key;

static void clean(void *argument)
{
    (void)argument;
    atomic_add(&cleaned, 1);
}

static void at_the_end(void *argument)
{
    VIP_NIC_ATTRIBUTES attributes;

    (void)argument;
    CHECK_RETURN(VipQueryNic(node.nic, &attributes), VIP_SUCCESS, "a call in a destructor of the handler's thread");
    atomic_add(&ended, 1);
}

static void leave(long how)
{
    static jmp_buf back;

    if (how == 1 || how == 2)
        pthread_setspecific(key, &node);
    atomic_add(&calls, 1);
    pthread_cleanup_push(clean, NULL);
    if (how == 1)
        pthread_exit(NULL);
    if (how == 2) {
        pthread_cancel(pthread_self());
        pthread_testcancel();
    }
    if (how == 3 && setjmp(back) == 0)
        longjmp(back, 1);
    pthread_cleanup_pop(0);
}

static void notified(VIP_PVOID how, VIP_NIC_HANDLE nic, VIP_VI_HANDLE v, VIP_DESCRIPTOR *d)
{
    (void)nic;
    (void)v;
    (void)d;
    leave((long)how);
}

static void entered(VIP_PVOID how, VIP_NIC_HANDLE nic, VIP_VI_HANDLE v, VIP_BOOLEAN recv)
{
    (void)nic;
    (void)v;
    (void)recv;
    leave((long)how);
}

static void failed(VIP_PVOID how, VIP_ERROR_DESCRIPTOR *error)
{
    (void)error;
    leave((long)how);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    VIP_DESCRIPTOR *d, *out, *found;
    VIP_VI_HANDLE other;
    long how;
    int expected = 0, left = 0, i;

    pthread_key_create(&key, at_the_end);
    open_node(&node, options.device, 1 << 20);
    MUST(VipCreateCQ(node.nic, 64, &cq));
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    peer = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    join_vis(&node, vi, &node, peer);
    on_cq = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, cq);
    other = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    join_vis(&node, on_cq, &node, other);
    out = take_descriptor(&node, 1);
    for (how = 0; how <= 3; how++) {
        for (i = 0; i < 3; i++) {
            d = take_descriptor(&node, 1);
            post_recv(&node, vi, d, NULL, 0);
            MUST(VipRecvNotify(vi, (VIP_PVOID)how, notified));
            post_send(&node, peer, out, NULL, 0);
            CHECK_EQ(send_wait(peer, &found), VIP_SUCCESS, "a send");
            await(&calls, ++expected, "a notify handler");

            d = take_descriptor(&node, 1);
            MUST(VipCQNotify(cq, (VIP_PVOID)how, entered));
            post_recv(&node, on_cq, d, NULL, 0);
            post_send(&node, other, out, NULL, 0);
            CHECK_EQ(send_wait(other, &found), VIP_SUCCESS, "a send");
            await(&calls, ++expected, "a notify handler of a CQ");
            CHECK_EQ(VipRecvDone(on_cq, &found), VIP_SUCCESS, "the receive of the CQ");

            if (how == 1 || how == 2)
                left += 2;
            await(&cleaned, left, "cleanup handlers");
        }
    }
    /* The error handler leaves; the next one is told of the next error. */
    for (how = 0; how <= 3; how++) {
        VIP_VI_HANDLE a = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);

        MUST(VipErrorCallback(node.nic, (VIP_PVOID)how, failed));
        VipPostSend(a, (VIP_DESCRIPTOR *)(void *)((char *)out + 4), node.handle); /* not aligned */
        await(&calls, ++expected, "an error handler");
        if (how == 1 || how == 2)
            await(&cleaned, ++left, "cleanup handlers");
        end_vi(a);
    }
    MUST(VipErrorCallback(node.nic, NULL, NULL));
    await(&ended, left, "destructors");
    end_vi(vi);
    end_vi(peer);
    end_vi(on_cq);
    end_vi(other);
    MUST(VipDestroyCQ(cq));
    close_node(&node);
    ok("%d handlers called, %d of them left", expected, left);
    return 0;
}
