/* Percentiles by radix: numbers that are not negative sort as their bits do. */
#include "select.h"

#include <math.h>
#include <string.h>

const double QUANTILE[QUANTILES] = {0.5, 0.9, 0.95, 0.99};

enum {
    MOST_BITS = 12,
    FEW = 24,    /* sorted at once */
    RANKED = 96, /* each held against each */
    PROBES = 32,
    SHORT = 40, /* bits of a double that are zero in one of few digits */
};

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

static void insertion_sort(double *x, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        double moved = x[i];
        size_t k = i;
        for (; k > 0 && x[k - 1] > moved; k--)
            x[k] = x[k - 1];
        x[k] = moved;
    }
}

/* Bins of equal width in bits, fine enough that few elements share one. The first also takes what lies below them. */
typedef struct {
    uint64_t base;
    int shift;
    uint32_t last;
} Bins;

static Bins bins_between(uint64_t least, uint64_t most, size_t n)
{
    int bits = 4, width = least == most ? 0 : 64 - __builtin_clzll(most - least);
    while (bits < MOST_BITS && ((size_t)8 << bits) < n)
        bits++;
    int shift = width > bits ? width - bits : 0;
    shift += (most >> shift) - (least >> shift) >= (uint64_t)1 << bits;
    return (Bins){least >> shift, shift, (uint32_t)((most >> shift) - (least >> shift))};
}

/* Zeros have no say: a few of them would make the bins of all others coarse. */
static Bins bins_for(const double *x, size_t n)
{
    uint64_t least = UINT64_MAX, most = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = bits_of(x[i]), but_zero = bits - 1;
        least = but_zero < least ? but_zero : least;
        most = bits > most ? bits : most;
    }
    return bins_between(most ? least + 1 : 0, most, n);
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

/* Tell whether there is nothing left to narrow down: all are the same, or zeros beside one value. */
static int is_settled(const Bins *b, const double *x, size_t n, size_t rank, double beyond, double value[2])
{
    size_t zeros = 0;
    if (b->last || b->shift)
        return 0;
    for (size_t i = 0; i < n; i++)
        zeros += x[i] == 0;
    double most = 0;
    memcpy(&most, &b->base, sizeof most);
    value[0] = rank < zeros ? 0 : most;
    value[1] = rank + 1 < zeros ? 0 : rank + 1 < n ? most : beyond;
    return 1;
}

/* Set the element at a rank and the one behind it: narrow x down to the bin that holds the rank, with the bits that
   are left open, again and again. Overwrites x. */
static void select_two(double *x, size_t n, size_t rank, double value[2])
{
    uint32_t count[1 << MOST_BITS];
    double beyond = INFINITY; /* the least above those that are left */
    while (n > FEW) {
        Bins b = bins_for(x, n);
        if (is_settled(&b, x, n, rank, beyond, value))
            return;
        count_bins(&b, x, n, count);
        uint32_t bin = 0;
        while (rank >= count[bin])
            rank -= count[bin++];
        size_t kept = 0;
        for (size_t i = 0; i < n; i++) {
            double this = x[i];
            uint32_t its = bin_of(&b, this);
            x[kept] = this;
            kept += its == bin;
            beyond = its > bin && this < beyond ? this : beyond;
        }
        n = kept;
    }
    insertion_sort(x, n);
    value[0] = x[rank];
    value[1] = rank + 1 < n ? x[rank + 1] : beyond;
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

/* What ranks are looked for in. */
typedef struct {
    const Kernels *kernels;
    const double *x;
    const uint16_t *key; /* or none */
    size_t n;
    Bins bins;
    double *scratch;
} Heap;

static size_t take_bin(const Heap *h, uint32_t bin)
{
    const uint16_t wanted = (uint16_t)(bin + BELOW - 1);
    size_t held = 0;
    if (h->key && bin)
        return h->kernels->collect(h->key, h->n, &wanted, 1, h->x, h->scratch);
    for (size_t i = 0; i < h->n; i++) {
        h->scratch[held] = h->x[i];
        held += h->key ? h->key[i] < BELOW : bin_of(&h->bins, h->x[i]) == bin;
    }
    return held;
}

/* Set the values at places inside of bins, but for those that are known. */
static void select_places(const Heap *h, const uint32_t bin[RANKS], const int64_t place[RANKS], const int known[RANKS],
                          double value[RANKS])
{
    double two[2] = {0};
    for (int k = 0, from = -1; k < RANKS; k++) {
        if (known[k])
            continue;
        int64_t on = from >= 0 && bin[k] == bin[from] ? place[k] - place[from] : -1;
        if (on != 0 && on != 1) {
            select_two(h->scratch, take_bin(h, bin[k]), (size_t)place[k], two);
            from = k;
            on = 0;
        }
        value[k] = two[on];
    }
}

void select_ranks(const double *x, size_t n, double *scratch, const int64_t ranks[RANKS], double value[RANKS])
{
    uint32_t count[1 << MOST_BITS], bin[RANKS];
    int64_t place[RANKS];
    const int known[RANKS] = {0};
    const Heap heap = {NULL, x, NULL, n, bins_for(x, n), scratch};
    double two[2];
    memcpy(place, ranks, sizeof place);
    if (is_settled(&heap.bins, x, n, 0, 0, two) && two[0] > 0) { /* all are the same */
        for (int k = 0; k < RANKS; k++)
            value[k] = two[0];
        return;
    }
    count_bins(&heap.bins, x, n, count);
    find_bins(count, place, bin);
    select_places(&heap, bin, place, known, value);
}

/* --- percentiles of a chunk ---------------------------------------------------------------------- */

/* Count keys in four tables in turn: where values repeat, one counter would wait for itself. Those below all bins
   become bin 0; zeros follow the last. */
static void count_keys(const uint16_t *key, size_t n, size_t bins, uint32_t *count)
{
    uint16_t part[4][(1 << MOST_BITS) + BELOW]; /* n is at most CHUNK */
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
    for (size_t k = BELOW; k < bins; k++)
        count[k - BELOW + 1] = (uint32_t)part[0][k] + part[1][k] + part[2][k] + part[3][k];
    count[0] = 0;
    for (size_t k = 0; k < BELOW; k++)
        count[0] += (uint32_t)part[0][k] + part[1][k] + part[2][k] + part[3][k];
    memset(count + bins - BELOW + 1, 0, 16 * sizeof *count);
}

static inline double greater(double a, double b) { return a > b ? a : b; }

static double middle(const double x[3])
{
    return greater(lesser(x[0], x[1]), lesser(greater(x[0], x[1]), x[2]));
}

/* What a few of the numbers that are not zero tell. */
typedef struct {
    double middle; /* somewhere in their midst; infinite where all of them are zero */
    int short_ones; /* most have few digits, as the distances of bfloat16 do: they repeat */
} Probe;

static Probe probe(const double *x, size_t n)
{
    const size_t step = n / PROBES + 1;
    double some[PROBES + 1];
    size_t count = 0, of_few_digits = 0;
    for (size_t i = 0; i < n; i += step) {
        some[count] = x[i];
        count += x[i] > 0;
        of_few_digits += x[i] > 0 && bits_of(x[i]) << (64 - SHORT) == 0;
    }
    const Probe out = {count ? some[0] : INFINITY, 2 * of_few_digits > count};
    if (count < 9)
        return out;
    const double of_three[3] = {middle(some), middle(some + 3), middle(some + 6)};
    return (Probe){middle(of_three), out.short_ones};
}

/* Keys are made of the upper half of a double at most. Where most have few digits, those that have no more than the
   key says get keys of their own: what shares such a key is one value. */
static uint64_t key_of(uint64_t bits, int shift, int apart)
{
    const uint64_t further = ((uint64_t)1 << shift) - 1;
    return apart ? 2 * (bits >> shift) + ((bits & further) != 0) : bits >> shift;
}

/* Bins for what percentiles are made of: the lower half needs none of its own, and few are that far below the middle. */
static Bins bins_of_chunk(const double *x, size_t n, double most, int *apart)
{
    const Probe p = probe(x, n);
    const uint64_t low = bits_of(lesser(p.middle, most) / 16), high = bits_of(most);
    const int shift = bins_between(low, high, n).shift + p.short_ones, enough = shift > 33 ? shift : 33;
    *apart = p.short_ones;
    const uint64_t base = key_of(low, enough, *apart);
    return (Bins){base, enough, (uint32_t)(key_of(high, enough, *apart) - base)};
}

/* Set the value of a bin that holds but one. */
static int is_one_value(const Bins *b, uint32_t bin, int apart, double *value)
{
    const uint64_t key = b->base + bin, bits = key >> 1 << b->shift;
    if (bin == 0 || !apart || key & 1)
        return 0;
    memcpy(value, &bits, sizeof *value);
    return 1;
}

/* Set the values in a few bins that hold few elements: all of them sorted at once. */
static int select_of_few(const Heap *h, const uint32_t *count, const uint32_t bin[RANKS], const int64_t place[RANKS],
                         const int known[RANKS], double value[RANKS])
{
    uint16_t wanted[RANKS];
    size_t held = 0, start[RANKS];
    double sorted[RANKED + PAD];
    int wants = 0;
    uint32_t last = 0;
    for (int k = 0; k < RANKS; k++) {
        if (known[k])
            continue;
        if (bin[k] != last) {
            wanted[wants++] = (uint16_t)(bin[k] + BELOW - 1);
            held += count[bin[k]];
        }
        if (bin[k] == 0 || bin[k] < last || held > RANKED) /* of a few elements the percentiles overlap */
            return 0;
        last = bin[k];
        start[k] = held - count[last];
    }
    if (!wants)
        return 1;
    h->kernels->sort_few(h->scratch, h->kernels->collect(h->key, h->n, wanted, wants, h->x, h->scratch), sorted);
    for (int k = 0; k < RANKS; k++) {
        if (known[k])
            continue;
        size_t at = start[k] + (size_t)place[k];
        while (sorted[at] < 0)
            at--;
        value[k] = sorted[at];
    }
    return 1;
}

/* Ranks below zero are those of zeros that are not among x; there are so many among x. */
static void select_by_keys(const Kernels *kernels, const double *x, size_t n, int64_t zeros, double most,
                           const int64_t rank[RANKS], double *scratch, double value[RANKS])
{
    uint16_t key[CHUNK + PAD];
    uint32_t count[(1 << MOST_BITS) + 16], bin[RANKS];
    int64_t place[RANKS];
    int known[RANKS], apart;
    const Heap heap = {kernels, x, key, n, bins_of_chunk(x, n, most, &apart), scratch};
    memcpy(place, rank, sizeof place);
    kernels->keys16(x, n, heap.bins.shift, heap.bins.base, apart, key);
    count_keys(key, n, heap.bins.last + BELOW, count);
    find_bins(count, place, bin);
    for (int k = 0; k < RANKS; k++)
        known[k] = rank[k] < zeros || is_one_value(&heap.bins, bin[k], apart, &value[k]);
    if (!select_of_few(&heap, count, bin, place, known, value))
        select_places(&heap, bin, place, known, value);
}

void percentiles_of(const Kernels *kernels, const double *x, size_t n, int64_t count, int64_t zeros, double most,
                    double *scratch, double out[QUANTILES])
{
    const int64_t left_out = count - (int64_t)n;
    int64_t rank[RANKS];
    double value[RANKS] = {0};
    if (count == 0)
        return;
    ranks_of(count, rank);
    for (int k = 0; k < RANKS; k++)
        rank[k] -= left_out;
    if (rank[RANKS - 1] >= zeros - left_out)
        select_by_keys(kernels, x, n, zeros - left_out, most, rank, scratch, value);
    blend(count, value, out);
}
