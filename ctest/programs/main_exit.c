/* The main thread ends by pthread_exit. The process ends with the last thread of the program, and can be interrupted:
 * threads of the library neither keep it alive nor keep signals from it. Each case is a process of its own. */
#include "common.h"

#include <dirent.h>

static const char *device;

/* Threads of this process. */
static int threads(void)
{
    DIR *folder = opendir("/proc/self/task");
    int count = 0;

    CHECK(folder != NULL, "opendir");
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count - 2;
}

/* Some devices end a thread a moment after the NIC. */
static void only(int expected, const char *id)
{
    double begun = now_ms();

    while (threads() != expected) {
        CHECK(now_ms() - begun < (double)PATIENCE, id);
        sleep_ms(1);
    }
}

static VIP_NIC_HANDLE opened(void)
{
    VIP_NIC_HANDLE nic;

    CHECK_RETURN(VipOpenNic(device, &nic), VIP_SUCCESS, "main_exit: VipOpenNic");
    return nic;
}

/* No thread is left without a NIC, however often one is opened. */
static void *closes(void *nothing)
{
    VIP_NIC_HANDLE one, other;
    int i;

    for (i = 0; i < 20; i++) {
        one = opened();
        CHECK(threads() > 2, "main_exit: a device has threads");
        other = opened();
        MUST(VipCloseNic(one));
        MUST(VipCloseNic(other));
        only(2, "main_exit: no thread without a NIC");
    }
    return nothing;
}

/* The program closes nothing. */
static void *leaves(void *nothing)
{
    opened();
    return nothing;
}

static void ignore(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context;
    (void)error;
}

/* The program may go on in its handlers: the process stays. */
static void *handles(void *nothing)
{
    MUST(VipErrorCallback(opened(), NULL, ignore));
    return nothing;
}

/* Waits until the threads of the program in a process have ended: the first one is a zombie, the library has named all
 * others. */
static void await_end_of_program(pid_t process)
{
    double begun = now_ms();
    char path[64], name[32];
    struct dirent *entry;
    int left;

    do {
        CHECK(now_ms() - begun < (double)PATIENCE, "main_exit: the threads of the program end");
        sleep_ms(1);
        snprintf(path, sizeof path, "/proc/%d/task", (int)process);
        DIR *folder = opendir(path);
        CHECK(folder != NULL, "opendir");
        for (left = 0; (entry = readdir(folder)) != NULL;) {
            FILE *file;

            if (entry->d_name[0] == '.' || atoi(entry->d_name) == process)
                continue;
            snprintf(path, sizeof path, "/proc/%d/task/%.20s/comm", (int)process, entry->d_name);
            file = fopen(path, "r");
            left += file == NULL || fgets(name, sizeof name, file) == NULL || strncmp(name, "vipl-", 5) != 0;
            if (file != NULL)
                fclose(file);
        }
        closedir(folder);
        snprintf(path, sizeof path, "/proc/%d/exe", (int)process);
    } while (left > 0 || readlink(path, name, sizeof name) >= 0);
}

static pid_t start(void *(*body)(void *))
{
    pid_t child = fork_child();

    if (child == 0) {
        start_thread(body, NULL);
        pthread_exit(NULL);
    }
    return child;
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    double begun;
    pid_t child;
    int status;

    device = options.device;
    reap(start(closes));
    ok("a process that has closed everything ends with its last thread");
    reap(start(leaves));
    ok("and one that has not");
    child = start(handles);
    await_end_of_program(child);
    CHECK_EQ(waitpid(child, &status, WNOHANG), 0, "main_exit: it may go on in its handler");
    begun = now_ms();
    /* The first ones wait until the threads of the library have noticed that they are alone. */
    while (waitpid(child, &status, WNOHANG) == 0) {
        CHECK(now_ms() - begun < (double)PATIENCE, "main_exit: SIGTERM ends it");
        kill(child, SIGTERM);
        sleep_ms(10);
    }
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "main_exit: SIGTERM ends it");
    ok("one with a handler can be interrupted");
    return 0;
}
