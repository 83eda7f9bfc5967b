/* The two of a pair of ranks meet as peers, under a name that is made of the job and both ranks. */

#define _POSIX_C_SOURCE 200809L
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vipl_ext.h>
#include "job.h"

enum {
    PATIENCE = 60,   /* seconds for all ranks to appear */
    RANKS_MAX = 4096 /* three hexadecimal digits of a discriminator */
};

/* An address: the lengths, the host's address, the discriminator. VIP_NET_ADDRESS has room for the first byte of these only. */
typedef union {
    VIP_NET_ADDRESS net;
    unsigned char bytes[4 + 16 + 16];
} address;

struct job job;
static const char *hosts; /* of all ranks, separated by commas; none if all are here */
static unsigned long job_number;

void job_fail_with(const char *format, va_list arguments)
{
    static atomic_flag failing = ATOMIC_FLAG_INIT;
    char text[512];

    while (atomic_flag_test_and_set(&failing)) /* another thread ends the process */
        pause();
    vsnprintf(text, sizeof text, format, arguments);
    fprintf(stderr, "rank %d: %s\n", job.rank, text); /* at once: other ranks have the same standard error */
    exit(1);
}

void job_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    job_fail_with(format, arguments);
}

void job_must(VIP_RETURN result, const char *call)
{
    if (result != VIP_SUCCESS)
        job_fail("%s:\n    %s", call, vipl_strerror((int)result));
}

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    if (value == NULL)
        job_fail("%s is not set: start the program by mprun", name);
    return value;
}

void job_open(void)
{
    const char *device = variable("MP_DEVICE");

    hosts = variable("MP_HOSTS");
    job_number = strtoul(variable("MP_JOB"), NULL, 16);
    job.rank = atoi(variable("MP_RANK"));
    job.size = atoi(variable("MP_SIZE"));
    if (job.size < 1 || job.size > RANKS_MAX || job.rank < 0 || job.rank >= job.size)
        job_fail("MP_RANK and MP_SIZE are no rank of a job");
    MUST(VipOpenNic(device, &job.nic));
    MUST(VipQueryNic(job.nic, &job.attributes));
    MUST(VipCreatePtag(job.nic, &job.tag));
    if (hosts[0] != '\0')
        MUST(VipNSInit(job.nic, NULL));
}

void job_close(void)
{
    MUST(VipDestroyPtag(job.nic, job.tag));
    MUST(VipCloseNic(job.nic));
}

/* Where rank `from` meets rank `to`, seen from `from`: on its host, by the name of the pair in this job. */
static address meeting(int from, int to, int number)
{
    const char *its_host = hosts;
    char host[256], name[17];
    address result;
    int skip;

    memset(&result, 0, sizeof result);
    result.net.HostAddressLen = job.attributes.NicAddressLen;
    memcpy(result.bytes + 4, job.attributes.LocalNicAddress, job.attributes.NicAddressLen);
    if (hosts[0] != '\0' && from != job.rank) {
        for (skip = from; skip > 0 && strchr(its_host, ',') != NULL; skip--)
            its_host = strchr(its_host, ',') + 1;
        snprintf(host, sizeof host, "%.*s", (int)strcspn(its_host, ","), its_host);
        MUST(VipNSGetHostByName(job.nic, host, &result.net, 0));
    }
    result.net.DiscriminatorLen = (VIP_UINT16)snprintf(name, sizeof name, "%06lx%03x%03x%x", job_number & 0xffffff,
                                                       (unsigned)from & 0xfff, (unsigned)to & 0xfff, (unsigned)number & 0xf);
    memcpy(result.bytes + 4 + result.net.HostAddressLen, name, result.net.DiscriminatorLen);
    return result;
}

void job_call(VIP_VI_HANDLE vi, int rank, int number)
{
    address here = meeting(job.rank, rank, number), there = meeting(rank, job.rank, number);
    MUST(VipConnectPeerRequest(vi, &here.net, &there.net, PATIENCE * 1000));
}

void job_meet(VIP_VI_HANDLE vi, int rank)
{
    VIP_VI_ATTRIBUTES its_vi;
    if (VipConnectPeerWait(vi, &its_vi) != VIP_SUCCESS)
        job_fail("no connection with rank %d within %d s; has it started, on the same kind of device?", rank, PATIENCE);
}
