/* The plug-in `failing`: the example, with a device that fails for good when the test says so. It says so by
 * making the file `$FAILING_WHEN.PID`, for the process with that id. */
#define vipl_plugin_v1 example_plugin
#include "../../examples/plugin.c"
#undef vipl_plugin_v1

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* One for each process is enough for the test. */
static struct {
    vipl_nic *nic;
    pthread_t thread;
    int stop;
} watched;

static void *wait_for_the_end(void *argument)
{
    static const struct timespec pause = {0, 1000000};
    const char *when = getenv("FAILING_WHEN");
    char path[512];

    (void)argument;
    snprintf(path, sizeof path, "%s.%d", when != NULL ? when : "/nowhere", (int)getpid());
    while (!__atomic_load_n(&watched.stop, __ATOMIC_ACQUIRE)) {
        if (access(path, F_OK) == 0) {
            host->catastrophe(watched.nic);
            host->catastrophe(watched.nic); /* once is enough; a second time changes nothing */
            break;
        }
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static int failing_open(const char *argument, vipl_nic *nic, vipl_nic_info *info)
{
    sigset_t all, before;
    int status = nic_open(argument, nic, info);

    if (status != VIPL_OK)
        return status;
    watched.nic = nic;
    watched.stop = 0;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    status = pthread_create(&watched.thread, NULL, wait_for_the_end, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status == 0 ? VIPL_OK : VIPL_E_RESOURCE;
}

static void failing_close(vipl_nic *nic)
{
    (void)nic;
    __atomic_store_n(&watched.stop, 1, __ATOMIC_RELEASE);
    pthread_join(watched.thread, NULL);
}

static int failing_init(const vipl_host *given, vipl_provider *out)
{
    int status = init(given, out);

    out->device = NULL;
    out->nic_open = failing_open;
    out->nic_close = failing_close;
    return status;
}

extern const vipl_plugin vipl_plugin_v1;
const vipl_plugin vipl_plugin_v1 = {
    .magic = VIPL_PLUGIN_MAGIC,
    .size = sizeof(vipl_plugin),
    .abi_major = VIPL_PLUGIN_ABI_MAJOR,
    .abi_minor = VIPL_PLUGIN_ABI_MINOR,
    .fingerprint = VIPL_PLUGIN_FINGERPRINT,
    .kind = VIPL_KIND_PROVIDER,
    .name = "failing",
    .version = "1.0",
    .init = failing_init,
};
