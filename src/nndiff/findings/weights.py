"""Weights and buffers that were not the same when the runs began: the first question about any layer that diverges."""

from __future__ import annotations

from collections.abc import Iterator

from nndiff.divergence import Run, State
from nndiff.findings.modules import Meta
from nndiff.held import Unequal, compare_held, held_by
from nndiff.names import first_few, plural
from nndiff.result import Finding
from nndiff.sites import SitePair


def weights_of(run: Run, first: SitePair | None, reference: Meta, candidate: Meta) -> Unequal | None:
    """Return how what the module holds compares that makes another output of the same inputs; None if nobody knows."""
    if first is None or first.slot != "output" or first.part or run.inputs_of(first) is State.OUT:
        return None
    agreeing = {site.module for site in run.sites if site.slot == "output" and site.passed}
    modules = first.module, str(first.candidate.meta["module"])
    found = compare_held((held_by(reference), held_by(candidate)), modules, agreeing)
    return found if found.common else None


def weight_findings(run: Run, first: SitePair | None, reference: Meta, candidate: Meta) -> Iterator[Finding]:
    """Yield what the module that diverges first does not hold alike."""
    found = weights_of(run, first, reference, candidate)
    if found is None or not found.differing:
        return
    all_over = compare_held((held_by(reference), held_by(candidate)), ("", ""))
    more = f"; so are {len(all_over.differing):,} of all {plural(all_over.common, 'tensor')} that both models hold"
    yield Finding(
        "weights-differ",
        found.differing,
        f"{first_few(found.differing)} of the module that diverges first {_are(found)} not the same when the runs begin"
        + (more if len(all_over.differing) > len(found.differing) else ""),
        "load the same weights into both; nndiff diff of the two checkpoints tells how far they are apart",
        0.95,
    )


def _are(found: Unequal) -> str:
    return "is" if len(found.differing) == 1 else "are"
