"""The order of axes: what was given is flattened, reshaped or moved in another order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff import relations
from nndiff.diagnosis.trials import Given, Trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.family import Family, Proof
from nndiff.findings.hypotheses.operands import as_stored, has_few_numbers, is_forward_trial
from nndiff.findings.relation_wording import describe_relation
from nndiff.relations import layout, order

MOST_AXES = 5  # axes whose every order is tried: a batch of videos

Axes = tuple[int, ...]


def applies(trial: Trial) -> bool:
    """Return True if something that was given has as many elements as what was made of it."""
    return bool(_list_movable(trial))


def _list_movable(trial: Trial) -> list[Given]:
    """Return the tensors that may only have been moved, the last one first."""
    movable = []
    for given in reversed(trial.given):
        has_size = given.tensor.count == trial.reference.count == trial.candidate.count > 0
        if has_size and 2 <= len(given.tensor.shape) <= MOST_AXES and given.tensor.dtype == trial.reference.dtype:
            movable.append(given)
    return movable


def prove(trial: Trial) -> Proof | None:
    """Return in which order of axes both sides take a tensor, if nothing else was done to it."""
    for given in _list_movable(trial):
        ours = _find_order(given.values, trial.reference.shape, trial.gives_reference)
        theirs = _find_order(given.values, trial.candidate.shape, trial.gives_candidate) if ours else None
        if ours is None or theirs is None or ours == theirs:
            continue
        is_flattened = len(trial.reference.shape) < len(given.tensor.shape)
        verb = "flattens" if is_flattened else "takes"
        return Proof(
            Cause.FLATTEN_ORDER if is_flattened else Cause.AXES_PERMUTED,
            f"the candidate {verb} the axes of {given.name} {list(given.tensor.shape)} in the order {list(theirs)}, "
            f"the reference in the order {list(ours)}",
            f"permute the axes to {list(ours)} first",
        )
    return None


def _find_order(values: NDArray[Any], shape: Axes, is_right: Callable[[NDArray[Any]], bool]) -> Axes | None:
    """Return the order of axes in which values, reshaped, are what a side made."""
    for axes in permutations(range(values.ndim)):
        if is_right(np.transpose(values, axes).reshape(shape)):
            return axes
    return None


def prove_axes(trial: Trial) -> Proof | None:
    """Return that axes are permuted on one side and only reshaped on the other."""
    reference, shape = trial.reference_values, trial.candidate.shape
    if reference.size != trial.candidate.count or not 2 <= reference.ndim < MOST_AXES:
        return None
    for axes in permutations(range(reference.ndim)):
        if list(axes) == sorted(axes):
            continue
        turned = reference.transpose(axes)
        if trial.gives_candidate(turned.reshape(shape)):
            how = f"permute{axes}" if turned.shape == shape else f"permute{axes}.reshape{shape}"
            return Proof(Cause.PERMUTED, f"the candidate is the reference after {how}", "leave out this permutation")
        cut = reference.reshape(turned.shape).transpose(np.argsort(axes))
        if trial.gives_candidate(cut.reshape(shape)):
            how = f"reshape{turned.shape}.permute{tuple(int(axis) for axis in np.argsort(axes))}"
            return Proof(
                Cause.PERMUTED, f"the candidate is the reference after {how}", "permute where the reference does"
            )
    return None


def prove_layout(trial: Trial) -> Proof | None:
    """Return how axes, rows or blocks of the candidate stand in another order."""
    room = trial.measure_room(trial.candidate_values)
    families = (layout.prove, order.prove)
    relation = relations.prove(as_stored(trial.reference), as_stored(trial.candidate), room, 0.0, families=families)
    if relation is None or relation.ambiguous:
        return None
    words = describe_relation(relation, [trial.reference], [trial.candidate])
    cause = Cause.PERMUTED if words.cause in (Cause.TRANSPOSED, Cause.AXES_PERMUTED) else words.cause
    evidence = words.sentence + (f" ({words.detail})" if words.detail else "")
    return Proof(cause, f"equal numbers in another order: {evidence}", "put them in the reference's order")


def may_be_reordered(trial: Trial) -> bool:
    """Return True if both sides made equally many numbers in the forward pass."""
    return is_forward_trial(trial) and trial.reference.count == trial.candidate.count


def prove_reordered(trial: Trial) -> Proof | None:
    """Return the order in which the reference's numbers stand in the candidate, whatever made them."""
    sides = trial.reference_values, trial.candidate_values
    if has_few_numbers(sides[0]) or not all(np.isfinite(side).all() for side in sides):
        return None
    return prove_axes(trial) or prove_layout(trial)


LAYOUTS = Family("order of axes", applies, prove)
REORDERED = Family("order of rows or blocks", may_be_reordered, prove_reordered)
