/* Makes the two sides of a C test run on two hosts. Loaded before everything else, it brings a program into
 * one network namespace and its first child into another, and tells the child which agent serves that
 * host. The program knows nothing of it.
 *
 *   APART_HERE    file of the program's namespace
 *   APART_THERE   file of the child's namespace; without it the child stays
 *   APART_AGENT   socket of the agent there
 *   APART_SETTING_THERE  NAME=VALUE, a setting of the child only
 *   APART_USER    number of the user and group that the program becomes, without privileges
 *   APART_USER_THERE  the same for the child
 */
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
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

/* Becomes the user of this variable. `saved` 0: the way back stays open, for children that enter another namespace. */
static void become(const char *variable, int saved)
{
    const char *user = getenv(variable);
    unsigned id = user != NULL ? (unsigned)atoi(user) : 0;

    if (user == NULL)
        return;
    if (seteuid(0) != 0 || setgroups(0, NULL) != 0 || setresgid(id, id, id) != 0
        || setresuid(id, id, saved ? id : 0) != 0) {
        perror("FAIL apart: setresuid");
        _exit(1);
    }
    /* As of a program that this user has started. */
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

__attribute__((constructor)) static void start(void)
{
    enter("APART_HERE");
    become("APART_USER", getenv("APART_THERE") == NULL);
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
    if (getenv("APART_USER") != NULL && seteuid(0) != 0)
        _exit(1);
    enter("APART_THERE");
    become("APART_USER_THERE", 1);
    setenv("VIPL_AGENT", getenv("APART_AGENT"), 1);
    if (getenv("APART_SETTING_THERE") != NULL)
        putenv(getenv("APART_SETTING_THERE"));
    return child;
}
