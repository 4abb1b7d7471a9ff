/* Lines below which no element can move a maximum: most elements need no further look. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "work.h"

Limits limits_never(void)
{
    return (Limits){INFINITY, 0, INFINITY, 0, INFINITY, INFINITY};
}

/* The |d| that an element of this |r| needs to move a maximum. */
static double curve(const Survey *s, double r)
{
    double least = s->needed * (1 + r);
    for (int k = 0; k < RTOLS; k++)
        least = lesser(s->envelope[k] + RTOL[k] * r, least);
    return least;
}

/* The needed |d| to move a maximum is the least of straight lines in |r|: a concave curve, so the chord
   between two of its points lies below it, and its value at the second point is below all that follows.
   That second point is put where the two lines hold off most. */
Limits limits_of(const Survey *s)
{
    const double less = 1 - 1e-12; /* the rounding of the maxima themselves */
    double mean = s->mean, low = curve(s, 0), best = -1;
    Limits out = {low * less, 0, low * less, s->rel * less, 0, s->needed * less};
    static const double bends[] = {0x1p-5, 0x1p-3, 0x1p-1, 0x1p1}, places[] = {0x1p-3, 0x1p-1, 0x1p1};
    for (int step = 0; step < 4; step++) { /* counted, not compared: a mean may be beyond float64 */
        double bend = mean * bends[step], high = curve(s, bend), slope = (high - low) / bend, gain = 0;
        if (!(bend > 0 && bend <= DBL_MAX))
            continue;
        for (int place = 0; place < 3; place++)
            gain += lesser(low + slope * mean * places[place], high);
        if (gain > best && slope >= 0 && slope <= DBL_MAX) {
            best = gain;
            out.slope = slope * less;
            out.plateau = high * less;
        }
    }
    if (!(s->rel <= DBL_MAX)) { /* cannot grow any more */
        out.rel = 0;
        out.rel_offset = INFINITY;
    }
    return out;
}

Survey survey_of(const State *s)
{
    Survey out = {.needed = s->needed, .rel = s->rel, .mean = s->finite ? s->ra / (double)s->finite : 0};
    memcpy(out.envelope, s->envelope, sizeof out.envelope);
    return out;
}

/* What either of two surveys knows. */
Survey survey_both(Survey a, const Survey *b)
{
    for (int k = 0; k < RTOLS; k++)
        a.envelope[k] = b->envelope[k] > a.envelope[k] ? b->envelope[k] : a.envelope[k];
    a.needed = b->needed > a.needed ? b->needed : a.needed;
    a.rel = b->rel > a.rel ? b->rel : a.rel;
    a.mean = a.mean > 0 ? a.mean : b->mean;
    return a;
}
