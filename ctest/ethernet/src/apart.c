/* Makes the two sides of a C test run on two hosts. Loaded before everything else, it brings a program into
 * one network namespace and its first child into another, and tells the child which agent serves that
 * host. The program knows nothing of it.
 *
 *   APART_HERE    file of the program's namespace
 *   APART_THERE   file of the child's namespace; without it the child stays
 *   APART_AGENT   socket of the agent there
 */
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int apart;

static void enter(const char *variable)
{
    int file = open(getenv(variable), O_RDONLY | O_CLOEXEC);

    if (file < 0 || setns(file, CLONE_NEWNET) != 0) {
        perror("FAIL apart: setns");
        _exit(1);
    }
    close(file);
}

__attribute__((constructor)) static void start(void)
{
    enter("APART_HERE");
}

pid_t fork(void)
{
    pid_t (*next)(void);
    pid_t child;

    *(void **)&next = dlsym(RTLD_NEXT, "fork");
    child = next();
    if (child != 0 || apart || getenv("APART_THERE") == NULL)
        return child;
    apart = 1;
    enter("APART_THERE");
    setenv("VIPL_AGENT", getenv("APART_AGENT"), 1);
    return child;
}
