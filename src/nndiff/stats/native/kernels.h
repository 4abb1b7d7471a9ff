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
#include "narrow.h"

/* Count the floats at or above each edge by their upper 16 bits; 16 at a time, in any order. */
static void bracket(const float *p, size_t n, Brackets *b)
{
#if LEVEL
    __m256i edge[RANKS], count[RANKS];
    for (int k = 0; k < RANKS; k++) {
        edge[k] = _mm256_set1_epi16((int16_t)(b->edge[k] - 1));
        count[k] = _mm256_loadu_si256((const __m256i *)b->count[k]);
    }
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i even = _mm256_loadu_si256((const __m256i *)(p + i));
        __m256i odd = _mm256_loadu_si256((const __m256i *)(p + i + 8));
        __m256i key = _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xAA);
        for (int k = 0; k < RANKS; k++)
            count[k] = _mm256_sub_epi16(count[k], _mm256_cmpgt_epi16(key, edge[k]));
    }
    for (int k = 0; k < RANKS; k++)
        _mm256_storeu_si256((__m256i *)b->count[k], count[k]);
#else
    typedef int16_t keys __attribute__((vector_size(16)));
    const kf upper = {(int)0xFFFF0000, (int)0xFFFF0000, (int)0xFFFF0000, (int)0xFFFF0000};
    keys edge[RANKS], count[RANKS];
    for (int k = 0; k < RANKS; k++) {
        edge[k] = (keys){0} + b->edge[k];
        memcpy(&count[k], b->count[k], sizeof count[k]);
    }
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        kf even = (kf)f_load(p + i), odd = (kf)f_load(p + i + 4); /* not negative: the shift brings in zeros */
        keys key = (keys)((even >> 16) | (odd & upper));
        for (int k = 0; k < RANKS; k++)
            count[k] -= key >= edge[k];
    }
    for (int k = 0; k < RANKS; k++)
        memcpy(b->count[k], &count[k], sizeof count[k]);
#endif
    for (; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, p + i, sizeof bits);
        for (int k = 0; k < RANKS; k++)
            b->count[k][0] = (uint16_t)(b->count[k][0] + ((int16_t)(bits >> 16) >= b->edge[k]));
    }
}

static void distance_f32(const float *r, const float *c, size_t n, float *dist32, double *dist64)
{
    for (size_t i = 0; i < n; i++) {
        dist32[i] = fabsf(c[i] - r[i]);
        dist64[i] = fabs((double)c[i] - (double)r[i]);
    }
}

const Kernels TABLE = {
    LEVEL_NAME, pair_f32, pair_bf16, pair_f16, side_f32, side_bf16, side_f16,
    pair_f64,   side_f64, centre,    to_f32,   to_f64,   bracket,   distance_f32,
};

#if LEVEL && defined(__clang__)
#pragma clang attribute pop
#elif LEVEL
#pragma GCC pop_options
#endif
