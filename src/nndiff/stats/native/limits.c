/* Lines below which no element can move a maximum: most elements need no further look. */
#include <float.h>
#include <math.h>

#include "work.h"

Limits limits_never(void)
{
    return (Limits){INFINITY, 0, INFINITY, 0, INFINITY, INFINITY};
}

/* The |d| that an element of this |r| needs to move a maximum. */
static double curve(const State *s, double r)
{
    double least = s->needed * (1 + r);
    for (int k = 0; k < RTOLS; k++)
        least = fmin(least, s->envelope[k] + RTOL[k] * r);
    return least;
}

/* The needed |d| to move a maximum is the least of straight lines in |r|: a concave curve, so the chord
   between two of its points lies below it, and its value at the second point is below all that follows.
   That second point is put where the two lines hold off most. */
Limits limits_of(const State *s)
{
    const double less = 1 - 1e-12; /* the rounding of the maxima themselves */
    double mean = s->finite ? s->ra / (double)s->finite : 0, low = curve(s, 0), best = -1;
    Limits out = {low * less, 0, low * less, s->rel * less, 0, s->needed * less};
    for (int step = -5; step <= 1; step += 2) { /* counted, not compared: a mean may be beyond float64 */
        double bend = ldexp(mean, step), high = curve(s, bend), slope = (high - low) / bend, gain = 0;
        if (!(bend > 0 && bend <= DBL_MAX))
            continue;
        for (int place = -3; place <= 1; place += 2)
            gain += fmin(low + slope * ldexp(mean, place), high);
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

/* Of two valid limits, what holds off more. */
Limits limits_higher(Limits a, Limits b)
{
    Limits out = a.plateau > b.plateau ? a : b;
    int rel_of_a = a.rel_offset > b.rel_offset || (a.rel_offset == b.rel_offset && a.rel > b.rel);
    out.rel = rel_of_a ? a.rel : b.rel;
    out.rel_offset = rel_of_a ? a.rel_offset : b.rel_offset;
    out.needed = fmax(a.needed, b.needed);
    return out;
}
