"""Sites that agree once their axes are put in another order, cut otherwise, or one side is repeated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.recorded import is_gradient
from nndiff.result import Finding
from nndiff.sites import SitePair
from nndiff.tensors import TensorRef
from nndiff.verdict import Verdict

_LARGEST = 1 << 24  # elements: both sides are held in memory
_MOST_READ = 1 << 28  # elements in all
_MOST_AXES = 5
_SAMPLED = 4  # places along each axis that are looked at first

Array = NDArray[Any]


@dataclass(frozen=True)
class Layout:
    """Say how one side must be rearranged to agree with the other."""

    cause: str
    how: str
    evidence: str
    repair: str
    confidence: float


def layouts(sites: Iterable[SitePair]) -> dict[int, Layout]:
    """Return what would agree after a rearrangement, by the order of the pair; it is said, and never called equal."""
    found: dict[int, Layout] = {}
    read = 0
    for site in sites:
        if _worth_a_look(site) and read < _MOST_READ:
            read += site.reference.count + site.candidate.count
            both = _numbers(site.reference), _numbers(site.candidate)
            layout = _layout(_Sides(*both, site.pair.atol, site.pair.rtol, is_gradient(site.reference)))
            if layout is not None:
                found[site.pair.order] = layout
    return found


def layout_findings(
    sites: Sequence[SitePair], found: Mapping[int, Layout], harmless: bool = False
) -> Iterator[Finding]:
    """Yield one finding for each way of rearranging, with all the places it is needed at."""
    grouped: dict[tuple[str, str], list[SitePair]] = {}
    for site in sites:
        layout = found.get(site.pair.order)
        if layout is not None:
            grouped.setdefault((layout.cause, layout.how), []).append(site)
    for (cause, _), alike in grouped.items():
        layout = found[alike[0].pair.order]
        where = tuple(site.pair.name for site in alike)
        repair = "" if harmless else layout.repair
        yield Finding(cause, where, layout.evidence, repair, layout.confidence, harmless)


def _worth_a_look(site: SitePair) -> bool:
    one, other = site.reference, site.candidate
    if site.passed or max(one.count, other.count) > _LARGEST or not one.count:
        return False
    if _data(one) is None or _data(other) is None:
        return False
    if site.pair.verdict is Verdict.SHAPE:
        return True
    # of the same shape: only where an axis can be exchanged for another of its size and little else is alike
    repeated = len(set(one.shape)) < len([size for size in one.shape if size > 1])
    metrics = site.pair.metrics
    return repeated and metrics is not None and not metrics.cosine > 0.99


def _data(tensor: TensorRef) -> TensorRef | None:
    """Return where the elements are: in the tensor, or in a sketch that holds all of them."""
    if not tensor.missing:
        return tensor
    sketch = tensor.meta.get("sketch")
    return sketch if isinstance(sketch, TensorRef) and sketch.count == tensor.count else None


def _numbers(tensor: TensorRef) -> Array:
    numbers: Array = (_data(tensor) or tensor).numpy().reshape(tensor.shape)
    return numbers.astype(np.complex128 if np.iscomplexobj(numbers) else np.float64)


@dataclass(frozen=True)
class _Sides:
    """Hold two arrays and the tolerance they are compared at."""

    one: Array
    other: Array
    atol: float
    rtol: float
    gradients: bool

    def agree(self, one: Array, other: Array) -> bool:
        """Tell whether two arrays of one shape agree, looking at a few places first."""
        few = tuple(slice(None, None, max(1, size // _SAMPLED)) for size in one.shape)
        return self._close(one[few], other[few]) and self._close(one, other)

    def _close(self, one: Array, other: Array) -> bool:
        return bool(np.allclose(other, one, atol=self.atol, rtol=self.rtol, equal_nan=True))


def _layout(sides: _Sides) -> Layout | None:
    return _permuted(sides) or _reshaped(sides) or _repeated(sides)


def _permuted(sides: _Sides) -> Layout | None:
    axes = _permutation(sides, sides.one, sides.other)
    if axes is None:
        return None
    shapes = f"{list(sides.other.shape)} to {list(sides.one.shape)}"
    how = f"permute{axes}"
    evidence = f"the candidate's axes {axes} are the reference's in order: {shapes}"
    return Layout("permuted", how, evidence, f"{how} on the candidate's side", 0.99)


def _permutation(sides: _Sides, one: Array, other: Array) -> tuple[int, ...] | None:
    if one.ndim != other.ndim or one.ndim > _MOST_AXES or sorted(one.shape) != sorted(other.shape):
        return None
    for axes in permutations(range(one.ndim)):
        if axes != tuple(range(one.ndim)):
            turned = other.transpose(axes)
            if turned.shape == one.shape and sides.agree(one, turned):
                return axes
    return None


def _reshaped(sides: _Sides) -> Layout | None:
    """Return how the shape alone differs, or the shape and, without axes of one element, their order."""
    one, other = sides.one, sides.other
    if one.shape == other.shape or one.size != other.size:
        return None
    shapes = f"{list(other.shape)} to {list(one.shape)}"
    repair = f"reshape to {list(one.shape)} on the candidate's side"
    if sides.agree(one.reshape(-1), other.reshape(-1)):
        return Layout("reshaped", "reshape", f"the same elements in the same order: {shapes}", repair, 0.99)
    axes = _permutation(sides, one.squeeze(), other.squeeze())
    if axes is None:
        return None
    evidence = f"without axes of one element, the candidate's axes {axes} are the reference's in order: {shapes}"
    return Layout("permuted", f"squeeze, permute{axes}", evidence, f"permute{axes} on the candidate's side", 0.99)


def _repeated(sides: _Sides) -> Layout | None:
    one, other = sides.one, sides.other
    wide = _wide_shape(one.shape, other.shape)
    if wide is None:
        return None
    shapes, repair = (
        f"shapes {list(one.shape)} and {list(other.shape)}",
        "expand the smaller side, or drop the repeated axis",
    )
    if sides.agree(np.broadcast_to(one, wide), np.broadcast_to(other, wide)):
        return Layout("broadcast", "repeat", f"one side is the other repeated: {shapes}", repair, 0.95)
    # the gradient of what is used many times over is the sum of the gradients of all its uses
    if sides.gradients and sides.agree(_summed(one, other.shape), _summed(other, one.shape)):
        return Layout(
            "broadcast", "sum", f"one side is the other summed up over what is repeated: {shapes}", repair, 0.95
        )
    return None


def _summed(array: Array, shape: tuple[int, ...]) -> Array:
    """Return an array summed up over the axes that another shape has one of, or lacks."""
    padded = (1,) * (array.ndim - len(shape)) + shape
    axes = tuple(axis for axis, size in enumerate(padded[-array.ndim :]) if size == 1) if array.ndim else ()
    found: Array = array.sum(axis=axes, keepdims=True)
    return found.reshape(found.shape[max(0, array.ndim - len(shape)) :])


def _wide_shape(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape both can be repeated to, if that is not too large."""
    try:
        wide = np.broadcast_shapes(one, other)
    except ValueError:
        return None
    return wide if one != other and int(np.prod(wide)) <= _LARGEST else None
