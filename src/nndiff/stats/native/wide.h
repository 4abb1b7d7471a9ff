/* Kernels over doubles, and the exact maxima that the narrow kernels share. */

/* Move the largest distance and its place: the first of those that are equally large. */
static void raise_abs(Extremes *e, vd ad, const int32_t place[W], int64_t from)
{
    double lane[W];
    d_store(lane, d_finite_or_zero(ad));
    for (int i = 0; i < W; i++) {
        const int64_t at = from + place[i];
        if (lane[i] > e->abs || (lane[i] == e->abs && lane[i] > 0 && at < e->at)) {
            e->abs = lane[i];
            e->at = at;
        }
    }
}

/* Judging rounds: what an element needs, as computed, may fall short of passing by a last digit. Then take more.
   With `rtol` the absolute tolerance is looked for, without it the one tolerance that is both. */
static vd enough(vd needed, vd ad, vd ar, const double *rtol)
{
    double t[W], d[W], r[W];
    d_store(t, needed);
    d_store(d, ad);
    d_store(r, ar);
    for (int i = 0; i < W; i++)
        while (t[i] + (rtol ? *rtol : t[i]) * r[i] < d[i])
            t[i] = nextafter(t[i], INFINITY);
    return d_load(t);
}

/* Move what is needed at each rtol. */
static inline void raise_envelope(Extremes *e, vd ad, vd ar)
{
    unsigned short_of = 0;
    for (int k = 1; k < RTOLS; k++) {
        vd part = d_mul(d_set(RTOL[k]), ar), needed = d_sub(ad, part);
        short_of |= d_gt(ad, d_add(needed, part));
        d_store(e->envelope[k], d_max(needed, d_load(e->envelope[k])));
    }
    for (int k = 1; short_of && k < RTOLS; k++) {
        vd needed = enough(d_sub(ad, d_mul(d_set(RTOL[k]), ar)), ad, ar, &RTOL[k]);
        d_store(e->envelope[k], d_max(needed, d_load(e->envelope[k])));
    }
}

/* Move the maxima by one vector of elements; tell whether one of them may be the largest distance. Divisions take
   long: only where a product says that they may matter. */
static int raise(Extremes *e, const Limits *lim, vd ad, vd ar)
{
    ad = d_finite_or_zero(ad);
    vd line = d_min(d_fma(d_set(lim->slope), ar, d_set(lim->offset)), d_set(lim->plateau));
    vd rel = d_fma(d_set(lim->rel), ar, d_set(lim->rel_offset));
    if (!d_gt(ad, d_sub(d_min(line, rel), d_set(DBL_MIN))))
        return 0; /* the margin of float32 */
    raise_envelope(e, ad, ar);
    vd more = d_add(d_set(1.0), ar);
    if (d_gt(ad, d_mul(d_set(lim->needed), more))) {
        vd needed = d_div(ad, more);
        if (d_gt(ad, d_add(needed, d_mul(needed, ar))))
            needed = enough(needed, ad, ar, NULL);
        d_store(e->needed, d_max(needed, d_load(e->needed)));
    }
    if (d_gt(ad, d_sub(rel, d_set(DBL_MIN))))
        d_store(e->rel, d_max(d_div(ad, ar), d_load(e->rel))); /* 0/0 is NaN and moves nothing */
    e->grown = 1;
    return d_gt(d_set(e->abs), ad) != (1u << W) - 1;
}

/* The same where lane i is the element at + i. */
static void raise_row(const Wide *job, vd ad, vd ar, int64_t at)
{
    int32_t place[W];
    if (!raise(job->extremes, job->limits, ad, ar))
        return;
    for (int i = 0; i < W; i++)
        place[i] = i;
    raise_abs(job->extremes, ad, place, at);
}

typedef struct {
    vd r, ra, rr, c, cc, rc, d, da, dd, rmin, rmax, cmin, cmax;
    uint64_t unequal, mismatched;
} WideSums;

typedef struct {
    vd atol, rtol, offset, slope, plateau, rel, rel_offset;
} WideLines;

static inline int wide_step(WideSums *s, const WideLines *l, vd r, vd c, vd d, double *dist)
{
    vd ar = d_abs(r), ad = d_abs(d);
    unsigned unequal = d_ne(d, d_set(0.0));
    unsigned outside = d_nle(ad, d_add(l->atol, d_mul(l->rtol, ar)));
    vd limit = d_min(d_min(d_fma(l->slope, ar, l->offset), l->plateau), d_fma(l->rel, ar, l->rel_offset));
    s->unequal += bits_set(unequal);
    s->mismatched += bits_set(outside);
    s->r = d_add(s->r, r);
    s->ra = d_add(s->ra, ar);
    s->rr = d_fma(r, r, s->rr);
    s->c = d_add(s->c, c);
    s->cc = d_fma(c, c, s->cc);
    s->rc = d_fma(r, c, s->rc);
    s->d = d_add(s->d, d);
    s->da = d_add(s->da, ad);
    s->dd = d_fma(d, d, s->dd);
    d_store(dist, ad);
    return (unequal & d_gt(ad, limit)) != 0;
}

static inline void wide_range(WideSums *s, vd r, vd c)
{
    s->rmin = d_min(r, s->rmin);
    s->rmax = d_max(r, s->rmax);
    s->cmin = d_min(c, s->cmin);
    s->cmax = d_max(c, s->cmax);
}

static inline double d_least(vd a)
{
    double lane[W], least = INFINITY;
    d_store(lane, a);
    for (int i = 0; i < W; i++)
        least = lane[i] < least ? lane[i] : least;
    return least;
}

static inline double d_most(vd a)
{
    return -d_least(d_sub(d_set(0.0), a));
}

/* Fill a vector from the last few doubles, the rest with zeros or with the last one. */
static inline vd d_rest(const double *p, size_t n, int repeat)
{
    double lane[W];
    for (size_t i = 0; i < W; i++)
        lane[i] = i < n ? p[i] : repeat ? p[n - 1] : 0.0;
    return d_load(lane);
}

static void wide_finish(const WideSums *s, Sums *out)
{
    out->r = d_sum(s->r);
    out->ra = d_sum(s->ra);
    out->rr = d_sum(s->rr);
    out->c = d_sum(s->c);
    out->cc = d_sum(s->cc);
    out->rc = d_sum(s->rc);
    out->d = d_sum(s->d);
    out->da = d_sum(s->da);
    out->dd = d_sum(s->dd);
    out->rmin = d_least(s->rmin);
    out->rmax = d_most(s->rmax);
    out->cmin = d_least(s->cmin);
    out->cmax = d_most(s->cmax);
    out->unequal = (int64_t)s->unequal;
    out->mismatched = (int64_t)s->mismatched;
}

static ALWAYS_INLINE void pair_wide(const Wide *job, Sums *out, int given)
{
    const Limits *lim = job->limits;
    const WideLines l = {
        d_set(job->tolerance.atol), d_set(job->tolerance.rtol), d_set(lim->offset - DBL_MIN), d_set(lim->slope),
        d_set(lim->plateau - DBL_MIN), d_set(lim->rel), d_set(lim->rel_offset - DBL_MIN),
    }; /* the smallest normal number covers what underflows in a product */
    const vd zero = d_set(0.0), high = d_set(INFINITY), low = d_set(-INFINITY);
    WideSums s = {zero, zero, zero, zero, zero, zero, zero, zero, zero, high, low, high, low, 0, 0};
    uint16_t hit[BLOCK / W + 1];
    size_t hits = 0, i = 0;
    for (; i + W <= job->n; i += W) {
        vd r = d_load(job->r + i), c = d_load(job->c + i);
        wide_range(&s, r, c);
        hit[hits] = (uint16_t)i;
        hits += (size_t)wide_step(&s, &l, r, c, given ? d_load(job->d + i) : d_sub(c, r), job->dist64 + i);
    }
    for (size_t k = 0; k < hits; k++)
        raise_row(job, d_load(job->dist64 + hit[k]), d_abs(d_load(job->r + hit[k])), job->at + hit[k]);
    if (i < job->n) {
        size_t left = job->n - i;
        vd r = d_rest(job->r + i, left, 0), c = d_rest(job->c + i, left, 0);
        vd d = given ? d_rest(job->d + i, left, 0) : d_sub(c, r);
        wide_range(&s, d_rest(job->r + i, left, 1), d_rest(job->c + i, left, 1));
        if (wide_step(&s, &l, r, c, d, job->dist64 + i))
            raise_row(job, d_abs(d), d_abs(r), job->at + (int64_t)i);
    }
    wide_finish(&s, out);
    out->kept = job->n;
}

static void pair_f64(const Wide *job, Sums *out)
{
    if (job->d)
        pair_wide(job, out, 1);
    else
        pair_wide(job, out, 0);
}

static void side_f64(const double *p, size_t n, Sums *out)
{
    const vd zero = d_set(0.0), high = d_set(INFINITY), low = d_set(-INFINITY);
    WideSums s = {zero, zero, zero, zero, zero, zero, zero, zero, zero, high, low, high, low, 0, 0};
    for (size_t i = 0; i < n; i += W) {
        size_t left = n - i < W ? n - i : W;
        vd r = left == W ? d_load(p + i) : d_rest(p + i, left, 0);
        vd edge = left == W ? r : d_rest(p + i, left, 1);
        s.r = d_add(s.r, r);
        s.ra = d_add(s.ra, d_abs(r));
        s.rr = d_fma(r, r, s.rr);
        s.rmin = d_min(edge, s.rmin);
        s.rmax = d_max(edge, s.rmax);
    }
    wide_finish(&s, out);
}

/* Sum the squares around about the means of a block, then move to its very means: those of large numbers close
   together do not fit a double. */
static void centre(const double *r, const double *c, const double *d, size_t n, const double mean[3], Centred *out)
{
    vd rr = d_set(0.0), cc = rr, dd = rr, rc = rr, sum[3] = {rr, rr, rr};
    for (size_t i = 0; i < n; i += W) {
        size_t left = n - i;
        vd a, b, e;
        if (left >= W) {
            a = d_sub(d_load(r + i), d_set(mean[0]));
            b = d_sub(d_load(c + i), d_set(mean[1]));
            e = d_sub(d_load(d + i), d_set(mean[2]));
        } else {
            double lane[3][W] = {{0}};
            for (size_t k = 0; k < left; k++) {
                lane[0][k] = r[i + k] - mean[0];
                lane[1][k] = c[i + k] - mean[1];
                lane[2][k] = d[i + k] - mean[2];
            }
            a = d_load(lane[0]);
            b = d_load(lane[1]);
            e = d_load(lane[2]);
        }
        rr = d_fma(a, a, rr);
        cc = d_fma(b, b, cc);
        dd = d_fma(e, e, dd);
        rc = d_fma(a, b, rc);
        sum[0] = d_add(sum[0], a);
        sum[1] = d_add(sum[1], b);
        sum[2] = d_add(sum[2], e);
    }
    const double m = (double)n, off[3] = {d_sum(sum[0]) / m, d_sum(sum[1]) / m, d_sum(sum[2]) / m};
    *out = (Centred){
        d_sum(rr) - m * off[0] * off[0], d_sum(cc) - m * off[1] * off[1], d_sum(dd) - m * off[2] * off[2],
        d_sum(rc) - m * off[0] * off[1], off[0], off[1], off[2],
    };
}
