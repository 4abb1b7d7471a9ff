"""Weights that were not the same when the runs began, or that sit in each other's modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nndiff.diagnosis.modules import read_never_called
from nndiff.findings.case import Case
from nndiff.findings.causes import Cause
from nndiff.names import ancestors
from nndiff.recording.format.weights import compare_held_tensors, may_be_transposed, read_held_tensors
from nndiff.result import Finding, InputState, WeightsAtSite
from nndiff.tensors import Slot
from nndiff.text import first_few, plural


def compare_weights_at_first(case: Case, against_names: Sequence[tuple[str, str]] = ()) -> WeightsAtSite | None:
    """Return how the weights of the first diverging module compare when the runs begin; None if nobody knows.

    Modules that were paired against their names hold the same weights, whatever those of their names hold.
    """
    first = case.first
    if first is None or first.slot is not Slot.OUTPUT or first.is_part:
        return None
    if case.run.get_input_state(first) is InputState.DIFFER:
        return None
    # modules inside that return the same are not why the module around them differs
    without = {site.module for site in case.run.pairs if site.slot is Slot.OUTPUT and site.passed}
    without.update(reference for reference, _ in against_names)
    held = read_held_tensors(case.reference), read_held_tensors(case.candidate)
    modules = first.module, first.candidate_module
    difference = compare_held_tensors(held, modules, without.union(read_never_called(case.reference)))
    if not difference.differing and not any(difference.alone):
        # the weights of a module that is never called may be used all the same: F.conv1d(x, self.conv.weight)
        difference = compare_held_tensors(held, modules, without.union(_list_unused_modules(case)))
    if first.reference.site.cls != first.candidate.site.cls:
        # another class may hold the same weights in another form, or the same form transposed
        sure = tuple(name for name in difference.differing if not may_be_transposed(held[0][name]))
        is_unsure = any(difference.alone) or len(sure) < len(difference.differing)
        common = 0 if is_unsure and not sure else difference.common
        return WeightsAtSite(common, sure) if common else None
    return WeightsAtSite(difference.common, difference.differing, *difference.alone) if difference.common else None


def _list_unused_modules(case: Case) -> set[str]:
    """Return the modules that are never called and get no gradients from a backward pass: nothing uses them."""
    with_gradients = set()
    for tensor in case.run.reference.values():
        if tensor.site.slot is Slot.PARAM_GRAD:
            with_gradients.add(tensor.site.module)
    if not with_gradients:
        return set()
    return set(read_never_called(case.reference)) - with_gradients


def find_weight_causes(case: Case, weights: WeightsAtSite | None) -> Iterator[Finding]:
    """Yield the weights in which the first diverging module differs when the runs begin."""
    if weights is None or not (weights.differing or weights.only_reference or weights.only_candidate):
        return
    texts = []
    if weights.differing:
        are = "is" if len(weights.differing) == 1 else "are"
        texts.append(f"{first_few(weights.differing)} {are} not equal")
    for side, names in (("reference", weights.only_reference), ("candidate", weights.only_candidate)):
        if names:
            texts.append(f"only the {side} has {first_few(names)}")
    held = read_held_tensors(case.reference), read_held_tensors(case.candidate)
    everywhere = compare_held_tensors(held, ("", ""))
    if len(everywhere.differing) > len(weights.differing):
        texts.append(
            f"{len(everywhere.differing):,} of {plural(everywhere.common, 'tensor')} differ in the whole model"
        )
    never_called = set(read_never_called(case.reference))
    are_called_by_nobody = bool(weights.differing)
    for name in weights.differing:
        are_called_by_nobody = are_called_by_nobody and not never_called.isdisjoint(ancestors(name))
    if are_called_by_nobody:
        texts.append("no module that holds them is called, so they matter only if they are used directly")
    repair = "load the same weights into both"
    checkpoints = case.reference.get("checkpoint"), case.candidate.get("checkpoint")
    if all(isinstance(checkpoint, str) and checkpoint for checkpoint in checkpoints):
        repair += f"; nndiff diff {checkpoints[0]} {checkpoints[1]} shows how far they are apart"
    yield Finding(
        Cause.WEIGHTS_DIFFER,
        (*weights.differing, *weights.only_reference, *weights.only_candidate),
        f"the first diverging module starts from different weights: {'; '.join(texts)}",
        repair,
        0.5 if are_called_by_nobody else 0.95,
    )


def find_swapped_weights(case: Case, against_names: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    """Yield the modules that hold each other's weights: (reference, candidate) that were paired against their names."""
    if case.passed:
        return
    against_names = [names for names in against_names if _is_exchanged(names, dict(against_names))]
    if not against_names:
        return
    texts = [f"{reference} in the reference, {candidate} in the candidate" for reference, candidate in against_names]
    yield Finding(
        Cause.WEIGHTS_SWAPPED,
        tuple(reference for reference, _ in against_names),
        f"the same weights sit in modules of different names: {first_few(texts, between='; ')}",
        "check the order in which layers are built, and the names the weights are loaded by",
        0.9,
    )


def _is_exchanged(names: tuple[str, str], partners: Mapping[str, str]) -> bool:
    """Return True if modules exchanged their weights among each other; names that are only shifted lead elsewhere."""
    start, name = names
    for _ in range(len(partners)):
        if name == start:
            return True
        if name not in partners:
            return False
        name = partners[name]
    return False
