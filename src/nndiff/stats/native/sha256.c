/* SHA-256 by the instructions of x86. */
#include "sha256.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <cpuid.h>
#include <immintrin.h>
#include <string.h>

#define TARGET __attribute__((target("sha,sse4.1,ssse3")))
#define INLINE static inline __attribute__((always_inline)) TARGET

static const _Alignas(16) uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

int sha256_here(void)
{
    unsigned a, b, c, d; /* asked for by number: __builtin_cpu_supports knows "sha" in new compilers only */
    if (!__builtin_cpu_supports("sse4.1") || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    return (b >> 29) & 1;
}

void sha256_start(Sha256 *s)
{
    *s = (Sha256){{0x9b05688c, 0x510e527f, 0xbb67ae85, 0x6a09e667, 0x5be0cd19, 0x1f83d9ab, 0xa54ff53a, 0x3c6ef372}};
}

typedef struct {
    __m128i abef, cdgh, w[4];
} Rounds;

INLINE void load_state(Rounds *r, const Sha256 *s)
{
    r->abef = _mm_loadu_si128((const __m128i *)s->word);
    r->cdgh = _mm_loadu_si128((const __m128i *)(s->word + 4));
}

INLINE void store_state(const Rounds *r, Sha256 *s)
{
    _mm_storeu_si128((__m128i *)s->word, r->abef);
    _mm_storeu_si128((__m128i *)(s->word + 4), r->cdgh);
}

INLINE void load_words(Rounds *r, const uint8_t *p)
{
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    for (int i = 0; i < 4; i++)
        r->w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)p + i), big_endian);
}

/* Four rounds, and the four words that are due sixteen rounds later. */
INLINE void four(Rounds *r, int group)
{
    __m128i *w = r->w;
    const int i = group & 3, j = (group + 1) & 3, k = (group + 2) & 3, l = (group + 3) & 3;
    __m128i sum = _mm_add_epi32(w[i], _mm_load_si128((const __m128i *)K + group));
    r->cdgh = _mm_sha256rnds2_epu32(r->cdgh, r->abef, sum);
    r->abef = _mm_sha256rnds2_epu32(r->abef, r->cdgh, _mm_shuffle_epi32(sum, 0x0E));
    if (group < 12)
        w[i] = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(w[i], w[j]), _mm_alignr_epi8(w[l], w[k], 4)), w[l]);
}

INLINE void add_state(Rounds *r, __m128i abef, __m128i cdgh)
{
    r->abef = _mm_add_epi32(r->abef, abef);
    r->cdgh = _mm_add_epi32(r->cdgh, cdgh);
}

TARGET void sha256_blocks(Sha256 *s, const uint8_t *p, size_t blocks)
{
    Rounds r;
    load_state(&r, s);
    for (; blocks; blocks--, p += SHA256_BLOCK) {
        const __m128i abef = r.abef, cdgh = r.cdgh;
        load_words(&r, p);
#pragma GCC unroll 16
        for (int group = 0; group < 16; group++)
            four(&r, group);
        add_state(&r, abef, cdgh);
    }
    store_state(&r, s);
}

TARGET void sha256_two(Sha256 *s, const uint8_t *p, Sha256 *t, const uint8_t *q, size_t blocks)
{
    Rounds one, two;
    load_state(&one, s);
    load_state(&two, t);
    for (; blocks; blocks--, p += SHA256_BLOCK, q += SHA256_BLOCK) {
        const __m128i abef[2] = {one.abef, two.abef}, cdgh[2] = {one.cdgh, two.cdgh};
        load_words(&one, p);
        load_words(&two, q);
#pragma GCC unroll 16
        for (int group = 0; group < 16; group++) {
            four(&one, group);
            four(&two, group);
        }
        add_state(&one, abef[0], cdgh[0]);
        add_state(&two, abef[1], cdgh[1]);
    }
    store_state(&one, s);
    store_state(&two, t);
}

static void big_endian(uint8_t *out, uint64_t value, int size)
{
    for (int i = 0; i < size; i++)
        out[i] = (uint8_t)(value >> (8 * (size - 1 - i)));
}

void sha256_end(Sha256 *s, const uint8_t *rest, uint64_t total, uint8_t out[SHA256_SIZE])
{
    static const unsigned char PLACE[8] = {3, 2, 7, 6, 1, 0, 5, 4}; /* of a to h */
    uint8_t last[2 * SHA256_BLOCK] = {0};
    size_t size = total % SHA256_BLOCK, blocks = size + 9 <= SHA256_BLOCK ? 1 : 2;
    if (size)
        memcpy(last, rest, size);
    last[size] = 0x80;
    big_endian(last + blocks * SHA256_BLOCK - 8, 8 * total, 8);
    sha256_blocks(s, last, blocks);
    for (int i = 0; i < 8; i++)
        big_endian(out + 4 * i, s->word[PLACE[i]], 4);
}

#else

int sha256_here(void) { return 0; }
void sha256_start(Sha256 *s) { (void)s; }
void sha256_blocks(Sha256 *s, const uint8_t *p, size_t blocks) { (void)s, (void)p, (void)blocks; }
void sha256_two(Sha256 *s, const uint8_t *p, Sha256 *t, const uint8_t *q, size_t blocks)
{
    (void)s, (void)p, (void)t, (void)q, (void)blocks;
}
void sha256_end(Sha256 *s, const uint8_t *rest, uint64_t total, uint8_t out[SHA256_SIZE])
{
    (void)s, (void)rest, (void)total, (void)out;
}

#endif
