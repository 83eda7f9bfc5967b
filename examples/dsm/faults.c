/* By which method page faults come: DSM_FAULTS=signal or userfaultfd in the environment, or the first that works.
 *
 * A signal takes two thirds of the time of a userfaultfd, which wakes a thread and waits for it. But each run of pages with the same rights is a mapping
 * of its own to the kernel, of which a process has some 65000: larger memory goes by userfaultfd. */

#include <stdlib.h>
#include <string.h>
#include "state.h"

enum { MAPPINGS = 60000 };

const fault_method *faults;

void faults_open(void)
{
    const fault_method *const methods[] = {&by_signal, &by_userfaultfd};
    const char *wanted = getenv("DSM_FAULTS");
    int first = memory.pages > MAPPINGS, i;

    for (i = 0; i < 2; i++) {
        faults = methods[(first + i) % 2];
        if (wanted != NULL && strcmp(wanted, faults->name) != 0)
            continue;
        if (faults->open())
            return;
        if (wanted != NULL)
            job_fail("DSM_FAULTS=%s: this system does not permit it", wanted);
    }
    if (wanted == NULL)
        job_fail("this system permits neither page faults by signal nor by userfaultfd");
    job_fail("DSM_FAULTS=%s: it is signal or userfaultfd", wanted);
}
