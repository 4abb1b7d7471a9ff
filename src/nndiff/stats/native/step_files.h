/* The files that a step of a batch reads, mapped while it does. */
#ifndef NNDIFF_STEP_FILES_H
#define NNDIFF_STEP_FILES_H

#include "batch.h"
#include "window.h"

enum {
    FILE_BYTES = 1 << 26, /* of a step: what is mapped counts as memory of the process */
    MOST_FILES = 80,      /* the others are read */
};

typedef struct {
    Window window[MOST_FILES];
    int count;
} Windows;

int64_t bytes_in_files(const Batch *, const Task *);

/* Map what the tasks from the next one to `end` read, as far as that is worth it. */
void open_windows(Batch *, size_t end, Windows *);

/* Let go of it; the items whose bytes could not be read get an error. */
void close_windows(Batch *, size_t end, Windows *);

#endif
