/* One tensor alone. Bytes are fetched from memory once: whatever is asked for is done while they are in the L1 cache. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "side.h"

#include <dlfcn.h>
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

static void add_stats(const SideJob *job, const uint8_t *p, size_t bytes, SidePart *out)
{
    size_t size = TYPE_SIZE[job->type], step = BLOCK * size;
    for (size_t at = 0; at < bytes; at += step)
        add_block(job, p + at, (bytes - at < step ? bytes - at : step) / size, out);
}

/* --- a part ------------------------------------------------------------------------------------------ */

static void look_at(const SideJob *job, SidePart *parts, size_t number)
{
    const size_t step = 8192; /* whole blocks of the hash, whole elements: they fit into the L1 cache */
    const uint8_t *bytes = job->bytes + number * SIDE_PART;
    const size_t left = job->size - number * SIDE_PART, size = left < SIDE_PART ? left : SIDE_PART;
    SidePart *out = &parts[number];
    uint8_t filled[SIDE_LEAST] = {0};
    Xxh3 hash;
    if (size < SIDE_LEAST)
        memcpy(filled, bytes, size);
    xxh3_start(&hash, job->kernels, size < SIDE_LEAST ? filled : bytes, size < SIDE_LEAST ? SIDE_LEAST : size);
    out->moments = (Moments){.low = INFINITY, .high = -INFINITY};
    for (size_t at = 0; at < size; at += step) {
        size_t end = size - at < step ? size : at + step;
        xxh3_step(&hash, at, end);
        if (job->with_stats)
            add_stats(job, bytes + at, end - at, out);
    }
    xxh3_end(&hash, out->hash);
}

/* --- threads ------------------------------------------------------------------------------------------- */

/* What helpers share. They may come late, even after all is done: then they find nothing left, touch nothing but
   this, and whoever is last frees it. So a busy machine never keeps the caller waiting for a helper to start. */
typedef struct {
    SideJob job;
    SidePart *parts;
    size_t count;
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
    size_t part, did = 0;
#ifdef HAVE_X86
    unsigned mode = _mm_getcsr();
    _mm_setcsr(0x1F80); /* the caller may flush subnormals to zero; our numbers must not depend on it */
#endif
    for (; (part = atomic_fetch_add(&crew->next, 1)) < crew->count; did++)
        look_at(&crew->job, crew->parts, part);
#ifdef HAVE_X86
    _mm_setcsr(mode);
#endif
    pthread_mutex_lock(&crew->lock);
    crew->done += did;
    if (crew->done == crew->count)
        pthread_cond_signal(&crew->all_done);
    pthread_mutex_unlock(&crew->lock);
}

static void *help(void *argument)
{
    work(argument);
    leave(argument);
    return NULL;
}

static void work_in_team(void *argument)
{
    work(argument);
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

/* --- the team ------------------------------------------------------------------------------------------ */

/* Between two operations torch's own threads spin for a while and wait for the next one: threads of ours would have to
   share the cores with them. Where torch's OpenMP is there, its team does the work instead. */
typedef void (*Team)(void (*)(void *), void *, unsigned threads, unsigned flags);

static atomic_int forked; /* a team does not live on in a child process, and would be waited for for ever */

static void in_child(void)
{
    atomic_store(&forked, 1);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

static Team find_team(void)
{
    static pthread_once_t watched = PTHREAD_ONCE_INIT;
    pthread_once(&watched, watch_forks);
    union { void *found; Team team; } of = {atomic_load(&forked) ? NULL : dlsym(RTLD_DEFAULT, "GOMP_parallel")};
    return of.team;
}

size_t side_parts(size_t size)
{
    return size / SIDE_PART + (size % SIDE_PART != 0);
}

static int work_together(const SideJob *job, SidePart *parts, size_t count, int threads)
{
    Crew *crew = calloc(1, sizeof *crew);
    if (!crew)
        return 0;
    crew->job = *job;
    crew->parts = parts;
    crew->count = count;
    atomic_init(&crew->next, 0);
    atomic_init(&crew->users, 1);
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->all_done, NULL);
    Team team = threads > 1 ? find_team() : NULL;
    if (team) {
        team(work_in_team, crew, (unsigned)threads, 0);
    } else {
        call_helpers(crew, threads - 1);
        work(crew);
    }
    pthread_mutex_lock(&crew->lock);
    while (crew->done < crew->count)
        pthread_cond_wait(&crew->all_done, &crew->lock);
    pthread_mutex_unlock(&crew->lock);
    leave(crew);
    return 1;
}

SidePart *side_look(const SideJob *job, int threads)
{
    size_t count = side_parts(job->size);
    SidePart *parts = calloc(count + 1, sizeof *parts);
    threads = threads < SIDE_THREADS ? threads : SIDE_THREADS;
    threads = (size_t)threads < count ? threads : (int)count;
    if (parts && count && !work_together(job, parts, count, threads)) {
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
