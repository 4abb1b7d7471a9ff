/* Distances counted by their leading bits. */
#ifndef NNDIFF_HISTOGRAM_H
#define NNDIFF_HISTOGRAM_H

#include "work.h"

void histogram_start(Item *, Histogram *, int fine);
void histogram_stop(Histogram *);
void add_histogram(Histogram *to, const Histogram *from);

/* The least distance of a key. */
double edge_of(const Histogram *, int64_t key);

/* Find the bin of a rank and the place inside the bin. */
int64_t bin_of_rank(const Histogram *, int64_t rank, int64_t *inside);

/* Count those of a key or one above it. */
int64_t count_from(const Histogram *, int64_t key);

#endif
