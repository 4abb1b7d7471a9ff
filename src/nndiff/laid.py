"""The numbers of a pair once one side of it is rearranged, by what was found to make it agree."""

from __future__ import annotations

import ast
import re

import numpy as np

from nndiff.dtypes import from_numpy
from nndiff.findings.layout import Layout
from nndiff.findings.rearranged import Array
from nndiff.sites import SitePair
from nndiff.stats import Job, Metrics, get_engine
from nndiff.tensors import MemoryData, Shape, TensorRef

_STEP = re.compile(r"reshape to (?P<shape>\[[\d, ]*\])|permute(?P<axes>\([\d, ]*\))|(?P<word>reshape|repeat|sum)")


def laid(site: SitePair, layout: Layout) -> Metrics | None:
    """Return the numbers of a pair after a rearrangement; None where it is one of another kind."""
    steps = list(_STEP.finditer(layout.how))
    if ", ".join(step[0] for step in steps) != layout.how:
        return None
    one, other = _numbers(site.reference), _numbers(site.candidate)
    if one is None or other is None:
        return None
    both = _alike(one, other, steps)
    if both[0].shape != both[1].shape:
        return None
    job = Job(_tensor(both[0]), _tensor(both[1]), site.pair.atol, site.pair.rtol)
    return next(iter(get_engine().measure([job])))


def _alike(one: Array, other: Array, steps: list[re.Match[str]]) -> tuple[Array, Array]:
    """Return both arrays in one shape."""
    if steps[0]["word"] == "repeat":
        wide = np.broadcast_shapes(one.shape, other.shape)
        return np.broadcast_to(one, wide), np.broadcast_to(other, wide)
    if steps[0]["word"] == "sum":
        return _summed(one, other.shape), _summed(other, one.shape)
    for step in steps:
        other = other.transpose(_whole(step["axes"])) if step["axes"] else other
        other = other.reshape(_whole(step["shape"])) if step["shape"] else other
    return one, other.reshape(one.shape)


def _whole(text: str) -> Shape:
    return tuple(ast.literal_eval(text))


def _summed(array: Array, shape: Shape) -> Array:
    """Return an array summed up over the axes that another shape has one of, or lacks."""
    lacking = max(0, array.ndim - len(shape))
    padded = (*(1,) * lacking, *shape)[-array.ndim :] if array.ndim else ()
    axes = tuple(axis for axis, size in enumerate(padded) if size == 1)
    found: Array = array.sum(axis=axes, keepdims=True, dtype=np.result_type(array, np.float64))
    return found.reshape(found.shape[lacking:])


def _numbers(tensor: TensorRef) -> Array | None:
    """Return the elements: of the tensor, or of a sketch that holds all of them."""
    sketch = tensor.meta.get("sketch")
    kept = sketch if tensor.missing and isinstance(sketch, TensorRef) else tensor
    return None if kept.missing or kept.count != tensor.count else kept.numpy().reshape(tensor.shape)


def _tensor(array: Array) -> TensorRef:
    dtype = from_numpy(array.dtype)
    assert dtype is not None  # it was read as numbers
    return TensorRef("", array.shape, dtype, MemoryData(np.ascontiguousarray(array)))
