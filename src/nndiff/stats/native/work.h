/* Items (pairs to measure), the workers that go over their chunks, and what each keeps of the distances. */
#ifndef NNDIFF_WORK_H
#define NNDIFF_WORK_H

#include <pthread.h>
#include <stdatomic.h>

#include "native.h"
#include "select.h"
#include "state.h"

/* Shifts that leave 7 or 10 bits of mantissa. */
enum { COARSE = 16, FINE = 13, WIDE_COARSE = 45, WIDE_FINE = 42 };

enum {
    GROUPS = 8,
    FLOAT_KEYS = 0x7F80, /* finite floats by their upper 16 bits */
    GATHERED = 1 << 21,  /* elements of all windows that are held */
};

/* Where the elements of one side are: in memory, or in a file. */
typedef struct {
    Type type;
    int fd;           /* -1: in memory */
    int64_t place;    /* address or offset of element 0 */
    int64_t mapped;   /* address of the file's byte 0, if it is mapped that far; 0: it is to be read */
    atomic_int cold;  /* the file is not in the page cache: ask for it ahead */
} Side;

/* Which elements are being looked at, and for what. */
typedef enum { PILOT, FIRST, WINDOWS, SECOND } Stage;

/* How the percentiles of |d| are found. */
typedef enum {
    KEEP,    /* one chunk: keep every distance, then select */
    GATHER,  /* count all by their leading bits, look again at the bins that hold a percentile */
    BRACKET, /* a pilot tells about where they are; count at those edges, sample between them; gather what is in doubt */
    COUNT,   /* count all by more leading bits: 0.05 % */
} Mode;

/* Distances counted by the leading bits of a float (narrow) or a double (wide). */
typedef struct {
    int shift, wide;
    int64_t bins, low, high; /* nothing was counted outside of [low, high], but for zeros */
    int64_t total;           /* finite ones */
    uint64_t *count;
} Histogram;

/* Where a percentile is by the pilots: between the keys `from` and `to`, most likely right at an edge. */
typedef struct {
    int edge;  /* number of the edge, -1: none, as the percentile is zero */
    int edges; /* more where values repeat: both ends of the likeliest key, and maybe of the next one */
    int64_t from, to;
} Near;

/* What is known of the distances of a pair that is larger than a chunk. */
typedef struct {
    Histogram total, group[GROUPS];
    Brackets brackets;
    int64_t at_or_above[EDGES];        /* each edge */
    Near near[QUANTILES];
    Span between[QUANTILES];           /* the brackets by the bits of floats; they may overlap */
    size_t take;                       /* distances sampled of each block */
    int64_t seen, sampled;             /* distances in the blocks that were sampled, and samples */
    double drawn[QUANTILES];           /* samples in each bracket */
    double apart[QUANTILES];           /* squares of how many more of them one half of a chunk's pieces holds */
    double value[RANKS];               /* by the samples */
    Span window[QUANTILES];            /* where they cannot tell; else empty */
    int64_t above[QUANTILES];          /* the start of each window, or there */
    int overflowed;                    /* there was more in the windows than is held */
    double *sample;                    /* gathered or sampled distances */
    size_t samples, room, expected;
    int64_t rank[RANKS]; /* inside of its bin */
    int64_t bin[RANKS];  /* that holds a percentile; -1: it is zero */
} Tally;

typedef struct {
    Side ref, cand;
    int64_t count;
    Tolerance tolerance;
    int narrow, fused, same, whole;
    Mode mode;
    Stage stage;
    State state;
    Survey known; /* of what is merged so far: a start for the next chunks */
    Tally *tally; /* none where every distance is kept */
    int looks_again, no_memory;
    int error, error_side;
} Item;

enum { PLAIN = -1, SAMPLED_ONLY = -2 /* a pilot again: it is counted, but not sampled yet */ };

typedef struct {
    int item;
    int group; /* of the pilots; else what kind of task it is */
    int64_t start;
    size_t n;
} Task;

typedef struct {
    const Kernels *kernels;
    pthread_mutex_t *lock; /* of what the threads share: histograms and samples of the items */
    char *raw[2];
    float *r32, *c32, *dist32;
    double *r64, *c64, *d64, *dist64, *kept, *scratch;
    size_t held; /* distances in `kept`: all of this chunk but for some that are zero */
    Extremes extremes;
    const Item *item; /* the one that was looked at last */
    Survey known;     /* of that */
    Limits limits;    /* drawn from it */
    Brackets brackets;
    uint32_t *counts; /* the histogram being filled, of `target` */
    int64_t counts_size, low, high;
    Histogram *target;
    double *found; /* samples of this chunk */
    size_t finds, seen, sampled;
    int only_samples;
    int64_t drawn[2][QUANTILES]; /* samples of this chunk in each bracket, of either half of the pieces */
    int64_t above[QUANTILES]; /* the start of each window */
} Worker;

int worker_start(Worker *, const Kernels *, pthread_mutex_t *);
void worker_stop(Worker *);

void first_look(Worker *, Item *, const Task *, State *);
void second_look(Worker *, Item *, const Task *);

/* Give what a worker counted to its item. */
void worker_flush(Worker *);

/* Draw the lines below which no element can move a maximum. */
Limits limits_of(const Survey *);
Limits limits_never(void);
Survey survey_of(const State *);
Survey survey_both(Survey, const Survey *);

/* The distances of a block, as they come. */
void sink_start(Worker *, Item *, const Task *);
void sink(Worker *, const Item *, size_t n, int64_t at);
void sink_zeros(Worker *, const Item *, size_t n);
void sink_end(Worker *, Item *);

/* What an item needs for its percentiles, and what it does between the looks at its elements. */
void item_prepare(Item *, int fed);
void item_draw_brackets(Item *);
void item_after_first_look(Item *);
void item_after_windows(Item *);
void item_after_second_look(Item *);
void item_stop(Item *);

/* The parts of that for BRACKET. */
void finish_sampled(Item *, const int64_t rank[RANKS]);
void finish_windows(Item *, const int64_t rank[RANKS]);

static inline int64_t zeros_of(const State *s)
{
    return s->finite - (s->unequal - s->bad_pairs);
}

#endif
