"""What the families share: tensors a hypothesis can be tried on, numbers that are solved for, settings by meaning."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.diagnosis.modules import get_settings
from nndiff.diagnosis.trials import Given, Trial
from nndiff.tensors import Site, Slot, TensorRef

Array = NDArray[Any]

LARGEST_TRIED = 1 << 24  # elements of a tensor that hypotheses are tried on
MOST_GIVEN = 6  # tensors tried as operands: the arguments and what was computed last
SHORT_TYPES = ("bfloat16", "float16")  # that are tried where numbers may have been rounded
FEWEST_NUMBERS = 8  # distinct numbers: fewer follow from others by too many rules


def is_forward_trial(trial: Trial) -> bool:
    """Return True if both sides made numbers in the forward pass that can be read, and not too many."""
    sides = trial.reference, trial.candidate
    if trial.error.slot not in (Slot.OUTPUT, Slot.INPUT):
        return False
    return all(tensor.dtype.kind == "float" and can_read(tensor) for tensor in sides)


def can_read(tensor: TensorRef) -> bool:
    """Return True if the elements of a tensor were kept and are not too many."""
    return not tensor.missing and 0 < tensor.count <= LARGEST_TRIED


def as_stored(tensor: TensorRef) -> TensorRef:
    """Return a tensor as one of a file: relations that are refused for runs as a whole may explain an own error."""
    return replace(tensor, site=Site("", Slot.STORED))


def list_operands(trial: Trial) -> Iterator[Given]:
    """Yield the floating-point tensors that were given, what was computed last first; each value once."""
    readable = [given for given in trial.given if given.tensor.dtype.kind == "float" and can_read(given.tensor)]
    arguments = [given for given in readable if given.is_argument]
    latest = [given for given in reversed(readable) if not given.is_argument]
    seen = set()
    for given in [*latest[:MOST_GIVEN], *arguments[:MOST_GIVEN]]:
        key = given.tensor.shape, given.tensor.trace.digest or given.name
        if key not in seen:
            seen.add(key)
            yield given


def spread_values(values: Array, shape: tuple[int, ...]) -> Array | None:
    """Return numbers as they are added to or multiplied with a larger tensor; None if they do not go along it.

    Numbers for each channel of an image, [batch, channels], go along [batch, channels, height, width] too.
    """
    if values.shape == shape:
        return values
    if values.ndim < 2 or values.size == math.prod(shape):
        return None
    for spread in (values.shape, values.shape + (1,) * (len(shape) - values.ndim)):
        fits = len(spread) == len(shape) and all(size in (1, full) for size, full in zip(spread, shape, strict=True))
        if fits:
            return np.broadcast_to(values.reshape(spread), shape)
    return None


def has_few_numbers(values: Array) -> bool:
    """Return True if there are too few distinct numbers to show by what rule they were made."""
    return len(np.unique(values)) < FEWEST_NUMBERS


def list_round_numbers(value: float) -> Iterator[float]:
    """Yield a number that was solved for, rounded to few digits first: people choose round numbers."""
    if not math.isfinite(value):
        return
    seen = set()
    for digits in (1, 2, 3, 4, 6):
        near = float(f"{value:.{digits - 1}e}")
        if near not in seen:
            seen.add(near)
            yield near
    yield value


def find_setting(trial: Trial, side: int, names: Iterable[str]) -> tuple[str, Any] | None:
    """Return name and value of the first setting of a side's module that goes by one of some names."""
    settings = get_settings(trial.modules[side])
    wanted = set(names)
    return next(((name, value) for name, value in settings.items() if name in wanted), None)


def is_training(trial: Trial, side: int) -> bool:
    """Return True if a side's module is in train mode."""
    return bool(trial.modules[side].get("training"))


def have_equal_values(ours: TensorRef | None, theirs: TensorRef | None) -> bool:
    """Return True if two tensors hold the same numbers in the same shape."""
    if ours is None or theirs is None:
        return ours is theirs
    if ours.shape != theirs.shape:
        return False
    digests = ours.trace.digest, theirs.trace.digest
    if None not in digests and ours.dtype == theirs.dtype:
        return digests[0] == digests[1]
    if ours.missing or theirs.missing:
        return False
    return bool(np.array_equal(ours.numpy(), theirs.numpy(), equal_nan=True))


def pair_own_weights(trial: Trial) -> dict[str, tuple[TensorRef | None, TensorRef | None]]:
    """Return what the modules on trial hold, by the reference's names; of other names where one shape alone fits."""
    paired = dict(trial.weights)
    lone = {name: ours for name, (ours, theirs) in paired.items() if theirs is None and ours is not None}
    for name, (ours, theirs) in trial.weights.items():
        if ours is not None or theirs is None:
            continue
        fitting = [known for known, tensor in lone.items() if tensor.shape == theirs.shape]
        rivals = [other for mine, other in trial.weights.values() if mine is None and other is not None]
        if len(fitting) == 1 and [rival.shape for rival in rivals].count(theirs.shape) == 1:
            paired[fitting[0]] = lone[fitting[0]], theirs
            del paired[name]
    return paired
