/* One tensor alone. Bytes are fetched from memory once: whatever is asked for is done while they are in the L1 cache. */
#include "side.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "crew.h"

/* --- statistics ------------------------------------------------------------------------------------ */

/* Move the finite numbers to the front; return how many there are. */
static size_t only_finite(double *x, size_t n)
{
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (isfinite(x[i]))
            x[m++] = x[i];
    return m;
}

/* Add the statistics of a block whose sums are known, as far as they are. */
static void add_sums(const SideJob *job, const void *p, size_t n, Sums s, SidePart *out)
{
    const Kernels *k = job->kernels;
    double wide[BLOCK + PAD];
    size_t m = n;
    if (!(s.rr <= DBL_MAX)) {
        k->to_f64(job->type, p, n, wide);
        m = only_finite(wide, n);
        out->bad += (int64_t)(n - m);
        if (m == 0)
            return;
        k->side_f64(wide, m, &s);
        out->overflow |= !(s.rr <= DBL_MAX);
    }
    double mean = s.r / (double)m, of_mean = s.r * mean;
    Moments block = {(double)m, {mean, 0}, s.rr - of_mean, s.rmin, s.rmax};
    if (of_mean > 64 * block.m2) { /* cancelled: the numbers lie close together, far from zero */
        const double means[3] = {mean, mean, mean};
        Centred centred;
        if (m == n)
            k->to_f64(job->type, p, n, wide);
        k->centre(wide, wide, wide, m, means, &centred);
        block.m2 = centred.rr;
        block.mean.low = centred.r;
    }
    moments_add(&out->moments, &block);
    out->squares += s.rr;
}

/* --- sketches -------------------------------------------------------------------------------------- */

void side_numbers(const Kernels *kernels, Type type, const void *p, size_t n, double *out)
{
    kernels->to_f64(type, p, n, out);
    for (size_t i = 0; i < n; i++)
        out[i] = isfinite(out[i]) ? out[i] : 0;
}

/* --- a part ------------------------------------------------------------------------------------------ */

enum { IN_CACHE = 8192 }; /* bytes that fit into the L1 cache: whole blocks of the hash, whole elements */

/* Take in elements in the L1 cache; those of small types become floats first, the others doubles. */
static void look_at_elements(const SideJob *job, const uint8_t *p, size_t n, Sketch *sketch, SidePart *out)
{
    const Kernels *k = job->kernels;
    const size_t blocks = is_narrow(job->type) ? n * sizeof(float) / XXH3_BLOCK : 0, whole = blocks * XXH3_BLOCK / sizeof(float);
    Sums s;
    if (blocks) {
        float floats[BLOCK + PAD];
        k->to_f32(job->type, p, whole, floats);
        k->look_f32((const uint8_t *)floats, blocks, NULL, NULL, sketch, &s);
        add_sums(job, p, whole, s, out);
    }
    if (sketch)
        sketch->at += whole;
    if (whole < n) {
        double numbers[BLOCK + PAD];
        p += whole * TYPE_SIZE[job->type];
        k->to_f64(job->type, p, n - whole, numbers);
        k->side_f64(numbers, n - whole, &s);
        add_sums(job, p, n - whole, s, out);
        if (sketch) {
            k->sketch_f64(numbers, n - whole, sketch);
            sketch->at += n - whole;
        }
    }
}

/* Take in some bytes: first the hash, then the elements, while they are in the L1 cache. */
static void look_in_turns(const SideJob *job, Xxh3 *hash, size_t from, size_t to, Sketch *sketch, SidePart *out)
{
    for (size_t at = from; at < to; at += IN_CACHE) {
        const size_t end = to - at < IN_CACHE ? to : at + IN_CACHE;
        xxh3_step(hash, at, end);
        if (job->with_stats)
            look_at_elements(job, hash->bytes + at, (end - at) / TYPE_SIZE[job->type], sketch, out);
    }
}

/* The same of floats in a single pass; return how far it came, which is less than a block of the hash from the end. */
static size_t look_at_once(const SideJob *job, Xxh3 *hash, Sketch *sketch, SidePart *out)
{
    const size_t blocks = hash->blocks;
    for (size_t block = 0; block < blocks; block += LOOK_BLOCKS) {
        const size_t count = blocks - block < LOOK_BLOCKS ? blocks - block : LOOK_BLOCKS;
        const uint8_t *p = hash->bytes + block * XXH3_BLOCK;
        const size_t n = count * XXH3_BLOCK / sizeof(float);
        Sums s;
        job->kernels->look_f32(p, count, hash->lane, XXH3_KEY, sketch, &s);
        add_sums(job, p, n, s, out);
        if (sketch)
            sketch->at += n;
    }
    return blocks * XXH3_BLOCK;
}

void side_look_at_part(const SideJob *job, size_t number, Sketch *sketch, SidePart *out)
{
    const uint8_t *bytes = job->bytes + number * SIDE_PART;
    const size_t left = job->size - number * SIDE_PART, size = left < SIDE_PART ? left : SIDE_PART;
    uint8_t filled[SIDE_LEAST] = {0};
    size_t done = 0;
    Xxh3 hash;
    if (size < SIDE_LEAST)
        memcpy(filled, bytes, size);
    xxh3_start(&hash, job->kernels, size < SIDE_LEAST ? filled : bytes, size < SIDE_LEAST ? SIDE_LEAST : size);
    out->moments = (Moments){.low = INFINITY, .high = -INFINITY};
    if (job->with_stats && job->type == TYPE_F32)
        done = look_at_once(job, &hash, sketch, out);
    look_in_turns(job, &hash, done, size, sketch, out);
    xxh3_end(&hash, out->hash);
}

/* --- a tensor ---------------------------------------------------------------------------------------- */

typedef struct {
    const SideJob *job;
    SidePart *parts;
} Look;

static void look_at(void *context, size_t number)
{
    const Look *look = context;
    side_look_at_part(look->job, number, NULL, &look->parts[number]);
}

size_t side_parts(size_t size)
{
    return size / SIDE_PART + (size % SIDE_PART != 0);
}

SidePart *side_look(const SideJob *job, int threads)
{
    size_t count = side_parts(job->size);
    SidePart *parts = calloc(count + 1, sizeof *parts);
    Look look = {job, parts};
    if (parts && count && !crew_run(look_at, &look, count, threads)) {
        free(parts);
        return NULL;
    }
    return parts;
}

SidePart side_merge(const SidePart *parts, size_t count)
{
    SidePart out = {.moments = {.low = INFINITY, .high = -INFINITY}};
    for (size_t i = 0; i < count; i++) {
        const SidePart *part = &parts[i];
        moments_add(&out.moments, &part->moments);
        out.squares += part->squares;
        out.bad += part->bad;
        out.overflow |= part->overflow;
    }
    return out;
}
