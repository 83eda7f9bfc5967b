/* How a program tells `refusing` where to count: by a system call without effect. */
#ifndef CTEST_MARKS_H
#define CTEST_MARKS_H

#define COUNT_FROM_HERE 0x7EAD0001
#define COUNT_NO_MORE 0x7EAD0002

#endif
