/* credits: 1000 messages through four receives, the answer of lesson 2.
 *
 * The sender has a credit for each receive that the peer has posted, and sends only while it has one. The receiver posts a receive
 * again before it gives the credit back, two at a time, in an empty message whose immediate data says how many. */

#include <sys/wait.h>
#include <unistd.h>
#include "../example.h"

enum { MESSAGES = 1000, CREDITS = 4, AT_ONCE = 2, GRANTS = CREDITS / AT_ONCE };

static struct {
    VIP_DESCRIPTOR receive[CREDITS], grant;    /* the server's */
    VIP_DESCRIPTOR send, granted[GRANTS];      /* the client's */
    VIP_UINT32 in[CREDITS], out;
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static void post_receive(VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory, int which)
{
    describe(&m.receive[which], &m.in[which], memory, sizeof m.in[which]);
    MUST(VipPostRecv(vi, &m.receive[which], memory));
}

static void serve(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;
    VIP_UINT32 expected;
    int which, owed = 0;

    for (which = 0; which < CREDITS; which++)
        post_receive(vi, memory, which);
    accept_client(opened, vi, "credits");
    for (expected = 0; expected < MESSAGES; expected++) {
        MUST(VipRecvWait(vi, VIP_INFINITE, &done));
        which = (int)(done - m.receive);
        if (m.in[which] != expected) {
            fprintf(stderr, "message %u came as %u\n", (unsigned)expected, (unsigned)m.in[which]);
            exit(1);
        }
        post_receive(vi, memory, which);
        if (++owed == AT_ONCE) {
            memset(&m.grant, 0, sizeof m.grant);
            m.grant.CS.Control = VIP_CONTROL_OP_SENDRECV | VIP_CONTROL_IMMEDIATE;
            m.grant.CS.ImmediateData = (VIP_UINT32)owed;
            post_and_wait(vi, &m.grant, memory);
            owed = 0;
        }
    }
    printf("%d messages in order, through %d receives\n", MESSAGES, CREDITS);
}

static void post_granted(VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory, VIP_DESCRIPTOR *d)
{
    memset(d, 0, sizeof *d); /* no buffer: the credits are in the descriptor */
    MUST(VipPostRecv(vi, d, memory));
}

static void call(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_UINT32 number, credits = CREDITS;
    VIP_DESCRIPTOR *done;
    int i;

    for (i = 0; i < GRANTS; i++)
        post_granted(vi, memory, &m.granted[i]);
    connect_server(opened, vi, "credits");
    for (number = 0; number < MESSAGES; number++) {
        if (credits == 0) {
            MUST(VipRecvWait(vi, VIP_INFINITE, &done));
            credits += done->CS.ImmediateData;
            post_granted(vi, memory, done);
        }
        credits--;
        m.out = number;
        describe(&m.send, &m.out, memory, sizeof m.out);
        post_and_wait(vi, &m.send, memory);
    }
    /* The last credits are under way: to disconnect now would break the server's send. */
    while (credits < CREDITS) {
        MUST(VipRecvWait(vi, VIP_INFINITE, &done));
        credits += done->CS.ImmediateData;
    }
}

int main(int argc, char **argv)
{
    int is_server = fork() != 0;
    device opened = open_device(device_name(argc, argv));
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, LOCAL);
    VIP_VI_HANDLE vi = create_vi(&opened, NULL);

    if (is_server)
        serve(&opened, vi, memory);
    else
        call(&opened, vi, memory);

    MUST(VipDisconnect(vi));
    drain(vi);
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    if (is_server)
        wait(NULL);
    return 0;
}
