/* The part of XXH3 that depends on the vector width: eight lanes of 64 bits that take in stripes of 64 bytes. */

#if LEVEL == 512
typedef __m512i Lanes, Stripe;
static inline Lanes lanes_load(const uint64_t *p) { return _mm512_loadu_si512(p); }
static inline void lanes_store(uint64_t *p, Lanes a) { _mm512_storeu_si512(p, a); }
/* read memory once, where the compiler would do so for each use */
static ALWAYS_INLINE Stripe stripe_load(const uint8_t *p)
{
    __m512i a = _mm512_loadu_si512(p);
    __asm__("" : "+v"(a));
    return a;
}
static inline vf stripe_floats(Stripe a, const uint8_t *p, size_t place) { return (void)p, (void)place, _mm512_castsi512_ps(a); }
/* Each 64 bits are added to the neighbour's lane, and the product of their halves, under the key, to their own. */
static ALWAYS_INLINE void add_stripe(Lanes *sum, Stripe data, const uint8_t *key)
{
    __m512i mixed = _mm512_xor_si512(data, _mm512_loadu_si512(key));
    __m512i product = _mm512_mul_epu32(mixed, _mm512_srli_epi64(mixed, 32));
    *sum = _mm512_add_epi64(*sum, _mm512_add_epi64(product, _mm512_shuffle_epi32(data, _MM_PERM_BADC)));
}
static ALWAYS_INLINE void scramble(Lanes *sum, const uint8_t *key)
{
    __m512i mixed = _mm512_xor_si512(_mm512_xor_si512(*sum, _mm512_srli_epi64(*sum, 47)), _mm512_loadu_si512(key));
    *sum = _mm512_mullo_epi64(mixed, _mm512_set1_epi64(XXH3_SCRAMBLE));
}
#elif LEVEL == 2
typedef struct {
    __m256i half[2];
} Lanes, Stripe;
static inline Lanes lanes_load(const uint64_t *p)
{
    return (Lanes){{_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 4))}};
}
static inline void lanes_store(uint64_t *p, Lanes a)
{
    _mm256_storeu_si256((__m256i *)p, a.half[0]);
    _mm256_storeu_si256((__m256i *)(p + 4), a.half[1]);
}
static ALWAYS_INLINE Stripe stripe_load(const uint8_t *p)
{
    return (Stripe){{_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1)}};
}
static ALWAYS_INLINE void add_stripe(Lanes *sum, Stripe stripe, const uint8_t *key)
{
    for (int half = 0; half < 2; half++) {
        __m256i data = stripe.half[half];
        __m256i mixed = _mm256_xor_si256(data, _mm256_loadu_si256((const __m256i *)key + half));
        __m256i product = _mm256_mul_epu32(mixed, _mm256_srli_epi64(mixed, 32));
        sum->half[half] = _mm256_add_epi64(sum->half[half], _mm256_add_epi64(product, _mm256_shuffle_epi32(data, 0x4E)));
    }
}
static ALWAYS_INLINE void scramble(Lanes *sum, const uint8_t *key)
{
    const __m256i factor = _mm256_set1_epi64x(XXH3_SCRAMBLE); /* of 32 bits, so two products are enough */
    for (int half = 0; half < 2; half++) {
        __m256i mixed = _mm256_xor_si256(sum->half[half], _mm256_srli_epi64(sum->half[half], 47));
        mixed = _mm256_xor_si256(mixed, _mm256_loadu_si256((const __m256i *)key + half));
        __m256i upper = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), factor);
        sum->half[half] = _mm256_add_epi64(_mm256_mul_epu32(mixed, factor), _mm256_slli_epi64(upper, 32));
    }
}
#else
typedef struct {
    uint64_t lane[XXH3_LANES];
} Lanes;
typedef const uint8_t *Stripe;
static inline Lanes lanes_load(const uint64_t *p)
{
    Lanes a;
    memcpy(&a, p, sizeof a);
    return a;
}
static inline Stripe stripe_load(const uint8_t *p) { return p; }
static inline void lanes_store(uint64_t *p, Lanes a) { memcpy(p, &a, sizeof a); }
static ALWAYS_INLINE void add_stripe(Lanes *sum, Stripe p, const uint8_t *key)
{
    for (size_t k = 0; k < XXH3_LANES; k++) {
        uint64_t data, mixed;
        memcpy(&data, p + 8 * k, sizeof data);
        memcpy(&mixed, key + 8 * k, sizeof mixed);
        mixed ^= data;
        sum->lane[k] += (mixed & UINT32_MAX) * (mixed >> 32);
        sum->lane[k ^ 1] += data;
    }
}
static ALWAYS_INLINE void scramble(Lanes *sum, const uint8_t *key)
{
    for (size_t k = 0; k < XXH3_LANES; k++) {
        uint64_t word;
        memcpy(&word, key + 8 * k, sizeof word);
        sum->lane[k] = (sum->lane[k] ^ sum->lane[k] >> 47 ^ word) * XXH3_SCRAMBLE;
    }
}
#endif

#if LEVEL != 512
/* 2 W floats of a stripe that was loaded from memory, from a place in it on */
static inline vf stripe_floats(Stripe a, const uint8_t *p, size_t place)
{
    (void)a;
    return f_load((const float *)p + place);
}
#endif

static void stripes(uint64_t lane[XXH3_LANES], const uint8_t *p, size_t count, const uint8_t *key)
{
    Lanes sum = lanes_load(lane);
    for (size_t i = 0; i < count; i++)
        add_stripe(&sum, stripe_load(p + XXH3_STRIPE * i), key + 8 * i);
    lanes_store(lane, sum);
}

static void hash_blocks(uint64_t lane[XXH3_LANES], const uint8_t *p, size_t blocks, const uint8_t *key)
{
    Lanes sum = lanes_load(lane);
    for (size_t block = 0; block < blocks; block++) {
        if (block % (PAGE / XXH3_BLOCK) == 0)
            __builtin_prefetch(p + 2 * LOOK_AHEAD); /* where a page is takes longer to find than what is in it */
        for (size_t i = 0; i < XXH3_BLOCK / XXH3_STRIPE; i++, p += XXH3_STRIPE) {
            __builtin_prefetch(p + LOOK_AHEAD);
            add_stripe(&sum, stripe_load(p), key + 8 * i);
        }
        scramble(&sum, key + XXH3_LAST_KEY);
    }
    lanes_store(lane, sum);
}
