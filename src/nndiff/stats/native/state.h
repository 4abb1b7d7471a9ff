/* What is known of a pair after some of its elements, and how two parts become one. */
#ifndef NNDIFF_STATE_H
#define NNDIFF_STATE_H

#include "native.h"

typedef struct {
    double n, mean, m2, low, high;
} Moments;

typedef struct {
    double n, mean_r, mean_c, rr, cc, rc;
} Comoment;

typedef struct {
    int64_t done, unequal, mismatched, bad_ref, bad_cand, bad_pairs, finite;
    int64_t first; /* first place finite on both sides, or -1 */
    double da, dd, ra, rr, cc, rc;
    Moments ref, cand, diff;
    Comoment both;
    double envelope[RTOLS], needed, rel, abs;
    int64_t at;
    double quantile[QUANTILES];
    int overflow; /* finite elements whose squares are not */
} State;

void state_start(State *);
void moments_add(Moments *, double n, double mean, double m2, double low, double high);
void comoment_add(Comoment *, const Comoment *block);
void state_merge(State *into, const State *from);

/* One row of results, in the order of metrics.Metrics; native_engine.py knows this layout. */
typedef struct {
    int64_t count, unequal, mismatched, bad_ref, bad_cand, bad_pairs, at;
    int32_t overflow, error; /* error: errno of a failed read, -1 where the file ended */
    int64_t error_side;
    double max_abs, max_rel, mean_abs, mse, rmse, rel_mse, rel_mae, l2, rel_l2, cosine, correlation, sqnr_db;
    double quantile[QUANTILES];
    double ref[4], cand[4], diff_mean, diff_std, needed;
    double envelope[RTOLS];
} Row;

void state_finish(const State *, Row *);

#endif
