/* hangs: a client sends orders, and its server confirms them, until both stand still.
 *
 * Planted for the chapter "From a symptom to its cause" (DIAGNOSIS.md), which finds the mistake. */

#include <unistd.h>
#include "../example.h"

enum { ORDERS = 100, CLIENT_WINDOW = 8, SERVER_WINDOW = 10, RECEIVES = 16 };

static struct {
    VIP_DESCRIPTOR in[RECEIVES], out;
    char order[RECEIVES][64], sent[64];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

static VIP_MEM_HANDLE memory;

static void send_text(VIP_VI_HANDLE vi, const char *text)
{
    strcpy(m.sent, text);
    describe(&m.out, m.sent, memory, strlen(text) + 1);
    post_and_wait(vi, &m.out, memory);
}

/* Takes the next message, and posts its descriptor again. */
static void receive(VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *done;
    int which;

    MUST(VipRecvWait(vi, VIP_INFINITE, &done));
    which = (int)(done - m.in);
    describe(done, m.order[which], memory, sizeof m.order[which]);
    MUST(VipPostRecv(vi, done, memory));
}

int main(int argc, char **argv)
{
    int is_server = fork() != 0, i;
    device opened = open_device(device_name(argc, argv));
    VIP_VI_HANDLE vi = create_vi(&opened, NULL);

    memory = register_memory(&opened, &m, sizeof m, LOCAL);
    for (i = 0; i < RECEIVES; i++) {
        describe(&m.in[i], m.order[i], memory, sizeof m.order[i]);
        MUST(VipPostRecv(vi, &m.in[i], memory));
    }
    if (is_server) {
        accept_client(&opened, vi, "hangs");
        for (i = 1; i <= ORDERS; i++) {
            receive(vi);
            if (i % SERVER_WINDOW == 0)
                send_text(vi, "confirmed");
        }
    } else {
        connect_server(&opened, vi, "hangs");
        for (i = 1; i <= ORDERS; i++) {
            send_text(vi, "an order");
            if (i % CLIENT_WINDOW == 0)
                receive(vi);
        }
    }
    puts("all orders are confirmed");
    return 0;
}
