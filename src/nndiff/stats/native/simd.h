/* A thin layer over one vector width: LEVEL is 0 (any machine), 2 (AVX2) or 512 (AVX-512).

   vd holds W doubles, vf holds 2 W floats. Comparisons of doubles give one bit per lane, those
   of floats what the machine likes best (mf). The maximum and the
   minimum of a NaN and a number are the second argument, on every width. */
#if LEVEL == 512

#define W 8
typedef __m512d vd;
typedef __m512 vf;
typedef __mmask16 mf;

static inline vd d_set(double x) { return _mm512_set1_pd(x); }
static inline vd d_load(const double *p) { return _mm512_loadu_pd(p); }
static inline void d_store(double *p, vd a) { _mm512_storeu_pd(p, a); }
static inline vd d_add(vd a, vd b) { return _mm512_add_pd(a, b); }
static inline vd d_sub(vd a, vd b) { return _mm512_sub_pd(a, b); }
static inline vd d_mul(vd a, vd b) { return _mm512_mul_pd(a, b); }
static inline vd d_div(vd a, vd b) { return _mm512_div_pd(a, b); }
static inline vd d_fma(vd a, vd b, vd c) { return _mm512_fmadd_pd(a, b, c); }
static inline vd d_min(vd a, vd b) { return _mm512_min_pd(a, b); }
static inline vd d_max(vd a, vd b) { return _mm512_max_pd(a, b); }
static inline vd d_abs(vd a) { return _mm512_castsi512_pd(_mm512_and_si512(_mm512_castpd_si512(a), _mm512_set1_epi64(INT64_MAX))); }
static inline unsigned d_gt(vd a, vd b) { return _mm512_cmp_pd_mask(a, b, _CMP_GT_OQ); }
static inline unsigned d_nle(vd a, vd b) { return _mm512_cmp_pd_mask(a, b, _CMP_NLE_UQ); }
static inline unsigned d_ne(vd a, vd b) { return _mm512_cmp_pd_mask(a, b, _CMP_NEQ_UQ); }
static inline vd d_finite_or_zero(vd a) { return _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(a, d_set(DBL_MAX), _CMP_LE_OQ), a); }
static inline double d_sum(vd a) { return _mm512_reduce_add_pd(a); }
/* change the signs of the lanes whose bits are set, from a bit on; from memory straight into a mask takes least time */
static inline vd d_negate(vd a, const uint8_t *which, unsigned from)
{
    __mmask8 mask;
    (void)from; /* a byte is a vector */
    __asm__("kmovb %1, %0" : "=k"(mask) : "m"(*which));
    return _mm512_mask_xor_pd(a, mask, a, d_set(-0.0));
}

static inline vf f_set(float x) { return _mm512_set1_ps(x); }
static inline vf f_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void f_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
static inline vf f_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf f_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf f_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf f_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf f_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf f_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf f_abs(vf a) { return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(INT32_MAX))); }
static inline mf f_ne(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ); }
static inline mf f_gt(mf where, vf a, vf b) { return _mm512_mask_cmp_ps_mask(where, a, b, _CMP_GT_OQ); }
static inline mf f_nle(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ); }
static inline unsigned m_bits(mf a) { return _cvtmask16_u32(a); }
static inline unsigned m_join(mf a, mf b) { return _cvtmask32_u32(_mm512_kunpackw(b, a)); } /* bits of a first */
static inline unsigned m_count(mf a, mf b) { return (unsigned)__builtin_popcount(m_join(a, b)); }
static inline float f_least(vf a) { return _mm512_reduce_min_ps(a); }
static inline vd d_exchange(vd a, const uint16_t *which)
{
    const __m512i lane = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm512_permutexvar_pd(_mm512_xor_si512(lane, _mm512_set1_epi64(*which)), a);
}
/* lane i takes what was in lane i ^ which, by as many bits of it as there are lanes */
static inline vf f_exchange(vf a, const uint16_t *which)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i all;
    __asm__("vpbroadcastw %1, %0" : "=v"(all) : "m"(*which));
    return _mm512_permutexvar_ps(_mm512_xor_si512(lane, all), a);
}
static inline float f_most(vf a) { return _mm512_reduce_max_ps(a); }
static inline vd f_low(vf a) { return _mm512_cvtps_pd(_mm512_castps512_ps256(a)); }
static inline vd f_high(vf a) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)); }
static inline vf f_from_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
/* 4 W bfloat16: those at even places, then those at odd places */
static inline void f_from_bf16(const uint16_t *p, vf *even, vf *odd)
{
    __m512i raw = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(raw, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(raw, _mm512_set1_epi32((int)0xFFFF0000)));
}
typedef __m512i vi; /* the bits of 2 W floats as whole numbers */
static inline vi i_of(vf a) { return _mm512_castps_si512(a); }
static inline vf i_float(vi a) { return _mm512_castsi512_ps(a); }
static inline vi i_set(int32_t x) { return _mm512_set1_epi32(x); }
static inline vi i_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
static inline vi i_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
static inline vi i_min(vi a, vi b) { return _mm512_min_epi32(a, b); }
static inline vi i_unsigned_min(vi a, vi b) { return _mm512_min_epu32(a, b); }
static inline mf i_gt(vi a, vi b) { return _mm512_cmpgt_epi32_mask(a, b); }
static inline vd d_from_f32(const float *p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
/* write some of the floats as doubles, and anything behind them; return their number */
static inline size_t f_put(double *out, vf a, unsigned which)
{
    vf few = _mm512_maskz_compress_ps((mf)which, a);
    d_store(out, f_low(few));
    d_store(out + W, f_high(few));
    return (size_t)__builtin_popcount(which);
}
static inline unsigned bits_set(unsigned mask) { return (unsigned)__builtin_popcount(mask); }
/* the same as they are */
static inline size_t f_pack(float *out, vf a, unsigned which)
{
    f_store(out, _mm512_maskz_compress_ps((mf)which, a));
    return (size_t)__builtin_popcount(which);
}
/* the same of whole numbers: a first one and every so many from it */
static inline void i_put(int32_t *out, int32_t first, int32_t step, unsigned which)
{
    const vi lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    vi place = _mm512_add_epi32(_mm512_mullo_epi32(lane, i_set(step)), i_set(first));
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi32((mf)which, place));
}
/* write at least some of W doubles, and anything behind them; return how many were written */
static inline size_t d_keep(double *out, vd a, unsigned which)
{
    d_store(out, _mm512_maskz_compress_pd((__mmask8)which, a));
    return (size_t)__builtin_popcount(which & 0xFF);
}
/* write some of 4 W doubles, and anything behind them; return their number */
static inline size_t d_put(double *out, const double *p, uint32_t which)
{
    size_t count = 0;
    for (int i = 0; i < 4; i++, which >>= W) {
        d_store(out + count, _mm512_maskz_compress_pd((__mmask8)which, d_load(p + i * W)));
        count += bits_set(which & 0xFF);
    }
    return count;
}
typedef __m512i vh; /* 4 W halves as whole numbers */
static inline vh h_zero(void) { return _mm512_setzero_si512(); }
static inline vh h_load(const uint16_t *p) { return _mm512_loadu_si512(p); }
static inline void h_store(uint16_t *p, vh a) { _mm512_storeu_si512(p, a); }
static inline vh h_signed_max(vh a, vh b) { return _mm512_max_epi16(a, b); }
static inline vh h_unsigned_max(vh a, vh b) { return _mm512_max_epu16(a, b); }
static inline vh h_set(uint16_t x) { return _mm512_set1_epi16((int16_t)x); }
typedef __mmask32 mh;
static inline mh h_same(vh a, vh b) { return _mm512_cmpeq_epi16_mask(a, b); }
static inline mh h_or(mh a, mh b) { return _kor_mask32(a, b); }
static inline unsigned h_bits(mh a) { return _cvtmask32_u32(a); }

#elif LEVEL == 2

#define W 4
typedef __m256d vd;
typedef __m256 vf;
typedef __m256 mf;

static inline vd d_set(double x) { return _mm256_set1_pd(x); }
static inline vd d_load(const double *p) { return _mm256_loadu_pd(p); }
static inline void d_store(double *p, vd a) { _mm256_storeu_pd(p, a); }
static inline vd d_add(vd a, vd b) { return _mm256_add_pd(a, b); }
static inline vd d_sub(vd a, vd b) { return _mm256_sub_pd(a, b); }
static inline vd d_mul(vd a, vd b) { return _mm256_mul_pd(a, b); }
static inline vd d_div(vd a, vd b) { return _mm256_div_pd(a, b); }
static inline vd d_fma(vd a, vd b, vd c) { return _mm256_fmadd_pd(a, b, c); }
static inline vd d_min(vd a, vd b) { return _mm256_min_pd(a, b); }
static inline vd d_max(vd a, vd b) { return _mm256_max_pd(a, b); }
static inline vd d_abs(vd a) { return _mm256_andnot_pd(_mm256_set1_pd(-0.0), a); }
static inline unsigned d_gt(vd a, vd b) { return (unsigned)_mm256_movemask_pd(_mm256_cmp_pd(a, b, _CMP_GT_OQ)); }
static inline unsigned d_nle(vd a, vd b) { return (unsigned)_mm256_movemask_pd(_mm256_cmp_pd(a, b, _CMP_NLE_UQ)); }
static inline unsigned d_ne(vd a, vd b) { return (unsigned)_mm256_movemask_pd(_mm256_cmp_pd(a, b, _CMP_NEQ_UQ)); }
static inline vd d_finite_or_zero(vd a) { return _mm256_and_pd(a, _mm256_cmp_pd(a, d_set(DBL_MAX), _CMP_LE_OQ)); }

static inline vf f_set(float x) { return _mm256_set1_ps(x); }
static inline vf f_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void f_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
static inline vf f_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf f_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf f_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf f_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf f_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf f_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf f_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline mf f_ne(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_NEQ_UQ); }
static inline mf f_gt(mf where, vf a, vf b) { return _mm256_and_ps(where, _mm256_cmp_ps(a, b, _CMP_GT_OQ)); }
static inline mf f_nle(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_NLE_UQ); }
static inline unsigned m_bits(mf a) { return (unsigned)_mm256_movemask_ps(a); }
static inline unsigned m_join(mf a, mf b) { return m_bits(a) | m_bits(b) << 8; }
static inline unsigned m_count(mf a, mf b) { return (unsigned)__builtin_popcount(m_join(a, b)); }
static const _Alignas(32) double SIGNS[16][4] = {
    {0., 0., 0., 0.},  {-0., 0., 0., 0.},  {0., -0., 0., 0.},  {-0., -0., 0., 0.},
    {0., 0., -0., 0.}, {-0., 0., -0., 0.}, {0., -0., -0., 0.}, {-0., -0., -0., 0.},
    {0., 0., 0., -0.}, {-0., 0., 0., -0.}, {0., -0., 0., -0.}, {-0., -0., 0., -0.},
    {0., 0., -0., -0.}, {-0., 0., -0., -0.}, {0., -0., -0., -0.}, {-0., -0., -0., -0.},
};
static inline vd d_negate(vd a, const uint8_t *which, unsigned from)
{
    return _mm256_xor_pd(a, _mm256_load_pd(SIGNS[*which >> from & 15]));
}
static inline vd d_exchange(vd a, const uint16_t *which)
{
    const __m256i half = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); /* two for each lane */
    const __m256i moved = _mm256_xor_si256(half, _mm256_set1_epi32(2 * *which));
    return _mm256_castsi256_pd(_mm256_permutevar8x32_epi32(_mm256_castpd_si256(a), moved));
}
static inline vf f_exchange(vf a, const uint16_t *which)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_permutevar8x32_ps(a, _mm256_xor_si256(lane, _mm256_set1_epi32(*which)));
}
static inline vd f_low(vf a) { return _mm256_cvtps_pd(_mm256_castps256_ps128(a)); }
static inline vd f_high(vf a) { return _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)); }
static inline vf f_from_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline void f_from_bf16(const uint16_t *p, vf *even, vf *odd)
{
    __m256i raw = _mm256_loadu_si256((const __m256i *)p);
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(raw, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(raw, _mm256_set1_epi32((int)0xFFFF0000)));
}
typedef __m256i vi; /* the bits of 2 W floats as whole numbers */
static inline vi i_of(vf a) { return _mm256_castps_si256(a); }
static inline vf i_float(vi a) { return _mm256_castsi256_ps(a); }
static inline vi i_set(int32_t x) { return _mm256_set1_epi32(x); }
static inline vi i_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
static inline vi i_max(vi a, vi b) { return _mm256_max_epi32(a, b); }
static inline vi i_min(vi a, vi b) { return _mm256_min_epi32(a, b); }
static inline vi i_unsigned_min(vi a, vi b) { return _mm256_min_epu32(a, b); }
static inline mf i_gt(vi a, vi b) { return _mm256_castsi256_ps(_mm256_cmpgt_epi32(a, b)); }
static inline vd d_from_f32(const float *p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
static inline unsigned bits_set(unsigned mask) { return (unsigned)__builtin_popcount(mask); }
typedef __m256i vh; /* 4 W halves as whole numbers */
static inline vh h_zero(void) { return _mm256_setzero_si256(); }
static inline vh h_load(const uint16_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline void h_store(uint16_t *p, vh a) { _mm256_storeu_si256((__m256i *)p, a); }
static inline vh h_signed_max(vh a, vh b) { return _mm256_max_epi16(a, b); }
static inline vh h_unsigned_max(vh a, vh b) { return _mm256_max_epu16(a, b); }
static inline vh h_set(uint16_t x) { return _mm256_set1_epi16((int16_t)x); }
typedef __m256i mh;
static inline mh h_same(vh a, vh b) { return _mm256_cmpeq_epi16(a, b); }
static inline mh h_or(mh a, mh b) { return _mm256_or_si256(a, b); }
static inline unsigned h_bits(mh a) { return (unsigned)_mm_movemask_epi8(_mm_packs_epi16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1))); }

#else /* any machine, by the vectors of the compiler */

#define W 2
typedef double vd __attribute__((vector_size(16)));
typedef float vf __attribute__((vector_size(16)));
typedef long long kd __attribute__((vector_size(16)));
typedef int kf __attribute__((vector_size(16)));
typedef kf mf;

static inline vd d_set(double x) { return (vd){x, x}; }
static inline vd d_load(const double *p) { vd a; memcpy(&a, p, sizeof a); return a; }
static inline void d_store(double *p, vd a) { memcpy(p, &a, sizeof a); }
static inline vd d_add(vd a, vd b) { return a + b; }
static inline vd d_sub(vd a, vd b) { return a - b; }
static inline vd d_mul(vd a, vd b) { return a * b; }
static inline vd d_div(vd a, vd b) { return a / b; }
static inline vd d_fma(vd a, vd b, vd c) { return a * b + c; }
static inline vd d_pick(kd k, vd a, vd b) { return (vd)((k & (kd)a) | (~k & (kd)b)); }
static inline vd d_min(vd a, vd b) { return d_pick(a < b, a, b); }
static inline vd d_max(vd a, vd b) { return d_pick(a > b, a, b); }
static inline vd d_abs(vd a) { return (vd)((kd)a & (kd){INT64_MAX, INT64_MAX}); }
static inline unsigned d_bits(kd k) { return (unsigned)((k[0] & 1) | (k[1] & 2)); }
static inline unsigned d_gt(vd a, vd b) { return d_bits(a > b); }
static inline unsigned d_nle(vd a, vd b) { return d_bits(~(a <= b)); }
static inline unsigned d_ne(vd a, vd b) { return d_bits(a != b); }
static inline vd d_finite_or_zero(vd a) { return (vd)((a <= d_set(DBL_MAX)) & (kd)a); }

static inline vf f_set(float x) { return (vf){x, x, x, x}; }
static inline vf f_load(const float *p) { vf a; memcpy(&a, p, sizeof a); return a; }
static inline void f_store(float *p, vf a) { memcpy(p, &a, sizeof a); }
static inline vf f_sub(vf a, vf b) { return a - b; }
static inline vf f_add(vf a, vf b) { return a + b; }
static inline vf f_div(vf a, vf b) { return a / b; }
static inline vf f_fma(vf a, vf b, vf c) { return a * b + c; }
static inline vf f_pick(kf k, vf a, vf b) { return (vf)((k & (kf)a) | (~k & (kf)b)); }
static inline vf f_min(vf a, vf b) { return f_pick(a < b, a, b); }
static inline vf f_max(vf a, vf b) { return f_pick(a > b, a, b); }
static inline vf f_abs(vf a) { return (vf)((kf)a & (kf){INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX}); }
static inline vd d_negate(vd a, const uint8_t *which, unsigned from)
{
    const uint64_t bits = *which >> from;
    const kd sign = {(long long)(bits << 63), (long long)(bits >> 1 << 63)};
    return (vd)((kd)a ^ sign);
}
static inline vd d_exchange(vd a, const uint16_t *which) { return *which & 1 ? (vd){a[1], a[0]} : a; }
static inline vf f_exchange(vf a, const uint16_t *which)
{
    const unsigned by = *which & 3;
    float lane[4];
    f_store(lane, a);
    return (vf){lane[by], lane[by ^ 1], lane[by ^ 2], lane[by ^ 3]};
}
static inline mf f_ne(vf a, vf b) { return a != b; }
static inline mf f_gt(mf where, vf a, vf b) { return where & (a > b); }
static inline mf f_nle(vf a, vf b) { return ~(a <= b); }
static inline unsigned m_bits(mf k) { return (unsigned)((k[0] & 1) | (k[1] & 2) | (k[2] & 4) | (k[3] & 8)); }
static inline vd f_low(vf a) { return (vd){a[0], a[1]}; }
static inline vd f_high(vf a) { return (vd){a[2], a[3]}; }
static inline vf f_from_f16(const uint16_t *p)
{
    uint16_t raw[4];
    memcpy(raw, p, sizeof raw);
    return (vf){half_to_float(raw[0]), half_to_float(raw[1]), half_to_float(raw[2]), half_to_float(raw[3])};
}
static inline void f_from_bf16(const uint16_t *p, vf *even, vf *odd)
{
    kf raw;
    memcpy(&raw, p, sizeof raw);
    *even = (vf)(raw << 16);
    *odd = (vf)(raw & (kf){(int)0xFFFF0000, (int)0xFFFF0000, (int)0xFFFF0000, (int)0xFFFF0000});
}
typedef kf vi; /* the bits of 2 W floats as whole numbers */
typedef unsigned uf __attribute__((vector_size(16)));
static inline vi i_of(vf a) { return (vi)a; }
static inline vf i_float(vi a) { return (vf)a; }
static inline vi i_set(int32_t x) { return (vi){x, x, x, x}; }
static inline vi i_sub(vi a, vi b) { return (vi)((uf)a - (uf)b); }
static inline vi i_max(vi a, vi b) { vi k = a > b; return (k & a) | (~k & b); }
static inline vi i_min(vi a, vi b) { vi k = a < b; return (k & a) | (~k & b); }
static inline vi i_unsigned_min(vi a, vi b) { vi k = (vi)((uf)a < (uf)b); return (k & a) | (~k & b); }
static inline mf i_gt(vi a, vi b) { return a > b; }
static inline vd d_from_f32(const float *p) { float x[2]; memcpy(x, p, sizeof x); return (vd){x[0], x[1]}; }
typedef int16_t vh __attribute__((vector_size(16))); /* 4 W halves as whole numbers */
typedef uint16_t uh __attribute__((vector_size(16)));
static inline vh h_zero(void) { return (vh){0}; }
static inline vh h_load(const uint16_t *p) { vh a; memcpy(&a, p, sizeof a); return a; }
static inline void h_store(uint16_t *p, vh a) { memcpy(p, &a, sizeof a); }
static inline vh h_signed_max(vh a, vh b) { vh k = a > b; return (k & a) | (~k & b); }
static inline vh h_unsigned_max(vh a, vh b) { vh k = (vh)((uh)a > (uh)b); return (k & a) | (~k & b); }
static inline vh h_set(uint16_t x) { return (vh){0} + (int16_t)x; }
typedef vh mh;
static inline mh h_same(vh a, vh b) { return a == b; }
static inline mh h_or(mh a, mh b) { return a | b; }
static inline unsigned h_bits(mh a)
{
    unsigned bits = 0;
    for (unsigned i = 0; i < 8; i++)
        bits |= (unsigned)(a[i] & 1) << i;
    return bits;
}
static inline unsigned bits_set(unsigned mask) { return (0x4332322132212110ull >> (4 * mask)) & 15; }
static inline unsigned m_join(mf a, mf b) { return m_bits(a) | m_bits(b) << 4; }
static inline unsigned m_count(mf a, mf b) { return bits_set(m_bits(a)) + bits_set(m_bits(b)); }

#endif

#if LEVEL != 512
static inline size_t f_put(double *out, vf a, unsigned which)
{
    float lane[2 * W];
    size_t count = 0;
    f_store(lane, a);
    for (unsigned i = 0; i < 2 * W; i++) {
        out[count] = lane[i];
        count += which >> i & 1;
    }
    return count;
}
static inline size_t f_pack(float *out, vf a, unsigned which)
{
    float lane[2 * W];
    size_t count = 0;
    f_store(lane, a);
    for (; which; which &= which - 1)
        out[count++] = lane[__builtin_ctz(which)];
    return count;
}
static inline void i_put(int32_t *out, int32_t first, int32_t step, unsigned which)
{
    for (; which; which &= which - 1)
        *out++ = first + __builtin_ctz(which) * step;
}
static inline size_t d_keep(double *out, vd a, unsigned which)
{
    (void)which; /* leaving some out would take longer than it spares */
    d_store(out, a);
    return W;
}
static inline size_t d_put(double *out, const double *p, uint32_t which)
{
    size_t count = 0;
    for (; which; which &= which - 1)
        out[count++] = p[__builtin_ctz(which)];
    return count;
}
static inline double d_sum(vd a)
{
    double lane[W], total = 0;
    d_store(lane, a);
    for (int i = 0; i < W; i++)
        total += lane[i];
    return total;
}
static inline float f_least(vf a)
{
    float lane[2 * W], least = INFINITY;
    f_store(lane, a);
    for (int i = 0; i < 2 * W; i++)
        least = lane[i] < least ? lane[i] : least;
    return least;
}
static inline float f_most(vf a)
{
    float lane[2 * W], most = -INFINITY;
    f_store(lane, a);
    for (int i = 0; i < 2 * W; i++)
        most = lane[i] > most ? lane[i] : most;
    return most;
}
#endif
