/* Squared errors summed by channel and by token, and values that were clipped: where in a layer the error is.
   And the ranks of distances, from which percentiles are exact. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "places.h"

enum { PIECE_OF_ROW = 512 }; /* elements held as doubles at once */

/* The compiler makes a version for each vector width where the loader can choose one; sanitizers start too late for it. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define EVERY_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EVERY_WIDTH
#endif

typedef struct {
    double low, high; /* the candidate's own */
} Range;

static inline double half_to_double(uint16_t half)
{
    /* as in convert.h: the product gives subnormals their value */
    uint32_t bits = (uint32_t)(half & 0x7FFF) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    value *= 0x1p112f;
    memcpy(&bits, &value, sizeof bits);
    bits |= (half & 0x7C00) == 0x7C00 ? 0x7F800000u : 0;
    bits |= sign;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

EVERY_WIDTH static void widen(Type type, const char *source, size_t n, double *out)
{
    if (type == TYPE_F64) {
        memcpy(out, source, n * sizeof *out);
    } else if (type == TYPE_F32) {
        for (size_t i = 0; i < n; i++) {
            float x;
            memcpy(&x, source + i * sizeof x, sizeof x);
            out[i] = (double)x;
        }
    } else {
        for (size_t i = 0; i < n; i++) {
            uint16_t x;
            memcpy(&x, source + i * sizeof x, sizeof x);
            uint32_t bits = (uint32_t)x << 16;
            float brain;
            memcpy(&brain, &bits, sizeof brain);
            out[i] = type == TYPE_BF16 ? (double)brain : half_to_double(x);
        }
    }
}

/* Add the squares of a piece to `sums`, element by element; return their total and count what was clipped. */
EVERY_WIDTH static double add_piece(const double *r, const double *c, size_t n, Range range, double *sums, int64_t *clipped)
{
    double lanes[8] = {0};
    int64_t count = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (size_t j = 0; j < 8; j++) {
            double d = c[i + j] - r[i + j], square = d * d;
            square = square <= DBL_MAX ? square : 0.0; /* what is not finite is left out */
            sums[i + j] += square;
            lanes[j] += square;
        }
        for (size_t j = 0; j < 8; j++)
            count += ((c[i + j] == range.high) & (r[i + j] > range.high)) | ((c[i + j] == range.low) & (r[i + j] < range.low));
    }
    double total = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    for (; i < n; i++) {
        double d = c[i] - r[i], square = d * d;
        square = square <= DBL_MAX ? square : 0.0;
        sums[i] += square;
        total += square;
        count += ((c[i] == range.high) & (r[i] > range.high)) | ((c[i] == range.low) & (r[i] < range.low));
    }
    *clipped += count;
    return total;
}

/* A row lies in memory in one piece: all channels of a token (inner is 1), or all inner tokens of a channel. */
static int64_t add_errors(const Py_buffer *ref, Type ref_type, const Py_buffer *cand, Type cand_type, int64_t channels,
                          int64_t inner, Range range, double *channel_sums, double *token_sums)
{
    double r[PIECE_OF_ROW], c[PIECE_OF_ROW];
    int64_t clipped = 0, row_size = inner == 1 ? channels : inner;
    int64_t rows = ref->len / TYPE_SIZE[ref_type] / row_size;
    for (int64_t row = 0; row < rows; row++) {
        double *along = inner == 1 ? channel_sums : token_sums + row / channels * inner;
        double *whole = inner == 1 ? token_sums + row : channel_sums + row % channels;
        for (int64_t start = 0; start < row_size; start += PIECE_OF_ROW) {
            size_t n = (size_t)(row_size - start < PIECE_OF_ROW ? row_size - start : PIECE_OF_ROW);
            widen(ref_type, (const char *)ref->buf + (row * row_size + start) * TYPE_SIZE[ref_type], n, r);
            widen(cand_type, (const char *)cand->buf + (row * row_size + start) * TYPE_SIZE[cand_type], n, c);
            *whole += add_piece(r, c, n, range, along + start, &clipped);
        }
    }
    return clipped;
}

const char places_doc[] = "places(ref, ref_type, cand, cand_type, channels, inner, low, high, channel_sums, token_sums) -> int: "
                          "add squared errors to both sums; how many candidates are at low or high with the reference beyond.";

PyObject *places(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer ref, cand, by_channel, by_token;
    int types[2];
    long long channels, inner;
    Range range;
    if (!PyArg_ParseTuple(args, "y*iy*iLLddw*w*", &ref, &types[0], &cand, &types[1], &channels, &inner, &range.low,
                          &range.high, &by_channel, &by_token))
        return NULL;
    int known = types[0] >= TYPE_F64 && types[0] <= TYPE_BF16 && types[1] >= TYPE_F64 && types[1] <= TYPE_BF16;
    int64_t count = known ? ref.len / TYPE_SIZE[types[0]] : 0, clipped = 0;
    int64_t width = channels > 0 && inner > 0 && channels <= INT64_MAX / inner ? channels * inner : 0;
    int fits = known && width && count % width == 0 && cand.len == count * TYPE_SIZE[types[1]] &&
               ref.len == count * TYPE_SIZE[types[0]] && by_channel.len == channels * (int64_t)sizeof(double) &&
               by_token.len == count / channels * (int64_t)sizeof(double);
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        clipped = add_errors(&ref, (Type)types[0], &cand, (Type)types[1], channels, inner, range, by_channel.buf,
                             by_token.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&ref);
    PyBuffer_Release(&cand);
    PyBuffer_Release(&by_channel);
    PyBuffer_Release(&by_token);
    if (!fits)
        return PyErr_Format(PyExc_ValueError, "the sizes do not fit each other");
    return PyLong_FromLongLong(clipped);
}

typedef struct {
    double low[QUANTILES], high[QUANTILES]; /* brackets, each around a percentile */
    int64_t below[QUANTILES], finite;
    double *out; /* the distances inside a bracket */
    int64_t room, taken;
} Ranks;

/* Write the distances of a piece; mark those inside a bracket, and count those below each. */
EVERY_WIDTH static void mark_piece(const double *r, const double *c, size_t n, Ranks *ranks, double *d, int64_t *marks)
{
    int64_t finite = 0;
    for (size_t i = 0; i < n; i++) {
        d[i] = fabs(c[i] - r[i]);
        finite += d[i] <= DBL_MAX; /* what is not finite is below and inside nothing */
        marks[i] = 0;
    }
    ranks->finite += finite;
    for (size_t k = 0; k < QUANTILES; k++) {
        double low = ranks->low[k], high = ranks->high[k];
        int64_t below = 0;
        for (size_t i = 0; i < n; i++) {
            below += d[i] < low;
            marks[i] |= (d[i] >= low) & (d[i] <= high);
        }
        ranks->below[k] += below;
    }
}

static void rank_piece(const double *r, const double *c, size_t n, Ranks *ranks)
{
    double d[PIECE_OF_ROW];
    int64_t marks[PIECE_OF_ROW + 8] = {0};
    mark_piece(r, c, n, ranks, d, marks);
    for (size_t i = 0; i < n; i += 8) { /* few are inside */
        const int64_t *m = marks + i;
        if (!(m[0] | m[1] | m[2] | m[3] | m[4] | m[5] | m[6] | m[7]))
            continue;
        for (size_t j = i; j < i + 8 && j < n; j++) {
            if (marks[j] && ranks->taken < ranks->room)
                ranks->out[ranks->taken] = d[j];
            ranks->taken += marks[j];
        }
    }
}

const char ranks_doc[] = "ranks(ref, ref_type, cand, cand_type, brackets, out) -> (finite, taken, below, ...): count distances "
                         "below each of four brackets (low, high), and write those inside one to out as long as there is room.";

PyObject *ranks(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer ref, cand, brackets, out;
    int types[2];
    if (!PyArg_ParseTuple(args, "y*iy*iy*w*", &ref, &types[0], &cand, &types[1], &brackets, &out))
        return NULL;
    int known = types[0] >= TYPE_F64 && types[0] <= TYPE_BF16 && types[1] >= TYPE_F64 && types[1] <= TYPE_BF16;
    int64_t count = known ? ref.len / TYPE_SIZE[types[0]] : 0;
    int fits = known && ref.len == count * TYPE_SIZE[types[0]] && cand.len == count * TYPE_SIZE[types[1]] &&
               brackets.len == 2 * QUANTILES * (int64_t)sizeof(double);
    Ranks all = {.out = out.buf, .room = out.len / (int64_t)sizeof(double)};
    if (fits) {
        double ends[2 * QUANTILES], r[PIECE_OF_ROW], c[PIECE_OF_ROW];
        memcpy(ends, brackets.buf, sizeof ends);
        for (int k = 0; k < QUANTILES; k++)
            all.low[k] = ends[2 * k], all.high[k] = ends[2 * k + 1];
        Py_BEGIN_ALLOW_THREADS
        for (int64_t start = 0; start < count; start += PIECE_OF_ROW) {
            size_t n = (size_t)(count - start < PIECE_OF_ROW ? count - start : PIECE_OF_ROW);
            widen((Type)types[0], (const char *)ref.buf + start * TYPE_SIZE[types[0]], n, r);
            widen((Type)types[1], (const char *)cand.buf + start * TYPE_SIZE[types[1]], n, c);
            rank_piece(r, c, n, &all);
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&ref);
    PyBuffer_Release(&cand);
    PyBuffer_Release(&brackets);
    PyBuffer_Release(&out);
    if (!fits)
        return PyErr_Format(PyExc_ValueError, "the sizes do not fit each other");
    return Py_BuildValue("LLLLLL", (long long)all.finite, (long long)all.taken, (long long)all.below[0],
                         (long long)all.below[1], (long long)all.below[2], (long long)all.below[3]);
}
