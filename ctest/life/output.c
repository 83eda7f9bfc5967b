/* Standard descriptors that are not there, or that no process reads.
 *
 *   output [-d DEVICE] closed SUBSET     started again without the descriptors of the bits 1, 2, 4; its data files get them
 *   output [-d DEVICE] later SUBSET      the same, closed after the library has written its first line
 *   output [-d DEVICE] broken|full|socket|devfull
 *
 * Prints to the descriptor in $LIFE_RESULT. */
#include "common.h"

#include <fcntl.h>
#include <sys/stat.h>

static void use(const char *device)
{
    struct node node;
    VIP_VI_HANDLE a, b;
    VIP_DESCRIPTOR *in, *out, *found;
    VIP_NIC_ATTRIBUTES attributes;
    VIP_NIC_HANDLE none;
    int i;

    VipOpenNic((const VIP_CHAR *)"nosuch", &none);
    open_node(&node, device, 1 << 18);
    a = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    b = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    join_vis(&node, a, &node, b);
    in = take_descriptor(&node, 1);
    out = take_descriptor(&node, 1);
    post_recv(&node, a, in, NULL, 0);
    post_send(&node, b, out, NULL, 0);
    CHECK_EQ(send_wait(b, &found), VIP_SUCCESS, "a send");
    CHECK_EQ(recv_wait(a, &found), VIP_SUCCESS, "a receive");
    for (i = 0; i < 50; i++)
        VipQueryNic(NULL, &attributes); /* lines of the log */
    end_vi(a);
    end_vi(b);
    close_node(&node);
}

static void say(const char *text)
{
    const char *number = getenv("LIFE_RESULT");

    if (number != NULL && write(atoi(number), text, strlen(text)) < 0)
        _exit(5);
}

/* Closes descriptors, and has files of the program take their numbers. */
static void replace(int subset, int *files)
{
    char name[] = "/tmp/life-output-XXXXXX";
    int fd, i;

    for (i = 0; i < 3; i++)
        if (subset & 1 << i)
            close(i);
    for (i = 0; i < 3; i++)
        if (files != NULL && subset & 1 << i) {
            strcpy(name + sizeof name - 7, "XXXXXX");
            fd = mkstemp(name);
            unlink(name);
            if (fd != i)
                _exit(6);
        }
}

static int empty(int subset)
{
    struct stat file;
    int i;

    for (i = 0; i < 3; i++)
        if (subset & 1 << i && (fstat(i, &file) != 0 || !S_ISREG(file.st_mode) || file.st_size != 0))
            return 0;
    return 1;
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    const char *what = options.words > 0 ? options.word[0] : "";
    int subset = options.words > 1 ? atoi(options.word[1]) : 0, dummy, ends[2];

    alarm(60);
    if (strcmp(what, "closed") == 0 && getenv("LIFE_AGAIN") == NULL) {
        setenv("LIFE_AGAIN", "1", 1);
        replace(subset, NULL);
        execv("/proc/self/exe", options.arguments);
        _exit(8);
    }
    if (strcmp(what, "closed") == 0) {
        replace(subset, &dummy);
        use(options.device);
        if (!empty(subset))
            _exit(9);
    } else if (strcmp(what, "later") == 0) {
        use(options.device);
        replace(subset, &dummy);
        use(options.device);
        if (!empty(subset))
            _exit(9);
    } else {
        if (strcmp(what, "socket") == 0) {
            if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
                _exit(2);
        } else if (pipe(ends) != 0) {
            _exit(2);
        }
        dup2(strcmp(what, "devfull") == 0 ? open("/dev/full", O_WRONLY) : ends[1], 2);
        if (strcmp(what, "full") == 0) {
            fcntl(2, F_SETFL, O_NONBLOCK);
            while (write(2, "full full full full full full full\n", 35) > 0)
                ;
            fcntl(2, F_SETFL, 0);
        } else {
            close(ends[0]);
        }
        close(ends[1]);
        if (getenv("LIFE_AGAIN") == NULL) { /* what the library finds when it is loaded */
            setenv("LIFE_AGAIN", "1", 1);
            execv("/proc/self/exe", options.arguments);
        }
        use(options.device);
    }
    say("ok: written nowhere\n");
    _exit(0);
}
