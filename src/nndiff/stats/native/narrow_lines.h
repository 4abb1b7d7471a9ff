/* Which floats need a look in float64: those that may move a maximum, and those close to the tolerance. */

#define MARGIN 1e-6 /* well above the rounding of float32, so nothing that matters is missed */

/* Elements that are looked at again together, where one of them lies too close to the tolerance, and of which each lane
   sums a group: sixteen, on any width. */
enum { SPAN = 32 * W };

typedef struct {
    vf slope, offset, plateau, rel, rel_offset;
    vf rtol, atol; /* surely in tolerance below here, */
    vi doubt;      /* surely out of it more than so many floats above */
    vd one;
} NarrowLines;

/* Products and sums of a one take the ports that sums leave free; the compiler must not see that it is one. */
static inline vd hidden_one(void)
{
    double one = 1.0;
#if LEVEL
    __asm__("" : "+x"(one));
#endif
    return d_set(one);
}

static NarrowLines narrow_lines(const Narrow *job)
{
    const double less = 1 - MARGIN;
    const Limits *lim = job->limits;
    const Tolerance *t = &job->tolerance;
    const int plain = t->rtol == 0 || (t->rtol >= 1e-30 && t->rtol <= 1e30); /* else every element is in doubt */
    /* the smallest normal number covers what underflows in a product */
    return (NarrowLines){
        f_set((float)fmin(lim->slope * less, FLT_MAX)),
        f_set((float)(lim->offset * less) - FLT_MIN),
        f_set((float)(lim->plateau * less) - FLT_MIN),
        f_set((float)fmin(lim->rel * less, FLT_MAX)), /* an infinite slope would make 0 |r| no number */
        f_set((float)lim->rel_offset - FLT_MIN),
        f_set(plain ? (float)(t->rtol * less) : 0.0f),
        f_set(plain ? (float)(t->atol * less) : 0.0f),
        i_set(plain ? 64 : INT32_MAX - 1), /* 2 MARGIN and some rounding */
        hidden_one(),
    };
}

/* How far |d| lies above the tolerance, in floats; what lies below wraps around to large numbers. */
static inline vi above_tolerance(const NarrowLines *l, vf ad, vf ar)
{
    return i_sub(i_of(ad), i_of(f_fma(l->rtol, ar, l->atol)));
}

static inline int any_in_doubt(const NarrowLines *l, vi least)
{
    const vi clear = i_sub(l->doubt, i_set(-1));
    return m_bits(i_gt(clear, i_unsigned_min(least, clear))) != 0;
}

/* The elements that may move a maximum. */
static inline mf movers(const NarrowLines *l, mf unequal, vf ad, vf ar)
{
    vf line = f_min(f_fma(l->slope, ar, l->offset), l->plateau);
    return f_gt(unequal, ad, f_min(line, f_fma(l->rel, ar, l->rel_offset)));
}

/* Count the doubtful elements that are out of tolerance, in float64. */
static unsigned out_of_tolerance(const Narrow *job, unsigned doubtful, vf r, vf c)
{
    unsigned outside = 0;
    for (int half = 0; half < 2; half++) {
        vd r64 = half ? f_high(r) : f_low(r), c64 = half ? f_high(c) : f_low(c);
        vd allowed = d_add(d_set(job->tolerance.atol), d_mul(d_set(job->tolerance.rtol), d_abs(r64)));
        outside |= d_nle(d_abs(d_sub(c64, r64)), allowed) << half * W;
    }
    return bits_set(outside & doubtful);
}

/* Elements that may move a maximum, until there are enough of them to be worth a look in float64. */
enum { ENOUGH = 4 * W };

typedef struct {
    float r[ENOUGH + 4 * W], c[ENOUGH + 4 * W]; /* a vector is written behind them, of anything or of zeros */
    int32_t place[ENOUGH + 2 * W]; /* in the block */
    size_t count;
} Waiting;

static void raise_waiting(const Narrow *job, Waiting *w)
{
    f_store(w->r + w->count, f_set(0.0f));
    f_store(w->c + w->count, f_set(0.0f));
    for (size_t i = 0; i < w->count; i += W) {
        vd r = d_from_f32(w->r + i), ad = d_abs(d_sub(d_from_f32(w->c + i), r));
        if (raise(job->extremes, job->limits, ad, d_abs(r)))
            raise_abs(job->extremes, ad, w->place + i, job->at);
    }
    w->count = 0;
}

static ALWAYS_INLINE void wait_for_more(const Narrow *job, Waiting *w, vf r, vf c, unsigned which, size_t at, int stride)
{
    (void)f_pack(w->r + w->count, r, which);
    i_put(w->place + w->count, (int32_t)at, stride, which);
    w->count += f_pack(w->c + w->count, c, which);
    if (w->count >= ENOUGH)
        raise_waiting(job, w);
}

/* Count the elements of a vector that are in doubt, and out of tolerance. */
static unsigned settle_doubt(const Narrow *job, const NarrowLines *l, vf r, vf c)
{
    vi above = above_tolerance(l, f_abs(f_sub(c, r)), f_abs(r));
    unsigned doubtful = m_bits(f_ne(r, c)) & ~m_bits(i_gt(above, l->doubt)) & ~m_bits(i_gt(i_set(0), above));
    return doubtful ? out_of_tolerance(job, doubtful, r, c) : 0;
}

/* The steps that hold elements that may move a maximum, in order, and which these are: a bit for each. */
typedef struct {
    uint16_t step[BLOCK / (2 * W) + 2];
    uint32_t which[BLOCK / (2 * W) + 2];
    size_t count;
} Hits;

static ALWAYS_INLINE void add_hit(Hits *h, size_t step, unsigned which)
{
    h->step[h->count] = (uint16_t)step;
    h->which[h->count] = which;
    h->count += which != 0;
}
