/* errors: the asynchronous error callback.
 *
 * The client sends a message for which the server has posted no receive. VIA has no flow control: on
 * the reliable levels the connection breaks. The server learns of it by VIP_ERROR_RECVQ_EMPTY, the
 * client by VIP_ERROR_CONN_LOST or by the status of its send. */

#define _POSIX_C_SOURCE 200809L
#include <sys/wait.h>
#include <unistd.h>
#include "example.h"

static struct {
    VIP_DESCRIPTOR d;
    char text[64];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

/* Runs on a thread of the library, one call at a time. The pipe tells the main thread. */
static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    char code = (char)error->ErrorCode;
    if (write(*(int *)context, &code, 1) != 1)
        perror("write");
}

static void serve(device *opened, VIP_VI_HANDLE vi)
{
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_STATE state;
    VIP_BOOLEAN sends_empty, receives_empty;
    int ends[2];
    char code;

    if (pipe(ends) != 0) {
        perror("pipe");
        exit(1);
    }
    MUST(VipErrorCallback(opened->nic, &ends[1], on_error));
    accept_client(opened, vi, "errors");
    if (read(ends[0], &code, 1) != 1)
        exit(1);
    MUST(VipQueryVi(vi, &state, &attributes, &sends_empty, &receives_empty));
    printf("server: %s; the VI is in %s\n", vipl_strerror_async(code), vipl_state_name((int)state));
    /* With NULL the library's own handler comes back, which logs. */
    MUST(VipErrorCallback(opened->nic, NULL, NULL));
}

static void send_unexpected(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;
    VIP_RETURN result;
    char status[128];

    connect_server(opened, vi, "errors");
    describe(&m.d, m.text, memory, sizeof m.text);
    MUST(VipPostSend(vi, &m.d, memory));
    /* Reliable Delivery: the send is complete when the data has left, so it may well succeed. */
    result = VipSendWait(vi, VIP_INFINITE, &done);
    vipl_status_text(done->CS.Status, status, sizeof status);
    printf("client: the send ended with %s; Status %s\n", vipl_strerror((int)result), status);
}

int main(int argc, char **argv)
{
    pid_t child = fork();
    int is_server = child != 0, failed = 0;
    device opened = open_device(device_name(argc, argv));
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, LOCAL);
    VIP_VI_HANDLE vi = create_vi(&opened, NULL);

    if (is_server)
        serve(&opened, vi);
    else
        send_unexpected(&opened, vi, memory);

    /* The only way out of the Error state. */
    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    if (child > 0) {
        int status;
        waitpid(child, &status, 0);
        failed = status != 0;
    }
    return failed;
}
