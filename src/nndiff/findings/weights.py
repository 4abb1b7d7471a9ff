"""Weights and buffers that were not the same when the runs began: the first question about any layer that diverges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nndiff.divergence import Run, State
from nndiff.findings.modules import Meta
from nndiff.lost import SIDES
from nndiff.recording.format.weights import (
    HeldTensor,
    WeightDifference,
    compare_held_tensors,
    may_be_transposed,
    read_held_tensors,
)
from nndiff.result import Finding
from nndiff.sites import SitePair
from nndiff.text import first_few, plural


def weights_of(run: Run, first: SitePair | None, reference: Meta, candidate: Meta) -> WeightDifference | None:
    """Return how what the module holds compares that makes another output of the same inputs; None if nobody knows."""
    if first is None or first.slot != "output" or first.part or run.inputs_of(first) is State.OUT:
        return None
    # what returns the same, or is never called, is not why the module around it does not
    idle = {site.module for site in run.sites if site.slot == "output" and site.passed} | _never_called(reference)
    modules = first.module, str(first.candidate.site.module)
    held = read_held_tensors(reference)
    found = compare_held_tensors((held, read_held_tensors(candidate)), modules, idle)
    if first.reference.site.cls != first.candidate.site.cls:
        found = _of_other_classes(found, held)
    return found if found.common else None


def _never_called(meta: Meta) -> set[str]:
    named = meta.get("never_called")
    return set(map(str, named)) if isinstance(named, list) else set()


def _of_other_classes(found: WeightDifference, held: Mapping[str, HeldTensor]) -> WeightDifference:
    """Return what is sure: another class may hold the same in another form, or the other way round."""
    sure = tuple(name for name in found.differing if not may_be_transposed(held[name]))
    unsure = any(found.alone) or len(sure) < len(found.differing)
    return WeightDifference(0 if unsure and not sure else found.common, sure)


def weight_findings(found: WeightDifference | None, reference: Meta, candidate: Meta) -> Iterator[Finding]:
    """Yield what the module that diverges first does not hold alike; `found` is how that compares."""
    if found is None or not (found.differing or any(found.alone)):
        return
    all_over = compare_held_tensors((read_held_tensors(reference), read_held_tensors(candidate)), ("", ""))
    told = [f"only the {side} has {first_few(names)}" for side, names in zip(SIDES, found.alone, strict=True) if names]
    if found.differing:
        are = "is" if len(found.differing) == 1 else "are"
        told.insert(0, f"{first_few(found.differing)} {are} not the same when the runs begin")
    if len(all_over.differing) > len(found.differing):
        told.append(
            f"{len(all_over.differing):,} of all {plural(all_over.common, 'tensor')} that both models hold differ"
        )
    yield Finding(
        "weights-differ",
        (*found.differing, *found.alone[0], *found.alone[1]),
        f"of the module that diverges first {'; '.join(told)}",
        "load the same weights into both; nndiff diff of the two checkpoints tells how far they are apart",
        0.95,
    )
