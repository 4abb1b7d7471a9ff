/* One chunk of a pair: fetch it, go over its blocks, merge them. */
#define _GNU_SOURCE
#include "work.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define SPACE(count) (((count) + PAD) * sizeof(double))

int worker_start(Worker *w, const Kernels *kernels, pthread_mutex_t *lock)
{
    *w = (Worker){.kernels = kernels, .lock = lock};
    w->raw[0] = malloc(SPACE(CHUNK));
    w->raw[1] = malloc(SPACE(CHUNK));
    w->r32 = malloc(SPACE(BLOCK));
    w->c32 = malloc(SPACE(BLOCK));
    w->dist32 = malloc(SPACE(BLOCK));
    w->r64 = malloc(SPACE(BLOCK));
    w->c64 = malloc(SPACE(BLOCK));
    w->d64 = malloc(SPACE(BLOCK));
    w->dist64 = malloc(SPACE(BLOCK));
    w->kept = malloc(SPACE(CHUNK));
    w->scratch = malloc(SPACE(CHUNK));
    w->found = malloc(SPACE(CHUNK));
    return w->raw[0] && w->raw[1] && w->r32 && w->c32 && w->dist32 && w->r64 && w->c64 && w->d64 && w->dist64 &&
           w->kept && w->scratch && w->found;
}

void worker_stop(Worker *w)
{
    void *all[] = {w->raw[0], w->raw[1], w->r32, w->c32, w->dist32, w->r64, w->c64,
                   w->d64, w->dist64, w->kept, w->scratch, w->found, w->counts};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* Read what the page cache holds; anything less than all means that the disk is waited for. */
static int read_cached(int fd, char *buffer, size_t size, int64_t from)
{
#if defined(__linux__) && defined(RWF_NOWAIT)
    struct iovec piece = {buffer, size};
    return preadv2(fd, &piece, 1, (off_t)from, RWF_NOWAIT) == (ssize_t)size;
#else
    (void)fd, (void)buffer, (void)size, (void)from;
    return 0;
#endif
}

/* Ask for the bytes after next, once for every so many, so that the disk works while we compute. */
static void read_ahead(int fd, int64_t from, int64_t size)
{
#ifdef POSIX_FADV_WILLNEED
    const int64_t span = 4 << 20;
    if (from / span != (from + size) / span)
        posix_fadvise(fd, (off_t)(from + span), (off_t)(2 * span), POSIX_FADV_WILLNEED);
#else
    (void)fd, (void)from, (void)size;
#endif
}

/* Return the elements of one side, read if they are in a file, or NULL where that failed. */
static const char *fetch(Side *side, int64_t start, size_t n, char *buffer, int *error)
{
    size_t size = TYPE_SIZE[side->type], left = n * size, got = 0;
    int64_t from = side->place + start * (int64_t)size;
    if (side->fd < 0 || side->mapped)
        return (const char *)(intptr_t)(from + side->mapped);
    if (!atomic_load_explicit(&side->cold, memory_order_relaxed)) {
        if (read_cached(side->fd, buffer, left, from))
            return buffer;
        atomic_store_explicit(&side->cold, 1, memory_order_relaxed);
    }
    read_ahead(side->fd, from, (int64_t)left);
    while (got < left) {
        ssize_t count = pread(side->fd, buffer + got, left - got, (off_t)(from + (int64_t)got));
        if (count > 0) {
            got += (size_t)count;
        } else if (count == 0 || errno != EINTR) {
            *error = count == 0 ? -1 : errno;
            return NULL;
        }
    }
    return buffer;
}

static int fetch_both(Worker *w, Item *item, const Task *task, const char **r, const char **c)
{
    int error = 0, side = 0;
    *r = fetch(&item->ref, task->start, task->n, w->raw[0], &error);
    if (*r) {
        side = 1;
        *c = fetch(&item->cand, task->start, task->n, w->raw[1], &error);
    }
    if (!error)
        return 1;
    pthread_mutex_lock(w->lock);
    item->error = error;
    item->error_side = side;
    pthread_mutex_unlock(w->lock);
    return 0;
}

/* The difference of whole numbers, exact beyond 2^53 and between signs, rounded once at the end. */
static double whole_difference(uint64_t r, int r_negative, uint64_t c, int c_negative)
{
    int above = r_negative == c_negative ? c > r : r_negative;
    uint64_t upper = above ? c : r, lower = above ? r : c;
    double size = (double)(upper - lower);
    if (r_negative != c_negative && upper >= lower)
        size += 0x1p64; /* int64 against uint64: the wrapped difference lost that much */
    return above ? size : -size;
}

static uint64_t whole_at(Type type, const char *p, size_t i, int *negative)
{
    int64_t x = 0;
    p += i * TYPE_SIZE[type];
    switch (type) {
    case TYPE_I64: memcpy(&x, p, 8); break;
    case TYPE_I32: { int32_t v; memcpy(&v, p, 4); x = v; break; }
    case TYPE_I16: { int16_t v; memcpy(&v, p, 2); x = v; break; }
    case TYPE_I8: { int8_t v; memcpy(&v, p, 1); x = v; break; }
    case TYPE_U64: { uint64_t v; memcpy(&v, p, 8); *negative = 0; return v; }
    case TYPE_U32: { uint32_t v; memcpy(&v, p, 4); x = v; break; }
    case TYPE_U16: { uint16_t v; memcpy(&v, p, 2); x = v; break; }
    default: { uint8_t v; memcpy(&v, p, 1); x = v; break; }
    }
    *negative = x < 0;
    return (uint64_t)x;
}

/* The difference of numbers of 64 bits from floats: in two parts where they have more digits than a double. */
static void apart_from_whole(Type type, const char *whole, const double *other, size_t n, double sign, double *d)
{
    const uint64_t most = (uint64_t)1 << 53;
    for (size_t i = 0; i < n; i++) {
        uint64_t bits;
        memcpy(&bits, whole + i * sizeof bits, sizeof bits);
        const int fits = type == TYPE_U64 ? bits <= most : bits + most <= 2 * most; /* from -most to most */
        const uint64_t low = fits ? 0 : bits & 2047, high = bits - low;
        const double upper = type == TYPE_U64 ? (double)high : (double)(int64_t)high;
        d[i] = sign * ((upper - other[i]) + (double)low);
    }
}

static inline int is_long(Type type)
{
    return type == TYPE_I64 || type == TYPE_U64;
}

static void subtract(const Item *item, const char *r, const char *c, size_t n, const Worker *w)
{
    if (item->whole) {
        for (size_t i = 0; i < n; i++) {
            int r_negative, c_negative;
            uint64_t a = whole_at(item->ref.type, r, i, &r_negative), b = whole_at(item->cand.type, c, i, &c_negative);
            w->d64[i] = whole_difference(a, r_negative, b, c_negative);
        }
    } else if (is_long(item->ref.type)) {
        apart_from_whole(item->ref.type, r, w->c64, n, -1, w->d64);
    } else if (is_long(item->cand.type)) {
        apart_from_whole(item->cand.type, c, w->r64, n, 1, w->d64);
    } else {
        for (size_t i = 0; i < n; i++)
            w->d64[i] = w->c64[i] - w->r64[i];
    }
}

/* Both sides of a block and their difference as doubles. */
static void widen(Worker *w, const Item *item, const char *r, const char *c, size_t n)
{
    w->kernels->to_f64(item->ref.type, r, n, w->r64);
    w->kernels->to_f64(item->cand.type, c, n, w->c64);
    subtract(item, r, c, n, w);
}

/* Tell whether the squares around the mean would be lost in the difference of two large sums. */
static int cancels(double sum, double squares, double n)
{
    double of_mean = sum * (sum / n);
    return of_mean > 64 * (squares - of_mean);
}

/* Centred sums of a block; the block itself is in r64, c64 and d64 where `wide` says so. */
static Centred centred(Worker *w, const Item *item, const char *r, const char *c, size_t n, const Sums *s, int wide)
{
    const double m = (double)n, mean[3] = {s->r / m, s->c / m, s->d / m};
    Centred out = {s->rr - s->r * mean[0], s->cc - s->c * mean[1], s->dd - s->d * mean[2], s->rc - s->r * mean[1], 0, 0, 0};
    if (cancels(s->r, s->rr, m) || cancels(s->c, s->cc, m) || cancels(s->d, s->dd, m)) {
        if (!wide)
            widen(w, item, r, c, n);
        w->kernels->centre(w->r64, w->c64, w->d64, n, mean, &out);
    }
    return out;
}

static void add_sums(State *s, const Sums *b, const Centred *m, size_t count)
{
    double n = (double)count;
    const Comoment both = {n, {b->r / n, m->r}, {b->c / n, m->c}, m->rr, m->cc, m->rc};
    const Moments ref = {n, both.mean_r, m->rr, b->rmin, b->rmax}, cand = {n, both.mean_c, m->cc, b->cmin, b->cmax};
    const Moments diff = {n, {b->d / n, m->d}, m->dd, 0, 0};
    s->unequal += b->unequal;
    s->mismatched += b->mismatched;
    s->finite += (int64_t)count;
    s->ra += b->ra;
    s->rr += b->rr;
    s->cc += b->cc;
    s->rc += b->rc;
    s->da += b->da;
    s->dd += b->dd;
    moments_add(&s->ref, &ref);
    moments_add(&s->cand, &cand);
    moments_add(&s->diff, &diff);
    comoment_add(&s->both, &both);
}

static double *room_for_distances(Worker *w, const Item *item)
{
    return item->mode == KEEP ? w->kept + w->held : w->dist64;
}

/* Numbers finite on one side only still belong to that side. */
static void add_lone(Worker *w, State *state, Moments *m, const double *x, size_t n)
{
    Sums s;
    Centred c;
    if (n == 0)
        return;
    w->kernels->side_f64(x, n, &s);
    const double mean[3] = {s.r / (double)n, s.r / (double)n, s.r / (double)n};
    w->kernels->centre(x, x, x, n, mean, &c);
    moments_add(m, &(Moments){(double)n, {mean[0], c.r}, c.rr, s.rmin, s.rmax});
    state->extreme |= !(c.rr <= DBL_MAX);
}

/* A block with something that is not finite: sort that out, then measure the rest. */
static void add_broken(Worker *w, const Item *item, State *s, const char *r, const char *c, size_t n, int64_t at)
{
    double lone_r[BLOCK], lone_c[BLOCK];
    size_t rs = 0, cs = 0, m = 0;
    widen(w, item, r, c, n);
    for (size_t i = 0; i < n; i++) {
        double a = w->r64[i], b = w->c64[i];
        int fa = isfinite(a) != 0, fb = isfinite(b) != 0, same = a == b || (isnan(a) && isnan(b));
        s->bad_ref += !fa;
        s->bad_cand += !fb;
        if (fa && fb) {
            if (s->first < 0)
                s->first = at + (int64_t)i;
            w->r64[m] = a;
            w->c64[m] = b;
            w->dist32[m] = fabsf((float)b - (float)a); /* exact: in a narrow item both are floats */
            w->d64[m++] = w->d64[i];
            continue;
        }
        s->unequal += !same;
        s->mismatched += !same;
        s->bad_pairs += !same;
        if (fa)
            lone_r[rs++] = a;
        if (fb)
            lone_c[cs++] = b;
    }
    add_lone(w, s, &s->ref, lone_r, rs);
    add_lone(w, s, &s->cand, lone_c, cs);
    if (m) {
        Limits never = limits_never(); /* the first attempt has moved the maxima already */
        Wide job = {w->r64, w->c64, w->d64, m, at, item->tolerance, &never, &w->extremes, room_for_distances(w, item)};
        Sums sums;
        w->kernels->pair_f64(&job, &sums);
        Centred around = centred(w, item, r, c, m, &sums, 1);
        add_sums(s, &sums, &around, m);
        w->held += sums.kept;
        s->extreme |= !(sums.rr + sums.cc + sums.dd <= DBL_MAX);
    }
    sink(w, item, m, at);
}

static void add_identical(Worker *w, const Item *item, State *s, const char *r, size_t n, int64_t at)
{
    Sums sums;
    switch (item->ref.type) {
    case TYPE_F32: w->kernels->side_f32(r, n, &sums); break;
    case TYPE_F16: w->kernels->side_f16(r, n, &sums); break;
    case TYPE_BF16: w->kernels->side_bf16(r, n, &sums); break;
    default:
        w->kernels->to_f64(item->ref.type, r, n, w->r64);
        w->kernels->side_f64(w->r64, n, &sums);
    }
    if (!(sums.rr <= DBL_MAX)) {
        add_broken(w, item, s, r, r, n, at);
        return;
    }
    sums.c = sums.r;
    sums.cc = sums.rc = sums.rr;
    sums.cmin = sums.rmin;
    sums.cmax = sums.rmax;
    sums.d = sums.da = sums.dd = 0;
    sums.unequal = sums.mismatched = 0;
    Centred around = centred(w, item, r, r, n, &sums, 0);
    if (s->first < 0)
        s->first = at;
    add_sums(s, &sums, &around, n);
    sink_zeros(w, item, n);
}

static const float *as_floats(Worker *w, Type type, const void *p, size_t n, float *buffer)
{
    if (type == TYPE_F32)
        return p;
    w->kernels->to_f32(type, p, n, buffer);
    return buffer;
}

static void measure_narrow(Worker *w, const Item *item, const char *r, const char *c, size_t n, int64_t at, Sums *out)
{
    int keep = item->mode == KEEP;
    Narrow job = {r, c, n, at, item->tolerance, &w->limits, &w->extremes, item->count > EXACT_LIMIT,
                  keep ? NULL : w->dist32, keep ? w->kept + w->held : NULL};
    if (item->fused && item->ref.type == TYPE_BF16) {
        w->kernels->pair_bf16(&job, out);
    } else if (item->fused && item->ref.type == TYPE_F16) {
        w->kernels->pair_f16(&job, out);
    } else {
        job.r = as_floats(w, item->ref.type, r, n, w->r32);
        job.c = as_floats(w, item->cand.type, c, n, w->c32);
        w->kernels->pair_f32(&job, out);
    }
}

/* Tell whether both sides are doubles that can be read where they are. */
static int are_doubles(const Item *item, const char *r, const char *c)
{
    return item->ref.type == TYPE_F64 && item->cand.type == TYPE_F64 &&
           (((uintptr_t)r | (uintptr_t)c) & (sizeof(double) - 1)) == 0;
}

static void add_block(Worker *w, const Item *item, State *s, const char *r, const char *c, size_t n, int64_t at)
{
    Sums sums;
    if (item->same && memcmp(r, c, n * TYPE_SIZE[item->ref.type]) == 0) {
        add_identical(w, item, s, r, n, at);
        return;
    }
    const int in_place = are_doubles(item, r, c);
    if (item->narrow) {
        measure_narrow(w, item, r, c, n, at, &sums);
    } else {
        Wide job = {w->r64, w->c64, w->d64, n, at, item->tolerance, &w->limits, &w->extremes,
                    room_for_distances(w, item)};
        if (in_place) {
            job.r = (const double *)(const void *)r;
            job.c = (const double *)(const void *)c;
            job.d = NULL;
        } else {
            widen(w, item, r, c, n);
        }
        w->kernels->pair_f64(&job, &sums);
    }
    if (!(sums.rr + sums.cc + sums.dd <= DBL_MAX)) {
        add_broken(w, item, s, r, c, n, at);
        return;
    }
    Centred around = centred(w, item, r, c, n, &sums, !item->narrow && !in_place);
    if (s->first < 0)
        s->first = at;
    add_sums(s, &sums, &around, n);
    w->held += sums.kept;
    sink(w, item, n, at);
}

static double most(const double lane[LANES])
{
    double x = 0;
    for (int i = 0; i < LANES; i++)
        x = lane[i] > x ? lane[i] : x;
    return x;
}

static void take_extremes(const Extremes *e, State *s)
{
    s->abs = e->abs;
    s->at = e->abs > 0 ? e->at : -1;
    s->envelope[0] = e->abs;
    for (int k = 1; k < RTOLS; k++)
        s->envelope[k] = most(e->envelope[k]);
    s->needed = most(e->needed);
    s->rel = most(e->rel);
}

/* Where there is no survey, the first blocks are short, so that the maxima soon hold off most elements; so are those of
   a small pair, and those of long elements, for the sake of the cache. What is known from other chunks has no say: it
   depends on the threads, and sums must not. */
static size_t block_size(const Item *item, size_t done, size_t left)
{
    const int bytes = TYPE_SIZE[item->ref.type] + TYPE_SIZE[item->cand.type];
    const size_t narrow = item->mode == KEEP || bytes > 4 ? BLOCK / 2 : BLOCK;
    size_t size = item->narrow ? narrow : done == 0 ? 64 : done == 64 ? 192 : done == 256 ? 768 : BLOCK / 8;
    return left < size ? left : size;
}

/* Begin with what is known from chunks before this one, or else with what its first elements tell. */
static void survey(Worker *w, const Item *item, const char *r, const char *c, size_t n)
{
    const size_t some = n < SURVEYED ? n : SURVEYED;
    w->known = w->item == item ? survey_both(item->known, &w->known) : item->known;
    w->item = item;
    if (item->narrow && w->known.needed == 0 && !(item->same && memcmp(r, c, some * TYPE_SIZE[item->ref.type]) == 0))
        w->kernels->survey(as_floats(w, item->ref.type, r, some, w->r32), as_floats(w, item->cand.type, c, some, w->c32),
                           some, &w->known);
    w->limits = limits_of(&w->known);
}

void first_look(Worker *w, Item *item, const Task *task, State *s)
{
    const char *r, *c = NULL;
    state_start(s);
    if (!fetch_both(w, item, task, &r, &c))
        return;
    memset(&w->extremes, 0, sizeof w->extremes);
    w->held = 0;
    survey(w, item, r, c, task->n);
    sink_start(w, item, task);
    for (size_t done = 0, n; done < task->n; done += n) {
        n = block_size(item, done, task->n - done);
        add_block(w, item, s, r + done * TYPE_SIZE[item->ref.type], c + done * TYPE_SIZE[item->cand.type], n,
                  task->start + (int64_t)done);
        if (w->extremes.grown) {
            w->extremes.grown = 0;
            take_extremes(&w->extremes, s);
            Survey found = survey_of(s);
            w->known = survey_both(w->known, &found);
            w->limits = limits_of(&w->known);
        }
    }
    s->done = (int64_t)task->n;
    take_extremes(&w->extremes, s);
    if (item->narrow && s->abs > FLT_MAX)
        s->extreme = 1; /* the distance as a float was infinite */
    if (item->mode == KEEP && s->dd <= DBL_MAX) /* else the sums say nothing, and some distance may be infinite */
        percentiles_of(w->kernels, w->kept, w->held, s->finite, zeros_of(s), s->abs, w->scratch, s->quantile);
    sink_end(w, item);
}

void second_look(Worker *w, Item *item, const Task *task)
{
    const char *r, *c = NULL;
    if (!fetch_both(w, item, task, &r, &c))
        return;
    sink_start(w, item, task);
    for (size_t done = 0, n; done < task->n; done += n) {
        n = block_size(item, done, task->n - done); /* as before: so are the shares of what is sampled */
        const char *a = r + done * TYPE_SIZE[item->ref.type], *b = c + done * TYPE_SIZE[item->cand.type];
        if (item->same && memcmp(a, b, n * TYPE_SIZE[item->ref.type]) == 0) {
            sink_zeros(w, item, n); /* zeros are in no bin that is looked at again */
            continue;
        }
        if (item->narrow) {
            w->kernels->distance_f32(as_floats(w, item->ref.type, a, n, w->r32),
                                     as_floats(w, item->cand.type, b, n, w->c32), n, w->dist32,
                                     item->mode == GATHER ? w->dist64 : NULL);
        } else {
            widen(w, item, a, b, n);
            for (size_t i = 0; i < n; i++)
                w->dist64[i] = fabs(w->d64[i]);
        }
        sink(w, item, n, task->start + (int64_t)done);
    }
    sink_end(w, item);
}
