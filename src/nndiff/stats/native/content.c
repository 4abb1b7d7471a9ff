/* What a tensor holds, whatever the order, shape and dtype: sums over a hash of every value, after rounding if asked. */
#include "content.h"

#include <stdatomic.h>
#include <string.h>

#include "crew.h"

enum { TASK = 1 << 16 }; /* elements: the unit of work of a thread */

/* A float type: bits of its mantissa, the exponent of its least normal number, its largest number, what lies above. */
typedef struct {
    int mantissa, least;
    uint32_t largest, above;
} Format;

static const Format FORMATS[CONTENT_ROUNDINGS] = {
    [ROUND_F16] = {10, -14, 0x477FE000, 0x7F800000},
    [ROUND_BF16] = {7, -126, 0x7F7F0000, 0x7F800000},
    [ROUND_E4M3FN] = {3, -6, 0x43E00000, 0x43E00000},
    [ROUND_E5M2] = {2, -14, 0x47600000, 0x7F800000},
};

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Round floats to the nearest number of another type, to the even one of two. */
static void round_floats(float *x, size_t n, Rounding rounding)
{
    const Format *f = &FORMATS[rounding];
    if (!f->mantissa)
        return;
    const int dropped = 23 - f->mantissa;
    const uint32_t half = (1u << (dropped - 1)) - 1, kept = ~((1u << dropped) - 1);
    const uint32_t least = (uint32_t)(f->least + 127) << 23;
    const int shift = f->least - f->mantissa + 23; /* beside 2^shift a float has the digits that small ones of the type have */
    const float shifter = float_of((uint32_t)(shift + 127) << 23);
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = bits_of(x[i]), size = bits & 0x7FFFFFFF;
        uint32_t rounded = (size + half + ((size >> dropped) & 1)) & kept;
        const uint32_t small = bits_of((float_of(size) + shifter) - shifter);
        rounded = size < least ? small : rounded;
        rounded = rounded > f->largest ? f->above : rounded;
        rounded = size > 0x7F800000 ? size : rounded;
        x[i] = float_of(rounded | (bits & 0x80000000));
    }
}

static uint64_t mix_word(uint64_t x, uint64_t key)
{
    x ^= key;
    x *= CONTENT_FACTORS[0];
    x ^= x >> 32;
    x *= CONTENT_FACTORS[1];
    return x ^ x >> 32;
}

/* Numbers that a float cannot hold have hashes of their own; what it can hold has the hash of the float. */
static uint64_t mix_double(double value)
{
    uint64_t bits;
    const float narrow = (float)value;
    if ((double)narrow == value || value != value) {
        const uint32_t float_bits = value != value ? 0x7FC00000 : value == 0 ? 0 : bits_of(narrow);
        return mix_word(float_bits, CONTENT_KEYS[0]);
    }
    memcpy(&bits, &value, sizeof bits);
    return mix_word(bits, CONTENT_KEYS[1]);
}

/* The hash of an element of eight or four bytes. */
static uint64_t mix_wide(Type type, const uint8_t *p)
{
    const int64_t exact = (int64_t)1 << 53; /* whole numbers up to here are doubles */
    double value;
    int64_t whole;
    uint64_t positive;
    int32_t short_whole;
    uint32_t short_positive;
    switch (type) {
    case TYPE_F64: memcpy(&value, p, sizeof value); return mix_double(value);
    case TYPE_I32: memcpy(&short_whole, p, sizeof short_whole); return mix_double(short_whole);
    case TYPE_U32: memcpy(&short_positive, p, sizeof short_positive); return mix_double(short_positive);
    case TYPE_I64:
        memcpy(&whole, p, sizeof whole);
        return -exact <= whole && whole <= exact ? mix_double((double)whole) : mix_word((uint64_t)whole, CONTENT_KEYS[2]);
    default:
        memcpy(&positive, p, sizeof positive);
        return positive <= (uint64_t)exact ? mix_double((double)positive) : mix_word(positive, CONTENT_KEYS[2]);
    }
}

typedef struct {
    const ContentJob *job;
    _Atomic uint64_t values, placed;
} Content;

static void add_block(const ContentJob *job, const uint8_t *p, size_t n, uint64_t at, ContentSums *out)
{
    const Kernels *k = job->kernels;
    if (job->type == TYPE_F32 && job->rounding == ROUND_NOTHING) {
        k->content_f32(p, n, at, out);
        return;
    }
    if (!is_narrow(job->type) && job->rounding == ROUND_NOTHING) {
        for (size_t i = 0; i < n; i++) {
            const uint64_t x = mix_wide(job->type, p + i * TYPE_SIZE[job->type]);
            out->values += x;
            out->placed += (at + i + 1) * x;
        }
        return;
    }
    float floats[BLOCK + PAD];
    if (is_narrow(job->type)) {
        k->to_f32(job->type, p, n, floats);
    } else {
        double doubles[BLOCK + PAD];
        k->to_f64(job->type, p, n, doubles);
        for (size_t i = 0; i < n; i++)
            floats[i] = (float)doubles[i];
    }
    round_floats(floats, n, job->rounding);
    k->content_f32(floats, n, at, out);
}

static void add_task(void *context, size_t number)
{
    Content *content = context;
    const ContentJob *job = content->job;
    const size_t first = number * TASK, last = job->count - first < TASK ? job->count : first + TASK;
    ContentSums sums = {0, 0};
    for (size_t start = first; start < last; start += BLOCK) {
        const size_t n = last - start < BLOCK ? last - start : BLOCK;
        add_block(job, job->bytes + start * TYPE_SIZE[job->type], n, job->at + start, &sums);
    }
    atomic_fetch_add(&content->values, sums.values);
    atomic_fetch_add(&content->placed, sums.placed);
}

int content_sum(const ContentJob *job, int threads, ContentSums *out)
{
    Content content = {.job = job};
    const size_t tasks = (job->count + TASK - 1) / TASK;
    if (tasks && !crew_run(add_task, &content, tasks, threads))
        return 0;
    *out = (ContentSums){atomic_load(&content.values), atomic_load(&content.placed)};
    return 1;
}
