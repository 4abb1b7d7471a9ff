/* One tensor alone, seen once: the hashes of its parts, its statistics. */
#ifndef NNDIFF_SIDE_H
#define NNDIFF_SIDE_H

#include "state.h"
#include "xxh3.h"

enum {
    SIDE_PART = 1 << 18, /* bytes: what one hash is of; part of the recording format */
    SIDE_LEAST = 256,    /* bytes: a shorter part is filled up with zeros; part of the recording format */
};

typedef struct {
    uint8_t hash[XXH3_SIZE];
    Moments moments; /* of the finite elements */
    double squares;
    int64_t bad;  /* elements that are not finite */
    int overflow; /* finite elements whose squares are not */
} SidePart;

typedef struct {
    const Kernels *kernels;
    const uint8_t *bytes;
    size_t size;
    int with_stats;
    Type type;
} SideJob;

size_t side_parts(size_t size);
/* Look at one part; where a sketch is asked for it is added to, and moved on. Numbers that are not finite spoil it. */
void side_look_at_part(const SideJob *, size_t number, Sketch * /* may be absent */, SidePart *out);
/* Give elements as doubles, zeros for what is not finite; PAD behind them. */
void side_numbers(const Kernels *, Type, const void *, size_t n, double *out);
/* Look at a tensor on so many threads; return its parts, to be freed, or NULL without memory. */
SidePart *side_look(const SideJob *, int threads);
/* Merge the statistics of all parts. */
SidePart side_merge(const SidePart *, size_t count);

#endif
