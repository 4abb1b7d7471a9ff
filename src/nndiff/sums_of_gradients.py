"""The gradient of a bias, judged as the sum that it is.

It is the sum of what its module is handed back, over thousands of places. Rounding that nobody would mind at any of
them adds up, and where the sum is zero but for that (in front of a batch norm), it is all there is. Where the
gradient of either side is proven to be the sum of what that side's module is handed back, which passes itself, it may
be as far off as all of that together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.judge import judge
from nndiff.result import Pair
from nndiff.stats import Job, get_engine
from nndiff.tensors import TensorRef
from nndiff.verdict import Verdict

# Of the sum of the moduli: what rounding in float32 makes of a sum, which grows with the root of how many there are;
# but little of what a sum of numbers of any sign comes to.
_OF_SUM, _OF_ROOT, _MOST = 2e-6, 2e-8, 0.002
_DIGITS = {"float64": 1e-12, "float32": 1e-6, "float16": 4e-3, "bfloat16": 3e-2}  # of the gradient itself
_LARGEST = 1 << 26  # elements
_BLOCK = 1 << 20  # elements
NOTE = "judged as the sum of what its module is handed back, at the tolerance of all of that"

Both = tuple[Pair, TensorRef, TensorRef]
_Sums = NDArray[np.float64]


def judged_as_sums(rows: Sequence[Both]) -> Iterator[Pair]:
    """Yield the pairs, those of biases that differ judged again."""
    handed: dict[tuple[str, str], list[Both]] = {}
    for row in rows:
        if row[0].slot == "grad_output":
            handed.setdefault((row[0].candidate, str(row[1].site.module)), []).append(row)
    for row in rows:
        yield _judged(row, handed) if _is_bias(row) else row[0]


def _is_bias(row: Both) -> bool:
    pair, one, other = row
    differs = pair.slot == "param_grad" and pair.verdict is Verdict.DIFFERENT
    return differs and len(one.shape) == 1 and one.shape == other.shape and not (one.missing or other.missing)


def _judged(row: Both, handed: Mapping[tuple[str, str], Sequence[Both]]) -> Pair:
    pair, one, other = row
    calls = handed.get((pair.candidate, str(one.site.module)), ())
    if not all(each.verdict.passed and _is_at_hand(of_one, of_other, row) for each, of_one, of_other in calls):
        return pair
    size = one.count
    places = sum(tensor.count for _, tensor, _ in calls) / size
    ours = _added([_sums_of(tensor, size) for _, tensor, _ in calls], one, places)
    theirs = _added([_sums_of(tensor, size) for _, _, tensor in calls], other, places)
    if ours is None or theirs is None:
        return pair
    handed_back = sum(each.scale * (tensor.count / size) for each, tensor, _ in calls)
    scale = float(handed_back + min(ours.min(), theirs.min()))
    if not scale > pair.scale > 0:
        return pair
    atol = pair.atol / pair.scale * scale
    metrics = next(iter(get_engine().measure([Job(one, other, atol, pair.rtol)])))
    verdict = judge(metrics, one.dtype.name == other.dtype.name)
    return replace(pair, verdict=verdict, metrics=metrics, atol=atol, scale=scale, note=NOTE)


def _is_at_hand(one: TensorRef, other: TensorRef, row: Both) -> bool:
    """Tell whether a gradient at an output can be summed, and is of the same modules as the bias."""
    alike = one.shape == other.shape and str(other.site.module) == str(row[2].site.module)
    return alike and not (one.missing or other.missing) and one.count <= _LARGEST


@dataclass(frozen=True)
class _Summed:
    """Hold the sums along one axis, of the elements and of their moduli."""

    sums: _Sums
    moduli: _Sums


def _sums_of(tensor: TensorRef, size: int) -> list[_Summed]:
    """Return the sums along every axis that may be that of the bias."""
    array = tensor.numpy()
    axes = [axis for axis, length in enumerate(array.shape) if length == size]
    return [_along(array, axis) for axis in axes] if array.dtype.kind == "f" else []


def _along(array: NDArray[Any], axis: int) -> _Summed:
    """Sum up in pieces that are small enough to be widened."""
    size = array.shape[axis]
    laid = np.moveaxis(array, axis, 0).reshape(size, -1)  # a copy where the axis is not the first
    sums, moduli = np.zeros(size), np.zeros(size)
    step = max(1, _BLOCK // max(1, size))
    for start in range(0, laid.shape[1], step):
        block = laid[:, start : start + step].astype(np.float64)
        sums += block.sum(axis=1)
        moduli += np.abs(block, out=block).sum(axis=1)
    return _Summed(sums, moduli)


def _added(calls: Sequence[Sequence[_Summed]], bias: TensorRef, places: float) -> _Sums | None:
    """Return the sums of the moduli, if the gradient is the sum over all calls along one of the axes."""
    gradient = bias.numpy().astype(np.float64)
    digits = _DIGITS.get(bias.dtype.name)
    if not calls or digits is None:
        return None
    root = math.sqrt(places)
    off = min(_OF_SUM + _OF_ROOT * root, _MOST / root)
    for along in zip(*calls, strict=False):
        sums, moduli = sum(each.sums for each in along), sum(each.moduli for each in along)
        if bool(np.all(np.abs(gradient - sums) <= off * moduli + digits * np.abs(sums))):
            return np.asarray(moduli)
    return None
