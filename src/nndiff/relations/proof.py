"""What counts as proof: every element in tolerance, of tensors that could have disagreed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nndiff.dtypes import from_numpy
from nndiff.metrics import Metrics
from nndiff.relations.operations import widen
from nndiff.relations.relation import Array, Relation
from nndiff.stats import Job
from nndiff.stats.engine import get_engine
from nndiff.tensors import MemoryData, Shape, TensorRef
from nndiff.verdict import RelationKind

LARGEST_TENSOR = 1 << 24  # elements of one tensor: both sides are held in memory while ways are tried
LARGEST_MOVED = 1 << 26  # elements of a tensor that is only rearranged: 256 MB in float32, widened in blocks
SAMPLE_ROUNDING = 1e-12  # relative; the sample must not reject what the engine, which rounds otherwise, accepts
BLOCK = 1 << 18  # elements compared at once: little is held, and the first block out of tolerance ends it
SAMPLED = 128  # elements looked at before all are: nearly every wrong way ends there
TELLING_SHARE = 1e-3  # of the range of the elements: a tolerance so small tells one order of them from another
STATS_ROUNDING = 1e-9  # relative error that recorded statistics may have themselves


def read_array(tensor: TensorRef) -> Array:
    """Return the elements of a tensor in its shape: its own, or those of a sketch that kept all of them."""
    source = tensor.trace.sketch if tensor.missing and tensor.trace.sketch else tensor
    return np.asarray(source.numpy()).reshape(tensor.shape)


def is_readable(tensor: TensorRef, most: int = LARGEST_TENSOR) -> bool:
    """Return True if there are elements, not too many of them, and each can be read as a number."""
    if not 0 < tensor.count <= most or tensor.dtype.kind == "opaque":
        return False
    sketch = tensor.trace.sketch
    return not tensor.missing or (sketch is not None and sketch.count == tensor.count)


def are_too_large(*tensors: TensorRef) -> bool:
    """Return True if a tensor has too many elements to be held in memory while ways are tried."""
    return any(tensor.count > LARGEST_TENSOR for tensor in tensors)


def are_too_large_to_move(*tensors: TensorRef) -> bool:
    """Return True if a tensor has too many elements to be held in memory while it is rearranged."""
    return any(tensor.count > LARGEST_MOVED for tensor in tensors)


def measure_arrays(reference: Array, candidate: Array, atol: float, rtol: float) -> Metrics:
    """Return the numbers of two arrays of one shape."""
    exact = all(np.issubdtype(array.dtype, np.integer) or array.dtype == bool for array in (reference, candidate))
    job = Job(_as_tensor(reference), _as_tensor(candidate), atol, 0.0 if exact else rtol)
    return next(iter(get_engine().measure([job])))


def _as_tensor(array: Array) -> TensorRef:
    dtype = from_numpy(array.dtype)
    if dtype is None:
        raise ValueError(f"{array.dtype} is no type of numbers")
    storage = array.view(dtype.storage) if array.dtype == bool else array
    return TensorRef("", array.shape, dtype, MemoryData(storage))


def agree(reference: Array, candidate: Array, atol: float, rtol: float) -> bool:
    """Return True if two arrays have one shape and every element is in tolerance; NaN agrees with NaN."""
    if reference.shape != candidate.shape or not agree_in_sample(reference, candidate, atol, rtol):
        return False
    return not any(measure_arrays(*blocks, atol, rtol).mismatched for blocks in split_blocks(reference, candidate))


def split_blocks(reference: Array, candidate: Array) -> Iterator[tuple[Array, Array]]:
    """Yield two arrays of one shape in blocks, so that the first that disagrees ends a proof."""
    if reference.size <= BLOCK:
        yield reference, candidate
    elif reference.shape[0] == 1:
        yield from split_blocks(reference[0], candidate[0])
    else:
        half = reference.shape[0] // 2
        yield from split_blocks(reference[:half], candidate[:half])
        yield from split_blocks(reference[half:], candidate[half:])


def agree_in_sample(reference: Array, candidate: Array, atol: float, rtol: float) -> bool:
    """Return False if one of a few elements, scattered over two arrays of one shape, is out of tolerance."""
    if reference.size > SAMPLED:
        random = np.random.default_rng(0)
        places = tuple(random.integers(0, size, SAMPLED) for size in reference.shape)
        reference, candidate = reference[places], candidate[places]
    with np.errstate(all="ignore"):
        reference, candidate = widen(reference), widen(candidate)
        # NaN and inf fail both comparisons; whether they are at the same places is for the engine to tell
        gap, room = np.abs(candidate - reference), atol + rtol * np.abs(reference)
        return not bool(np.any(gap > room * (1 + SAMPLE_ROUNDING)))


def sample_places(shape: Shape) -> list[Array]:
    """Return a few places scattered over a shape, as one array of indices for each axis."""
    random = np.random.default_rng(0)
    return [random.integers(0, size, SAMPLED) for size in shape]


def read_places(tensor: TensorRef, places: Sequence[Array]) -> Array:
    """Return the elements of a tensor at some places; nothing else of it is read."""
    flat = np.ravel_multi_index(tuple(places), tensor.shape)
    return np.asarray(tensor.dtype.decode(tensor.take(flat.tolist())))


def agree_after(
    relation: Relation, reference: Sequence[Array], candidate: Sequence[Array], atol: float, rtol: float
) -> bool:
    """Return True if every element agrees once a relation is applied; False too where it does not fit the shapes."""
    try:
        sides = relation.apply(reference, candidate)
    except ValueError:
        return False
    return agree(*sides, atol, rtol)


def confirm_hint(
    kind: RelationKind, reference: TensorRef, candidate: TensorRef, hints: Sequence[Relation]
) -> Relation | None:
    """Return the hint of a kind after which two tensors are equal but for the last digits of float64; None if none."""
    chosen = [hint for hint in hints if hint.kind is kind]
    if not chosen or not is_readable(reference) or not is_readable(candidate):
        return None
    sides = [read_array(reference)], [read_array(candidate)]
    return next((hint for hint in chosen if agree_after(hint, *sides, 0.0, STATS_ROUNDING)), None)


def is_telling(array: Array, atol: float, rtol: float) -> bool:
    """Return True if some elements are out of tolerance of others: where none are, every order looks alike."""
    if array.size < 2:
        return False
    if np.issubdtype(array.dtype, np.integer):
        rtol = 0.0
    if np.iscomplexobj(array):
        return is_telling(array.real, atol, rtol) or is_telling(array.imag, atol, rtol)
    low, high = float(array.min()), float(array.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        return bool(np.isfinite(array).any())  # the places of what is not finite tell
    return high - low > 2 * (atol + rtol * max(abs(low), abs(high)))


def tighten_tolerance(array: Array, atol: float, rtol: float) -> tuple[float, float]:
    """Return a tolerance at which the elements tell one order from another, if there is one; else that given.

    What is proven at a smaller tolerance holds at the larger one too.
    """
    if np.iscomplexobj(array) or is_telling(array, atol, rtol) or not np.isfinite(array).all():
        return atol, rtol
    return shrink_tolerance(float(array.min()), float(array.max()), atol, rtol)


def shrink_tolerance(low: float, high: float, atol: float, rtol: float) -> tuple[float, float]:
    """Return a tolerance of a small share of the range that elements have; that given if they are all equal."""
    room = atol + rtol * max(abs(low), abs(high))
    share = TELLING_SHARE * (high - low) / room if high > low else 1.0
    return atol * share, rtol * share


def statistics_differ(reference: TensorRef, candidate: TensorRef, atol: float, rtol: float) -> bool:
    """Return True if recorded statistics show that no order of the elements can agree.

    If every element is in tolerance of its partner, then so are minimum, maximum and mean of all, at the tolerance
    of the largest.
    """
    reference_stats, candidate_stats = reference.trace.stats, candidate.trace.stats
    if reference_stats is None or candidate_stats is None:
        return False
    if reference_stats.nonfinite or candidate_stats.nonfinite:
        return reference_stats.nonfinite != candidate_stats.nonfinite
    gap = max(
        abs(reference_stats.min - candidate_stats.min),
        abs(reference_stats.max - candidate_stats.max),
        abs(reference_stats.mean - candidate_stats.mean),
    )
    return gap > atol + (rtol + STATS_ROUNDING) * reference_stats.abs_max
