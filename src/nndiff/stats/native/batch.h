/* A batch of items, measured in steps by several threads. */
#ifndef NNDIFF_BATCH_H
#define NNDIFF_BATCH_H

#include <sys/types.h>

#include "work.h"

enum { MAX_THREADS = 64 };

typedef enum { ROUND_PILOT, ROUND_FIRST, ROUND_WINDOWS, ROUND_SECOND, ROUND_PICK, ROUND_END } Round;

typedef struct Batch {
    const Kernels *kernels;
    Item *items;
    size_t count;
    int threads;
    Round round;
    Task *tasks; /* of this round, in order */
    size_t task_count, next;
    pthread_mutex_t lock;
    Worker workers[MAX_THREADS];
    int worker_count, no_memory;
    int driven, ended;   /* a thread goes through all steps, while the caller does something else */
    pid_t process;       /* where that thread is: a fork has it not */
    struct Batch *then;  /* what the driver goes on with when this one is done, with the same workers */
    struct Step *open;   /* a step of the driver that the caller may help with */
    int helped;          /* which it does */
    pthread_cond_t change;
    int64_t seen;
} Batch;

int batch_start(Batch *, size_t items, int threads, const Kernels *, int fed);
void batch_stop(Batch *);

/* Tell which tasks come next, up to so many elements: [next, end); no tasks when all is done. */
size_t batch_end_of_step(Batch *, int64_t elements);

/* Run the tasks up to `end`; return the number of elements that were seen for the first time. */
int64_t batch_step(Batch *, size_t end);

/* Run all tasks in a thread of their own, or in that of another batch when it is done with that; 0 where there is none
   to be had. Two at a time would end at a time, and leave nothing to do for the machine while their results are made. */
int batch_begin(Batch *, Batch *after);

/* Tell whether that thread was left behind in the process this one was forked from. */
int batch_is_lost(const Batch *);

/* Wait for that thread, and help it meanwhile; return the number of elements that were seen. */
int64_t batch_wait(Batch *);

#endif
