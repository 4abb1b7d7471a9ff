/* Distances counted by their leading bits. */
#define _GNU_SOURCE
#include "histogram.h"

#include <string.h>
#include <sys/mman.h>

/* Straight from the system: most counts are never touched, and such zeros cost nothing. */
static uint64_t *zeros(size_t size)
{
    void *made = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return made == MAP_FAILED ? NULL : made;
}

static size_t size_of(const Histogram *h)
{
    return (size_t)(h->bins + 1) * sizeof *h->count;
}

void histogram_stop(Histogram *h)
{
    if (h->count)
        munmap(h->count, size_of(h));
    h->count = NULL;
}

void histogram_start(Item *item, Histogram *h, int fine)
{
    h->wide = !item->narrow;
    h->shift = h->wide ? (fine ? WIDE_FINE : WIDE_COARSE) : (fine ? FINE : COARSE);
    h->bins = h->wide ? (int64_t)0x7FF << (52 - h->shift) : (int64_t)FLOAT_KEYS << (COARSE - h->shift);
    h->low = h->bins;
    h->high = h->total = 0;
    h->count = zeros(size_of(h));
    item->no_memory |= h->count == NULL;
}

double edge_of(const Histogram *h, int64_t key)
{
    uint64_t wide = (uint64_t)key << h->shift;
    uint32_t narrow = (uint32_t)wide;
    double value;
    float single;
    memcpy(&value, &wide, sizeof value);
    memcpy(&single, &narrow, sizeof single);
    return h->wide ? value : single;
}

int64_t bin_of_rank(const Histogram *h, int64_t rank, int64_t *inside)
{
    int64_t key = 0;
    while (key < h->bins && rank >= (int64_t)h->count[key]) {
        rank -= (int64_t)h->count[key];
        key = key == 0 && h->low > 0 ? h->low : key + 1;
    }
    *inside = rank;
    return key;
}

int64_t count_from(const Histogram *h, int64_t key)
{
    int64_t count = 0;
    for (; key <= h->high && key < h->bins; key++)
        count += (int64_t)h->count[key];
    return count;
}

void add_histogram(Histogram *to, const Histogram *from)
{
    to->count[0] += from->count[0];
    for (int64_t k = from->low; k <= from->high; k++)
        to->count[k] += from->count[k];
    to->low = from->low < to->low ? from->low : to->low;
    to->high = from->high > to->high ? from->high : to->high;
    to->total += from->total;
}
