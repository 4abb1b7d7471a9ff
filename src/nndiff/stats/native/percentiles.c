/* From counted, sampled and gathered distances to percentiles: what an item does between the looks. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "histogram.h"

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
        histogram_stop(&t->group[g]);
    if (t) {
        histogram_stop(&t->total);
        free(t->sample);
    }
    free(t);
    item->tally = NULL;
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
    Tally *t = item->tally;
    int64_t zeros = zeros_of(&item->state);
    for (int k = 0; k < RANKS; k++) {
        t->bin[k] = rank[k] < zeros ? -1 : bin_of_rank(&t->total, rank[k], &t->rank[k]);
        item->looks_again |= t->bin[k] >= 0;
    }
    int64_t last = -1, held = 0;
    const int64_t end = t->total.bins;
    for (int64_t next = end; last < next; next = end, held = (int64_t)t->expected) {
        for (int k = 0; k < RANKS; k++) /* the wanted bins, from the lowest */
            if (t->bin[k] > last && t->bin[k] < next)
                next = t->bin[k];
        if (next == end)
            break;
        for (int k = 0; k < RANKS; k++)
            if (t->bin[k] == next)
                t->rank[k] += held - (next == 0 ? zeros : 0);
        t->expected += t->total.count[next] - (uint64_t)(next == 0 ? zeros : 0);
        last = next;
    }
    for (int k = 0; k < RANKS; k++)
        if (t->bin[k] < 0)
            t->rank[k] = 0;
    t->room = item->looks_again ? t->expected + 1 : 0;
    t->sample = malloc(t->room * sizeof *t->sample + 1);
    item->no_memory |= t->sample == NULL;
}

static void finish_counted(Item *item, const int64_t rank[RANKS])
{
    double value[RANKS];
    for (int k = 0; k < RANKS; k++)
        value[k] = rank[k] < zeros_of(&item->state) ? 0 : value_counted(item, rank[k]);
    blend(item->state.finite, value, item->state.quantile);
}

/* The leading bits of subnormal floats say little of them: they are left to the twin. */
static void leave_subnormals(Item *item, const int64_t rank[RANKS])
{
    if (!item->narrow || item->mode == GATHER || item->looks_again || item->stage == WINDOWS)
        return;
    for (int q = 0; q < QUANTILES; q++)
        if (rank[2 * q + 1] >= zeros_of(&item->state) && item->state.quantile[q] < FLT_MIN)
            item->state.extreme = 1;
}

void item_after_first_look(Item *item)
{
    int64_t rank[RANKS];
    if (item->mode == KEEP || item->state.finite == 0 || item->error || item->no_memory)
        return;
    ranks_of(item->state.finite, rank);
    item->stage = SECOND;
    if (item->mode == GATHER)
        plan_gather(item, rank);
    else if (item->mode == BRACKET)
        finish_sampled(item, rank);
    else
        finish_counted(item, rank);
    leave_subnormals(item, rank);
}

void item_after_windows(Item *item)
{
    int64_t rank[RANKS];
    if (item->error || item->no_memory)
        return;
    ranks_of(item->state.finite, rank);
    item->stage = SECOND;
    finish_windows(item, rank);
    leave_subnormals(item, rank);
}

static void finish_gathered(Item *item)
{
    const Tally *t = item->tally;
    double value[RANKS] = {0}, *scratch = malloc((t->samples + 1) * sizeof *scratch);
    /* unless the file changed between the looks */
    int whole = scratch && t->samples == t->expected;
    if (whole)
        select_ranks(t->sample, t->samples, scratch, t->rank, value);
    for (int k = 0; k < RANKS; k++) {
        if (t->bin[k] < 0)
            value[k] = 0;
        else if (!whole)
            value[k] = fmin(edge_of(&t->total, t->bin[k]), item->state.abs);
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
    item->looks_again = 0;
    leave_subnormals(item, rank);
}
