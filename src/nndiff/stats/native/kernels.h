/* Every kernel for one vector width; included once per width, with LEVEL and TABLE set. */
#include <float.h>
#include <math.h>
#include <string.h>
#if LEVEL
#include <immintrin.h>
#endif

#include "native.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* The whole file is compiled for the wider machine; it is only called where the machine is that wide. */
#define AS_PRAGMA(text) _Pragma(#text)
#if LEVEL && defined(__clang__)
#define BEGIN_TARGET(features) AS_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
BEGIN_TARGET(TARGET)
#elif LEVEL
#define BEGIN_TARGET(features) AS_PRAGMA(GCC target(features))
#pragma GCC push_options
BEGIN_TARGET(TARGET)
#endif

#include "convert.h"
#include "simd.h"
#include "wide.h"
#include "narrow_lines.h"
#include "narrow.h"
#include "hash_lanes.h"
#include "sketches.h"
#include "content_kernel.h"

/* Count the floats at or above each edge by their upper 16 bits; many at a time, in any order. */
static ALWAYS_INLINE void count_above(const float *p, size_t n, Brackets *b, int edges)
{
    size_t i = 0;
#if LEVEL
    __m256i edge[EDGES], count[EDGES];
    for (int k = 0; k < edges; k++) {
        edge[k] = _mm256_set1_epi16((int16_t)(b->edge[k] - 1));
        count[k] = _mm256_loadu_si256((const __m256i *)b->count[k]);
    }
    for (; i + 16 <= n; i += 16) {
        __m256i even = _mm256_loadu_si256((const __m256i *)(p + i));
        __m256i odd = _mm256_loadu_si256((const __m256i *)(p + i + 8));
        __m256i key = _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xAA);
        for (int k = 0; k < edges; k++)
            count[k] = _mm256_sub_epi16(count[k], _mm256_cmpgt_epi16(key, edge[k]));
    }
    for (int k = 0; k < edges; k++)
        _mm256_storeu_si256((__m256i *)b->count[k], count[k]);
#else
    typedef int16_t keys __attribute__((vector_size(16)));
    const kf upper = {(int)0xFFFF0000, (int)0xFFFF0000, (int)0xFFFF0000, (int)0xFFFF0000};
    keys edge[EDGES], count[EDGES];
    for (int k = 0; k < edges; k++) {
        edge[k] = (keys){0} + b->edge[k];
        memcpy(&count[k], b->count[k], sizeof count[k]);
    }
    for (; i + 8 <= n; i += 8) {
        kf even = (kf)f_load(p + i), odd = (kf)f_load(p + i + 4); /* not negative: the shift brings in zeros */
        keys key = (keys)((even >> 16) | (odd & upper));
        for (int k = 0; k < edges; k++)
            count[k] -= key >= edge[k];
    }
    for (int k = 0; k < edges; k++)
        memcpy(b->count[k], &count[k], sizeof count[k]);
#endif
    for (; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, p + i, sizeof bits);
        for (int k = 0; k < edges; k++)
            b->count[k][0] = (uint16_t)(b->count[k][0] + ((int16_t)(bits >> 16) >= b->edge[k]));
    }
}

static void bracket(const float *p, size_t n, Brackets *b)
{
    if (b->edges == 0)
        return;
    if (b->edges <= 2)
        count_above(p, n, b, 2);
    else if (b->edges <= 4)
        count_above(p, n, b, 4);
    else if (b->edges <= 6)
        count_above(p, n, b, 6);
    else if (b->edges <= 8)
        count_above(p, n, b, 8);
    else
        count_above(p, n, b, EDGES);
}

/* Spans as whole numbers, moved so that what wraps around below them is large. */
typedef struct {
    vi from[QUANTILES], width[QUANTILES];
} Spans;

static ALWAYS_INLINE Spans spans_of(const Span *span, int spans)
{
    Spans s;
    for (int q = 0; q < spans; q++) {
        s.from[q] = i_set((int32_t)(span[q].from + 0x80000000u));
        s.width[q] = i_set((int32_t)(span[q].to - span[q].from + 0x80000000u));
    }
    return s;
}

static ALWAYS_INLINE size_t sift_piece(const float *p, const Spans *s, int64_t held[QUANTILES], double *out)
{
    size_t found = 0;
    for (size_t i = 0; i < PIECE; i += 2 * W) {
        const vf x = f_load(p + i);
        unsigned inside = 0;
        for (int q = 0; q < QUANTILES; q++) {
            const unsigned in_span = m_bits(i_gt(s->width[q], i_sub(i_of(x), s->from[q])));
            held[q] += bits_set(in_span);
            inside |= in_span;
        }
        found += f_put(out + found, x, inside);
    }
    return found;
}

static size_t sift(const float *p, const uint16_t *place, size_t pieces, const Span span[QUANTILES],
                   int64_t held[2][QUANTILES], double *out)
{
    const Spans s = spans_of(span, QUANTILES);
    int64_t count[2][QUANTILES] = {{0}};
    size_t found = 0;
    for (size_t i = 0; i < pieces; i += 2) {
        found += sift_piece(p + place[i], &s, count[0], out + found);
        if (i + 1 < pieces)
            found += sift_piece(p + place[i + 1], &s, count[1], out + found);
    }
    for (int q = 0; q < 2 * QUANTILES; q++)
        held[q / QUANTILES][q % QUANTILES] += count[q / QUANTILES][q % QUANTILES];
    return found;
}

static ALWAYS_INLINE size_t sieve_spans(const float *p, size_t n, const Span *span, int spans, int64_t *above, double *out)
{
    const Spans s = spans_of(span, spans);
    vi rest[QUANTILES]; /* as far as the finite ones go */
    uint64_t count[QUANTILES] = {0};
    size_t found = 0;
    for (int q = 0; q < spans; q++)
        rest[q] = i_set((int32_t)(0x7F800000u - span[q].from + 0x80000000u));
    for (size_t i = 0; i < n; i += 2 * W) {
        vf x = f_load(p + i);
        unsigned inside = 0;
        for (int q = 0; q < spans; q++) {
            vi on = i_sub(i_of(x), s.from[q]);
            inside |= m_bits(i_gt(s.width[q], on));
            count[q] += bits_set(m_bits(i_gt(rest[q], on)));
        }
        if (inside)
            found += f_put(out + found, x, inside);
    }
    for (int q = 0; q < spans; q++)
        above[q] += (int64_t)count[q];
    return found;
}

/* Spans that are empty take no time. */
static size_t sieve(const float *p, size_t n, const Span span[QUANTILES], int64_t above[QUANTILES], double *out)
{
    Span some[QUANTILES];
    int64_t count[QUANTILES] = {0};
    int spans = 0;
    for (int q = 0; q < QUANTILES; q++)
        if (span[q].to)
            some[spans++] = span[q];
    size_t found = spans == 1   ? sieve_spans(p, n, some, 1, count, out)
                   : spans == 2 ? sieve_spans(p, n, some, 2, count, out)
                   : spans == 3 ? sieve_spans(p, n, some, 3, count, out)
                                : sieve_spans(p, n, some, 4, count, out);
    for (int q = QUANTILES - 1; q >= 0; q--)
        if (span[q].to)
            above[q] += count[--spans];
    return found;
}

static void distance_f32(const float *r, const float *c, size_t n, float *dist32, double *dist64)
{
    for (size_t i = 0; i < n; i++)
        dist32[i] = fabsf(c[i] - r[i]);
    for (size_t i = 0; dist64 && i < n; i++)
        dist64[i] = fabs((double)c[i] - (double)r[i]);
}

static ALWAYS_INLINE void range_of(const uint32_t *key, size_t n, uint32_t range[2])
{
    uint32_t low = UINT32_MAX, high = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t but_zero = key[i] - 1; /* zero becomes the largest */
        low = but_zero < low ? but_zero : low;
        high = key[i] > high ? key[i] : high;
    }
    range[0] = low + 1;
    range[1] = high;
}

static void keys_f32(const float *p, size_t n, int shift, uint32_t past, uint32_t *key, uint32_t range[2])
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, p + i, sizeof bits);
        bits >>= shift;
        key[i] = bits < past ? bits : past;
    }
    range_of(key, n, range);
}

static void keys_f64(const double *p, size_t n, int shift, uint32_t past, uint32_t *key, uint32_t range[2])
{
    for (size_t i = 0; i < n; i++) {
        uint64_t bits;
        memcpy(&bits, p + i, sizeof bits);
        uint32_t k = (uint32_t)(bits >> shift);
        key[i] = k < past ? k : past;
    }
    range_of(key, n, range);
}

static size_t pick(uint32_t *key, const uint32_t wanted[RANKS], const double *value, size_t n, double *out)
{
    size_t found = 0;
    memset(key + n, 0xFE, PAD * sizeof *key); /* no key */
    for (size_t i = 0; i < n; i += 16) {
        uint32_t hit[16], any = 0;
        for (int lane = 0; lane < 16; lane++) {
            uint32_t k = key[i + (size_t)lane];
            hit[lane] = (k == wanted[0]) | (k == wanted[1]) | (k == wanted[2]) | (k == wanted[3]) | (k == wanted[4]) |
                        (k == wanted[5]) | (k == wanted[6]) | (k == wanted[7]);
            any |= hit[lane];
        }
        for (size_t lane = 0; any && lane < 16; lane++) {
            out[found] = value[i + lane];
            found += hit[lane] && value[i + lane] > 0;
        }
    }
    return found;
}

/* What lies below all bins takes BELOW keys in turn: a single counter would wait for itself. */
static ALWAYS_INLINE void make_keys16(const double *p, size_t n, int shift, uint64_t base, int apart, uint16_t *key)
{
    const uint32_t low = (uint32_t)base; /* a key has few bits: it fits */
    const uint64_t further = ((uint64_t)1 << shift) - 1;
    for (size_t i = 0; i < n; i++) {
        uint64_t bits;
        memcpy(&bits, p + i, sizeof bits);
        uint32_t k = (uint32_t)(bits >> shift);
        if (apart)
            k = 2 * k + ((bits & further) != 0);
        key[i] = (uint16_t)(k > low ? k - low + (BELOW - 1) : (uint32_t)i % BELOW);
    }
}

static void keys16(const double *p, size_t n, int shift, uint64_t base, int apart, uint16_t *key)
{
    if (apart)
        make_keys16(p, n, shift, base, 1, key);
    else
        make_keys16(p, n, shift, base, 0, key);
}

/* Words of keys with a wanted one first, then their values: no branch on what a word holds. */
static ALWAYS_INLINE size_t collect_keys(const uint16_t *key, size_t n, const uint16_t wanted[RANKS], int wants,
                                         const double *value, double *out)
{
    vh like[RANKS];
    uint16_t word[CHUNK / (4 * W) + 1];
    uint32_t which[CHUNK / (4 * W) + 1];
    size_t words = 0, found = 0;
    for (int k = 0; k < wants; k++)
        like[k] = h_set(wanted[k]);
    for (size_t i = 0; i < n; i += 4 * W) {
        const unsigned all = n - i < 4 * W ? (1u << (n - i)) - 1 : UINT32_MAX;
        const vh keys = h_load(key + i);
        mh same = h_same(keys, like[0]);
        for (int k = 1; k < wants; k++)
            same = h_or(same, h_same(keys, like[k]));
        word[words] = (uint16_t)i;
        which[words] = h_bits(same) & all;
        words += which[words] != 0;
    }
    for (size_t k = 0; k < words; k++)
        found += d_put(out + found, value + word[k], which[k]);
    return found;
}

/* The last wanted key is asked for again until there are four or eight: the loop has no choice to make. */
static size_t collect(const uint16_t *key, size_t n, const uint16_t *wanted, int wants, const double *value, double *out)
{
    uint16_t all[RANKS];
    for (int k = 0; k < RANKS; k++)
        all[k] = wanted[k < wants ? k : wants - 1];
    if (wants == 1)
        return collect_keys(key, n, all, 1, value, out);
    return wants <= 4 ? collect_keys(key, n, all, 4, value, out) : collect_keys(key, n, all, RANKS, value, out);
}

/* Hold each of a few against each other one. Of equal ones the place of the first is set. */
static void sort_few(double *x, size_t n, double *sorted)
{
    d_store(x + n, d_set(INFINITY));
    for (size_t i = 0; i < n; i++)
        sorted[i] = -1;
    for (size_t i = 0; i < n; i++) {
        const vd this = d_set(x[i]);
        size_t below = 0;
        for (size_t k = 0; k < n; k += W)
            below += bits_set(d_gt(this, d_load(x + k)));
        sorted[below] = x[i];
    }
}

const Kernels TABLE = {
    LEVEL_NAME, pair_f32, pair_bf16, pair_f16, survey,  side_f32, side_bf16,    side_f16,
    pair_f64,   side_f64, centre,    to_f32,   to_f64,  bracket,  sift,         sieve,    distance_f32,
    keys_f32,   keys_f64, pick,      keys16,   collect, sort_few,   stripes,
    hash_blocks, sketch_f64, look_f32, content_f32,
};

#if LEVEL && defined(__clang__)
#pragma clang attribute pop
#elif LEVEL
#pragma GCC pop_options
#endif
