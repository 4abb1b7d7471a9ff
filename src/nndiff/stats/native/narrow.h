/* Kernels over floats: sums are made in float64, what only has to be found (maxima, elements out of tolerance) is
   looked for in float32 with a margin and then decided in float64. */

typedef struct {
    vd r, ra, rr, d, da, dd, rd;
    vf rmin, rmax, cmin, cmax;
    uint64_t unequal, mismatched;
    size_t kept;
} NarrowSums;

/* Half of the sums are products too: either kind alone would keep its ports busy for longer. Return the distances. */
static ALWAYS_INLINE vd half_step(NarrowSums *s, vd one, vd r, vd c)
{
    vd d = d_sub(c, r), ad = d_abs(d);
    s->r = d_fma(r, one, s->r);
    s->ra = d_fma(d_abs(r), one, s->ra);
    s->rr = d_fma(r, r, s->rr);
    s->d = d_add(s->d, d);
    s->da = d_add(s->da, ad);
    s->dd = d_fma(d, d, s->dd);
    s->rd = d_fma(r, d, s->rd);
    return ad;
}

/* What is found of each element of a vector. */
typedef struct {
    mf unequal, outside, moves; /* outside: surely out of tolerance; moves: it may move a maximum */
} Found;

/* `least` is that above the tolerance so far; whole numbers, as those take any port of the machine. */
static ALWAYS_INLINE Found narrow_step(vi *least, const NarrowLines *l, vf r, vf c, int wide, float *dist32)
{
    vf d = f_sub(c, r), ad = f_abs(d), ar = f_abs(r);
    vi above = above_tolerance(l, ad, ar);
    mf unequal = f_ne(d, f_set(0.0f));
    *least = i_unsigned_min(*least, above);
    if (!wide)
        f_store(dist32, ad);
    return (Found){unequal, i_gt(above, l->doubt), movers(l, unequal, ad, ar)};
}

static ALWAYS_INLINE void count_found(NarrowSums *s, Found f)
{
    s->unequal += bits_set(m_bits(f.unequal));
    s->mismatched += bits_set(m_bits(f.outside));
}

static inline void narrow_range(NarrowSums *s, vf r, vf c)
{
    s->rmin = f_min(r, s->rmin);
    s->rmax = f_max(r, s->rmax);
    s->cmin = f_min(c, s->cmin);
    s->cmax = f_max(c, s->cmax);
}

static inline NarrowSums narrow_start(void)
{
    const vd zero = d_set(0.0);
    const vf high = f_set(INFINITY), low = f_set(-INFINITY);
    return (NarrowSums){zero, zero, zero, zero, zero, zero, zero, high, low, high, low, 0, 0, 0};
}

/* Take the last few elements, already floats: zeros behind them change no sum. */
static ALWAYS_INLINE void narrow_rest(const Narrow *job, const NarrowLines *l, Waiting *w, Type type, int wide, size_t done,
                                      NarrowSums *s)
{
    float r[4 * W] = {0}, c[4 * W] = {0}, r_edge[4 * W], c_edge[4 * W];
    size_t left = job->n - done, size = TYPE_SIZE[type];
    to_f32(type, (const char *)job->r + done * size, left, r);
    to_f32(type, (const char *)job->c + done * size, left, c);
    for (size_t i = 0; i < 4 * W; i++) {
        r_edge[i] = r[i < left ? i : left - 1];
        c_edge[i] = c[i < left ? i : left - 1];
    }
    for (size_t i = 0; i < left; i += 2 * W) {
        vf a = f_load(r + i), b = f_load(c + i);
        vi least = i_set(-1);
        narrow_range(s, f_load(r_edge + i), f_load(c_edge + i));
        Found found = narrow_step(&least, l, a, b, wide, job->dist32 + done + i);
        count_found(s, found);
        vd low = half_step(s, l->one, f_low(a), f_low(b)), high = half_step(s, l->one, f_high(a), f_high(b));
        if (wide) {
            d_store(job->dist64 + s->kept, low);
            d_store(job->dist64 + s->kept + W, high);
            s->kept += left - i < 2 * W ? left - i : 2 * W;
        }
        s->mismatched += settle_doubt(job, l, a, b);
        wait_for_more(job, w, a, b, m_bits(found.moves), done + i, 1);
    }
}

/* Sum the candidate directly: made of r and d it would drown where it is far smaller than they are. */
static void sum_candidate(const Narrow *job, Type type, Sums *out)
{
    float r[4 * W], c[4 * W];
    size_t size = TYPE_SIZE[type];
    vd sum = d_set(0.0), cc = sum, rc = sum;
    for (size_t i = 0; i < job->n; i += 4 * W) {
        size_t left = job->n - i < 4 * W ? job->n - i : 4 * W;
        memset(r, 0, sizeof r);
        memset(c, 0, sizeof c);
        to_f32(type, (const char *)job->r + i * size, left, r);
        to_f32(type, (const char *)job->c + i * size, left, c);
        for (int k = 0; k < 4 * W; k += 2 * W) {
            vf a = f_load(r + k), b = f_load(c + k);
            sum = d_add(sum, d_add(f_low(b), f_high(b)));
            cc = d_fma(f_high(b), f_high(b), d_fma(f_low(b), f_low(b), cc));
            rc = d_fma(f_high(a), f_high(b), d_fma(f_low(a), f_low(b), rc));
        }
    }
    out->c = d_sum(sum);
    out->cc = d_sum(cc);
    out->rc = d_sum(rc);
}

static void narrow_finish(const Narrow *job, Type type, const NarrowSums *s, Sums *out)
{
    double rd = d_sum(s->rd);
    out->r = d_sum(s->r);
    out->ra = d_sum(s->ra);
    out->rr = d_sum(s->rr);
    out->d = d_sum(s->d);
    out->da = d_sum(s->da);
    out->dd = d_sum(s->dd);
    out->c = out->r + out->d;
    out->cc = out->rr + 2 * rd + out->dd;
    out->rc = out->rr + rd;
    if (out->cc < (out->rr + out->dd) / 16)
        sum_candidate(job, type, out);
    out->rmin = f_least(s->rmin);
    out->rmax = f_most(s->rmax);
    out->cmin = f_least(s->cmin);
    out->cmax = f_most(s->cmax);
    out->unequal = (int64_t)s->unequal;
    out->mismatched = (int64_t)s->mismatched;
    out->kept = s->kept;
}

/* The machine reads ahead on its own, but stops at the end of every page: ask for what comes soon. */
#define AHEAD(p) __builtin_prefetch((const char *)(p) + 2048, 0, 3)
#define TYPE_SIZE_OF(type) ((type) == TYPE_F32 ? 4 : 2)

/* Half a vector of floats as doubles; straight from memory where that needs no shuffling. */
static ALWAYS_INLINE vd half_of(Type type, const void *p, vf all, int half)
{
    if (type == TYPE_F32)
        return d_from_f32((const float *)p + half * W);
    return half ? f_high(all) : f_low(all);
}

static ALWAYS_INLINE void pair_plain(const Narrow *job, Sums *out, Type type, int wide)
{
    const NarrowLines l = narrow_lines(job);
    NarrowSums s = narrow_start();
    const char *left = job->r, *right = job->c;
    const size_t whole = job->n - job->n % (2 * W), size = TYPE_SIZE_OF(type);
    Hits hits;
    Waiting waiting;
    hits.count = waiting.count = 0;
#define LOAD(p) (type == TYPE_F32 ? f_load((const float *)(p)) : f_from_f16((const uint16_t *)(p)))
    for (size_t start = 0, i = 0; start < whole; start += SPAN) {
        const size_t end = start + SPAN < whole ? start + SPAN : whole;
        vi least = i_set(-1);
        for (; i < end; i += 2 * W) {
            const char *p = left + i * size, *q = right + i * size;
            vf r = LOAD(p), c = LOAD(q);
            AHEAD(p);
            AHEAD(q);
            narrow_range(&s, r, c);
            Found found = narrow_step(&least, &l, r, c, wide, job->dist32 + i);
            count_found(&s, found);
            add_hit(&hits, i / (2 * W), m_bits(found.moves));
            vd low = half_step(&s, l.one, half_of(type, p, r, 0), half_of(type, q, c, 0));
            vd high = half_step(&s, l.one, half_of(type, p, r, 1), half_of(type, q, c, 1));
            if (wide) {
                d_store(job->dist64 + i, low);
                d_store(job->dist64 + i + W, high);
            }
        }
        const size_t doubted = any_in_doubt(&l, least) ? end : start;
        for (size_t k = start; k < doubted; k += 2 * W)
            s.mismatched += settle_doubt(job, &l, LOAD(left + k * size), LOAD(right + k * size));
    }
    NarrowSums all = s; /* what is handed over would be kept in memory all along */
    all.kept = whole;
    for (size_t k = 0; k < hits.count; k++) {
        const size_t i = (size_t)hits.step[k] * 2 * W;
        wait_for_more(job, &waiting, LOAD(left + i * size), LOAD(right + i * size), hits.which[k], i, 1);
    }
#undef LOAD
    if (whole < job->n)
        narrow_rest(job, &l, &waiting, type, wide, whole, &all);
    raise_waiting(job, &waiting);
    narrow_finish(job, type, &all, out);
}

/* The range of bfloat16 by its bits: the largest as signed numbers is the largest float, if one is positive;
   the largest as unsigned numbers is the least float, if one is negative. */
typedef struct {
    vh most, least;
} HalfRange;

static ALWAYS_INLINE void half_range(HalfRange *h, const uint16_t *p)
{
    vh raw = h_load(p);
    h->most = h_signed_max(raw, h->most);
    h->least = h_unsigned_max(raw, h->least);
}

/* Take the range over into floats; where all have one sign, look at the elements again. */
static void take_half_range(const HalfRange *h, const uint16_t *p, size_t n, vf *low, vf *high)
{
    uint16_t lane[4 * W], least = 0;
    int16_t most = 0;
    h_store(lane, h->most);
    for (size_t i = 0; i < 4 * W; i++)
        most = (int16_t)lane[i] > most ? (int16_t)lane[i] : most;
    h_store(lane, h->least);
    for (size_t i = 0; i < 4 * W; i++)
        least = lane[i] > least ? lane[i] : least;
    if (most > 0 && least > 0x8000) {
        *low = f_min(*low, f_set(bf16_to_float(least)));
        *high = f_max(*high, f_set(bf16_to_float((uint16_t)most)));
        return;
    }
    for (size_t i = 0; i + 4 * W <= n; i += 4 * W) {
        vf x[2];
        f_from_bf16(p + i, &x[0], &x[1]);
        *low = f_min(x[0], f_min(x[1], *low));
        *high = f_max(x[0], f_max(x[1], *high));
    }
}

/* Sums of a few elements. Those of bfloat16 have 8 digits and their products 16: in float32, such a sum is exact but for
   elements that are far smaller than others, and those round it by 2^-24 at the most. */
typedef struct {
    vf r, ra, rr, d, da, dd, rd;
} GroupSums;

static ALWAYS_INLINE GroupSums group_start(void)
{
    const vf zero = f_set(0.0f);
    return (GroupSums){zero, zero, zero, zero, zero, zero, zero};
}

static ALWAYS_INLINE void group_step(GroupSums *g, vf r, vf c)
{
    vf d = f_sub(c, r);
    g->r = f_add(g->r, r);
    g->ra = f_add(g->ra, f_abs(r));
    g->rr = f_fma(r, r, g->rr);
    g->d = f_add(g->d, d);
    g->da = f_add(g->da, f_abs(d));
    g->dd = f_fma(d, d, g->dd);
    g->rd = f_fma(r, d, g->rd);
}

static ALWAYS_INLINE vd with_group(vd sum, vf group)
{
    return d_add(sum, d_add(f_low(group), f_high(group)));
}

static ALWAYS_INLINE void end_group(NarrowSums *s, const GroupSums *g)
{
    s->r = with_group(s->r, g->r);
    s->ra = with_group(s->ra, g->ra);
    s->rr = with_group(s->rr, g->rr);
    s->d = with_group(s->d, g->d);
    s->da = with_group(s->da, g->da);
    s->dd = with_group(s->dd, g->dd);
    s->rd = with_group(s->rd, g->rd);
}

/* Tell whether no square left the range of float32: what it drops below that range is nothing beside the sum. */
static int are_sound(const Sums *s)
{
    const double least = 0x1p-100;
    return s->rr <= DBL_MAX && s->dd <= DBL_MAX && (s->rr >= least || s->ra == 0) && (s->dd >= least || s->da == 0);
}

/* Distances are kept as doubles, those that are not zero: most of them are where models are close; as floats; as floats,
   and a few are summed first. */
typedef enum { KEPT, SUMMED, GROUPED } Halves;

static ALWAYS_INLINE Found halves_step(const Narrow *job, NarrowSums *s, GroupSums *g, vi *least, const NarrowLines *l,
                                       vf r, vf c, Halves how, size_t at)
{
    Found found = narrow_step(least, l, r, c, how == KEPT, job->dist32 + at);
    if (how == GROUPED) {
        group_step(g, r, c);
        return found;
    }
    vd low = half_step(s, l->one, f_low(r), f_low(c)), high = half_step(s, l->one, f_high(r), f_high(c));
    if (how == KEPT) {
        s->kept += d_keep(job->dist64 + s->kept, low, m_bits(found.unequal));
        s->kept += d_keep(job->dist64 + s->kept, high, m_bits(found.unequal) >> W);
    }
    return found;
}

/* bfloat16 widens by a shift and a mask: elements at even and at odd places, no shuffling. */
static ALWAYS_INLINE void pair_halves(const Narrow *job, Sums *out, Halves how)
{
    const uint16_t *left = job->r, *right = job->c;
    const NarrowLines l = narrow_lines(job);
    NarrowSums s = narrow_start();
    const size_t whole = job->n - job->n % (4 * W);
    Hits hits; /* a step is a vector of elements at even places and one at odd places */
    Waiting waiting;
    HalfRange r_range = {h_zero(), h_zero()}, c_range = r_range;
    hits.count = waiting.count = 0;
    for (size_t start = 0, i = 0; start < whole; start += SPAN) {
        const size_t end = start + SPAN < whole ? start + SPAN : whole;
        vi least = i_set(-1);
        GroupSums group = group_start();
        for (; i < end; i += 4 * W) {
            vf even, odd, c_even, c_odd;
            f_from_bf16(left + i, &even, &odd);
            f_from_bf16(right + i, &c_even, &c_odd);
            AHEAD(left + i);
            AHEAD(right + i);
            half_range(&r_range, left + i);
            half_range(&c_range, right + i);
            Found one = halves_step(job, &s, &group, &least, &l, even, c_even, how, i);
            Found other = halves_step(job, &s, &group, &least, &l, odd, c_odd, how, i + 2 * W);
            s.unequal += m_count(one.unequal, other.unequal);
            s.mismatched += m_count(one.outside, other.outside);
            add_hit(&hits, i / (4 * W), m_join(one.moves, other.moves));
        }
        if (how == GROUPED)
            end_group(&s, &group);
        const size_t doubted = any_in_doubt(&l, least) ? end : start;
        for (size_t k = start; k < doubted; k += 4 * W) {
            vf r[2], c[2];
            f_from_bf16(left + k, &r[0], &r[1]);
            f_from_bf16(right + k, &c[0], &c[1]);
            s.mismatched += settle_doubt(job, &l, r[0], c[0]) + settle_doubt(job, &l, r[1], c[1]);
        }
    }
    NarrowSums all = s; /* what is handed over would be kept in memory all along */
    const HalfRange ranges[2] = {r_range, c_range};
    take_half_range(&ranges[0], left, whole, &all.rmin, &all.rmax);
    take_half_range(&ranges[1], right, whole, &all.cmin, &all.cmax);
    for (size_t k = 0; k < hits.count; k++) {
        const size_t i = (size_t)hits.step[k] * 4 * W;
        vf r[2], c[2];
        f_from_bf16(left + i, &r[0], &r[1]);
        f_from_bf16(right + i, &c[0], &c[1]);
        wait_for_more(job, &waiting, r[0], c[0], hits.which[k] & ((1u << 2 * W) - 1), i, 2);
        wait_for_more(job, &waiting, r[1], c[1], hits.which[k] >> 2 * W, i + 1, 2);
    }
    if (whole < job->n)
        narrow_rest(job, &l, &waiting, TYPE_BF16, how == KEPT, whole, &all);
    raise_waiting(job, &waiting);
    narrow_finish(job, TYPE_BF16, &all, out);
}

/* Each kernel exists for either kind of distances, so that the loop has no choice to make. */
static void pair_f32(const Narrow *job, Sums *out)
{
    if (job->dist64)
        pair_plain(job, out, TYPE_F32, 1);
    else
        pair_plain(job, out, TYPE_F32, 0);
}

static void pair_f16(const Narrow *job, Sums *out)
{
    if (job->dist64)
        pair_plain(job, out, TYPE_F16, 1);
    else
        pair_plain(job, out, TYPE_F16, 0);
}

static void pair_bf16(const Narrow *job, Sums *out)
{
    if (job->dist64) {
        pair_halves(job, out, KEPT);
        return;
    }
    if (job->grouped) {
        pair_halves(job, out, GROUPED);
        if (are_sound(out))
            return;
    }
    pair_halves(job, out, SUMMED);
}

/* Bound the maxima of some elements from below, in float32 with a margin: limits drawn from them hold off most
   elements from the start, where maxima found one by one would let many pass. */
static void survey(const float *r, const float *c, size_t n, Survey *out)
{
    const vf zero = f_set(0.0f), one = f_set(1.0f);
    vf most[RTOLS], needed = zero, rel = zero, sum = zero;
    size_t seen = 0;
    for (int k = 0; k < RTOLS; k++)
        most[k] = zero;
    for (; seen + 2 * W <= n; seen += 2 * W) {
        vf a = f_load(r + seen), ar = f_abs(a), ad = f_abs(f_sub(f_load(c + seen), a));
        for (int k = 0; k < RTOLS; k++)
            most[k] = f_max(f_fma(f_set((float)-RTOL[k]), ar, ad), most[k]);
        needed = f_max(f_div(ad, f_add(one, ar)), needed);
        rel = f_max(f_div(ad, ar), rel);
        sum = f_add(sum, ar);
    }
    const double less = 1 - MARGIN, largest = f_most(most[0]), sum_of_all = d_sum(d_add(f_low(sum), f_high(sum)));
    *out = (Survey){{0}, 0, 0, 0};
    if (!seen || !(largest <= FLT_MAX && sum_of_all <= FLT_MAX))
        return;
    for (int k = 0; k < RTOLS; k++)
        out->envelope[k] = fmax(f_most(most[k]) - MARGIN * largest - FLT_MIN, 0);
    out->needed = fmax(f_most(needed) * less - FLT_MIN, 0);
    out->rel = fmin(f_most(rel) * less, FLT_MAX); /* no bound is infinite: the element itself is to be found */
    out->mean = sum_of_all / (double)seen;
}

static ALWAYS_INLINE void side_step(NarrowSums *s, vf r)
{
    vd low = f_low(r), high = f_high(r);
    s->r = d_add(s->r, d_add(low, high));
    s->ra = d_add(s->ra, d_add(d_abs(low), d_abs(high)));
    s->rr = d_fma(high, high, d_fma(low, low, s->rr));
}

static ALWAYS_INLINE void side(const void *p, size_t n, Sums *out, Type type)
{
    NarrowSums s = narrow_start();
    size_t i = 0, step = type == TYPE_BF16 ? 4 * W : 2 * W;
    for (; i + step <= n; i += step) {
        vf r[2];
        if (type == TYPE_BF16)
            f_from_bf16((const uint16_t *)p + i, &r[0], &r[1]);
        else
            r[0] = type == TYPE_F32 ? f_load((const float *)p + i) : f_from_f16((const uint16_t *)p + i);
        for (size_t k = 0; k < step / (2 * W); k++) {
            narrow_range(&s, r[k], r[k]);
            side_step(&s, r[k]);
        }
    }
    if (i < n) {
        float rest[4 * W] = {0}, edge[4 * W];
        to_f32(type, (const char *)p + i * TYPE_SIZE[type], n - i, rest);
        for (size_t k = 0; k < 4 * W; k++)
            edge[k] = rest[k < n - i ? k : n - i - 1];
        for (size_t k = 0; k < 4 * W; k += 2 * W) {
            narrow_range(&s, f_load(edge + k), f_load(edge + k));
            side_step(&s, f_load(rest + k));
        }
    }
    *out = (Sums){0};
    out->r = d_sum(s.r);
    out->ra = d_sum(s.ra);
    out->rr = d_sum(s.rr);
    out->rmin = f_least(s.rmin);
    out->rmax = f_most(s.rmax);
}

static void side_f32(const void *p, size_t n, Sums *out) { side(p, n, out, TYPE_F32); }
static void side_f16(const void *p, size_t n, Sums *out) { side(p, n, out, TYPE_F16); }
static void side_bf16(const void *p, size_t n, Sums *out) { side(p, n, out, TYPE_BF16); }
