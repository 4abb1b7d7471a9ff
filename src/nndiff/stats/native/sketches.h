/* Signed sums of elements in buckets, as stats/sketches.py defines them; hash, statistics and sketch in one go. */

/* What is random about a group: where the elements of each run go, and which places change the sign. */
typedef union {
    uint64_t word[2];
    struct { /* the engine runs on little-endian machines only */
        uint16_t mask[GROUP / RUN];
        uint8_t minus[GROUP / 8]; /* a bit for each place */
    };
} Random;

/* The outputs of SplitMix64 with this seed, two for each group from the first one on. */
static ALWAYS_INLINE void draw_random(uint64_t seed, uint64_t group, size_t groups, Random *out)
{
    const uint64_t golden = 0x9E3779B97F4A7C15u, start = seed + (2 * group + 1) * golden;
    for (size_t i = 0; i < 2 * groups; i++) {
        uint64_t word = start + i * golden;
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9u;
        word = (word ^ word >> 27) * 0x94D049BB133111EBu;
        word ^= word >> 31;
        memcpy((uint8_t *)out + i * sizeof word, &word, sizeof word);
    }
}

enum { CHAINS = W == 8 ? 2 : 4 }; /* sums beside each other: a single one would wait for itself */

typedef struct {
    vd r[CHAINS], rr[CHAINS];
    vf low, high;
} SideSums;

static ALWAYS_INLINE SideSums side_start(void)
{
    SideSums s = {.low = f_set(INFINITY), .high = f_set(-INFINITY)};
    for (int i = 0; i < CHAINS; i++)
        s.r[i] = s.rr[i] = d_set(0.0);
    return s;
}

static ALWAYS_INLINE void add_side(SideSums *s, size_t place, vf x, vd low, vd high)
{
    const size_t chain = place / W % CHAINS;
    s->low = f_min(x, s->low);
    s->high = f_max(x, s->high);
    s->r[chain] = d_add(s->r[chain], low);
    s->r[chain + 1] = d_add(s->r[chain + 1], high);
    s->rr[chain] = d_fma(low, low, s->rr[chain]);
    s->rr[chain + 1] = d_fma(high, high, s->rr[chain + 1]);
}

static ALWAYS_INLINE void side_finish(const SideSums *s, Sums *out)
{
    vd r = s->r[0], rr = s->rr[0];
    for (int i = 1; i < CHAINS; i++) {
        r = d_add(r, s->r[i]);
        rr = d_add(rr, s->rr[i]);
    }
    *out = (Sums){.r = d_sum(r), .rr = d_sum(rr), .rmin = f_least(s->low), .rmax = f_most(s->high)};
}

static ALWAYS_INLINE void add_signed(const Random *random, size_t bit, vd x, double *to)
{
    d_store(to, d_add(d_load(to), d_negate(x, &random->minus[bit / 8], bit % 8)));
}

/* Take in one run. Its elements trade places first: that changes nothing about statistics but how sums are rounded. */
static ALWAYS_INLINE void look_at_run(Stripe stripe, const uint8_t *p, const Random *random, size_t run, double *to,
                                      SideSums *side)
{
    for (size_t place = 0; place < RUN; place += 2 * W) {
        vf x = stripe_floats(stripe, p, random ? place ^ (random->mask[run] & (RUN - 2 * W)) : place);
        if (random)
            x = f_exchange(x, &random->mask[run]);
        const vd low = f_low(x), high = f_high(x);
        if (side)
            add_side(side, place, x, low, high);
        if (random) {
            add_signed(random, run * RUN + place, low, to + place);
            add_signed(random, run * RUN + place + W, high, to + place + W);
        }
    }
}

static void sketch_f64(const double *p, size_t n, const Sketch *s)
{
    _Alignas(64) Random random[BLOCK / GROUP];
    double *const sums = s->sums; /* a store through it might change s, were it read again */
    const size_t last_run = s->width - RUN;
    const uint64_t at = s->at;
    draw_random(s->seed, at / GROUP, (n + GROUP - 1) / GROUP, random);
    for (size_t i = 0; i < n; i += RUN) {
        const Random *drawn = &random[i / GROUP];
        const size_t run = i % GROUP / RUN;
        double rest[RUN] = {0}, *to = sums + (((at + i) ^ drawn->mask[run]) & last_run);
        const double *x = p + i;
        if (n - i < RUN)
            x = memcpy(rest, x, (n - i) * sizeof *x); /* zeros change no sum */
        for (size_t place = 0; place < RUN; place += W) {
            const vd moved = d_exchange(d_load(x + (place ^ (drawn->mask[run] & (RUN - W)))), &drawn->mask[run]);
            add_signed(drawn, run * RUN + place, moved, to + place);
        }
    }
}

static ALWAYS_INLINE void look_at_blocks(const uint8_t *p, size_t blocks, uint64_t *lane, const uint8_t *key,
                                         const Sketch *s, Sums *out)
{
    enum { GROUPS = XXH3_BLOCK / (GROUP * sizeof(float)), RUNS = GROUP / RUN };
    SideSums side = side_start();
    _Alignas(64) uint8_t keys[XXH3_BLOCK]; /* of each stripe: no load crosses a line of the cache */
    _Alignas(64) Random random[LOOK_BLOCKS * GROUPS];
    Lanes sum;
    double *const sums = s ? s->sums : NULL;
    const size_t last_run = s ? s->width - RUN : 0;
    uint64_t at = s ? s->at : 0;
    if (lane)
        sum = lanes_load(lane);
    for (size_t i = 0; lane && i < XXH3_BLOCK / XXH3_STRIPE; i++)
        memcpy(keys + i * XXH3_STRIPE, key + 8 * i, XXH3_STRIPE);
    if (s)
        draw_random(s->seed, at / GROUP, blocks * GROUPS, random);
    for (size_t group = 0; group < blocks * GROUPS; group++) {
        const uint8_t *group_key = keys + group % GROUPS * RUNS * XXH3_STRIPE;
        if (lane && group % (PAGE / XXH3_BLOCK * GROUPS) == 0)
            __builtin_prefetch(p + 2 * LOOK_AHEAD);
#pragma GCC unroll 4
        for (size_t run = 0; run < RUNS; run++, p += XXH3_STRIPE, at += RUN) {
            const Stripe stripe = stripe_load(p);
            if (lane) {
                __builtin_prefetch(p + LOOK_AHEAD);
                add_stripe(&sum, stripe, group_key + run * XXH3_STRIPE);
            }
            if (s)
                look_at_run(stripe, p, &random[group], run, sums + ((at ^ random[group].mask[run]) & last_run), &side);
            else
                look_at_run(stripe, p, NULL, run, NULL, &side);
        }
        if (lane && group % GROUPS == GROUPS - 1)
            scramble(&sum, key + XXH3_LAST_KEY);
    }
    if (lane)
        lanes_store(lane, sum);
    side_finish(&side, out);
}

static void look_f32(const uint8_t *p, size_t blocks, uint64_t *lane, const uint8_t *key, const Sketch *s, Sums *out)
{
    if (s && lane)
        look_at_blocks(p, blocks, lane, key, s, out);
    else if (s)
        look_at_blocks(p, blocks, NULL, NULL, s, out);
    else if (lane)
        look_at_blocks(p, blocks, lane, key, NULL, out);
    else
        look_at_blocks(p, blocks, NULL, NULL, NULL, out);
}
