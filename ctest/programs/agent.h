/* An agent that a program starts itself, to do something to it. */
#ifndef CTEST_AGENT_H
#define CTEST_AGENT_H

#include "common.h"

#include <sys/un.h>

/* Starts an agent; comes back when it answers. */
static inline pid_t start_agent(const char *program, const char *path)
{
    struct sockaddr_un there;
    double begun = now_ms();
    pid_t pid = fork_child();
    int end;

    if (pid == 0) {
        execl(program, program, "--socket", path, "--idle-ms", "0", (char *)NULL);
        _exit(127);
    }
    memset(&there, 0, sizeof there);
    there.sun_family = AF_UNIX;
    snprintf(there.sun_path, sizeof there.sun_path, "%s", path);
    for (;;) {
        end = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        CHECK(end >= 0, "socket");
        if (connect(end, (struct sockaddr *)(void *)&there, sizeof there) == 0)
            break;
        close(end);
        CHECK(now_ms() - begun < (double)PATIENCE, "an agent that answers");
        sleep_ms(1);
    }
    close(end);
    return pid;
}

static inline void end_child(pid_t pid, int signal)
{
    int status = 0;

    CHECK_EQ(kill(pid, signal), 0, "kill");
    CHECK_EQ(waitpid(pid, &status, 0), pid, "waitpid");
    if (signal == SIGKILL)
        CHECK(WIFSIGNALED(status), "it was killed and did not end by itself");
}

#endif
