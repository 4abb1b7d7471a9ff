/* Merging by Chan's formulas, and the numbers that are made of the sums in the end. */
#include "state.h"

#include <float.h>
#include <math.h>

void state_start(State *s)
{
    const Moments none = {.low = INFINITY, .high = -INFINITY};
    *s = (State){.first = -1, .at = -1, .ref = none, .cand = none, .diff = none};
}

static double mean_apart(Mean a, Mean b)
{
    return (a.high - b.high) + (a.low - b.low);
}

/* Move a mean; the digits that its first double cannot hold go to the second. */
static void mean_move(Mean *m, double by)
{
    double sum = m->high + by, back = sum - m->high, lost = (m->high - (sum - back)) + (by - back) + m->low;
    m->high = sum + lost;
    m->low = lost - (m->high - sum);
}

void moments_add(Moments *m, const Moments *b)
{
    if (m->n == 0 || b->n == 0) {
        *m = b->n == 0 ? *m : *b; /* a shift from zero would round the mean */
        return;
    }
    double shift = mean_apart(b->mean, m->mean), total = m->n + b->n, part = b->n / total;
    m->m2 += b->m2 + shift * (m->n * part) * shift;
    mean_move(&m->mean, shift * part);
    m->n = total;
    m->low = b->low < m->low ? b->low : m->low;
    m->high = b->high > m->high ? b->high : m->high;
}

void comoment_add(Comoment *m, const Comoment *b)
{
    if (m->n == 0 || b->n == 0) {
        *m = b->n == 0 ? *m : *b;
        return;
    }
    double dr = mean_apart(b->mean_r, m->mean_r), dc = mean_apart(b->mean_c, m->mean_c);
    double total = m->n + b->n, part = b->n / total, weight = m->n * part;
    m->rr += b->rr + dr * weight * dr;
    m->cc += b->cc + dc * weight * dc;
    m->rc += b->rc + dr * weight * dc;
    mean_move(&m->mean_r, dr * part);
    mean_move(&m->mean_c, dc * part);
    m->n = total;
}

static void merge_extremes(State *into, const State *from)
{
    for (int k = 0; k < RTOLS; k++)
        into->envelope[k] = fmax(into->envelope[k], from->envelope[k]);
    into->needed = fmax(into->needed, from->needed);
    into->rel = fmax(into->rel, from->rel);
    if (from->at >= 0 && (from->abs > into->abs || (from->abs == into->abs && from->at < into->at))) {
        into->abs = from->abs;
        into->at = from->at;
    }
}

void state_merge(State *into, const State *from)
{
    moments_add(&into->ref, &from->ref);
    moments_add(&into->cand, &from->cand);
    moments_add(&into->diff, &from->diff);
    comoment_add(&into->both, &from->both);
    merge_extremes(into, from);
    into->done += from->done;
    into->unequal += from->unequal;
    into->mismatched += from->mismatched;
    into->bad_ref += from->bad_ref;
    into->bad_cand += from->bad_cand;
    into->bad_pairs += from->bad_pairs;
    into->finite += from->finite;
    if (from->first >= 0 && (into->first < 0 || from->first < into->first))
        into->first = from->first;
    into->da += from->da;
    into->dd += from->dd;
    into->ra += from->ra;
    into->rr += from->rr;
    into->cc += from->cc;
    into->rc += from->rc;
    for (int q = 0; q < QUANTILES; q++)
        into->quantile[q] = from->quantile[q];
    into->extreme |= from->extreme;
}

static double ratio(double part, double whole)
{
    if (whole == 0)
        return part == 0 ? 0.0 : INFINITY;
    return part / whole;
}

/* The cosine; 1 for equal sides, undefined where a side has no length. */
static double angle(double dot, double rr, double cc, double apart)
{
    double length = sqrt(rr) * sqrt(cc);
    if (apart == 0)
        return 1.0;
    return length > 0 ? fmax(-1.0, fmin(1.0, dot / length)) : NAN;
}

static void summary(const Moments *m, double out[4])
{
    int none = m->n == 0, constant = m->low == m->high;
    out[0] = none ? NAN : constant ? m->low : m->mean.high;
    out[1] = none ? NAN : constant ? 0.0 : sqrt(fmax(m->m2, 0.0) / m->n);
    out[2] = none ? NAN : m->low;
    out[3] = none ? NAN : m->high;
}

static void finish_pairs(const State *s, Row *row)
{
    double n = (double)s->finite, *out = row->number;
    int constant = s->ref.low == s->ref.high || s->cand.low == s->cand.high;
    row->max_abs = s->abs;
    out[MAX_REL] = s->rel;
    out[MEAN_ABS] = s->da / n;
    out[MSE] = s->dd / n;
    out[RMSE] = sqrt(out[MSE]);
    out[REL_MSE] = ratio(s->dd, s->rr);
    out[REL_MAE] = ratio(s->da, s->ra);
    out[L2] = sqrt(s->dd);
    out[REL_L2] = sqrt(out[REL_MSE]);
    out[COSINE] = angle(s->rc, s->rr, s->cc, s->dd);
    out[CORRELATION] = constant && s->dd > 0 ? NAN : angle(s->both.rc, s->both.rr, s->both.cc, s->dd);
    out[SQNR_DB] = s->dd == 0 ? INFINITY : s->rr > 0 ? 10.0 * log10(s->rr / s->dd) : -INFINITY;
    for (int q = 0; q < QUANTILES; q++)
        out[P50 + q] = s->quantile[q];
    out[DIFF_MEAN] = s->diff.mean.high;
    out[DIFF_STD] = sqrt(fmax(s->diff.m2, 0.0) / n);
}

/* Squares below this are on their way out of the range of float64, those of their last digits even more. */
#define TINY 0x1p-800

static int tiny(const Moments *m, double squares)
{
    return (m->low != m->high && m->m2 < TINY) || (squares < TINY && (m->low != 0 || m->high != 0));
}

/* Tell whether squares became infinite or fell below what float64 can hold, so that the sums say nothing. */
static int is_extreme(const State *s)
{
    if (s->extreme || !(s->rr + s->cc + s->dd + s->ref.m2 + s->cand.m2 <= DBL_MAX))
        return 1;
    int differs = s->unequal > s->bad_pairs;
    return (differs && s->dd < TINY) || tiny(&s->ref, s->finite ? s->rr : 1.0) || tiny(&s->cand, s->finite ? s->cc : 1.0);
}

void state_finish(const State *s, Row *row)
{
    double worst = s->bad_pairs ? INFINITY : 0.0;
    *row = (Row){
        .count = s->done, .unequal = s->unequal, .mismatched = s->mismatched, .bad_ref = s->bad_ref,
        .bad_cand = s->bad_cand, .bad_pairs = s->bad_pairs, .at = s->abs > 0 ? s->at : s->first,
        .extreme = is_extreme(s), .max_abs = NAN,
    };
    for (int k = 0; k < ROW_NUMBERS; k++)
        row->number[k] = NAN;
    if (s->finite)
        finish_pairs(s, row);
    summary(&s->ref, row->number + REF_MEAN);
    summary(&s->cand, row->number + CAND_MEAN);
    row->number[NEEDED] = fmax(s->needed, worst);
    for (int k = 0; k < RTOLS; k++)
        row->envelope[k] = fmax(s->envelope[k], worst);
}
