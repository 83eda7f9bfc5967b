/* The plug-in `wrong`: the example with three faults that nothing notices but a test of what it does. It lies between the
 * example and the library: a wrong status (1), wrong immediate data (2), a byte that is not stored (4). Others are worse:
 * it stops (8), it crashes (16), it leaves a process outside of its group and session (32), whose number it writes into $WRONG_PID.
 * And its constructor may not return (64). */
#ifndef FAULTS
#define FAULTS 7
#endif

#define vipl_plugin_v1 example_plugin
#include "../../examples/plugin.c"
#undef vipl_plugin_v1

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const vipl_host *library;
static vipl_host between;

/* An operation that the device does not have is a length error. */
static void wrong_refuse(vipl_vi *vi, vipl_queue *queue, uint32_t status)
{
    if (FAULTS & 1 && status & VIP_STATUS_FORMAT_ERROR)
        status ^= VIP_STATUS_FORMAT_ERROR | VIP_STATUS_LENGTH_ERROR;
    library->refuse(vi, queue, status);
}

/* Immediate data is one more than it was. */
static bool wrong_complete(vipl_vi *vi, vipl_queue *queue, uint32_t status, uint32_t length, uint32_t immediate)
{
    return library->complete(vi, queue, status, length, immediate + (FAULTS & 2 && status & VIP_STATUS_IMMEDIATE ? 1 : 0));
}

/* A process outside of the program's group, session and descendants. */
static void leave_a_process(void)
{
    static int left;
    const char *name = getenv("WRONG_PID");
    FILE *file = left++ == 0 && name != NULL ? fopen(name, "w") : NULL;
    int number;

    if (file == NULL || fork() != 0)
        return;
    setsid();
    if (fork() != 0)
        _exit(0);
    fprintf(file, "%d\n", (int)getpid());
    fclose(file);
    for (number = 0; number < 3; number++)
        close(number);
    sleep(1000);
    _exit(0);
}

__attribute__((constructor)) static void construct(void)
{
    while (FAULTS & 64)
        pause();
}

static void be_worse(void)
{
    if (FAULTS & 32)
        leave_a_process();
    if (FAULTS & 16)
        abort();
    while (FAULTS & 8)
        pause();
}

/* The last byte of a long message is not stored. */
static bool wrong_scatter(vipl_vi *vi, const vipl_request *request, uint32_t offset, const void *from, uint32_t bytes)
{
    be_worse();
    return library->scatter(vi, request, offset, from, FAULTS & 4 && bytes > 4096 ? bytes - 1 : bytes);
}

static int wrong_init(const vipl_host *given, vipl_provider *out)
{
    library = given;
    memcpy(&between, given, sizeof between < given->size ? sizeof between : given->size);
    between.refuse = wrong_refuse;
    between.complete = wrong_complete;
    between.scatter = wrong_scatter;
    return init(&between, out);
}

extern const vipl_plugin vipl_plugin_v1;
const vipl_plugin vipl_plugin_v1 = {
    .magic = VIPL_PLUGIN_MAGIC,
    .size = sizeof(vipl_plugin),
    .abi_major = VIPL_PLUGIN_ABI_MAJOR,
    .abi_minor = VIPL_PLUGIN_ABI_MINOR,
    .fingerprint = VIPL_PLUGIN_FINGERPRINT,
    .kind = VIPL_KIND_PROVIDER,
    .name = "wrong",
    .version = "1.0",
    .init = wrong_init,
};
