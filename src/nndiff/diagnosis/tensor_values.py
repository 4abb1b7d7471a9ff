"""Elements of recorded tensors as far as they were kept: sketches, and whether two tensors agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.recording.format.keep_levels import sketch_positions
from nndiff.stats import Job, get_engine
from nndiff.tensors import LateData, MemoryData, Site, Slot, TensorRef, Trace

# Statistics are rounded themselves: they prove a difference only beyond these shares of their size.
_STATS_ERROR, _GAP_ERROR = 1e-12, 1e-9


def get_sketch(tensor: TensorRef) -> TensorRef | None:
    """Return the sketch that was kept of a tensor, or the one that would have been kept of it."""
    if tensor.trace.sketch is not None or tensor.missing:
        return tensor.trace.sketch
    places = sketch_positions(tensor.count)
    if places.size == tensor.count:
        return tensor
    taken = LateData(lambda: MemoryData(tensor.take(places.tolist())))
    return replace(tensor, shape=(places.size,), data=taken, storage_id=None, site=Site("", Slot.STORED), trace=Trace())


def read_wide(tensor: TensorRef) -> NDArray[Any]:
    """Return the elements in double precision."""
    numbers = tensor.numpy()
    return numbers.astype(np.complex128 if np.iscomplexobj(numbers) else np.float64)


def tensors_agree(reference: TensorRef, candidate: TensorRef, atol: float, rtol: float) -> bool | None:
    """Return whether two tensors are within a tolerance; None where what was kept does not tell."""
    if reference.shape != candidate.shape:
        # the same elements may have another layout
        return None if reference.count == candidate.count else False
    digest = reference.trace.digest
    if digest is not None and digest == candidate.trace.digest and reference.dtype == candidate.dtype:
        return True
    if not (reference.missing or candidate.missing):
        return _measure_agreement(reference, candidate, atol, rtol)
    if _statistics_differ(reference, candidate, atol, rtol):
        return False
    sketches = get_sketch(reference), get_sketch(candidate)
    if sketches[0] is None or sketches[1] is None or sketches[0].shape != sketches[1].shape:
        return None
    if bool(np.array_equal(sketches[0].numpy(), sketches[1].numpy(), equal_nan=not reference.dtype.exact)):
        # the digests differ: what differs are elements that were not kept, by an unknown amount
        return True if sketches[0].count == reference.count else None
    return _measure_agreement(sketches[0], sketches[1], atol, rtol)


def _measure_agreement(reference: TensorRef, candidate: TensorRef, atol: float, rtol: float) -> bool:
    metrics = next(iter(get_engine().measure([Job(reference, candidate, atol, rtol)])))
    return not (metrics.mismatched or metrics.nonfinite_unequal)


def _statistics_differ(reference: TensorRef, candidate: TensorRef, atol: float, rtol: float) -> bool:
    """Return True if the statistics alone prove that an element is out of tolerance.

    If every |c - r| is within atol + rtol * |r|, then minimum, maximum and mean are within
    atol + rtol * max |r| of each other too.
    """
    ours, theirs = reference.trace.stats, candidate.trace.stats
    if not (ours and theirs):
        return False
    if ours.nonfinite or theirs.nonfinite:
        return ours.nonfinite != theirs.nonfinite
    gap = max(abs(ours.min - theirs.min), abs(ours.max - theirs.max), abs(ours.mean - theirs.mean))
    return (gap - _STATS_ERROR * ours.abs_max) / (1 + _GAP_ERROR) > atol + rtol * ours.abs_max
