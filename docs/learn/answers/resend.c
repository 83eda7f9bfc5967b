/* resend: all 100 messages in order over an Unreliable connection, by numbers, answers and a timer. */

#include <sys/wait.h>
#include <unistd.h>
#include "../example.h"

enum { MESSAGES = 100, SLOTS = 8, PATIENCE_MS = 20 };

static struct {
    VIP_DESCRIPTOR receive[SLOTS], send;
    VIP_UINT32 in[SLOTS], out;
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static void post_receive(VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory, int i)
{
    describe(&m.receive[i], &m.in[i], memory, sizeof m.in[i]);
    MUST(VipPostRecv(vi, &m.receive[i], memory));
}

/* Waits for a number; false if the time is up or the peer has left. */
static int take(VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory, VIP_ULONG timeout, VIP_UINT32 *number)
{
    VIP_DESCRIPTOR *done;
    int i;

    if (VipRecvWait(vi, timeout, &done) != VIP_SUCCESS)
        return 0;
    i = (int)(done - m.receive);
    *number = m.in[i];
    post_receive(vi, memory, i);
    return 1;
}

static void send_number(VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory, VIP_UINT32 number)
{
    VIP_DESCRIPTOR *done;

    m.out = number;
    describe(&m.send, &m.out, memory, sizeof m.out);
    if (VipPostSend(vi, &m.send, memory) == VIP_SUCCESS)
        (void)VipSendWait(vi, VIP_INFINITE, &done); /* flushed if the peer has left */
}

static void serve(VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_UINT32 number, expected = 0;

    /* A number that was taken before comes again if its answer was lost: it is answered, and not taken. */
    while (take(vi, memory, VIP_INFINITE, &number)) {
        if (number == expected)
            expected++;
        send_number(vi, memory, number);
    }
    printf("%u of %d messages, each of them once\n", (unsigned)expected, MESSAGES);
}

static void call(VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_UINT32 number, answer;

    for (number = 0; number < MESSAGES; number++) {
        int answered = 0;
        while (!answered) {
            send_number(vi, memory, number);
            /* Answers to what was sent twice may be old. */
            while (!answered && take(vi, memory, PATIENCE_MS, &answer))
                answered = answer == number;
        }
    }
}

int main(int argc, char **argv)
{
    int is_server = fork() != 0, i;
    device opened = open_device(device_name(argc, argv));
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, LOCAL);
    VIP_VI_ATTRIBUTES wanted = {
        .ReliabilityLevel = VIP_SERVICE_UNRELIABLE,
        .MaxTransferSize = 4096,
        .Ptag = opened.tag,
    };
    VIP_VI_HANDLE vi;

    MUST(VipCreateVi(opened.nic, &wanted, NULL, NULL, &vi));
    for (i = 0; i < SLOTS; i++)
        post_receive(vi, memory, i);
    if (is_server) {
        accept_client(&opened, vi, "resend");
        serve(vi, memory);
    } else {
        connect_server(&opened, vi, "resend");
        call(vi, memory);
    }
    MUST(VipDisconnect(vi));
    drain(vi);
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    if (is_server)
        wait(NULL);
    return 0;
}
