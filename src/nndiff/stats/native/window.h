/* A part of a file, mapped into memory: reading it costs no copy. */
#ifndef NNDIFF_WINDOW_H
#define NNDIFF_WINDOW_H

#include <stdint.h>

typedef struct {
    int fd;
    int64_t from, to; /* bytes of the file */
    char *bytes;      /* where the first of them is; NULL: it is not mapped */
    int slot;         /* in the list of what is mapped */
} Window;

/* Map these bytes where that is worth it and the page cache holds them: others are better read ahead. `bytes` stays NULL
   where they are not mapped. */
void window_open(Window *, int fd, int64_t from, int64_t to);

/* Let go of it. Return the first byte that could not be read, zeros stood in for it and what followed, and why: -1, the file
   became shorter, or an errno; return -1 where there is none. */
int64_t window_close(Window *, int *why);

#endif
