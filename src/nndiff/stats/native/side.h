/* One tensor alone, seen once: the digests of its parts, a checksum, its statistics. */
#ifndef NNDIFF_SIDE_H
#define NNDIFF_SIDE_H

#include "sha256.h"
#include "state.h"

enum {
    SIDE_PART = 1 << 18, /* bytes: what one digest is of; part of the recording format */
    SIDE_THREADS = 8,
    CHECK_SIZE = 128,
};

/* What to find out. */
enum { SIDE_HASH = 1, SIDE_CHECK = 2, SIDE_STATS = 4 };

typedef struct {
    uint8_t digest[SHA256_SIZE];
    uint64_t check[CHECK_SIZE / sizeof(uint64_t)];
    Moments moments; /* of the finite elements */
    double squares;
    int64_t bad;  /* elements that are not finite */
    int overflow; /* finite elements whose squares are not */
} SidePart;

typedef struct {
    const Kernels *kernels;
    const uint8_t *bytes;
    size_t size;
    Type type; /* only asked for statistics */
    unsigned want;
} SideJob;

size_t side_parts(size_t size);
/* Look at a tensor on so many threads; return its parts, to be freed, or NULL without memory. */
SidePart *side_look(const SideJob *, int threads);
/* Merge all parts into one; the digests stay apart. */
SidePart side_merge(const SidePart *, size_t count);

#endif
