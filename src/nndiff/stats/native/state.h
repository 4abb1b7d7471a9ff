/* What is known of a pair after some of its elements, and how two parts become one. */
#ifndef NNDIFF_STATE_H
#define NNDIFF_STATE_H

#include "native.h"

/* A mean in two doubles: that of large numbers close together has more digits than one. */
typedef struct {
    double high, low;
} Mean;

typedef struct {
    double n;
    Mean mean;
    double m2, low, high;
} Moments;

typedef struct {
    double n;
    Mean mean_r, mean_c;
    double rr, cc, rc;
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
    int extreme; /* squares were beyond float64 */
} State;

void state_start(State *);
void moments_add(Moments *, const Moments *block);
void comoment_add(Comoment *, const Comoment *block);
void state_merge(State *into, const State *from);

/* The numbers of a result between max_abs_index and envelope, in the order of metrics.Metrics. */
enum {
    MAX_REL, MEAN_ABS, MSE, RMSE, REL_MSE, REL_MAE, L2, REL_L2, COSINE, CORRELATION, SQNR_DB,
    P50, REF_MEAN = P50 + QUANTILES, CAND_MEAN = REF_MEAN + 4, DIFF_MEAN = CAND_MEAN + 4, DIFF_STD, NEEDED,
    ROW_NUMBERS,
};

typedef struct {
    int64_t count, unequal, mismatched, bad_ref, bad_cand, bad_pairs, at;
    int extreme; /* sums left the range of float64 and say nothing */
    double max_abs, number[ROW_NUMBERS], envelope[RTOLS];
} Row;

void state_finish(const State *, Row *);

#endif
