"""What looks like rounding and no bug: activations so large that their last digits are out of tolerance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nndiff.diagnosis.noise import Rounding
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.findings.case import Case
from nndiff.findings.causes import Cause
from nndiff.result import Finding
from nndiff.tolerance import format_options


def find_rounding(case: Case) -> Iterator[Finding]:
    """Yield that the first divergence looks like rounding: everything after it too, or up to a jump."""
    first = case.first
    rounding = case.run.look_for_rounding(first) if first is not None else None
    if first is None or rounding is None:
        return
    name = first.pair.name
    if rounding.doubtful is not None:
        doubt = f"so does every output, but {rounding.doubtful.pair.name} is off by {rounding.jumped_to:.1e}"
        evidence = f"looks like rounding: {rounding.text}; {doubt}, which may be more"
        yield Finding(Cause.ROUNDING, (name,), evidence, _advise_wider_type(case, rounding), 0.5)
    elif rounding.jump is None:
        evidence = f"looks like rounding: {rounding.text}; nothing after it jumps, the most is {rounding.worst:.1e}"
        advice = [_advise_wider_type(case, rounding), f"let it pass with {_get_passing_options(case.run.pairs)}"]
        repair = "; or ".join(text for text in advice if text)
        yield Finding(Cause.ROUNDING, (name,), evidence, repair, 0.7)
    else:
        jump = rounding.jump.pair
        before = [site for site in case.run.pairs if site.pair.order < jump.order]
        yield Finding(
            Cause.MORE_THAN_ROUNDING,
            (jump.name,),
            f"{name} looks like rounding ({rounding.text}); {jump.name} does not: off by {rounding.jumped_to:.1e}",
            f"look there first: everything before it passes with {_get_passing_options(before)}",
            0.8,
        )


def _advise_wider_type(case: Case, rounding: Rounding) -> str:
    """Return the advice to compare in a wider type; only models that nndiff ran can be run again in another one."""
    wider = rounding.precision.wider
    if not wider or not case.was_run_by_nndiff:
        return ""
    return f"to be sure, compare in {wider} (--dtype {wider}): rounding vanishes there, a fault stays"


def _get_passing_options(sites: Iterable[SitePair]) -> str:
    """Return the smallest tolerance that lets these pass, as options."""
    needed = 0.0
    for site in sites:
        if site.pair.decides and site.pair.metrics:
            needed = max(needed, site.pair.passes_at)
    return format_options(needed)
