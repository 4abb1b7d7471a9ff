/* Percentiles by radix: numbers that are not negative sort as their bits do. */
#include "select.h"

#include <math.h>
#include <string.h>

const double QUANTILE[QUANTILES] = {0.5, 0.9, 0.95, 0.99};

enum { MOST_BITS = 12, FEW = 24, OCTAVES = 3 /* as a power of two: those below the largest element have bins of their own */ };

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
    while (bits < MOST_BITS && ((size_t)8 << bits) < n)
        bits++;
    int shift = width > bits ? width - bits : 0, fine = 52 - bits + OCTAVES;
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
    memset(count, 0, ((b->last + 16) & ~(size_t)15) * sizeof *count);
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

static int64_t sum_of_16(const uint32_t *count)
{
    uint32_t sum = 0;
    for (int i = 0; i < 16; i++)
        sum += count[i];
    return sum;
}

/* Find the bin of each rank; leave in rank the place inside the bin. */
static void find_bins(const uint32_t *count, int64_t rank[RANKS], uint32_t bin[RANKS])
{
    int64_t before = 0;
    uint32_t at = 0;
    for (int k = 0; k < RANKS; k++) {
        if (rank[k] < before) /* of a few elements the percentiles overlap */
            before = at = 0;
        for (int64_t sum; at % 16 == 0 && rank[k] - before >= (sum = sum_of_16(count + at)); at += 16)
            before += sum;
        while (rank[k] - before >= count[at])
            before += count[at++];
        bin[k] = at;
        rank[k] -= before;
    }
}

/* Count keys in four tables in turn: where values repeat, one counter would wait for itself. */
static void count_keys(const uint16_t *key, size_t n, size_t bins, uint32_t *count)
{
    uint16_t part[4][1 << MOST_BITS]; /* n is at most CHUNK */
    for (int t = 0; t < 4; t++)
        memset(part[t], 0, bins * sizeof **part);
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        uint64_t four; /* one load for four keys */
        memcpy(&four, key + i, sizeof four);
        part[0][four & UINT16_MAX]++;
        part[1][four >> 16 & UINT16_MAX]++;
        part[2][four >> 32 & UINT16_MAX]++;
        part[3][four >> 48]++;
    }
    for (; i < n; i++)
        part[0][key[i]]++;
    for (size_t k = 0; k < bins; k++)
        count[k] = (uint32_t)part[0][k] + part[1][k] + part[2][k] + part[3][k];
    memset(count + bins, 0, (-bins % 16) * sizeof *count);
}

/* A few keys that ranks lie in, and the values of those keys. */
typedef struct {
    const uint16_t *key;
    const double *value;
    size_t n;
    double *scratch;
} Few;

static double select_of_key(const Few *few, uint32_t wanted, size_t rank)
{
    size_t held = 0;
    for (size_t i = 0; i < few->n; i++) {
        few->scratch[held] = few->value[i];
        held += few->key[i] == wanted;
    }
    return select_rank(few->scratch, held, rank);
}

/* Find the value of a key that is the only one of its key, where that key holds a good part of all. */
static int is_alone(const Kernels *kernels, const uint16_t *key, const double *x, size_t n, uint32_t wanted,
                    uint32_t count, double *value)
{
    size_t i = 0;
    if (count <= n / 32)
        return 0;
    while (key[i] != wanted)
        i++;
    *value = x[i];
    return kernels->count_same(x, n, x[i]) == count;
}

static void select_by_keys(const Kernels *kernels, const double *x, size_t n, size_t zeros, Bins b,
                           const int64_t rank[RANKS], double *scratch, double value[RANKS])
{
    uint16_t key[CHUNK + PAD], few_key[CHUNK + PAD], wanted[RANKS];
    uint32_t count[1 << MOST_BITS], bin[RANKS];
    int64_t inside[RANKS];
    int wants = 0, open[RANKS] = {0};
    memcpy(inside, rank, sizeof inside);
    kernels->keys16(x, n, b.shift, b.base, key);
    count_keys(key, n, b.last + 1, count);
    find_bins(count, inside, bin);
    for (int k = 0; k < RANKS; k++) {
        int again = k && bin[k] == bin[k - 1] && (size_t)rank[k - 1] >= zeros;
        if ((size_t)rank[k] < zeros)
            continue;
        open[k] = again ? open[k - 1] : !is_alone(kernels, key, x, n, bin[k], count[bin[k]], &value[k]);
        if (again && !open[k])
            value[k] = value[k - 1];
        if (open[k] && !again)
            wanted[wants++] = (uint16_t)bin[k];
    }
    Few few = {few_key, scratch, kernels->collect(key, n, wanted, wants, x, scratch, few_key), scratch + CHUNK};
    for (int k = 0; k < RANKS; k++)
        if (open[k])
            value[k] = select_of_key(&few, bin[k], (size_t)inside[k]);
}

void percentiles_of(const Kernels *kernels, const double *x, size_t n, size_t zeros, double most, double *scratch,
                    double out[QUANTILES])
{
    int64_t rank[RANKS];
    double value[RANKS] = {0};
    if (n == 0)
        return;
    ranks_of((int64_t)n, rank);
    if ((size_t)rank[RANKS - 1] >= zeros)
        select_by_keys(kernels, x, n, zeros, bins_between(0, bits_of(most), n), rank, scratch, value);
    blend((int64_t)n, value, out);
}

void select_ranks(double *x, size_t n, double *scratch, const int64_t ranks[RANKS], double value[RANKS])
{
    uint32_t count[1 << MOST_BITS], bin[RANKS];
    int64_t rank[RANKS];
    memcpy(rank, ranks, sizeof rank);
    Bins b = bins_for(x, n);
    count_bins(&b, x, n, count);
    find_bins(count, rank, bin);
    for (int k = 0; k < RANKS; k++) {
        if (k && bin[k] == bin[k - 1] && rank[k] == rank[k - 1]) {
            value[k] = value[k - 1];
            continue;
        }
        size_t held = 0;
        for (size_t i = 0; i < n; i++) {
            scratch[held] = x[i];
            held += bin_of(&b, x[i]) == bin[k];
        }
        value[k] = select_rank(scratch, held, (size_t)rank[k]);
    }
}
