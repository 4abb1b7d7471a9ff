/* Percentiles of more elements than are kept: by samples and counts at the edges of brackets; where those leave a doubt,
   by all that lies in a narrow window. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "histogram.h"

enum { IN_WINDOW = 1 << 17 /* elements, by the samples; there may be more where neighbours are alike */ };

/* The samples in the order of their keys: those of a stretch of keys lie side by side. */
typedef struct {
    int64_t first, last;   /* keys that samples have: [first, last) */
    size_t *start;         /* by key, and one more */
    double *value, *spare; /* spare has room for those of any key, and one more */
} Sorted;

static float float_of(uint32_t bits)
{
    float single;
    memcpy(&single, &bits, sizeof single);
    return single;
}

static uint32_t bits_of_float(double sample)
{
    float single = (float)sample; /* it was one */
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    return bits;
}

static int64_t key_of(double sample)
{
    return bits_of_float(sample) >> COARSE;
}

static Sorted sorted_start(const Item *item)
{
    Sorted s = {.first = FLOAT_KEYS, .last = 0};
    for (int q = 0; q < QUANTILES; q++) {
        const Near *near = &item->tally->near[q];
        s.first = near->edge >= 0 && near->from < s.first ? near->from : s.first;
        s.last = near->edge >= 0 && near->to > s.last ? near->to : s.last;
    }
    if (s.first > s.last)
        s.first = s.last;
    s.start = calloc((size_t)(s.last - s.first) + 2, sizeof *s.start);
    return s;
}

static void sorted_stop(Sorted *s)
{
    free(s->start);
    free(s->value);
}

static int sort_samples(const Item *item, Sorted *s)
{
    size_t *next = s->start + 1; /* counts, then where the next of a key goes: in the end the start of the key after it */
    size_t before = 0, most = 0;
    for (size_t i = 0; i < item->tally->samples; i++)
        next[key_of(item->tally->sample[i]) - s->first]++;
    for (int64_t key = 0; key < s->last - s->first; key++) {
        size_t count = next[key];
        next[key] = before;
        before += count;
        most = count > most ? count : most;
    }
    s->value = malloc((item->tally->samples + most + 1) * sizeof *s->value);
    if (!s->value)
        return 0;
    s->spare = s->value + item->tally->samples;
    for (size_t i = 0; i < item->tally->samples; i++)
        s->value[next[key_of(item->tally->sample[i]) - s->first]++] = item->tally->sample[i];
    return 1;
}

/* A stretch of keys with samples in it, and the place of a rank among them. */
typedef struct {
    int64_t from, to;          /* keys */
    double at;                 /* samples before the place; negative: before the end of the stretch */
    double off;                /* how wrong that may be */
    double few;                /* samples that may all be missed: nine, if they are independent */
    int low_known, high_known; /* the value is surely not below, not above the stretch */
} Stretch;

/* The last key that starts at or before a place in the order of samples. */
static size_t key_at(const Sorted *s, size_t place)
{
    size_t low = 0, high = (size_t)(s->last - s->first);
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (s->start[middle] <= place)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Set the samples at three places in their order. */
static void samples_at(const Sorted *s, const size_t place[3], double value[3])
{
    int64_t rank[RANKS];
    double of_key[RANKS];
    for (int k = 0, more; k < 3; k += more) {
        const size_t key = key_at(s, place[k]), start = s->start[key], end = s->start[key + 1];
        for (more = 1; k + more < 3 && place[k + more] < end; more++)
            continue;
        for (int i = 0; i < RANKS; i++) {
            const int which = k + (i < more ? i : more - 1);
            rank[i] = (int64_t)(place[which < 3 ? which : 2] - start);
        }
        select_ranks(s->value + start, end - start, s->spare, rank, of_key);
        memcpy(value + k, of_key, (size_t)more * sizeof *value);
    }
}

/* What may hold the value: twice as far as the samples may be wrong, as far as the stretch goes. None where that is a
   good part of all: there are better ways to look at so many. */
static Span window_around(const Sorted *sorted, const Stretch *s, double at, size_t first, double last, double share)
{
    const double reach = 2 * s->off, from = fmax(at - reach, 0), to = fmin(at + reach, last);
    const size_t place[3] = {first + (size_t)from, first + (size_t)at, first + (size_t)to};
    double found[3];
    if ((to - from + 1) / share > IN_WINDOW)
        return (Span){0, 0};
    samples_at(sorted, place, found);
    const uint32_t low = at < reach ? (uint32_t)s->from << COARSE : bits_of_float(found[0]);
    const uint32_t high = at + reach > last ? (uint32_t)s->to << COARSE : bits_of_float(found[2]) + 1;
    return (Span){low, high};
}

/* Select a sample. Where the samples leave more than 0.1 % of doubt about the value, there is none, but maybe a window
   that holds it. */
static int select_between(const Sorted *sorted, Stretch s, double share, double *value, Span *window)
{
    const Histogram keys = {.shift = COARSE};
    const size_t first = sorted->start[s.from - sorted->first], n = sorted->start[s.to - sorted->first] - first;
    double last = (double)n - 1, at = fmin(s.at < 0 ? (double)n + s.at : s.at, last);
    if (!(n && at >= 0 && (s.low_known || at >= s.off) && (s.high_known || at + s.off <= last)))
        return 0;
    const size_t place[3] = {first + (size_t)fmax(at - s.off, 0), first + (size_t)at, first + (size_t)fmin(at + s.off, last)};
    double found[3];
    samples_at(sorted, place, found);
    double low = at < s.off && at < s.few ? edge_of(&keys, s.from) : found[0];
    double high = at + s.off > last && last - at < s.few ? edge_of(&keys, s.to) : found[2];
    *value = found[1];
    if (fmax(high - *value, *value - low) <= 1e-3 * *value)
        return 1;
    *window = window_around(sorted, &s, at, first, last, share);
    return 0;
}

/* How many times less sure samples are than independent ones: those of a piece may be alike, then the halves of the pieces
   hold more different numbers of them. */
static double likeness(const Tally *t, int q)
{
    return t->drawn[q] > 0 ? sqrt(fmax(1, t->apart[q] / t->drawn[q])) : 1;
}

/* The value at a rank, counted from the nearest edge, or 0 where the samples cannot tell. */
static int value_between(const Item *item, const Sorted *sorted, int q, int64_t rank, double *value, Span *window)
{
    const Tally *t = item->tally;
    const Near *near = &t->near[q];
    *window = (Span){0, 0};
    if (near->edge < 0 || t->sampled == 0)
        return 0;
    const int16_t *edge = &t->brackets.edge[near->edge];
    const double share = (double)t->sampled / (double)t->seen, place = (double)rank + 0.5;
    const double alike = likeness(t, q), spread = share < 1 ? 4 * alike : 0;
    double below[EDGES];
    int after = 0; /* edges at or below the place */
    for (int k = 0; k < near->edges; k++) {
        below[k] = (double)(item->state.finite - t->at_or_above[near->edge + k]);
        after += below[k] <= place;
    }
    const double on = after > 0 ? (place - below[after - 1]) * share : 0;
    const double back = after < near->edges ? (below[after] - place) * share : 0;
    Stretch s = {
        .from = after > 0 ? edge[after - 1] : near->from,
        .to = after < near->edges ? edge[after] : near->to,
        .at = on,
        .off = spread * sqrt(on) + 1,
        .few = 9 * alike * alike,
        .low_known = after > 0,
        .high_known = after < near->edges,
    };
    if (after == 0 || (s.high_known && back < on)) { /* the fewer samples in between, the surer their number */
        s.at = -back;
        s.off = spread * sqrt(back) + 1;
    }
    return select_between(sorted, s, share, value, window);
}

/* Tell whether an edge lies between this rank and the next. */
static int between_edges(const Item *item, int q, int64_t rank)
{
    const Near *near = &item->tally->near[q];
    for (int k = near->edge; k < near->edge + near->edges; k++)
        if (rank + 1 == item->state.finite - item->tally->at_or_above[k])
            return 1;
    return 0;
}

/* The window of a percentile is that of both its ranks; empty where one has none. */
static void widen_window(Span *window, Span by, int *known)
{
    *known &= by.to > 0;
    window->from = window->to && window->from < by.from ? window->from : by.from;
    window->to = window->to > by.to ? window->to : by.to;
}

/* Set the values that the samples tell; return whether each of the others has a window, or none is left. */
static int take_samples(Item *item, const Sorted *sorted, const int64_t rank[RANKS])
{
    Tally *t = item->tally;
    const int64_t zeros = zeros_of(&item->state);
    int known = 1;
    for (int k = 0; k < RANKS; k++) {
        const int q = k / 2;
        Span window;
        if (rank[k] < zeros)
            continue;
        if (k & 1 && rank[k - 1] >= zeros && !between_edges(item, q, rank[k - 1])) {
            t->value[k] = t->value[k - 1]; /* neighbours inside of a bracket: no sample could tell them apart */
        } else if (!value_between(item, sorted, q, rank[k], &t->value[k], &window)) {
            widen_window(&t->window[q], window, &known);
            item->looks_again = 1;
        }
    }
    return known;
}

/* Count all by more leading bits: slow, but sure. */
static void count_finely(Item *item)
{
    histogram_stop(&item->tally->total);
    histogram_start(item, &item->tally->total, 1);
    item->looks_again = 1;
}

void finish_sampled(Item *item, const int64_t rank[RANKS])
{
    Sorted sorted = sorted_start(item);
    if (!sorted.start || !sort_samples(item, &sorted)) {
        item->no_memory = 1;
        sorted_stop(&sorted);
        return;
    }
    const int known = take_samples(item, &sorted, rank);
    sorted_stop(&sorted);
    blend(item->state.finite, item->tally->value, item->state.quantile);
    if (item->looks_again && !known) {
        count_finely(item);
    } else if (item->looks_again) {
        item->looks_again = 0;
        item->tally->samples = 0;
        item->stage = WINDOWS;
    }
}

/* Select among what a window holds; 0 where a rank turns out to be elsewhere. */
static int take_window(Item *item, int q, const int64_t rank[RANKS], double *held, double *spare)
{
    Tally *t = item->tally;
    const double low = float_of(t->window[q].from), high = float_of(t->window[q].to);
    const int64_t below = item->state.finite - t->above[q], zeros = zeros_of(&item->state);
    size_t count = 0;
    for (size_t i = 0; i < t->samples; i++) {
        held[count] = t->sample[i];
        count += t->sample[i] >= low && t->sample[i] < high;
    }
    int64_t place[RANKS];
    double value[RANKS];
    for (int k = 0; k < 2; k++) {
        place[k] = rank[2 * q + k] < zeros ? 0 : rank[2 * q + k] - below;
        if (place[k] < 0 || place[k] >= (int64_t)count)
            return 0;
    }
    for (int k = 2; k < RANKS; k++)
        place[k] = place[1];
    select_ranks(held, count, spare, place, value);
    for (int k = 0; k < 2; k++)
        t->value[2 * q + k] = rank[2 * q + k] < zeros ? 0 : value[k];
    return 1;
}

void finish_windows(Item *item, const int64_t rank[RANKS])
{
    Tally *t = item->tally;
    double *held = malloc((2 * t->samples + 2) * sizeof *held);
    int found = !t->overflowed;
    if (!held) {
        item->no_memory = 1;
        return;
    }
    for (int q = 0; found && q < QUANTILES; q++)
        if (t->window[q].to)
            found = take_window(item, q, rank, held, held + t->samples + 1);
    free(held);
    blend(item->state.finite, t->value, item->state.quantile);
    if (!found)
        count_finely(item);
}
