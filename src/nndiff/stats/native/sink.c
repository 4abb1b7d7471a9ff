/* What the threads do with the distances |d|: count, sample or gather them. */
#include <stdlib.h>
#include <string.h>

#include "work.h"

static int64_t add_counts(Histogram *h, const uint32_t *from, int64_t key)
{
    h->count[key] += from[key];
    return key < h->bins ? from[key] : 0;
}

void worker_flush(Worker *w)
{
    Histogram *h = w->target;
    if (!h)
        return;
    pthread_mutex_lock(w->lock);
    h->total += add_counts(h, w->counts, 0);
    for (int64_t k = w->low; k <= w->high; k++)
        h->total += add_counts(h, w->counts, k);
    h->low = w->low < h->low ? w->low : h->low;
    h->high = w->high > h->high ? w->high : h->high;
    pthread_mutex_unlock(w->lock);
    w->counts[0] = 0;
    if (w->low <= w->high)
        memset(w->counts + w->low, 0, (size_t)(w->high - w->low + 1) * sizeof *w->counts);
    w->target = NULL;
}

static void aim(Worker *w, Item *item, Histogram *target)
{
    if (w->target == target)
        return;
    worker_flush(w);
    if (w->counts_size < target->bins + 1) {
        free(w->counts);
        w->counts_size = target->bins + 1;
        w->counts = calloc((size_t)w->counts_size, sizeof *w->counts);
    }
    if (!w->counts) {
        w->counts_size = 0;
        item->no_memory = 1;
        return;
    }
    w->target = target;
    w->low = target->bins;
    w->high = 0;
}

/* What becomes of the distances of an item at this stage. */
typedef enum { LEFT /* they are kept as they are */, COUNTED, PICKED, BRACKETED, SIEVED } Use;

static Use use_of(const Item *item)
{
    if (item->mode == KEEP)
        return LEFT;
    if (item->stage == WINDOWS)
        return SIEVED;
    if (item->mode == GATHER && item->stage == SECOND)
        return PICKED;
    return item->mode == BRACKET && item->stage == FIRST ? BRACKETED : COUNTED;
}

void sink_start(Worker *w, Item *item, const Task *task)
{
    const Use use = use_of(item);
    w->finds = w->seen = w->sampled = 0;
    if (use == BRACKETED) {
        w->brackets = item->tally->brackets;
        memset(w->drawn, 0, sizeof w->drawn);
        w->only_samples = task->group == SAMPLED_ONLY;
    }
    if (use == SIEVED)
        memset(w->above, 0, sizeof w->above);
    if (use == COUNTED)
        aim(w, item, task->group >= 0 ? &item->tally->group[task->group] : &item->tally->total);
}

/* Count distances. The range is kept so that a flush need not go over bins nobody touched. */
static void count_block(Worker *w, size_t n)
{
    const Histogram *h = w->target;
    uint32_t key[BLOCK], range[2], *counts = w->counts;
    if (h->wide)
        w->kernels->keys_f64(w->dist64, n, h->shift, (uint32_t)h->bins, key, range);
    else
        w->kernels->keys_f32(w->dist32, n, h->shift, (uint32_t)h->bins, key, range);
    for (size_t i = 0; i < n; i++)
        counts[key[i]]++;
    if (range[1]) {
        w->low = range[0] < w->low ? range[0] : w->low;
        w->high = range[1] > w->high ? range[1] : w->high;
    }
}

/* Places of pieces, one anywhere in each of as many equal parts: whatever the order of the elements, each part of it
   has its share in the samples. */
static void draw_places(size_t n, size_t pieces, int64_t at, uint16_t *place)
{
    const uint64_t step = ((uint64_t)(n - PIECE + 1) << 32) / pieces;
    uint64_t random = ((uint64_t)at / BLOCK + 1) * 0x9E3779B97F4A7C15u;
    for (size_t i = 0; i < pieces; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        place[i] = (uint16_t)((i * step + (step >> 16) * (random >> 48)) >> 32);
    }
}

/* Sample a block; all of it where half would be taken, as pieces might overlap. */
static void sample_block(Worker *w, const Item *item, size_t n, int64_t at)
{
    uint16_t place[BLOCK / PIECE + 1];
    size_t take = (item->tally->take * n + BLOCK - 1) / BLOCK, pieces = (take + 2 * PIECE - 1) / (2 * PIECE) * 2;
    const int all = 2 * pieces * PIECE > n;
    if (all) {
        memset(w->dist32 + n, 0xFF, PAD * sizeof *w->dist32); /* no number */
        pieces = (n + PIECE - 1) / PIECE;
        for (size_t i = 0; i < pieces; i++)
            place[i] = (uint16_t)(i * PIECE);
    } else {
        draw_places(n, pieces, at, place);
    }
    w->finds += w->kernels->sift(w->dist32, place, pieces, item->tally->between, w->drawn, w->found + w->finds);
    w->sampled += all ? n : pieces * PIECE;
    w->seen += n;
}

static void gather_block(Worker *w, const Item *item, size_t n)
{
    const Histogram *h = &item->tally->total;
    uint32_t key[BLOCK + PAD], bin[RANKS], range[2];
    for (int k = 0; k < RANKS; k++)
        bin[k] = item->tally->bin[k] < 0 ? UINT32_MAX : (uint32_t)item->tally->bin[k];
    if (h->wide)
        w->kernels->keys_f64(w->dist64, n, h->shift, (uint32_t)h->bins, key, range);
    else
        w->kernels->keys_f32(w->dist32, n, h->shift, (uint32_t)h->bins, key, range);
    w->finds += w->kernels->pick(key, bin, w->dist64, n, w->found + w->finds);
}

void sink(Worker *w, const Item *item, size_t n, int64_t at)
{
    const Use use = use_of(item);
    if (n == 0)
        return;
    if (use == PICKED) {
        gather_block(w, item, n);
    } else if (use == SIEVED) {
        memset(w->dist32 + n, 0xFF, PAD * sizeof *w->dist32); /* no number */
        w->finds += w->kernels->sieve(w->dist32, n, item->tally->window, w->above, w->found + w->finds);
    } else if (use == BRACKETED) {
        if (!w->only_samples)
            w->kernels->bracket(w->dist32, n, &w->brackets);
        sample_block(w, item, n, at);
    } else if (use == COUNTED && w->target) {
        count_block(w, n);
    }
}

void sink_zeros(Worker *w, const Item *item, size_t n)
{
    if (use_of(item) == COUNTED && w->target)
        w->counts[0] += (uint32_t)n;
}

static void give_samples(Worker *w, Item *item)
{
    Tally *t = item->tally;
    if (use_of(item) == SIEVED && t->samples + w->finds > GATHERED) {
        t->overflowed = 1;
        return;
    }
    if (t->samples + w->finds > t->room) {
        size_t room = 2 * (t->samples + w->finds) + CHUNK;
        double *more = realloc(t->sample, room * sizeof *more);
        if (!more) {
            item->no_memory = 1;
            return;
        }
        t->sample = more;
        t->room = room;
    }
    memcpy(t->sample + t->samples, w->found, w->finds * sizeof *w->found);
    t->samples += w->finds;
}

void sink_end(Worker *w, Item *item)
{
    Tally *t = item->tally;
    const Use use = use_of(item);
    if (item->mode != BRACKET && !w->finds)
        return;
    pthread_mutex_lock(w->lock);
    if (w->finds)
        give_samples(w, item);
    t->seen += (int64_t)w->seen;
    t->sampled += (int64_t)w->sampled;
    for (int k = 0; use == BRACKETED && k < t->brackets.edges; k++)
        for (int lane = 0; lane < 16; lane++)
            t->at_or_above[k] += w->brackets.count[k][lane];
    for (int q = 0; use == BRACKETED && q < QUANTILES; q++) {
        const double one = (double)w->drawn[0][q], other = (double)w->drawn[1][q];
        t->drawn[q] += one + other;
        t->apart[q] += (one - other) * (one - other);
    }
    for (int q = 0; use == SIEVED && q < QUANTILES; q++)
        t->above[q] += w->above[q];
    pthread_mutex_unlock(w->lock);
}
