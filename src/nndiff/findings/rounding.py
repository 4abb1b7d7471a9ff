"""What looks like rounding and no bug: activations so large that their last digits are out of tolerance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nndiff.divergence import Run
from nndiff.result import Finding
from nndiff.rounding import Rounding, is_made
from nndiff.sites import SitePair
from nndiff.tolerance import typed


def rounding_findings(run: Run, first: SitePair | None) -> Iterator[Finding]:
    """Yield that the first divergence looks like rounding: all that follows too, or up to where it does not."""
    found = run.rounding(first) if first is not None else None
    if first is None or found is None:
        return
    if found.doubtful is not None:
        yield _of_outputs(first, found)
        return
    if found.jump is None:
        evidence = f"looks like rounding: {found.text}; nothing after it jumps, the most is {found.worst:.1e}"
        yield Finding("rounding", (first.pair.name,), evidence, _ways_out(found, run.sites), 0.7)
        return
    name, size = found.jump.pair.name, f"{found.jumped_to:.1e}"
    before = [site for site in run.sites if site.pair.order < found.jump.pair.order]
    yield Finding(
        "more-than-rounding",
        (name,),
        f"{first.pair.name} looks like rounding ({found.text}); {name} does not, it is off by {size}",
        f"look there first: what comes before it passes at {_passing(before)}",
        0.8,
    )


def _of_outputs(first: SitePair, found: Rounding) -> Finding:
    """Tell that outputs look like rounding, and name the gradient that may be more."""
    name, size = found.doubtful.pair.name if found.doubtful else "", f"{found.jumped_to:.1e}"
    evidence = f"looks like rounding: {found.text}; so does every output, but {name} is off by {size}: that may be more"
    wider = found.precision.wider
    repair = f"compare in {wider} (--dtype {wider}): rounding vanishes there, a fault stays" if wider else ""
    return Finding("rounding", (first.pair.name,), evidence, repair, 0.5)


def _ways_out(found: Rounding, sites: Iterable[SitePair]) -> str:
    wider, passes = found.precision.wider, f"pass it at {_passing(sites)}"
    if not wider:
        return passes
    return f"to be sure compare in {wider} (--dtype {wider}): rounding vanishes there, a fault stays; or {passes}"


def _passing(sites: Iterable[SitePair]) -> str:
    """Return the smallest tolerance that lets these pass, as options."""
    return typed(max(site.pair.passes_at for site in sites if is_made(site) and site.pair.metrics))
