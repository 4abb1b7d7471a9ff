/* One tensor alone. Bytes are fetched from memory once: whatever is asked for is done while they are in the L1 cache. */
#include "side.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#ifdef HAVE_X86
#include <immintrin.h>
#endif

/* --- statistics ------------------------------------------------------------------------------------ */

static void sums_of(const Kernels *k, Type type, const void *p, size_t n, double *wide, Sums *out)
{
    switch (type) {
    case TYPE_F32: k->side_f32(p, n, out); break;
    case TYPE_F16: k->side_f16(p, n, out); break;
    case TYPE_BF16: k->side_bf16(p, n, out); break;
    default:
        k->to_f64(type, p, n, wide);
        k->side_f64(wide, n, out);
    }
}

/* Move the finite numbers to the front; return how many there are. */
static size_t only_finite(double *x, size_t n)
{
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (isfinite(x[i]))
            x[m++] = x[i];
    return m;
}

static void add_block(const SideJob *job, const void *p, size_t n, SidePart *out)
{
    const Kernels *k = job->kernels;
    double wide[BLOCK + PAD];
    size_t m = n;
    Sums s;
    sums_of(k, job->type, p, n, wide, &s);
    if (!(s.rr <= DBL_MAX)) {
        k->to_f64(job->type, p, n, wide);
        m = only_finite(wide, n);
        out->bad += (int64_t)(n - m);
        if (m == 0)
            return;
        k->side_f64(wide, m, &s);
        out->overflow |= !(s.rr <= DBL_MAX);
    }
    double mean = s.r / (double)m, of_mean = s.r * mean, around = s.rr - of_mean;
    if (of_mean > 64 * around) { /* cancelled: the numbers lie close together, far from zero */
        const double means[3] = {mean, mean, mean};
        Centred centred;
        if (m == n)
            k->to_f64(job->type, p, n, wide);
        k->centre(wide, wide, wide, m, means, &centred);
        around = centred.rr;
    }
    moments_add(&out->moments, (double)m, mean, around, s.rmin, s.rmax);
    out->squares += s.rr;
}

static void add_stats(const SideJob *job, const uint8_t *p, size_t bytes, SidePart *out)
{
    size_t size = TYPE_SIZE[job->type], step = BLOCK * size;
    for (size_t at = 0; at < bytes; at += step)
        add_block(job, p + at, (bytes - at < step ? bytes - at : step) / size, out);
}

/* --- the checksum ------------------------------------------------------------------------------------ */

typedef uint64_t Lanes __attribute__((vector_size(CHECK_SIZE / 2)));

/* The sum of the words and the sum of all sums on the way: any one change shows in the first, an exchange in
   the second. For writes by mistake; against malice there is the digest. */
static void add_check(uint64_t *check, const uint8_t *p, size_t bytes)
{
    Lanes sum, sums, x;
    memcpy(&sum, check, sizeof sum);
    memcpy(&sums, check + CHECK_SIZE / 16, sizeof sums);
    for (; bytes >= sizeof x; bytes -= sizeof x, p += sizeof x) {
        memcpy(&x, p, sizeof x);
        sum += x;
        sums += sum;
    }
    if (bytes) {
        x = (Lanes){0};
        memcpy(&x, p, bytes);
        sum += x;
        sums += sum;
    }
    memcpy(check, &sum, sizeof sum);
    memcpy(check + CHECK_SIZE / 16, &sums, sizeof sums);
}

/* --- two parts, which are hashed at a time ------------------------------------------------------------- */

typedef struct {
    const uint8_t *p;
    size_t size;
    Sha256 hash;
    SidePart *out;
} Seen;

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static void hash_step(Seen *two, const size_t bytes[2], size_t at)
{
    size_t blocks[2] = {bytes[0] / SHA256_BLOCK, bytes[1] / SHA256_BLOCK}, both = least(blocks[0], blocks[1]);
    if (both)
        sha256_two(&two[0].hash, two[0].p + at, &two[1].hash, two[1].p + at, both);
    for (int i = 0; i < 2; i++)
        if (blocks[i] > both)
            sha256_blocks(&two[i].hash, two[i].p + at + both * SHA256_BLOCK, blocks[i] - both);
}

static void look_at(const SideJob *job, Seen *seen, size_t at, size_t bytes)
{
    if (job->want & SIDE_CHECK)
        add_check(seen->out->check, seen->p + at, bytes);
    if (job->want & SIDE_STATS)
        add_stats(job, seen->p + at, bytes, seen->out);
}

static void look_at_two(const SideJob *job, SidePart *parts, size_t first)
{
    const size_t step = 8192; /* whole blocks of the hash, whole elements; both fit into the L1 cache */
    Seen two[2] = {{0}};
    for (size_t i = 0; i < 2 && (first + i) * SIDE_PART < job->size; i++) {
        size_t start = (first + i) * SIDE_PART;
        two[i] = (Seen){job->bytes + start, least(SIDE_PART, job->size - start), {{0}}, &parts[first + i]};
        two[i].out->moments = (Moments){0, 0, 0, INFINITY, -INFINITY};
        sha256_start(&two[i].hash);
    }
    for (size_t at = 0; at < two[0].size; at += step) { /* the second is never longer */
        const size_t second = at < two[1].size ? least(step, two[1].size - at) : 0;
        const size_t bytes[2] = {least(step, two[0].size - at), second};
        if (job->want & SIDE_HASH)
            hash_step(two, bytes, at);
        for (int i = 0; i < 2; i++)
            if (bytes[i])
                look_at(job, &two[i], at, bytes[i]);
    }
    for (int i = 0; i < 2; i++)
        if (two[i].out && job->want & SIDE_HASH) {
            size_t whole = two[i].size - two[i].size % SHA256_BLOCK;
            sha256_end(&two[i].hash, two[i].p + whole, two[i].size, two[i].out->digest);
        }
}

/* --- threads ------------------------------------------------------------------------------------------- */

/* What helpers share. They may come late, even after all is done: then they find nothing left, touch nothing but
   this, and whoever is last frees it. So a busy machine never keeps the caller waiting for a helper to start. */
typedef struct {
    SideJob job;
    SidePart *parts;
    size_t pairs;
    atomic_size_t next;
    atomic_int users;
    pthread_mutex_t lock;
    pthread_cond_t all_done;
    size_t done;
} Crew;

static void leave(Crew *crew)
{
    if (atomic_fetch_sub(&crew->users, 1) > 1)
        return;
    pthread_mutex_destroy(&crew->lock);
    pthread_cond_destroy(&crew->all_done);
    free(crew);
}

static void work(Crew *crew)
{
    size_t pair, did = 0;
#ifdef HAVE_X86
    unsigned mode = _mm_getcsr();
    _mm_setcsr(0x1F80); /* the caller may flush subnormals to zero; our numbers must not depend on it */
#endif
    for (; (pair = atomic_fetch_add(&crew->next, 1)) < crew->pairs; did++)
        look_at_two(&crew->job, crew->parts, 2 * pair);
#ifdef HAVE_X86
    _mm_setcsr(mode);
#endif
    pthread_mutex_lock(&crew->lock);
    crew->done += did;
    if (crew->done == crew->pairs)
        pthread_cond_signal(&crew->all_done);
    pthread_mutex_unlock(&crew->lock);
}

static void *help(void *argument)
{
    work(argument);
    leave(argument);
    return NULL;
}

static void call_helpers(Crew *crew, int count)
{
    sigset_t all, before;
    pthread_attr_t detached;
    pthread_t thread;
    if (count < 1 || pthread_attr_init(&detached) != 0)
        return;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all); /* signals are for the thread that called */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < count; i++) {
        atomic_fetch_add(&crew->users, 1);
        if (pthread_create(&thread, &detached, help, crew) != 0) {
            atomic_fetch_sub(&crew->users, 1);
            break;
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
}

size_t side_parts(size_t size)
{
    return size / SIDE_PART + (size % SIDE_PART != 0);
}

static int work_together(const SideJob *job, SidePart *parts, size_t pairs, int threads)
{
    Crew *crew = calloc(1, sizeof *crew);
    if (!crew)
        return 0;
    crew->job = *job;
    crew->parts = parts;
    crew->pairs = pairs;
    atomic_init(&crew->next, 0);
    atomic_init(&crew->users, 1);
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->all_done, NULL);
    call_helpers(crew, threads - 1);
    work(crew);
    pthread_mutex_lock(&crew->lock);
    while (crew->done < crew->pairs)
        pthread_cond_wait(&crew->all_done, &crew->lock);
    pthread_mutex_unlock(&crew->lock);
    leave(crew);
    return 1;
}

SidePart *side_look(const SideJob *job, int threads)
{
    size_t count = side_parts(job->size), pairs = (count + 1) / 2;
    SidePart *parts = calloc(count + 1, sizeof *parts);
    threads = threads < SIDE_THREADS ? threads : SIDE_THREADS;
    threads = (size_t)threads < pairs ? threads : (int)pairs;
    if (parts && pairs && !work_together(job, parts, pairs, threads)) {
        free(parts);
        return NULL;
    }
    return parts;
}

SidePart side_merge(const SidePart *parts, size_t count)
{
    SidePart out = {.moments = {0, 0, 0, INFINITY, -INFINITY}};
    for (size_t i = 0; i < count; i++) {
        const SidePart *part = &parts[i];
        const Moments *m = &part->moments;
        for (size_t k = 0; k < CHECK_SIZE / sizeof *out.check; k++)
            out.check[k] = out.check[k] * 0x9E3779B97F4A7C15u + part->check[k]; /* the order of the parts counts */
        moments_add(&out.moments, m->n, m->mean, m->m2, m->low, m->high);
        out.squares += part->squares;
        out.bad += part->bad;
        out.overflow |= part->overflow;
    }
    return out;
}
