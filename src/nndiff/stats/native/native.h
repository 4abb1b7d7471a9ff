/* What the parts of the native engine share: element types, sums, extremes and the table of kernels. */
#ifndef NNDIFF_NATIVE_H
#define NNDIFF_NATIVE_H

#include <stddef.h>
#include <stdint.h>

enum {
    BLOCK = 8192,    /* elements: the distances stay in the L1 cache */
    SURVEYED = 1024, /* elements: the first of a chunk, that limits are drawn from */
    CHUNK = 16384,   /* elements: the unit of work of a thread; both sides stay in the L2 cache */
    LANES = 8,       /* doubles in the widest vector */
    PAD = 32,        /* elements a kernel may write behind the end */
    RTOLS = 9,
    XXH3_LANES = 8,
    XXH3_STRIPE = 64,    /* bytes */
    XXH3_BLOCK = 1024,   /* bytes */
    XXH3_LAST_KEY = 128, /* bytes: where the last stripe's length of the key begins */
    RUN = 16,            /* elements that a sketch moves together */
    GROUP = 64,          /* elements whose signs are one word */
    LOOK_BLOCKS = 32,    /* blocks of a hash that are looked at together */
    LOOK_AHEAD = 8192,   /* bytes: how far ahead memory is asked for */
    PAGE = 4096,         /* bytes: the smallest page of memory there is */
    QUANTILES = 4,
    RANKS = 2 * QUANTILES,
    EDGES = 3 * QUANTILES,
    BELOW = 16, /* keys of what lies below all bins */
    PIECE = 16, /* elements in a row that are sampled */
};

#define XXH3_SCRAMBLE 0x9E3779B1u /* a prime */
#define EXACT_LIMIT ((int64_t)1 << 22) /* up to so many elements the percentiles are those of numpy.percentile */

typedef enum {
    TYPE_F64, TYPE_F32, TYPE_F16, TYPE_BF16,
    TYPE_I64, TYPE_I32, TYPE_I16, TYPE_I8,
    TYPE_U64, TYPE_U32, TYPE_U16, TYPE_U8,
    TYPE_F8, /* five kinds, each a table of 256 floats */
    TYPES = TYPE_F8 + 5,
} Type;

extern const double RTOL[RTOLS]; /* metrics.ENVELOPE_RTOLS */
extern float F8_TABLE[5][256];
extern const unsigned char TYPE_SIZE[TYPES];

/* Plain sums over one block; the cosine and the like are made of these. */
typedef struct {
    double r, ra, rr; /* reference: sum, of moduli, of squares */
    double c, cc;     /* candidate */
    double rc;
    double d, da, dd; /* difference */
    double rmin, rmax, cmin, cmax;
    int64_t unequal, mismatched;
    size_t kept; /* distances that were written; those that are zero may be left out */
} Sums;

/* Centred square sums of a block, and how far its means are from those they were centred at. */
typedef struct {
    double rr, cc, dd, rc;
    double r, c, d;
} Centred;

/* Maxima so far. Each lane holds the maximum of what passed through that lane. */
typedef struct {
    _Alignas(64) double envelope[RTOLS][LANES];
    double needed[LANES];
    double rel[LANES];
    double abs;
    int64_t at;
    int grown; /* since the limits were last drawn */
} Extremes;

/* Straight lines below which an element cannot move any maximum:
   |d| <= min(offset + slope |r|, plateau, rel_offset + rel |r|). */
typedef struct {
    double offset, slope, plateau, rel, rel_offset;
    double needed; /* |d| <= needed (1 + |r|) */
} Limits;

/* What the maxima of some elements are at least: where the limits start from. */
typedef struct {
    double envelope[RTOLS], needed, rel;
    double mean; /* of |r| */
} Survey;

typedef struct {
    double atol, rtol;
} Tolerance;

typedef struct {
    const void *r, *c;
    size_t n;
    int64_t at; /* index of the first element in the tensor */
    Tolerance tolerance;
    const Limits *limits;
    Extremes *extremes;
    int grouped;    /* sum a few in float32 first, where the type is small */
    float *dist32;  /* |d| rounded to float, in any order; may be absent */
    double *dist64; /* |d|, in any order, those of zero or not; may be absent */
} Narrow;

typedef struct {
    const double *r, *c, *d; /* without d it is c - r */
    size_t n;
    int64_t at;
    Tolerance tolerance;
    const Limits *limits;
    Extremes *extremes;
    double *dist64;
} Wide;

/* Edges near the wanted percentiles, as the upper 16 bits of a float. */
typedef struct {
    int edges;
    int16_t edge[EDGES];
    uint16_t count[EDGES][16]; /* elements at or above each edge, by lane; a chunk fits */
} Brackets;

/* Floats by their bits: from `from` on, below `to`. */
typedef struct {
    uint32_t from, to;
} Span;

/* Where signed sums of elements go; stats/sketches.py has the rule. */
typedef struct {
    uint64_t seed, at; /* place of the first element in the tensor: a multiple of GROUP */
    size_t width;      /* a power of two from RUN on */
    double *sums;
} Sketch;

/* Sums over a hash of every value: of the hashes, and of the hashes times the places of the values. */
typedef struct {
    uint64_t values, placed;
} ContentSums;

extern const uint64_t CONTENT_KEYS[3], CONTENT_FACTORS[2]; /* stats/content_hashes.py has the rule */

/* One vector width. Narrow kernels take float32 or what widens to it, wide kernels float64. */
typedef struct {
    const char *name;
    void (*pair_f32)(const Narrow *, Sums *);
    void (*pair_bf16)(const Narrow *, Sums *);
    void (*pair_f16)(const Narrow *, Sums *);
    void (*survey)(const float *r, const float *c, size_t, Survey *);
    void (*side_f32)(const void *, size_t, Sums *);
    void (*side_bf16)(const void *, size_t, Sums *);
    void (*side_f16)(const void *, size_t, Sums *);
    void (*pair_f64)(const Wide *, Sums *);
    void (*side_f64)(const double *, size_t, Sums *);
    void (*centre)(const double *r, const double *c, const double *d, size_t n, const double mean[3], Centred *);
    void (*to_f32)(Type, const void *, size_t, float *);
    void (*to_f64)(Type, const void *, size_t, double *);
    void (*bracket)(const float *, size_t, Brackets *);
    /* those of some pieces that lie in a span; how many of each span the pieces at even and at odd places hold is added */
    size_t (*sift)(const float *, const uint16_t *place, size_t pieces, const Span[QUANTILES], int64_t held[2][QUANTILES],
                   double *out);
    /* those of all, where few are inside; those from the start of each span on are counted, but for infinite ones */
    size_t (*sieve)(const float *, size_t, const Span[QUANTILES], int64_t above[QUANTILES], double *out);
    void (*distance_f32)(const float *r, const float *c, size_t n, float *dist32, double *dist64 /* may be absent */);
    /* keys by leading bits, no larger than `past`; range: the least but for zero, and the largest */
    void (*keys_f32)(const float *, size_t, int shift, uint32_t past, uint32_t *key, uint32_t range[2]);
    void (*keys_f64)(const double *, size_t, int shift, uint32_t past, uint32_t *key, uint32_t range[2]);
    /* the values but for zeros whose key is one of eight; there is PAD behind keys and values */
    size_t (*pick)(uint32_t *key, const uint32_t wanted[RANKS], const double *value, size_t n, double *out);
    /* keys of doubles that are not negative: from BELOW on where they are above `base`, else any below that. `apart`:
       those that have further digits than the key are one above those that have not */
    void (*keys16)(const double *, size_t, int shift, uint64_t base, int apart, uint16_t *key);
    /* the values of some keys, of at most a chunk; PAD behind all */
    size_t (*collect)(const uint16_t *key, size_t n, const uint16_t *wanted, int wants, const double *value, double *out);
    /* put each of a few at the number of those below it; -1 where there is none. PAD behind both */
    void (*sort_few)(double *, size_t n, double *sorted);
    /* take stripes of 64 bytes into the lanes of a hash, each with the key 8 bytes further on */
    void (*stripes)(uint64_t lane[XXH3_LANES], const uint8_t *, size_t stripes, const uint8_t *key);
    void (*hash_blocks)(uint64_t lane[XXH3_LANES], const uint8_t *, size_t blocks, const uint8_t *key);
    void (*sketch_f64)(const double *, size_t, const Sketch *); /* at most BLOCK */
    /* floats in at most LOOK_BLOCKS blocks: their sum, squares and range, and where asked for hash and sketch */
    void (*look_f32)(const uint8_t *, size_t blocks, uint64_t *lane /* may be absent */, const uint8_t *key,
                     const Sketch * /* may be absent */, Sums *);
    void (*content_f32)(const void *, size_t, uint64_t at, ContentSums *); /* add to the sums */
} Kernels;

extern const Kernels KERNELS_BASELINE;
#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_X86 1
extern const Kernels KERNELS_AVX2;
extern const Kernels KERNELS_AVX512;
#endif

static inline int is_narrow(Type type)
{
    return type >= TYPE_F8 || type == TYPE_F32 || type == TYPE_F16 || type == TYPE_BF16 || type == TYPE_I16 ||
           type == TYPE_I8 || type == TYPE_U16 || type == TYPE_U8;
}

/* Not fmin: that is a call, and this is done for every few elements of a small tensor. */
static inline double lesser(double a, double b)
{
    return a < b ? a : b;
}

static inline int is_whole(Type type)
{
    return type >= TYPE_I64 && type <= TYPE_U8;
}

#endif
