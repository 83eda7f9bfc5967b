/* reply: the server of lesson 1 answers. */

#include <ctype.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../example.h"

/* One descriptor and one buffer for each direction: while one is posted, the other is ours. */
static struct {
    VIP_DESCRIPTOR receive, send;
    char in[64], out[64];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static void serve(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;
    size_t i, length;

    describe(&m.receive, m.in, memory, sizeof m.in);
    MUST(VipPostRecv(vi, &m.receive, memory));
    accept_client(opened, vi, "reply");
    MUST(VipRecvWait(vi, VIP_INFINITE, &done));
    length = done->CS.Length;
    for (i = 0; i < length; i++)
        m.out[i] = (char)toupper((unsigned char)m.in[i]);
    describe(&m.send, m.out, memory, length);
    post_and_wait(vi, &m.send, memory);
}

static void call(device *opened, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;

    /* Before the question is sent, not after: the answer may be faster than this process. */
    describe(&m.receive, m.in, memory, sizeof m.in);
    MUST(VipPostRecv(vi, &m.receive, memory));
    connect_server(opened, vi, "reply");
    strcpy(m.out, "is anybody there?");
    describe(&m.send, m.out, memory, strlen(m.out) + 1);
    post_and_wait(vi, &m.send, memory);
    MUST(VipRecvWait(vi, VIP_INFINITE, &done));
    printf("%s %s\n", m.out, m.in);
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
