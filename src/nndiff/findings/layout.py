"""Sites that agree once their axes are put in another order, cut otherwise, or one side is repeated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from nndiff.findings.rearranged import Array, Sides, Way, in_order, merges, rearranged
from nndiff.recorded import is_gradient
from nndiff.shortcuts import stats_apart
from nndiff.sites import SitePair
from nndiff.tensors import Shape, TensorRef
from nndiff.verdict import Verdict

_LARGEST = 1 << 24  # elements: both sides are held in memory
_MOST_READ = 1 << 28  # elements in all
_REPEAT, _SUM = "repeat", "sum"


@dataclass(frozen=True)
class Layout:
    """Say how one side must be rearranged to agree with the other."""

    cause: str
    how: str
    evidence: str
    repair: str
    confidence: float
    way: Way | None = None  # none: one side is repeated, or summed up

    def both(self, site: SitePair) -> tuple[Array, Array]:
        """Return the elements of both sides in one shape."""
        one, other = _numbers(site.reference), _numbers(site.candidate)
        if self.way is not None:
            return one, self.way.laid(other).reshape(one.shape)
        if self.how == _SUM:
            return _summed(one, other.shape), _summed(other, one.shape)
        wide = np.broadcast_shapes(one.shape, other.shape)
        return np.broadcast_to(one, wide), np.broadcast_to(other, wide)


def layouts(sites: Iterable[SitePair]) -> dict[int, Layout]:
    """Return what would agree after a rearrangement, by the order of the pair; it is said, and never called equal.

    What varies is looked at first: of what is the same everywhere the others of its shapes must tell how it lies.
    """
    found: dict[int, Layout] = {}
    seen: dict[tuple[Shape, Shape], list[Way]] = {}
    read = 0
    for site in sorted(filter(_worth_a_look, sites), key=_is_constant):
        read += site.reference.count + site.candidate.count
        if read > _MOST_READ:
            break
        layout = _layout(site, seen.setdefault((site.reference.shape, site.candidate.shape), []))
        if layout is not None:
            found[site.pair.order] = layout
    return found


def _layout(site: SitePair, seen: list[Way]) -> Layout | None:
    """Return how one side of a pair lies; remember the way."""
    sides = Sides(_numbers(site.reference), _numbers(site.candidate), site.pair.atol, site.pair.rtol)
    way = _way(sides, seen)
    if way is None:
        return _repeated(sides, is_gradient(site.reference))
    if way not in seen:
        seen.append(way)
    return _told(way)


def _worth_a_look(site: SitePair) -> bool:
    one, other = site.reference, site.candidate
    if site.passed or max(one.count, other.count) > _LARGEST or not one.count:
        return False
    if _data(one) is None or _data(other) is None:
        return False
    if site.pair.verdict is Verdict.SHAPE:
        return one.count != other.count or not stats_apart(one, other, site.pair.atol, site.pair.rtol)
    # of the same shape: only where an axis can be exchanged for another of its size and little else is alike
    repeated = len(set(one.shape)) < len([size for size in one.shape if size > 1])
    metrics = site.pair.metrics
    return repeated and metrics is not None and not metrics.cosine > 0.99


def _is_constant(site: SitePair) -> bool:
    stats = site.reference.trace.stats
    return bool(stats and not stats.nonfinite and stats.max - stats.min <= site.pair.atol)


def _data(tensor: TensorRef) -> TensorRef | None:
    """Return where the elements are: in the tensor, or in a sketch that holds all of them."""
    if not tensor.missing:
        return tensor
    sketch = tensor.trace.sketch
    return sketch if isinstance(sketch, TensorRef) and sketch.count == tensor.count else None


def _numbers(tensor: TensorRef) -> Array:
    numbers: Array = (_data(tensor) or tensor).numpy().reshape(tensor.shape)
    return numbers


def _way(sides: Sides, seen: Sequence[Way]) -> Way | None:
    """Return how the candidate's elements lie, first as others of these shapes do.

    Where all elements are alike they lie in any way: they do as others do, or as neighbouring axes put together.
    """
    one, other = sides.one.shape, sides.other.shape
    if sides.one.size != sides.other.size:
        return None
    known = next((way for way in seen if sides.agree(way)), None)
    if known is not None:
        return known
    plain = in_order(other, one)
    if one != other and (sides.varies or merges(one, other)) and sides.agree(plain):
        return plain
    return rearranged(sides)


def _told(way: Way) -> Layout:
    shapes = f"{list(way.given)} to {list(way.wanted)}"
    if not way.turned:
        repair = f"reshape to {list(way.wanted)} on the candidate's side"
        return Layout("reshaped", way.how, f"the same elements in the same order: {shapes}", repair, 0.99, way)
    evidence = f"the candidate's axes {way.axes} are the reference's in order: {shapes}"
    if way.how != f"permute{way.axes}":
        evidence = f"the same elements in another order, which {way.how} puts right: {shapes}"
    return Layout("permuted", way.how, evidence, f"{way.how} on the candidate's side", 0.99, way)


def _repeated(sides: Sides, gradients: bool) -> Layout | None:
    one, other = sides.one, sides.other
    wide = _wide_shape(one.shape, other.shape)
    if wide is None:
        return None
    shapes, repair = (
        f"shapes {list(one.shape)} and {list(other.shape)}",
        "expand the smaller side, or drop the repeated axis",
    )
    if sides.close(np.broadcast_to(one, wide), np.broadcast_to(other, wide)):
        return Layout("broadcast", _REPEAT, f"one side is the other repeated: {shapes}", repair, 0.95)
    # the gradient of what is used many times over is the sum of the gradients of all its uses
    if gradients and sides.close(_summed(one, other.shape), _summed(other, one.shape)):
        return Layout(
            "broadcast", _SUM, f"one side is the other summed up over what is repeated: {shapes}", repair, 0.95
        )
    return None


def _summed(array: Array, shape: Shape) -> Array:
    """Return an array summed up over the axes that another shape has one of, or lacks."""
    padded = (1,) * (array.ndim - len(shape)) + shape
    axes = tuple(axis for axis, size in enumerate(padded[-array.ndim :]) if size == 1) if array.ndim else ()
    widest = np.complex128 if np.iscomplexobj(array) else np.float64
    found: Array = array.sum(axis=axes, keepdims=True, dtype=widest)
    return found.reshape(found.shape[max(0, array.ndim - len(shape)) :])


def _wide_shape(one: Shape, other: Shape) -> Shape | None:
    """Return the shape both can be repeated to, if that is not too large."""
    try:
        wide = np.broadcast_shapes(one, other)
    except ValueError:
        return None
    return wide if one != other and int(np.prod(wide)) <= _LARGEST else None
