"""Inputs: how the model's inputs are prepared, and in which direction they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from nndiff.diagnosis.trials import Trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.family import Family, Proof
from nndiff.findings.hypotheses.operands import (
    Array,
    can_read,
    has_few_numbers,
    is_forward_trial,
    list_operands,
    list_round_numbers,
)

FEWEST_PER_CHANNEL = 8  # elements of a channel that show its factor and its shift
NEAR_DEVIATION = 1e-2  # relative: by which eps, or n - 1 for n, may move a deviation of 1
MOST_CHANNELS = 4  # of an image: along longer axes one factor for each place explains too much


def may_be_inputs(trial: Trial) -> bool:
    """Return True if both sides made numbers in the forward pass."""
    return is_forward_trial(trial)


def prove_inputs(trial: Trial) -> Proof | None:
    """Return how the candidate prepares what it was given, or which axis it reverses."""
    if has_few_numbers(trial.reference_values):
        return None
    if not (np.isfinite(trial.reference_values).all() and np.isfinite(trial.candidate_values).all()):
        return None
    for prove in (prove_preprocessing, prove_standardised, prove_emphasis, prove_flip):
        proof = prove(trial)
        if proof is not None:
            return proof
    return None


@dataclass(frozen=True)
class Affine:
    """Hold one factor and one number added, for all elements or for each place along an axis."""

    axis: int | None
    factors: Array
    shifts: Array

    def run(self, values: Array) -> Array:
        """Return the numbers, scaled and shifted."""
        if self.axis is None:
            return np.asarray(values * self.factors[0] + self.shifts[0])
        shape = [1] * values.ndim
        shape[self.axis] = -1
        return np.asarray(values * self.factors.reshape(shape) + self.shifts.reshape(shape))

    def __str__(self) -> str:
        def show(numbers: Array) -> str:
            texts = [f"{number:.4g}" for number in numbers]
            return texts[0] if len(set(texts)) == 1 else f"({', '.join(texts)})"

        return f"x * {show(self.factors)} + {show(self.shifts)}"


def fit_affine(values: Array, made: Array, axis: int | None) -> Affine | None:
    """Return the factor and shift that turn numbers into others best; None if there are too few numbers."""
    rows = [values.reshape(1, -1), made.reshape(1, -1)]
    if axis is not None:
        rows = [np.moveaxis(side, axis, 0).reshape(side.shape[axis], -1) for side in (values, made)]
    if rows[0].shape[1] < FEWEST_PER_CHANNEL:
        return None
    centered = [side - side.mean(1, keepdims=True) for side in rows]
    spread = np.square(centered[0]).sum(1)
    if not spread.all():
        return None
    factors = (centered[0] * centered[1]).sum(1) / spread
    shifts = rows[1].mean(1) - factors * rows[0].mean(1)
    return Affine(axis, factors, shifts)


def list_model_inputs(trial: Trial) -> Iterator[tuple[str, Array]]:
    """Yield the numbers that the model was given and that have the size of what was made, in the layouts of images."""
    shape = trial.reference.shape
    for name, tensor in trial.model_inputs.items():
        if not can_read(tensor) or tensor.count != trial.reference.count or tensor.dtype.kind in ("bool", "complex"):
            continue
        values = tensor.numpy().astype(np.float64)
        if values.ndim != len(shape) and [size for size in values.shape if size > 1] == [
            size for size in shape if size > 1
        ]:
            yield name, values.reshape(shape)  # an axis of one channel was added
        for axes in ((*range(values.ndim),), (0, 3, 1, 2), (0, 2, 3, 1), (2, 0, 1)):
            if len(axes) == values.ndim and values.transpose(axes).shape == shape:
                yield name, values.transpose(axes)


def prove_preprocessing(trial: Trial) -> Proof | None:
    """Return by which factors and shifts each side prepares an input of the model, and in which order of channels."""
    shape = trial.reference.shape
    if shape != trial.candidate.shape:
        return None
    axes: list[int | None] = [axis for axis in range(1, len(shape)) if 1 < shape[axis] <= MOST_CHANNELS]
    for name, values in list_model_inputs(trial):
        for axis in [None, *axes]:
            ours = fit_affine(values, trial.reference_values, axis)
            if ours is None or not trial.gives_reference(ours.run(values)):
                continue
            for channels in axes:
                if channels is None:
                    continue
                reversed_values = np.flip(values, channels)
                if trial.gives_candidate(np.flip(ours.run(values), channels)) or trial.gives_candidate(
                    ours.run(reversed_values)
                ):
                    evidence = (
                        f"the channels of `{name}` (axis {channels}) are reversed in the candidate, as RGB against BGR"
                    )
                    return Proof(Cause.CHANNEL_ORDER, evidence, "reverse the channels in the candidate")
            for other in (None, *axes):
                theirs = fit_affine(values, trial.candidate_values, other)
                if theirs is not None and trial.gives_candidate(theirs.run(values)):
                    evidence = f"the candidate computes {theirs} of `{name}`, the reference {ours}"
                    return Proof(Cause.PREPROCESSING, evidence, f"prepare `{name}` as {ours}")
    return None


def is_standardised(values: Array, made: Array, gives: Callable[[Array], bool]) -> bool:
    """Return True if each sample was made of mean 0 and deviation 1; what is added to the variance is solved for."""
    rows, wanted = (side.reshape(len(side), -1) for side in (values, made))
    if rows.shape[1] < FEWEST_PER_CHANNEL:
        return False
    centered = rows - rows.mean(1, keepdims=True)
    energies = np.square(centered).sum(1)
    if not energies.all():
        return False
    gains = (centered * wanted).sum(1) / energies
    is_one = np.abs(gains * centered.std(1) - 1) < NEAR_DEVIATION
    return bool(is_one.all()) and gives((gains[:, None] * centered).reshape(made.shape))


def prove_standardised(trial: Trial) -> Proof | None:
    """Return that one side alone makes each sample have mean 0 and deviation 1."""
    if trial.reference.shape != trial.candidate.shape or len(trial.reference.shape) < 2:
        return None
    made = trial.reference_values, trial.candidate_values
    gives = trial.gives_reference, trial.gives_candidate
    for name, values in list_model_inputs(trial):
        standardised = [is_standardised(values, made[side], gives[side]) for side in (0, 1)]
        if standardised[0] == standardised[1] or not gives[standardised.index(False)](values):
            continue
        sides = ("reference", "candidate") if standardised[0] else ("candidate", "reference")
        evidence = (
            f"the {sides[0]} gives each sample of `{name}` mean 0 and deviation 1, the {sides[1]} leaves it as it is"
        )
        return Proof(Cause.PREPROCESSING, evidence, f"prepare `{name}` as the reference does")
    return None


def solve_emphasis(values: Array, made: Array) -> float:
    """Return the share of the sample before that is subtracted from each sample."""
    before, now, after = values[..., :-1], values[..., 1:], made[..., 1:]
    energy = float(np.square(before).sum())
    return float((before * (now - after)).sum()) / energy if energy else 0.0


def list_emphasised(values: Array, share: float) -> Iterator[Array]:
    """Yield samples with a share of the one before subtracted; implementations differ in the first."""
    later = values[..., 1:] - share * values[..., :-1]
    for first in (1.0, 1.0 - share):
        yield np.concatenate([first * values[..., :1], later], -1)
    reflected = values[..., :1] - share * values[..., 1:2]
    yield np.concatenate([reflected, later], -1)


def find_emphasis(trial: Trial, values: Array, side: int) -> float | None:
    """Return the share that a side subtracts; None if it does something else."""
    made = (trial.reference_values, trial.candidate_values)[side]
    gives = (trial.gives_reference, trial.gives_candidate)[side]
    if made.shape != values.shape:
        return None
    if gives(values):
        return 0.0
    for share in list_round_numbers(solve_emphasis(values, made)):
        if any(gives(emphasised) for emphasised in list_emphasised(values, share)):
            return share
    return None


def prove_emphasis(trial: Trial) -> Proof | None:
    """Return the pre-emphasis of each side."""
    for given in list_operands(trial):
        values = given.values
        if values.ndim < 1 or values.shape != trial.reference.shape or values.shape[-1] < FEWEST_PER_CHANNEL:
            continue
        ours = find_emphasis(trial, values, 0)
        theirs = None if ours is None else find_emphasis(trial, values, 1)
        if ours is not None and theirs is not None and ours != theirs:
            evidence = f"pre-emphasis is {theirs:g} in the candidate, {ours:g} in the reference"
            return Proof(Cause.PREPROCESSING, evidence, f"set the pre-emphasis to {ours:g}")
    return None


def prove_flip(trial: Trial) -> Proof | None:
    """Return the axis along which the candidate is reversed."""
    reference = trial.reference_values
    for axis in range(reference.ndim):
        if reference.shape[axis] > 1 and trial.gives_candidate(np.flip(reference, axis)):
            if axis > 0 and reference.shape[axis] == 3:
                evidence = f"the channels (axis {axis}) are reversed in the candidate, as RGB against BGR"
                return Proof(Cause.CHANNEL_ORDER, evidence, "reverse the channels in the candidate")
            evidence = f"the candidate is reversed along axis {axis}"
            return Proof(Cause.ROWS_PERMUTED, evidence, f"reverse axis {axis} in the candidate")
    return None


INPUTS = Family("preprocessing", may_be_inputs, prove_inputs)
