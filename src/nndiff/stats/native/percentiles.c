/* From counted, sampled and gathered distances to percentiles: what an item does between the looks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "work.h"

static void histogram_start(Item *item, Histogram *h, int fine)
{
    h->wide = !item->narrow;
    h->shift = h->wide ? (fine ? WIDE_FINE : WIDE_COARSE) : (fine ? FINE : COARSE);
    h->bins = h->wide ? (int64_t)0x7FF << (52 - h->shift) : (int64_t)FLOAT_KEYS << (COARSE - h->shift);
    h->low = h->bins;
    h->high = h->total = 0;
    h->count = calloc((size_t)h->bins + 1, sizeof *h->count);
    item->no_memory |= h->count == NULL;
}

void item_prepare(Item *item, int fed)
{
    item->stage = FIRST;
    item->known = (Survey){.mean = 0};
    state_start(&item->state);
    item->mode = item->count <= CHUNK         ? KEEP
                 : item->count <= EXACT_LIMIT ? GATHER
                 : item->narrow && !fed       ? BRACKET
                                              : COUNT;
    if (item->mode == KEEP)
        return;
    item->tally = calloc(1, sizeof *item->tally);
    if (!item->tally) {
        item->no_memory = 1;
        return;
    }
    if (item->mode == BRACKET) {
        item->stage = PILOT;
        for (int g = 0; g < GROUPS; g++)
            histogram_start(item, &item->tally->group[g], 0);
    }
    if (item->mode == GATHER || item->mode == COUNT)
        histogram_start(item, &item->tally->total, item->mode == COUNT);
}

void item_stop(Item *item)
{
    Tally *t = item->tally;
    for (int g = 0; t && g < GROUPS; g++)
        free(t->group[g].count);
    if (t) {
        free(t->total.count);
        free(t->sample);
    }
    free(t);
    item->tally = NULL;
}

static double edge_of(const Histogram *h, int64_t key)
{
    uint64_t wide = (uint64_t)key << h->shift;
    uint32_t narrow = (uint32_t)wide;
    double value;
    float single;
    memcpy(&value, &wide, sizeof value);
    memcpy(&single, &narrow, sizeof single);
    return h->wide ? value : single;
}

/* Find the bin of a rank and the place inside the bin. */
static int64_t bin_of_rank(const Histogram *h, int64_t rank, int64_t *inside)
{
    int64_t key = 0;
    while (key < h->bins && rank >= (int64_t)h->count[key]) {
        rank -= (int64_t)h->count[key];
        key = key == 0 && h->low > 0 ? h->low : key + 1;
    }
    *inside = rank;
    return key;
}

static int64_t count_from(const Histogram *h, int64_t key)
{
    int64_t count = 0;
    for (; key <= h->high && key < h->bins; key++)
        count += (int64_t)h->count[key];
    return count;
}

/* The spread of the share of distances above a key, between groups of pilots, as error of the mean. */
static double doubt(const Item *item, int64_t key)
{
    double sum = 0, squares = 0, groups = 0;
    for (int g = 0; g < GROUPS; g++) {
        const Histogram *h = &item->tally->group[g];
        if (h->total == 0)
            continue;
        double share = (double)count_from(h, key + 1) / (double)h->total;
        sum += share;
        squares += share * share;
        groups++;
    }
    if (groups < 2)
        return 1;
    double mean = sum / groups;
    return sqrt(fmax(squares / groups - mean * mean, 0) / (groups - 1));
}

static void add_edge(Item *item, int64_t key)
{
    item->tally->brackets.edge[item->tally->brackets.edges++] = (int16_t)key;
}

/* Where values repeat, keys side by side hold very different numbers of them. */
static int uneven(const Histogram *h, int64_t key)
{
    uint64_t here = h->count[key], before = key > 1 ? h->count[key - 1] : here, after = h->count[key + 1];
    return here > 2 * before || here > 2 * after || before > 2 * here || after > 2 * here;
}

static void draw_bracket(Item *item, int q)
{
    const Histogram *h = &item->tally->total;
    const double n = (double)h->total, share = QUANTILE[q];
    int64_t inside, key = bin_of_rank(h, (int64_t)(share * n), &inside);
    double off = 6 * doubt(item, key) + 4 * sqrt(share * (1 - share) / n);
    int64_t from = bin_of_rank(h, (int64_t)(fmax(share - off, 0) * n), &inside);
    int64_t to = bin_of_rank(h, (int64_t)(fmin(share + off, 1) * (n - 1)), &inside) + 1;
    item->tally->near[q].edge = -1;
    if (to <= 1 || n == 0) /* zeros are known without a bracket */
        return;
    from = from < 1 ? 1 : from;
    to = to > FLOAT_KEYS ? FLOAT_KEYS : to;
    key = key < from ? from : key >= to ? to - 1 : key;
    item->tally->near[q] = (Near){item->tally->brackets.edges, 1 + uneven(h, key), from, to};
    add_edge(item, key);
    if (item->tally->near[q].edges == 2)
        add_edge(item, key + 1);
    item->tally->between[q] = (Span){(uint32_t)from << COARSE, (uint32_t)to << COARSE};
}

static void add_histogram(Histogram *to, const Histogram *from)
{
    to->count[0] += from->count[0];
    for (int64_t k = from->low; k <= from->high; k++)
        to->count[k] += from->count[k];
    to->low = from->low < to->low ? from->low : to->low;
    to->high = from->high > to->high ? from->high : to->high;
    to->total += from->total;
}

static int is_between(const Item *item, int64_t key)
{
    for (int q = 0; q < QUANTILES; q++)
        if (item->tally->near[q].edge >= 0 && key >= item->tally->near[q].from && key < item->tally->near[q].to)
            return 1;
    return 0;
}

/* Sample no more than is needed: where values repeat, the brackets may hold a good part of all. */
static size_t share_to_sample(const Item *item)
{
    double inside = 0, most = (double)EXACT_LIMIT * BLOCK / (double)item->count, enough = 1 << 17;
    for (int64_t key = item->tally->total.low; key <= item->tally->total.high; key++)
        inside += is_between(item, key) ? (double)item->tally->total.count[key] : 0;
    inside *= (double)item->count / fmax((double)item->tally->total.total, 1);
    return (size_t)fmax(1, fmin(most, inside > 0 ? enough / inside * BLOCK : BLOCK));
}

void item_draw_brackets(Item *item)
{
    item->stage = FIRST;
    histogram_start(item, &item->tally->total, 0);
    if (item->no_memory)
        return;
    for (int g = 0; g < GROUPS; g++)
        add_histogram(&item->tally->total, &item->tally->group[g]);
    for (int q = 0; q < QUANTILES; q++)
        draw_bracket(item, q);
    for (int k = 0; k < item->tally->brackets.edges; k++)
        item->tally->at_or_above[k] = count_from(&item->tally->total, item->tally->brackets.edge[k]);
    item->tally->take = share_to_sample(item);
}

static int64_t zeros_of(const State *s)
{
    return s->finite - (s->unequal - s->bad_pairs);
}

/* The samples in the order of their keys: those of a stretch of keys lie side by side. */
typedef struct {
    int64_t first, last;   /* keys that samples have: [first, last) */
    size_t *start;         /* by key, and one more */
    double *value, *spare; /* there is room for as many in spare, and one more */
} Sorted;

static int64_t key_of(double sample)
{
    float single = (float)sample; /* it was one */
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    return bits >> COARSE;
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
    s.value = malloc((2 * item->tally->samples + 1) * sizeof *s.value);
    s.spare = s.value ? s.value + item->tally->samples : NULL;
    return s;
}

static void sorted_stop(Sorted *s)
{
    free(s->start);
    free(s->value);
}

static void sort_samples(const Item *item, Sorted *s)
{
    size_t *next = s->start + 1; /* counts, then where the next of a key goes: in the end the start of the key after it */
    for (size_t i = 0; i < item->tally->samples; i++)
        next[key_of(item->tally->sample[i]) - s->first]++;
    for (int64_t key = 0, before = 0; key < s->last - s->first; key++) {
        size_t count = next[key];
        next[key] = (size_t)before;
        before += (int64_t)count;
    }
    for (size_t i = 0; i < item->tally->samples; i++)
        s->value[next[key_of(item->tally->sample[i]) - s->first]++] = item->tally->sample[i];
}

/* A stretch of keys with samples in it, and the place of a rank among them. */
typedef struct {
    int64_t from, to;          /* keys */
    double at;                 /* samples before the place; negative: before the end of the stretch */
    double off;                /* how wrong that may be */
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
        for (int i = 0; i < RANKS; i++)
            rank[i] = (int64_t)(place[k + (i < more ? i : more - 1)] - start);
        select_ranks(s->value + start, end - start, s->spare, rank, of_key);
        memcpy(value + k, of_key, (size_t)more * sizeof *value);
    }
}

/* Select a sample. Where the samples leave more than 0.1 % of doubt about the value, there is none. */
static int select_between(const Sorted *sorted, Stretch s, double *value)
{
    const Histogram keys = {.shift = COARSE};
    const size_t first = sorted->start[s.from - sorted->first], n = sorted->start[s.to - sorted->first] - first;
    double last = (double)n - 1, at = fmin(s.at < 0 ? (double)n + s.at : s.at, last);
    if (!(n && at >= 0 && (s.low_known || at >= s.off) && (s.high_known || at + s.off <= last)))
        return 0;
    const size_t place[3] = {first + (size_t)fmax(at - s.off, 0), first + (size_t)at, first + (size_t)fmin(at + s.off, last)};
    double found[3];
    samples_at(sorted, place, found);
    /* that no sample at all came before (or after) the place is as good as out of the question beyond nine */
    double low = at < s.off && at < 9 ? edge_of(&keys, s.from) : found[0];
    double high = at + s.off > last && last - at < 9 ? edge_of(&keys, s.to) : found[2];
    *value = found[1];
    return fmax(high - *value, *value - low) <= 1e-3 * *value;
}

/* The value at a rank, counted from the nearest edge, or 0 where the samples cannot tell. */
static int value_between(const Item *item, const Sorted *sorted, int q, int64_t rank, double *value)
{
    const Near *near = &item->tally->near[q];
    if (near->edge < 0 || item->tally->sampled == 0)
        return 0;
    const int16_t *edge = &item->tally->brackets.edge[near->edge];
    const Tally *t = item->tally;
    double share = (double)t->sampled / (double)t->seen, spread = 4 * sqrt(1 - share), below[2] = {0};
    for (int k = 0; k < near->edges; k++)
        below[k] = (double)(item->state.finite - item->tally->at_or_above[near->edge + k]);
    double place = (double)rank + 0.5;
    if (place < below[0]) {
        double back = (below[0] - place) * share;
        return select_between(sorted, (Stretch){near->from, edge[0], -back, spread * sqrt(back) + 1, 0, 1}, value);
    }
    if (near->edges == 2 && place >= below[1]) {
        double on = (place - below[1]) * share;
        return select_between(sorted, (Stretch){edge[1], near->to, on, spread * sqrt(on) + 1, 1, 0}, value);
    }
    double on = (place - below[0]) * share, back = (below[1] - place) * share;
    if (near->edges == 1)
        return select_between(sorted, (Stretch){edge[0], near->to, on, spread * sqrt(on) + 1, 1, 0}, value);
    Stretch within = {edge[0], edge[1], on, spread * sqrt(on) + 1, 1, 1};
    if (back < on) { /* the fewer samples in between, the surer their number */
        within.at = -back;
        within.off = spread * sqrt(back) + 1;
    }
    return select_between(sorted, within, value);
}

static double value_counted(const Item *item, int64_t rank)
{
    int64_t inside, key = bin_of_rank(&item->tally->total, rank, &inside);
    double middle = (edge_of(&item->tally->total, key) + edge_of(&item->tally->total, key + 1)) / 2;
    return fmin(middle, item->state.abs);
}

/* Note the bins to look at again and where each rank will stand among what they hold. A narrow bin is that
   of the distance rounded to a float; rounding keeps the order, so the exact distances sort as their bins do. */
static void plan_gather(Item *item, const int64_t rank[RANKS])
{
    int64_t zeros = zeros_of(&item->state);
    for (int k = 0; k < RANKS; k++) {
        item->tally->bin[k] = rank[k] < zeros ? -1 : bin_of_rank(&item->tally->total, rank[k], &item->tally->rank[k]);
        item->looks_again |= item->tally->bin[k] >= 0;
    }
    int64_t last = -1, held = 0;
    const int64_t end = item->tally->total.bins;
    for (int64_t next = end; last < next; next = end, held = (int64_t)item->tally->expected) {
        for (int k = 0; k < RANKS; k++) /* the wanted bins, from the lowest */
            if (item->tally->bin[k] > last && item->tally->bin[k] < next)
                next = item->tally->bin[k];
        if (next == end)
            break;
        for (int k = 0; k < RANKS; k++)
            if (item->tally->bin[k] == next)
                item->tally->rank[k] += held - (next == 0 ? zeros : 0);
        item->tally->expected += item->tally->total.count[next] - (uint64_t)(next == 0 ? zeros : 0);
        last = next;
    }
    for (int k = 0; k < RANKS; k++)
        if (item->tally->bin[k] < 0)
            item->tally->rank[k] = 0;
    item->tally->room = item->looks_again ? item->tally->expected + 1 : 0;
    item->tally->sample = malloc(item->tally->room * sizeof *item->tally->sample + 1);
    item->no_memory |= item->tally->sample == NULL;
}

static void finish_counted(Item *item, const int64_t rank[RANKS])
{
    double value[RANKS];
    for (int k = 0; k < RANKS; k++)
        value[k] = rank[k] < zeros_of(&item->state) ? 0 : value_counted(item, rank[k]);
    blend(item->state.finite, value, item->state.quantile);
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

static void finish_bracketed(Item *item, const int64_t rank[RANKS])
{
    double value[RANKS] = {0};
    Sorted sorted = sorted_start(item);
    if (!sorted.start || !sorted.value) {
        item->no_memory = 1;
        sorted_stop(&sorted);
        return;
    }
    sort_samples(item, &sorted);
    for (int k = 0; k < RANKS && !item->looks_again; k++) {
        if (rank[k] < zeros_of(&item->state))
            continue;
        if (k & 1 && rank[k - 1] >= zeros_of(&item->state) && !between_edges(item, k / 2, rank[k - 1]))
            value[k] = value[k - 1]; /* neighbours inside of a bracket: no sample could tell them apart */
        else if (!value_between(item, &sorted, k / 2, rank[k], &value[k]))
            item->looks_again = 1;
    }
    sorted_stop(&sorted);
    blend(item->state.finite, value, item->state.quantile);
    if (item->looks_again) {
        free(item->tally->total.count);
        histogram_start(item, &item->tally->total, 1);
    }
}

void item_after_first_look(Item *item)
{
    int64_t rank[RANKS];
    if (item->mode == KEEP || item->state.finite == 0 || item->error || item->no_memory)
        return;
    ranks_of(item->state.finite, rank);
    if (item->mode == GATHER)
        plan_gather(item, rank);
    else if (item->mode == BRACKET)
        finish_bracketed(item, rank);
    else
        finish_counted(item, rank);
    item->stage = SECOND;
}

static void finish_gathered(Item *item)
{
    double value[RANKS] = {0}, *scratch = malloc((item->tally->samples + 1) * sizeof *scratch);
    /* unless the file changed between the looks */
    int whole = scratch && item->tally->samples == item->tally->expected;
    if (whole)
        select_ranks(item->tally->sample, item->tally->samples, scratch, item->tally->rank, value);
    for (int k = 0; k < RANKS; k++) {
        if (item->tally->bin[k] < 0)
            value[k] = 0;
        else if (!whole)
            value[k] = fmin(edge_of(&item->tally->total, item->tally->bin[k]), item->state.abs);
    }
    free(scratch);
    blend(item->state.finite, value, item->state.quantile);
}

void item_after_second_look(Item *item)
{
    int64_t rank[RANKS];
    ranks_of(item->state.finite, rank);
    if (item->mode == GATHER)
        finish_gathered(item);
    else
        finish_counted(item, rank);
}
