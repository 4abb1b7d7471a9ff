/* Many tensors, each seen once: hashes, statistics, and a row of a few numbers that distances are estimated from. */
#ifndef NNDIFF_MANY_H
#define NNDIFF_MANY_H

#include "side.h"

enum {
    MANY_PIECE = 1 << 19, /* elements whose sketch is summed before pieces are added; part of the format */
    MANY_WIDEST = 1 << 16,
};

typedef struct {
    SideJob job;
    size_t count, width; /* numbers of the tensor and of its row */
    float *row;
    SidePart *parts;
    SidePart all; /* the statistics of all parts, once they are known */
} ManyTensor;

/* Look at tensors on so many threads; 0 without memory. `row` and `parts` are filled, `parts` must be zeros before. */
int many_look(ManyTensor *, size_t count, uint64_t seed, int threads);

/* Hash each of some rows of so many bytes. */
int many_hash_rows(const Kernels *, const uint8_t *bytes, size_t rows, size_t size, uint8_t *out, int threads);

#endif
