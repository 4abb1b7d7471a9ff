"""Norms in NumPy: what a norm makes of numbers, and which norm it was that made them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nndiff.findings.hypotheses.operands import Array, list_round_numbers

QUICK_ROWS = 16  # rows by which most norms are ruled out
GROUPS_IN_USE = (1, 2, 4, 8, 16, 32, 64)  # of group norms, tried beside one for each channel
EPS_IN_USE = (1e-5, 1e-6, 1e-12, 1e-8, 1e-3, 1e-4, 0.0)  # tried where numbers do not tell eps, usual ones first

_SHIFT_WORDS = ("bias", "beta", "shift", "b_2")
_MEAN_WORDS, _VARIANCE_WORDS = ("running_mean", "moving_mean"), ("running_var", "moving_variance")


@dataclass(frozen=True)
class Rows:
    """Say which elements are normalised together: they become one row."""

    kind: str  # last: the last axes; channels: axis 1; group: parts of axis 1; batch: all but axis 1
    size: int = 1  # last: number of axes; group: number of groups

    def gather(self, array: Array) -> Array:
        """Return an array with one row for each set of elements that are normalised together."""
        if self.kind == "last":
            return array.reshape(-1, math.prod(array.shape[array.ndim - self.size :]))
        if self.kind == "channels":
            return np.moveaxis(array, 1, -1).reshape(-1, array.shape[1])
        if self.kind == "group":
            return array.reshape(array.shape[0] * self.size, -1)
        return np.moveaxis(array, 1, 0).reshape(array.shape[1], -1)

    def scatter(self, rows: Array, shape: tuple[int, ...]) -> Array:
        """Return rows in the shape they were gathered from."""
        if self.kind == "channels":
            return np.moveaxis(rows.reshape(shape[0], *shape[2:], shape[1]), -1, 1)
        if self.kind == "batch":
            return np.moveaxis(rows.reshape(shape[1], shape[0], *shape[2:]), 0, 1)
        return rows.reshape(shape)

    def spread(self, weight: Array, shape: tuple[int, ...]) -> Array:
        """Return a weight of the norm, one number for each element of a shape."""
        if self.kind == "last":
            return np.broadcast_to(weight, shape)
        return np.broadcast_to(weight.reshape(1, -1, *(1,) * (len(shape) - 2)), shape)

    def __str__(self) -> str:
        if self.kind == "last":
            return "the last axis" if self.size == 1 else f"the last {self.size} axes"
        names = {"channels": "axis 1", "batch": "all axes but the channels"}
        return names.get(self.kind, f"{self.size} group{'s' if self.size > 1 else ''} of channels")


@dataclass(frozen=True)
class NormTensors:
    """Hold the tensors of a norm."""

    weight: Array | None = None
    bias: Array | None = None
    mean: Array | None = None
    variance: Array | None = None


@dataclass(frozen=True)
class Norm:
    """Describe a norm."""

    rows: Rows
    centered: bool = True  # the mean is subtracted
    running: bool = False  # mean and variance are those that were collected in training
    has_weight: bool = True
    offset: float = 0.0  # added to the weight
    has_bias: bool = True
    eps: float = 0.0
    is_inside: bool = True  # eps is added to the variance, not to its root
    unbiased: bool = False  # the variance is a sum divided by n - 1

    def run(self, values: Array, tensors: NormTensors) -> Array:
        """Return what the norm makes of some numbers."""
        parts = self.split(values, tensors)
        variance = parts.variance * (parts.correction if self.unbiased else 1.0)
        root = np.sqrt(variance + self.eps) if self.is_inside else np.sqrt(variance) + self.eps
        with np.errstate(all="ignore"):
            return self.rows.scatter(parts.direction / root[:, None] + parts.shift, values.shape)

    def split(self, values: Array, tensors: NormTensors) -> Parts:
        """Return what a norm makes of numbers but for one gain for each row."""
        rows = self.rows.gather(values)
        mean: Array = np.zeros(len(rows))
        if self.running and tensors.mean is not None and tensors.variance is not None:
            mean, variance = tensors.mean, tensors.variance
        else:
            if self.centered:
                mean = rows.mean(1)
            variance = np.square(rows - mean[:, None]).mean(1)
        direction = rows - mean[:, None] if self.centered else rows
        shift: Array = np.zeros((1, 1))
        if self.has_weight and tensors.weight is not None:
            direction = direction * self.rows.gather(self.rows.spread(tensors.weight + self.offset, values.shape))
        if self.has_bias and tensors.bias is not None:
            shift = self.rows.gather(self.rows.spread(tensors.bias, values.shape))
        count = rows.shape[1]
        return Parts(direction, shift, variance, count / (count - 1) if count > 1 else 1.0)


@dataclass(frozen=True)
class Parts:
    """Hold the parts of a norm's output: direction of each row times a gain, plus shift; and what the gain follows."""

    direction: Array
    shift: Array
    variance: Array  # of each row, biased
    correction: float  # that makes it unbiased

    def fit_gains(self, made: Array) -> Array:
        """Return the gain of each row that comes closest to what was made."""
        energy = np.square(self.direction).sum(1)
        overlap = (self.direction * (made - self.shift)).sum(1)
        gains: Array = np.divide(overlap, energy, out=np.zeros_like(energy), where=energy > 0)
        return gains


def choose_tensors(weights: Mapping[str, Array]) -> NormTensors:
    """Return the tensors of a norm by the names that implementations give them."""
    chosen: dict[str, Array] = {}
    for name, values in weights.items():
        if values.ndim == 0 or values.size < 2:
            continue
        if name in _MEAN_WORDS:
            chosen.setdefault("mean", values)
        elif name in _VARIANCE_WORDS:
            chosen.setdefault("variance", values)
        elif any(word in name for word in _SHIFT_WORDS):
            chosen.setdefault("bias", values)
        else:
            chosen.setdefault("weight", values)
    return NormTensors(**chosen)


def list_rows(shape: tuple[int, ...], tensors: NormTensors) -> Iterator[Rows]:
    """Yield the ways to gather elements that fit a shape and the weights."""
    axes = 1 if tensors.weight is None else tensors.weight.ndim
    fits_last, fits_channels = True, len(shape) >= 2
    for tensor in (tensors.weight, tensors.bias, tensors.mean):
        if tensor is not None:
            fits_last = fits_last and tensor.shape == shape[len(shape) - tensor.ndim :]
            fits_channels = fits_channels and tensor.ndim == 1 and tensor.size == shape[1]
    if fits_last:
        yield Rows("last", axes)
    if not fits_channels:
        return
    yield Rows("batch")
    for groups in dict.fromkeys((*GROUPS_IN_USE, shape[1])):
        if shape[1] % groups == 0 and math.prod(shape) // shape[0] > groups and (len(shape) > 2 or groups > 1):
            yield Rows("group", groups)
    if len(shape) > 2:
        yield Rows("channels")


def list_structures(shape: tuple[int, ...], tensors: NormTensors) -> Iterator[Norm]:
    """Yield the norms that fit a shape and the weights, but for their eps, usual ones first."""
    for rows in list_rows(shape, tensors):
        runs = (True, False) if rows.kind == "batch" and tensors.mean is not None else (False,)
        weights = [(True, 0.0), (True, 1.0), (False, 0.0)] if tensors.weight is not None else [(False, 0.0)]
        biases = (True, False) if tensors.bias is not None else (False,)
        for running, centered, has_bias, (has_weight, offset) in itertools.product(
            runs, (True, False), biases, weights
        ):
            if centered or not running:
                yield Norm(rows, centered, running, has_weight, offset, has_bias)


def identify_norms(
    values: Array,
    tensors: NormTensors,
    made: Array,
    room: float,
    is_made: Callable[[Array], bool],
    known_eps: Iterable[float],
) -> Iterator[Norm]:
    """Yield the norms that make some numbers of others; known values of eps are tried before those solved for."""
    known = list(dict.fromkeys(known_eps))
    for structure in list_structures(values.shape, tensors):
        parts = structure.split(values, tensors)
        rows = structure.rows.gather(made)
        quick = slice(0, QUICK_ROWS)
        few = Parts(parts.direction[quick], _cut(parts.shift, quick), parts.variance[quick], parts.correction)
        if not _is_near(few, few.fit_gains(rows[quick]), rows[quick], room):
            continue
        gains = parts.fit_gains(rows)
        if not _is_near(parts, gains, rows, room):
            continue
        for is_inside, unbiased in ((True, False), (False, False), (True, True)):
            norm = replace(structure, is_inside=is_inside, unbiased=unbiased)
            variance = parts.variance * (parts.correction if unbiased else 1.0)
            for eps in (*known, *solve_eps(variance, gains, is_inside), *EPS_IN_USE):
                complete = replace(norm, eps=eps)
                if is_made(complete.run(values, tensors)):
                    yield complete
                    break


def _cut(shift: Array, rows: slice) -> Array:
    return shift if len(shift) == 1 else shift[rows]


def _is_near(parts: Parts, gains: Array, made: Array, room: float) -> bool:
    with np.errstate(all="ignore"):
        gap = np.abs(parts.direction * gains[:, None] + parts.shift - made)
    return not bool(np.any(gap > room))


def solve_eps(variance: Array, gains: Array, is_inside: bool) -> Iterator[float]:
    """Yield the eps that explains the gain of each row best, rounded to few digits first.

    A relative error of a gain moves the eps of its row by as much of the variance: rows of small variance tell most.
    """
    known = gains > 0
    if not known.any():
        return
    roots = 1 / gains[known]
    spread = variance[known] if is_inside else np.sqrt(variance[known])
    total = np.square(roots) if is_inside else roots
    estimates = total - spread
    certainty = 1 / np.square(np.maximum(total, np.finfo(float).tiny))
    eps = float(np.sum(estimates * certainty) / np.sum(certainty))
    if eps > 0:
        yield from list_round_numbers(eps)


def describe_norm(norm: Norm) -> dict[str, Any]:
    """Return what a norm does, facet by facet, in words."""
    mean = "the mean is subtracted" if norm.centered else "the mean is not subtracted"
    root = "inside the root" if norm.is_inside else "outside the root"
    return {
        "statistics": "running statistics" if norm.running else "statistics of the batch",
        "rows": f"normalised over {norm.rows}",
        "centered": mean,
        "unbiased": f"the variance is divided by {'n - 1' if norm.unbiased else 'n'}",
        "weight": "multiplied by the weight" if norm.has_weight else "not multiplied by the weight",
        "offset": f"multiplied by weight + {norm.offset:g}" if norm.offset else "multiplied by weight",
        "bias": "the bias is added" if norm.has_bias else "the bias is not added",
        "placement": f"eps is added {root}",
        "eps": f"eps is {norm.eps:.1e}",
    }
