"""What the noise floor says: differences that are rounding, what sticks out of it, and what nobody can tell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nndiff.diagnosis.site_pairs import SitePair
from nndiff.findings.case import Case
from nndiff.findings.causes import Cause
from nndiff.result import Finding, Note, NoteSlug
from nndiff.tensors import Slot
from nndiff.text import plural
from nndiff.tolerance import NOISE_FACTOR
from nndiff.verdict import Verdict

# Of a tensor's largest value: with a floor so large, NOISE_FACTOR times the floor is the tensor itself.
UNDECIDABLE_SHARE = 0.125
_MOST_LISTED = 10

NOT_MEASURED = Note(
    NoteSlug.NOISE_NOT_MEASURED,
    "whether differences are rounding was not measured: nndiff record --noise of the reference, or live models, tell",
)


def find_rounding(case: Case) -> Iterator[Finding]:
    """Yield that every difference is within the noise floor, or which is the first that sticks out of it."""
    failing = []
    for site in case.run.evidence:
        is_judged = site.was_compared and not site.pair.differs_only_in_dtype
        if is_judged and not site.passed and site.slot is not Slot.INPUT:  # the output that went into it tells
            failing.append(site)
    measured = [site for site in failing if site.pair.times_noise is not None and not site.pair.is_exact]
    within = [site for site in measured if site.pair.is_within_noise]
    if within and len(within) == len(failing):
        worst = max(within, key=lambda site: site.pair.times_noise or 0.0)
        most = f"at most {_format_times(worst)}, at {worst.pair.name}"
        names = tuple(site.pair.name for site in within[:_MOST_LISTED])
        floor = f"every difference is within {NOISE_FACTOR:g} times the noise floor"
        short = find_shorter_type(within)
        if short:
            evidence = f"{floor} of {short} ({most}): the candidate computes in {short}"
            repair = "compare in one dtype (--dtype), or judge by the noise floor (--tolerance noise)"
            yield Finding(Cause.LOW_PRECISION, names, evidence, repair, 0.9)
        else:
            repair = "judge by the noise floor: --tolerance noise"
            yield Finding(Cause.ROUNDING, names, f"{floor} ({most})", repair, 0.9, harmless=True)
        return
    beyond = [site for site in measured if not site.pair.is_within_noise and math.isfinite(site.pair.noise or 0.0)]
    first = case.first
    if first is None or not first.pair.is_within_noise or not beyond:
        return
    fault = min(beyond, key=lambda site: site.order)
    before = sum(site.order < fault.order for site in within)
    yield Finding(
        Cause.MORE_THAN_ROUNDING,
        (fault.pair.name,),
        f"{first.pair.name} is within {NOISE_FACTOR:g} times the noise floor ({_format_times(first)}), as are "
        f"{plural(before, 'difference')} before {fault.pair.name}, which is {_format_times(fault)}",
        "look there first; --tolerance noise passes over what comes before it",
        0.8,
    )


def _format_times(site: SitePair) -> str:
    times = site.pair.times_noise or 0.0
    return f"{times:.1f} times" if times < 10 else f"{times:,.0f} times"


def find_shorter_type(sites: Sequence[SitePair]) -> str:
    """Return the type that the candidate computes in if it is shorter than the reference's, else an empty text."""
    coarsest = []
    for side in (0, 1):
        coarsest.append(max((site.tensors[side].dtype for site in sites), key=lambda dtype: dtype.roundoff))
    return coarsest[1].name if coarsest[1].roundoff > coarsest[0].roundoff else ""


def find_undecidable(case: Case) -> Iterator[Finding]:
    """Yield the places whose noise floor is so near to the size of the signal that no comparison can tell."""
    names = []
    for site in case.run.pairs:
        noise, stats = site.pair.noise, site.reference.trace.stats
        if not noise or stats is None or site.pair.is_exact or site.pair.verdict is Verdict.IDENTICAL:
            continue
        if site.slot is not Slot.INPUT and not noise < UNDECIDABLE_SHARE * stats.abs_max:
            names.append(site.pair.name)
    if names:
        yield Finding(
            Cause.UNDECIDABLE,
            tuple(names[:_MOST_LISTED]),
            f"rounding alone moves {plural(len(names), 'tensor')} by {UNDECIDABLE_SHARE:.3g} of the largest value or "
            "more: differences there say nothing",
            "",
            1.0,
            harmless=True,
        )


def note_noise(case: Case) -> Iterator[Note]:
    """Yield that the noise floor was not measured, where it would tell what a difference means."""
    if case.passed or any(tensor.trace.noise is not None for tensor in case.run.reference.values()):
        return
    for site in case.run.evidence:
        is_judged = site.was_compared and not (site.pair.is_exact or site.pair.differs_only_in_dtype)
        if is_judged and not site.passed and site.pair.metrics is not None:
            yield NOT_MEASURED
            return
