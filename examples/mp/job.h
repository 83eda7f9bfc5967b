/* What the ranks of a job share, whatever they say to each other: who they are, and how two of them meet. mp and dsm begin with it.
 *
 * mprun describes the job in the environment. Ranks on other hosts are found by the name service. */

#ifndef JOB_H
#define JOB_H

#include <stdarg.h>
#include <vipl.h>

/* A call that must succeed; otherwise the job ends, with the meaning of its code. */
#define MUST(call) job_must((call), #call)
void job_must(VIP_RETURN result, const char *call);

extern struct job {
    int rank, size;
    VIP_NIC_HANDLE nic;
    VIP_PROTECTION_HANDLE tag;
    VIP_NIC_ATTRIBUTES attributes;
} job;

void job_open(void); /* reads the environment and opens the device */
void job_close(void);

/* Connects a VI with the VI of the same number, 0 to 15, at another rank. All calls come first, and no rank has to be the first;
 * then each is waited for. */
void job_call(VIP_VI_HANDLE vi, int rank, int number);
void job_meet(VIP_VI_HANDLE vi, int rank);

/* Ends this process, and so the job. */
_Noreturn void job_fail(const char *format, ...);
_Noreturn void job_fail_with(const char *format, va_list arguments);

#endif
