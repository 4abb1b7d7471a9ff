/* Percentiles: which ranks they are made of, and the element of a rank. */
#ifndef NNDIFF_SELECT_H
#define NNDIFF_SELECT_H

#include <stddef.h>
#include <stdint.h>

#include "native.h"

extern const double QUANTILE[QUANTILES];

/* Set the ranks of the elements below and above each percentile: two for each, in pairs. */
void ranks_of(int64_t n, int64_t rank[RANKS]);

/* Make the percentiles of the values at their ranks, rounded as numpy.percentile does. */
void blend(int64_t n, const double value[RANKS], double out[QUANTILES]);

/* Set the elements that would stand at ranks if x were sorted. No element is negative. Scratch is one larger than x. */
void select_ranks(const double *x, size_t n, double *scratch, const int64_t rank[RANKS], double value[RANKS]);

/* Set the percentiles of `count` elements, at most a chunk, of which the number of zeros and the largest are known: x
   are n of them, all but some of the zeros. There is PAD behind x and behind scratch, which holds a chunk. */
void percentiles_of(const Kernels *, const double *x, size_t n, int64_t count, int64_t zeros, double most,
                    double *scratch, double out[QUANTILES]);

static inline uint64_t bits_of(double x)
{
    union { double value; uint64_t bits; } both = {x};
    return both.bits;
}

#endif
