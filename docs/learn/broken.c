/* broken: five mistakes, to see what is said about each. Lesson 8.
 *
 *     broken name | memory | receive | early | silent */

#include <semaphore.h>
#include <sys/wait.h>
#include <unistd.h>
#include "example.h"

static struct {
    VIP_DESCRIPTOR receive, send;
    char in[64], out[64];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static char elsewhere[64]; /* not registered */
static const char *mistake;
static sem_t noticed;

static int makes(const char *name)
{
    return strcmp(mistake, name) == 0;
}

/* What no call returns and no descriptor carries. Runs on a thread of the library. */
static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context;
    if (error->ErrorCode == VIP_ERROR_CONN_LOST)
        return; /* the peer has broken the connection: here a flushed receive says so, too */
    printf("callback: %s\n", vipl_strerror_async((int)error->ErrorCode));
    sem_post(&noticed);
}

/* Takes a descriptor off a queue with one of the two waits, and says how it ended. */
static void take(const char *who, VIP_RETURN (*wait_for)(VIP_VI_HANDLE, VIP_ULONG, VIP_DESCRIPTOR **),
                 VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *done;
    VIP_RETURN result = wait_for(vi, VIP_INFINITE, &done);
    char status[128] = "(no descriptor)";

    if (done != NULL)
        vipl_status_text(done->CS.Status, status, sizeof status);
    printf("%s: Status %s\n", who, status);
    if (result == VIP_SUCCESS && wait_for == VipRecvWait)
        printf("%s: \"%s\"\n", who, m.in);
    fflush(stdout);
}

static void serve(device *opened, VIP_VI_HANDLE vi)
{
    VIP_VI_ATTRIBUTES attributes;
    VIP_BOOLEAN sends_empty, receives_empty;
    VIP_VI_STATE state;

    accept_client(opened, vi, "broken");
    if (!makes("receive")) {
        take("server", VipRecvWait, vi);
        return;
    }
    sem_wait(&noticed);
    MUST(VipQueryVi(vi, &state, &attributes, &sends_empty, &receives_empty));
    printf("server: the VI is in %s\n", vipl_state_name((int)state));
}

static void call(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    connect_server(opened, vi, "broken");
    if (makes("silent"))
        pause(); /* for ever */
    strcpy(m.out, "as it was meant");
    describe(&m.send, makes("memory") ? elsewhere : m.out, memory, sizeof m.out);
    MUST(VipPostSend(vi, &m.send, memory));
    if (makes("early"))
        strcpy(m.out, "something else"); /* the descriptor has not been taken off yet */
    take("client", VipSendWait, vi);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: broken name | memory | receive | early | silent\n");
        return 2;
    }
    mistake = argv[1];
    int is_server = makes("name") || fork() != 0;
    device opened = open_device(makes("name") ? "via_l0" : "via_lo");
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, LOCAL);
    VIP_VI_ATTRIBUTES wanted = {
        .ReliabilityLevel = VIP_SERVICE_RELIABLE_RECEPTION, /* the sender learns what became of it */
        .MaxTransferSize = 4096,
        .Ptag = opened.tag,
    };
    VIP_VI_HANDLE vi;

    sem_init(&noticed, 0, 0);
    MUST(VipErrorCallback(opened.nic, NULL, on_error));
    MUST(VipCreateVi(opened.nic, &wanted, NULL, NULL, &vi));
    describe(&m.receive, m.in, memory, sizeof m.in);
    if (!makes("receive"))
        MUST(VipPostRecv(vi, &m.receive, memory));
    if (is_server)
        serve(&opened, vi);
    else
        call(&opened, vi, memory);

    MUST(VipDisconnect(vi)); /* the only way out of the state Error */
    drain(vi);
    MUST(VipDestroyVi(vi));
    MUST(VipErrorCallback(opened.nic, NULL, NULL)); /* the library's own handler, which logs */
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    if (is_server)
        wait(NULL);
    return 0;
}
