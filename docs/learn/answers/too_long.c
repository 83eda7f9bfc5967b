/* too_long: 24 bytes for a receive of 8. */

#include <sys/wait.h>
#include <unistd.h>
#include "../example.h"

static struct {
    VIP_DESCRIPTOR d[2];
    char buffer[32];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static void take(VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *done;
    VIP_RETURN result = VipRecvWait(vi, VIP_INFINITE, &done);
    char status[128];

    vipl_status_text(done->CS.Status, status, sizeof status);
    printf("%s; Status %s\n", vipl_strerror((int)result), status);
}

static void serve(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_VI_ATTRIBUTES attributes;
    VIP_BOOLEAN sends_empty, receives_empty;
    VIP_VI_STATE state;

    describe(&m.d[0], m.buffer, memory, 8);
    describe(&m.d[1], m.buffer + 8, memory, 8);
    MUST(VipPostRecv(vi, &m.d[0], memory));
    MUST(VipPostRecv(vi, &m.d[1], memory));
    accept_client(opened, vi, "too_long");
    take(vi); /* the message */
    take(vi); /* what was posted behind it: a message is never split over two receives */
    MUST(VipQueryVi(vi, &state, &attributes, &sends_empty, &receives_empty));
    printf("the VI is in %s, byte 8 is %d\n", vipl_state_name((int)state), m.buffer[8]);
}

static void call(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;

    connect_server(opened, vi, "too_long");
    memset(m.buffer, 'x', 24);
    describe(&m.d[0], m.buffer, memory, 24);
    MUST(VipPostSend(vi, &m.d[0], memory));
    /* On Reliable Delivery this may succeed: the data has left. That it was refused, the Error state says. */
    (void)VipSendWait(vi, VIP_INFINITE, &done);
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
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    if (is_server)
        wait(NULL);
    return 0;
}
