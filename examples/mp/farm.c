/* farm: rank 0 gives out tasks to workers that are free, and takes results from any source. The tag tells what a message is; a result may
 * be longer than the task. */

#include <stdio.h>
#include <stdlib.h>
#include "mp.h"

enum { TASKS = 300, MOST = 3000 }; /* a result has up to this many numbers */
enum { TASK = 1, RESULT = 2, END = 3 };

/* Numbers in the result of a task. */
static int length_of(int task)
{
    return (task * 37) % MOST + 1;
}

static void work(int *result)
{
    mp_status status;
    int task, i;

    for (;;) {
        mp_receive(&task, sizeof task, 0, MP_ANY, &status);
        if (status.tag == END)
            return;
        for (i = 0; i < length_of(task); i++)
            result[i] = task * i;
        result[0] = task;
        mp_send(result, (size_t)length_of(task) * sizeof *result, 0, RESULT);
    }
}

static void give_out(int *result)
{
    int given = 0, back = 0, end = 0, i, r;
    mp_status status;

    for (r = 1; r < mp_size() && given < TASKS; r++, given++)
        mp_send(&given, sizeof given, r, TASK);
    while (back < given) {
        mp_receive(result, MOST * sizeof *result, MP_ANY, RESULT, &status);
        if (status.bytes != (size_t)length_of(result[0]) * sizeof *result)
            mp_fail("the result of task %d has %zu bytes", result[0], status.bytes);
        for (i = 1; i < length_of(result[0]); i++)
            if (result[i] != result[0] * i)
                mp_fail("the result of task %d is wrong", result[0]);
        back++;
        if (given < TASKS) {
            mp_send(&given, sizeof given, status.source, TASK);
            given++;
        }
    }
    for (r = 1; r < mp_size(); r++)
        mp_send(&end, sizeof end, r, END);
    printf("farm: %d results of %d workers\n", back, mp_size() - 1);
}

int main(void)
{
    int *result = malloc(MOST * sizeof *result);

    mp_start();
    if (result == NULL)
        mp_fail("no memory");
    if (mp_rank() == 0)
        give_out(result);
    else
        work(result);
    mp_finish();
    free(result);
    return 0;
}
