/* Where the pilots say that the percentiles are: edges to count at, and brackets to sample between. */
#include <math.h>

#include "histogram.h"

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

/* The next key with distances below or above one, as far as `end`, or -1. */
static int64_t neighbour(const Histogram *h, int64_t key, int64_t end)
{
    const int64_t step = end < key ? -1 : 1;
    for (key += step; key != end + step; key += step)
        if (h->count[key])
            return key;
    return -1;
}

/* Where few distances lie about a percentile, the samples from an edge on to it leave more doubt than 0.1 %. */
static int thin(const Item *item, int64_t key)
{
    const Histogram *h = &item->tally->total;
    const double samples = fmin((double)item->count, (double)EXACT_LIMIT);
    const double of_key = (double)h->count[key] / (double)h->total * samples;
    const double width = edge_of(h, key + 1) / edge_of(h, key) - 1;
    return 4 * sqrt(of_key / 2) > 0.7 * of_key * 1e-3 / width;
}

/* Count at the edge of the likeliest key. Where values repeat or are few, count at both of its ends; and where its
   neighbour may be meant as well, at the far end of that one. `off` is how far the rank may be away by the pilots. */
static void draw_edges(Item *item, Near *near, int64_t key, int64_t inside, double off)
{
    const Histogram *h = &item->tally->total;
    const int64_t behind = (int64_t)h->count[key] - inside;
    const int more = uneven(h, key) || thin(item, key), low = inside <= behind;
    const int beyond = more && (double)(low ? inside : behind) < off;
    const int64_t below = beyond && low ? neighbour(h, key, near->from) : -1;
    const int64_t above = beyond && !low ? neighbour(h, key, near->to - 1) : -1;
    near->edge = item->tally->brackets.edges;
    if (below >= 0)
        add_edge(item, below);
    add_edge(item, key);
    if (more)
        add_edge(item, key + 1);
    if (above >= 0)
        add_edge(item, above + 1);
    near->edges = item->tally->brackets.edges - near->edge;
}

static void draw_bracket(Item *item, int q)
{
    const Histogram *h = &item->tally->total;
    const double n = (double)h->total, share = QUANTILE[q];
    int64_t inside, other, key = bin_of_rank(h, (int64_t)(share * n), &inside);
    const double varies = fmax(doubt(item, key), key > 0 ? doubt(item, key - 1) : 0); /* of either end */
    const double off = 6 * varies + 4 * sqrt(share * (1 - share) / n);
    int64_t from = bin_of_rank(h, (int64_t)(fmax(share - off, 0) * n), &other);
    int64_t to = bin_of_rank(h, (int64_t)(fmin(share + off, 1) * (n - 1)), &other) + 1;
    Near *near = &item->tally->near[q];
    near->edge = -1;
    if (to <= 1 || n == 0) /* zeros are known without a bracket */
        return;
    near->from = from < 1 ? 1 : from;
    near->to = to > FLOAT_KEYS ? FLOAT_KEYS : to;
    key = key < near->from ? near->from : key >= near->to ? near->to - 1 : key;
    draw_edges(item, near, key, inside, off * n);
    item->tally->between[q] = (Span){(uint32_t)near->from << COARSE, (uint32_t)near->to << COARSE};
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
