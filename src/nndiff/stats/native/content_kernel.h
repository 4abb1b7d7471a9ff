/* Sums over a hash of every value, which do not depend on the order of the values, and the same weighted by place. */

#define CONTENT_LANES 8
typedef uint32_t content_bits __attribute__((vector_size(4 * CONTENT_LANES)));
typedef uint64_t content_words __attribute__((vector_size(8 * CONTENT_LANES)));

/* Two products, each folded: without the last fold a sum of hashes would be a hash of the sum. */
#define CONTENT_MIX(x)                                                                                                 \
    do {                                                                                                               \
        x *= CONTENT_FACTORS[0];                                                                                       \
        x ^= x >> 32;                                                                                                  \
        x *= CONTENT_FACTORS[1];                                                                                       \
        x ^= x >> 32;                                                                                                  \
    } while (0)

static ALWAYS_INLINE uint64_t mix_float(uint32_t bits)
{
    uint64_t x = (bits << 1) == 0 ? 0 : (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC00000 : bits; /* one zero, one NaN */
    x ^= CONTENT_KEYS[0];
    CONTENT_MIX(x);
    return x;
}

/* Add the hashes of floats, and those times the places they have, counted from one. */
static void content_f32(const void *source, size_t n, uint64_t at, ContentSums *out)
{
    content_words sum = {0}, rise = {0};
    uint64_t groups = n / CONTENT_LANES, by_place = 0, all = 0;
    const char *p = source;
    for (uint64_t group = 0; group < groups; group++, p += sizeof(content_bits)) {
        content_bits bits;
        __builtin_prefetch(p + LOOK_AHEAD);
        memcpy(&bits, p, sizeof bits);
        const content_bits size = bits & 0x7FFFFFFF;
        const content_bits is_nan = (content_bits)(size > 0x7F800000);
        bits = ((bits & ~is_nan) | (is_nan & 0x7FC00000)) & (content_bits)(size != 0);
        content_words x = __builtin_convertvector(bits, content_words) ^ CONTENT_KEYS[0];
        CONTENT_MIX(x);
        sum += x;
        rise += sum; /* in the end each hash counts once for itself and once for every group behind it */
    }
    for (size_t lane = 0; lane < CONTENT_LANES; lane++) {
        all += sum[lane];
        by_place += CONTENT_LANES * (groups * sum[lane] - rise[lane]) + (at + lane + 1) * sum[lane];
    }
    /* group g of a lane was counted groups - g times, so what is missing to `groups` is the place of its group */
    for (size_t i = CONTENT_LANES * groups; i < n; i++, p += sizeof(uint32_t)) {
        uint32_t bits;
        memcpy(&bits, p, sizeof bits);
        const uint64_t x = mix_float(bits);
        all += x;
        by_place += (at + i + 1) * x;
    }
    out->values += all;
    out->placed += by_place;
}
