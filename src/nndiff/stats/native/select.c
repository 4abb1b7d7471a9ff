/* Percentiles by radix: numbers that are not negative sort as their bits do. */
#include "select.h"

#include <math.h>
#include <string.h>

const double QUANTILE[QUANTILES] = {0.5, 0.9, 0.95, 0.99};

enum { MOST_BITS = 12, FEW = 24 };

void ranks_of(int64_t n, int64_t rank[RANKS])
{
    for (int q = 0; q < QUANTILES; q++) {
        int64_t below = (int64_t)floor((double)(n - 1) * QUANTILE[q]);
        rank[2 * q] = below;
        rank[2 * q + 1] = below + 1 < n ? below + 1 : n - 1;
    }
}

void blend(int64_t n, const double value[RANKS], double out[QUANTILES])
{
    for (int q = 0; q < QUANTILES; q++) {
        double place = (double)(n - 1) * QUANTILE[q], part = place - floor(place);
        double low = value[2 * q], high = value[2 * q + 1], gap = high - low;
        out[q] = part < 0.5 ? low + gap * part : high - gap * (1 - part);
    }
}

static void sort_few(double *x, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        double moved = x[i];
        size_t k = i;
        for (; k > 0 && x[k - 1] > moved; k--)
            x[k] = x[k - 1];
        x[k] = moved;
    }
}

/* Bins of equal width in bits, fine enough that few elements share one. The first bin also takes
   what lies far below the largest element, so a few zeros do not make every other bin coarse. */
typedef struct {
    uint64_t base;
    int shift;
    uint32_t last;
} Bins;

static Bins bins_between(uint64_t least, uint64_t most, size_t n)
{
    int bits = 4, width = least == most ? 0 : 64 - __builtin_clzll(least ^ most);
    while (bits < MOST_BITS && ((size_t)2 << bits) < n)
        bits++;
    int shift = width > bits ? width - bits : 0, fine = 52 - bits + 5; /* 32 octaves */
    if (shift > fine)
        shift = fine;
    uint64_t span = ((uint64_t)1 << bits) - 1, top = most >> shift, base = least >> shift;
    if (top - base > span)
        base = top - span;
    return (Bins){base, shift, (uint32_t)(top - base)};
}

static Bins bins_for(const double *x, size_t n)
{
    uint64_t least = UINT64_MAX, most = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = bits_of(x[i]);
        least = bits < least ? bits : least;
        most = bits > most ? bits : most;
    }
    return bins_between(least, most, n);
}

static inline uint32_t bin_of(const Bins *b, double x)
{
    uint64_t key = bits_of(x) >> b->shift;
    return key > b->base ? (uint32_t)(key - b->base) : 0;
}

static void count_bins(const Bins *b, const double *x, size_t n, uint32_t *count)
{
    memset(count, 0, (b->last + 1) * sizeof *count);
    for (size_t i = 0; i < n; i++)
        count[bin_of(b, x[i])]++;
}

/* Narrow x down to the bin that holds the rank, with the bits that are left open, again and again. */
double select_rank(double *x, size_t n, size_t rank)
{
    uint32_t count[1 << MOST_BITS];
    while (n > FEW) {
        Bins b = bins_for(x, n);
        if (b.last == 0 && b.shift == 0)
            return x[0]; /* all the same */
        count_bins(&b, x, n, count);
        uint32_t bin = 0;
        while (rank >= count[bin])
            rank -= count[bin++];
        size_t kept = 0;
        for (size_t i = 0; i < n; i++) {
            double value = x[i];
            x[kept] = value;
            kept += bin_of(&b, value) == bin;
        }
        n = kept;
    }
    sort_few(x, n);
    return x[rank];
}

/* Find the bin of each rank; leave in rank the place inside the bin. */
static void find_bins(const uint32_t *count, int64_t rank[RANKS], uint32_t bin[RANKS])
{
    int64_t before = 0;
    uint32_t at = 0;
    for (int k = 0; k < RANKS; k++) {
        if (rank[k] < before) /* of a few elements the percentiles overlap */
            before = at = 0;
        while (rank[k] - before >= count[at])
            before += count[at++];
        bin[k] = at;
        rank[k] -= before;
    }
}

/* Put the elements of the wanted bins side by side; start[k] is where those of bin[k] begin. */
static void collect(const Bins *b, const double *x, size_t n, const uint32_t *count, const uint32_t bin[RANKS],
                    double *out, size_t start[RANKS])
{
    uint8_t slot_of[1 << MOST_BITS];
    size_t next[RANKS + 1], used = 0;
    memset(slot_of, 0, b->last + 1);
    for (int k = 0; k < RANKS; k++) {
        if (!slot_of[bin[k]]) {
            slot_of[bin[k]] = (uint8_t)(k + 1);
            next[k + 1] = used;
            used += count[bin[k]];
        }
        start[k] = next[slot_of[bin[k]]];
    }
    for (size_t i = 0; i < n; i++) {
        int slot = slot_of[bin_of(b, x[i])];
        if (slot)
            out[next[slot]++] = x[i];
    }
}

static void select_in(Bins b, double *x, size_t n, double *scratch, const int64_t ranks[RANKS],
                      double value[RANKS])
{
    uint32_t count[1 << MOST_BITS], bin[RANKS];
    int64_t rank[RANKS];
    size_t start[RANKS];
    memcpy(rank, ranks, sizeof rank);
    count_bins(&b, x, n, count);
    find_bins(count, rank, bin);
    collect(&b, x, n, count, bin, scratch, start);
    for (int k = 0; k < RANKS; k++) {
        size_t m = count[bin[k]];
        if (k && bin[k] == bin[k - 1] && rank[k] == rank[k - 1]) {
            value[k] = value[k - 1];
            continue;
        }
        memcpy(x, scratch + start[k], m * sizeof *x); /* x is not needed any more */
        value[k] = select_rank(x, m, (size_t)rank[k]);
    }
}

void select_ranks(double *x, size_t n, double *scratch, const int64_t ranks[RANKS], double value[RANKS])
{
    select_in(bins_for(x, n), x, n, scratch, ranks, value);
}

void percentiles_of(double *x, size_t n, double most, double *scratch, double out[QUANTILES])
{
    int64_t rank[RANKS];
    double value[RANKS];
    if (n == 0)
        return;
    ranks_of((int64_t)n, rank);
    select_in(bins_between(0, bits_of(most), n), x, n, scratch, rank, value);
    blend((int64_t)n, value, out);
}
