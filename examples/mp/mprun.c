/* mprun: starts the processes of a job.
 *
 *     mprun [-d DEVICE] [-n COUNT] PROGRAM [ARGUMENTS]
 *     mprun [-d DEVICE] -H HOST,HOST,... -f FIRST -n COUNT -j JOB PROGRAM [ARGUMENTS]
 *
 * The first form starts COUNT ranks here, 2 by default. The second is called once on each host: -H names the host of every rank, as the name
 * service knows it; ranks FIRST to FIRST + COUNT - 1 start here; JOB is one hexadecimal number for all of these calls. When a rank fails the
 * others on this host are ended, and ranks on other hosts see that it has gone. */

#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 4096 };

static pid_t ranks[RANKS_MAX];

static void usage(void)
{
    fprintf(stderr, "usage: mprun [-d DEVICE] [-n COUNT] [-H HOST,HOST,... -f FIRST -j JOB] PROGRAM [ARGUMENTS]\n");
    exit(2);
}

static void set(const char *name, const char *format, long value)
{
    char text[32];
    snprintf(text, sizeof text, format, value);
    setenv(name, text, 1);
}

/* Starts one rank, which ends with this process. */
static pid_t start(int rank, char **program)
{
    pid_t parent = getpid(), pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    set("MP_RANK", "%ld", rank);
    execvp(program[0], program);
    perror(program[0]);
    _exit(127);
}

int main(int argc, char **argv)
{
    int count = 2, first = 0, size, left, letter, i, status, failed = 0;
    const char *hosts = "", *host;
    long job = (long)getpid();

    setenv("MP_DEVICE", "/dev/via_lo", 0);
    while ((letter = getopt(argc, argv, "+d:n:H:f:j:")) != -1) {
        switch (letter) {
        case 'd': setenv("MP_DEVICE", optarg, 1); break;
        case 'n': count = atoi(optarg); break;
        case 'H': hosts = optarg; break;
        case 'f': first = atoi(optarg); break;
        case 'j': job = strtol(optarg, NULL, 16); break;
        default: usage();
        }
    }
    size = hosts[0] == '\0' ? count : 1;
    for (host = hosts; *host != '\0'; host++)
        size += *host == ',';
    if (optind == argc || count < 1 || first < 0 || first + count > size || size > RANKS_MAX)
        usage();
    set("MP_SIZE", "%ld", size);
    set("MP_JOB", "%lx", job);
    setenv("MP_HOSTS", hosts, 1);
    for (i = 0; i < count; i++)
        ranks[i] = start(first + i, argv + optind);

    for (left = count; left > 0; left--) {
        pid_t ended = wait(&status);
        int good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        for (i = 0; i < count; i++) {
            if (ranks[i] == ended) {
                ranks[i] = 0;
                if (!good && !failed)
                    fprintf(stderr, "mprun: rank %d failed; the job ends\n", first + i);
            }
        }
        for (i = 0; !good && i < count; i++)
            if (ranks[i] > 0)
                kill(ranks[i], SIGTERM);
        failed |= !good;
    }
    return failed;
}
