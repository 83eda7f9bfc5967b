/* reconnect: a client that outlives its server.
 *
 * The server is killed in the middle of its work, twice, and started again. The client sees a failed descriptor, takes its VI back by
 * VipDisconnect, connects again and repeats the question that was not answered. `reconnect DEVICE` uses another device than
 * /dev/via_lo. */

#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "example.h"

enum { QUESTIONS = 60, BETWEEN_KILLS = 20, ATTEMPTS = 200 };

static struct {
    VIP_DESCRIPTOR receive, send;
    VIP_UINT32 question, answer;
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

/* Answers each number by its square, until it is killed or the client leaves. */
static void serve(const char *name)
{
    device opened = open_device(name);
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, LOCAL);
    VIP_VI_HANDLE vi = create_vi(&opened, NULL);
    VIP_DESCRIPTOR *done;

    describe(&m.receive, &m.question, memory, sizeof m.question);
    MUST(VipPostRecv(vi, &m.receive, memory));
    accept_client(&opened, vi, "reconnect");
    while (VipRecvWait(vi, VIP_INFINITE, &done) == VIP_SUCCESS) {
        m.answer = m.question * m.question;
        MUST(VipPostRecv(vi, &m.receive, memory));
        describe(&m.send, &m.answer, memory, sizeof m.answer);
        post_and_wait(vi, &m.send, memory);
    }
    exit(0);
}

static pid_t start_server(const char *name)
{
    pid_t pid = fork();
    if (pid == 0)
        serve(name);
    return pid;
}

/* Connects, also with a server that is only starting. */
static void connect_again(device *opened, VIP_VI_HANDLE vi)
{
    address server = address_of(opened->nic, "reconnect");
    struct timespec pause = {0, 50000000};
    VIP_VI_ATTRIBUTES its_vi;
    VIP_RETURN result = VIP_NO_MATCH;
    int attempt;

    for (attempt = 0; attempt < ATTEMPTS; attempt++) {
        result = VipConnectRequest(vi, &server.net, &server.net, 5000, &its_vi);
        if (result == VIP_SUCCESS)
            return;
        nanosleep(&pause, NULL);
    }
    MUST(result);
}

/* Asks one question; false if the connection is lost. */
static int ask(VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory, VIP_UINT32 number)
{
    VIP_DESCRIPTOR *done;

    m.question = number;
    describe(&m.receive, &m.answer, memory, sizeof m.answer);
    describe(&m.send, &m.question, memory, sizeof m.question);
    if (VipPostRecv(vi, &m.receive, memory) != VIP_SUCCESS || VipPostSend(vi, &m.send, memory) != VIP_SUCCESS ||
        VipSendWait(vi, VIP_INFINITE, &done) != VIP_SUCCESS)
        return 0;
    return VipRecvWait(vi, VIP_INFINITE, &done) == VIP_SUCCESS;
}

/* The connection's end is no surprise here: the failed descriptors report it. */
static void ignore(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context, (void)error;
}

int main(int argc, char **argv)
{
    const char *name = device_name(argc, argv);
    /* Each process opens its own NIC, also one that is forked later: it inherits no object of the library. */
    pid_t server = start_server(name);
    device opened = open_device(name);
    VIP_MEM_HANDLE memory = register_memory(&opened, &m, sizeof m, LOCAL);
    VIP_VI_HANDLE vi = create_vi(&opened, NULL);
    VIP_UINT32 number = 1;
    int connections = 0, status;

    MUST(VipErrorCallback(opened.nic, NULL, ignore));
    while (number <= QUESTIONS) {
        connect_again(&opened, vi);
        connections++;
        while (number <= QUESTIONS && ask(vi, memory, number)) {
            if (m.answer != number * number) {
                fprintf(stderr, "%u squared is not %u\n", (unsigned)number, (unsigned)m.answer);
                return 1;
            }
            if (number % BETWEEN_KILLS == 0 && number < QUESTIONS) {
                kill(server, SIGKILL);
                waitpid(server, &status, 0);
                server = start_server(name);
            }
            number++;
        }
        MUST(VipDisconnect(vi));
        drain(vi); /* what the failure has flushed */
    }
    printf("%d answers over %d connections\n", QUESTIONS, connections);
    waitpid(server, &status, 0);
    MUST(VipErrorCallback(opened.nic, NULL, NULL));
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(opened.nic, &m, memory));
    close_device(&opened);
    return status;
}
