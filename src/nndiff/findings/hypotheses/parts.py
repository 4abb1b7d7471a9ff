"""Parts: joined in another order, or another part taken where a tensor is split."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations

import numpy as np

from nndiff.diagnosis.trials import Trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.family import Family, Proof
from nndiff.findings.hypotheses.layers import read_weights
from nndiff.findings.hypotheses.operands import Array, has_few_numbers, is_forward_trial, list_operands
from nndiff.tolerance import NOISE_FACTOR

MOST_PARTS = 4  # equal parts whose every order is tried
MOST_JOINED = 6  # given tensors that are joined


def may_be_parts(trial: Trial) -> bool:
    """Return True if both sides made finite numbers of one shape in the forward pass."""
    if not is_forward_trial(trial) or trial.reference.shape != trial.candidate.shape:
        return False
    return bool(np.isfinite(trial.reference_values).all() and np.isfinite(trial.candidate_values).all())


def prove_parts(trial: Trial) -> Proof | None:
    """Return which parts the candidate joins in another order, or takes instead of others."""
    if has_few_numbers(trial.reference_values):
        return None
    return prove_joined(trial) or prove_split(trial) or prove_equal_parts(trial)


def list_parts(trial: Trial) -> Iterator[tuple[str, Array]]:
    """Yield what may be joined: what was given, and what the module holds, repeated for each sample."""
    parts = [(given.name, given.values) for given in list_operands(trial)]
    yield from parts
    shape = trial.reference.shape
    for name, values in read_weights(trial, 0).items():
        if len(shape) != 3 or values.ndim not in (1, 2, 3) or values.shape[-1] != shape[-1]:
            continue
        spread = values.reshape([1] * (3 - values.ndim) + list(values.shape))
        if len(spread) == 1:
            yield name, np.repeat(spread, shape[0], 0)


def find_joined(trial: Trial, axis: int, made: Array) -> dict[str, Array]:
    """Return the tensors that stand side by side in what was made, by name; none if they do not."""
    joined: dict[str, Array] = {}
    start = 0
    while start < made.shape[axis] and len(joined) < MOST_JOINED:
        for name, values in list_parts(trial):
            size = values.shape[axis] if values.ndim == made.ndim else 0
            if not size or name in joined or start + size > made.shape[axis]:
                continue
            block = np.take(made, range(start, start + size), axis)
            if values.shape == block.shape and np.abs(values - block).max() <= NOISE_FACTOR * trial.noise:
                joined[name] = values
                start += size
                break
        else:
            return {}
    return joined if start == made.shape[axis] else {}


def prove_joined(trial: Trial) -> Proof | None:
    """Return that parts are joined in another order."""
    for axis in range(len(trial.reference.shape)):
        ours = find_joined(trial, axis, trial.reference_values)
        theirs = find_joined(trial, axis, trial.candidate_values) if len(ours) > 1 else {}
        if not theirs or list(ours) == list(theirs):
            continue
        if trial.gives_candidate(np.concatenate(list(theirs.values()), axis)):
            names = [", ".join(side) for side in (theirs, ours)]
            evidence = f"joined as {names[0]} in the candidate, as {names[1]} in the reference, along axis {axis}"
            return Proof(Cause.CONCATENATION, evidence, f"join as {names[1]}")
    return None


def prove_equal_parts(trial: Trial) -> Proof | None:
    """Return the order in which equal parts of what the reference made stand in the candidate."""
    shape = trial.reference.shape
    for axis in dict.fromkeys((len(shape) - 1, 1)):
        for count in range(2, MOST_PARTS + 1):
            if not 0 < axis < len(shape) or shape[axis] % count or shape[axis] == count:
                continue  # single places have no order of parts
            parts = np.split(trial.reference_values, count, axis)
            for order in permutations(range(count)):
                if order == tuple(range(count)) or not _starts_like(trial, parts[order[0]], axis):
                    continue
                if trial.gives_candidate(np.concatenate([parts[place] for place in order], axis)):
                    text = f"{count} equal parts along axis {axis} stand in the order {list(order)} in the candidate"
                    return Proof(Cause.CONCATENATION, text, "put the parts in the reference's order")
    return None


def _starts_like(trial: Trial, part: Array, axis: int) -> bool:
    """Return True if the candidate's first part may be this one: a look at a few elements spares most comparisons."""
    first = np.take(trial.candidate_values, 0, axis)
    return bool(np.abs(first - np.take(part, 0, axis)).max() <= 0.1 * trial.error.max_abs)


def list_pieces(values: Array, shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """Yield the pieces of one shape into which numbers may be split along an axis."""
    for axis in range(values.ndim):
        if (
            values.ndim != len(shape)
            or values.shape[:axis] + values.shape[axis + 1 :] != shape[:axis] + shape[axis + 1 :]
        ):
            continue
        if not shape[axis] or values.shape[axis] % shape[axis]:
            continue
        count = values.shape[axis] // shape[axis]
        for place, piece in enumerate(np.split(values, count, axis)):
            yield f"part {place} of {count} along axis {axis}", piece
        for place in range(count):
            taken = values.take(range(place, values.shape[axis], count), axis)
            yield f"places {place}, {place + count}, ... along axis {axis}", taken


def prove_split(trial: Trial) -> Proof | None:
    """Return that the sides take different parts of a tensor."""
    shape = trial.reference.shape
    if shape != trial.candidate.shape:
        return None
    for given in list_operands(trial):
        if given.tensor.count <= math.prod(shape):
            continue
        pieces = dict(list_pieces(given.values, shape))
        ours = next((name for name, piece in pieces.items() if trial.gives_reference(piece)), None)
        theirs = next((name for name, piece in pieces.items() if trial.gives_candidate(piece)), None)
        if ours is not None and theirs is not None and ours != theirs:
            evidence = f"{theirs} of `{given.name}` in the candidate, {ours} in the reference"
            return Proof(Cause.CONCATENATION, evidence, f"take {ours}")
    return None


PARTS = Family("order of parts", may_be_parts, prove_parts)
