/* Threads that share numbered tasks. */
#ifndef NNDIFF_CREW_H
#define NNDIFF_CREW_H

#include <stddef.h>

enum { CREW_MOST = 8 }; /* threads */

typedef void (*CrewTask)(void *context, size_t number);

/* Do tasks 0 to count - 1 on so many threads, each once and in any order; return 0 without memory, and nothing is done. */
int crew_run(CrewTask, void *context, size_t count, int threads);

#endif
