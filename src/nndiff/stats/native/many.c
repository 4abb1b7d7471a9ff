/* Many tensors in one go. Large ones are cut into pieces that threads share; whoever does the last piece adds them up. */
#include "many.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "crew.h"

typedef struct {
    size_t first;          /* of its pieces */
    size_t buckets;        /* of its sketch while it is summed, 0 without one */
    double *sums;          /* one sketch after the other */
    atomic_size_t pending; /* pieces */
} Progress;

typedef struct {
    ManyTensor *tensors;
    Progress *progress;
    uint32_t *owner; /* the tensor of each piece */
    uint64_t seed;
} Many;

static size_t count_pieces(const ManyTensor *t)
{
    return t->count / MANY_PIECE + (t->count % MANY_PIECE != 0);
}

static size_t count_buckets(const ManyTensor *t)
{
    return t->width == 0 || t->width == t->count ? 0 : t->width < RUN ? RUN : t->width;
}

/* Sum a piece again, with zeros for numbers that are not finite. */
static void sketch_finite(const ManyTensor *t, size_t from, size_t to, Sketch *sketch)
{
    double numbers[BLOCK + PAD];
    memset(sketch->sums, 0, sketch->width * sizeof *sketch->sums);
    for (size_t at = from; at < to; at += BLOCK) {
        const size_t n = to - at < BLOCK ? to - at : BLOCK;
        side_numbers(t->job.kernels, t->job.type, t->job.bytes + at * TYPE_SIZE[t->job.type], n, numbers);
        sketch->at = at;
        t->job.kernels->sketch_f64(numbers, n, sketch);
    }
}

static void copy_row(const ManyTensor *t)
{
    double numbers[BLOCK + PAD];
    for (size_t at = 0; at < t->count; at += BLOCK) {
        const size_t n = t->count - at < BLOCK ? t->count - at : BLOCK;
        side_numbers(t->job.kernels, t->job.type, t->job.bytes + at * TYPE_SIZE[t->job.type], n, numbers);
        for (size_t i = 0; i < n; i++)
            t->row[at + i] = (float)numbers[i];
    }
}

static void finish_row(const ManyTensor *t, const Progress *progress)
{
    double *sums = progress->sums;
    size_t width = progress->buckets;
    for (size_t piece = 1; piece < count_pieces(t); piece++)
        for (size_t i = 0; i < width; i++)
            sums[i] += sums[piece * width + i];
    for (; width > t->width; width /= 2)
        for (size_t i = 0; i < width / 2; i++)
            sums[i] += sums[width / 2 + i];
    for (size_t i = 0; i < width; i++)
        t->row[i] = (float)sums[i];
}

static void look_at_piece(void *context, size_t number)
{
    const Many *many = context;
    const size_t owner = many->owner[number];
    ManyTensor *t = &many->tensors[owner];
    Progress *progress = &many->progress[owner];
    const size_t piece = number - progress->first, parts_each = MANY_PIECE / SIDE_PART * TYPE_SIZE[t->job.type];
    const size_t first = piece * parts_each, parts = side_parts(t->job.size);
    const size_t last = parts - first < parts_each ? parts : first + parts_each;
    const size_t from = piece * MANY_PIECE, to = t->count - from < MANY_PIECE ? t->count : from + MANY_PIECE;
    Sketch sketch = {many->seed, from, progress->buckets, progress->sums + piece * progress->buckets};
    int64_t bad = 0;
    if (progress->buckets)
        memset(sketch.sums, 0, progress->buckets * sizeof *sketch.sums);
    for (size_t part = first; part < last; part++) {
        side_look_at_part(&t->job, part, progress->buckets ? &sketch : NULL, &t->parts[part]);
        bad += t->parts[part].bad;
    }
    if (progress->buckets && bad)
        sketch_finite(t, from, to, &sketch);
    if (atomic_fetch_sub(&progress->pending, 1) > 1)
        return;
    t->all = side_merge(t->parts, parts);
    if (progress->buckets)
        finish_row(t, progress);
    else if (t->width)
        copy_row(t);
}

static double *round_up(void *memory)
{
    return (double *)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
}

int many_look(ManyTensor *tensors, size_t count, uint64_t seed, int threads)
{
    size_t pieces = 0, sums = 0;
    int done = 0;
    for (size_t i = 0; i < count; i++) {
        pieces += count_pieces(&tensors[i]);
        sums += count_pieces(&tensors[i]) * count_buckets(&tensors[i]);
        tensors[i].all = side_merge(NULL, 0);
    }
    Progress *progress = calloc(count + 1, sizeof *progress);
    uint32_t *owner = calloc(pieces + 1, sizeof *owner);
    void *memory = malloc(sums * sizeof(double) + 64);
    if (progress && owner && memory) {
        double *next = round_up(memory); /* a run is two whole lines of the cache */
        for (size_t i = 0, piece = 0; i < count; i++) {
            const size_t mine = count_pieces(&tensors[i]);
            progress[i].first = piece;
            progress[i].buckets = count_buckets(&tensors[i]);
            progress[i].sums = next;
            atomic_init(&progress[i].pending, mine);
            next += mine * progress[i].buckets;
            for (size_t k = 0; k < mine; k++)
                owner[piece++] = (uint32_t)i;
        }
        Many many = {tensors, progress, owner, seed};
        done = crew_run(look_at_piece, &many, pieces, threads);
    }
    free(progress);
    free(owner);
    free(memory);
    return done;
}

/* --- rows ------------------------------------------------------------------------------------------ */

typedef struct {
    const Kernels *kernels;
    const uint8_t *bytes;
    size_t rows, size, each; /* rows that a task takes */
    uint8_t *out; /* eight bytes for each */
} Rows;

static void hash_some_rows(void *context, size_t number)
{
    const Rows *r = context;
    const size_t first = number * r->each, last = r->rows - first < r->each ? r->rows : first + r->each;
    uint8_t filled[SIDE_LEAST] = {0}, both[XXH3_SIZE];
    for (size_t row = first; row < last; row++) {
        const uint8_t *bytes = r->bytes + row * r->size;
        Xxh3 hash;
        if (r->size < SIDE_LEAST)
            bytes = r->size ? memcpy(filled, bytes, r->size) : filled;
        xxh3_start(&hash, r->kernels, bytes, r->size < SIDE_LEAST ? SIDE_LEAST : r->size);
        xxh3_step(&hash, 0, hash.size);
        xxh3_end(&hash, both);
        memcpy(r->out + row * 8, both, 8);
    }
}

int many_hash_rows(const Kernels *kernels, const uint8_t *bytes, size_t rows, size_t size, uint8_t *out, int threads)
{
    const size_t each = 1 + SIDE_PART / (size + 1);
    Rows job = {kernels, bytes, rows, size, each, out};
    return rows == 0 || crew_run(hash_some_rows, &job, (rows + each - 1) / each, threads);
}
