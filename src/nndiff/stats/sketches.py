"""Statistics, digests and linear sketches of many tensors in one pass, from which distances are estimated later.

The sketch of a difference is the difference of the sketches, so the L2 distance of two tensors follows from two short
rows of numbers. The width k is a power of two, the seed s a 64-bit number; elements are in C order and count from zero.
Each run of 16 elements has a 16-bit number m. Element i is added to bucket (i XOR m) mod k, with a sign. Elements 64g
to 64g + 63 are a group that takes outputs 2g and 2g + 1 of the generator SplitMix64 with seed s. The first is the m of
its four runs, lowest bits first. The second is 16 signs for each run, lowest bits first, 1 for minus; the sign of an
element is number (i XOR m) mod 16 of them.

This rule has three consequences. Width k / 2 is the first half of width k plus the second half. Two elements of one run
never share a bucket if k >= 16, and any two others do with probability 1 / k. So the squared norm of a sketch is that
of the tensor on average, with a relative standard deviation of at most sqrt(2 / k), wherever the elements are.

Sums are float64, in order, over parts of 524,288 elements that are then added in order; a row is float32. Widths below
16 are folded from 16. A tensor of no more than k numbers is kept as it is instead: its row has as many numbers as the
tensor. NaN and infinities count as 0. A complex number counts as two numbers, real part first.
"""

from __future__ import annotations

import ctypes
import hashlib
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DTYPES, DType, find_dtype, from_numpy
from nndiff.recording.format import digests
from nndiff.recording.format.digests import NATIVE_CODES, RawTensor, digest_header, measure_tensor, threads_for
from nndiff.recording.format.hashes import PART, hash_equal_parts

LARGEST_WIDTH = 1 << 16
SMALLEST_WIDTH = 16  # that allocate_widths gives to a tensor which has more elements
SKETCH_PART = 1 << 19  # elements that are summed before parts are added; fixed, or last bits would change
STATISTICS = ("l2", "mean", "std", "min", "max", "nonfinite")  # columns

_RUN = 16  # elements with one m
_GROUP = 64  # elements with one word of signs
_GOLDEN, _FIRST_FACTOR, _SECOND_FACTOR = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_ALL_BITS = (1 << 64) - 1
_WIDTH_EXPONENT = 0.6  # widths grow as count**0.6: 0.5 leaves a large convolution with 3 % error, 1 a bias with nothing
_DIGEST_SIZE = 16  # bytes; also of the hash of a part
_NUMBERS_PER_ELEMENT = {name: 2 if dtype.kind == "complex" else 1 for name, dtype in DTYPES.items()}
_ITEM_SIZES = np.array([DTYPES[name].itemsize for name in NATIVE_CODES if name != "bool"])  # by code
_ROWS_AT_ONCE = 1 << 22  # bytes that hash_rows takes at once without the C extension


class RawArray(NamedTuple):
    """Name a contiguous tensor in memory; whoever makes one keeps the tensor alive."""

    address: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which has no use here
    dtype: str  # a name in dtypes.DTYPES; elements of any other are single bytes without statistics or sketch
    shape: tuple[int, ...]

    @classmethod
    def from_array(cls, array: NDArray[Any]) -> RawArray:
        """Return where the elements of a contiguous NumPy array are."""
        dtype = from_numpy(array.dtype)
        if dtype is None or not array.flags.c_contiguous or not array.dtype.isnative:
            raise ValueError(f"expected a contiguous array of a known dtype, got {array.dtype} {array.strides}")
        return cls(array.ctypes.data, array.size, dtype.name, array.shape)

    def view_elements(self) -> NDArray[Any]:
        """Return the elements as they are stored, flat and not copied."""
        storage = find_dtype(self.dtype).storage
        if self.count == 0:
            return np.empty(0, storage)
        block = (ctypes.c_uint8 * (self.count * storage.itemsize)).from_address(self.address)
        return np.frombuffer(memoryview(block).cast("B"), storage)


@dataclass(frozen=True)
class SketchedTensors:
    """Hold what one pass over many tensors tells, in the order they were given."""

    statistics: NDArray[np.float64]  # (n, 6): STATISTICS, over finite elements
    digests: NDArray[np.uint8]  # (n, 16): the first half of the SHA-256 digest that a recording has of the same tensor
    sketches: NDArray[np.float32]  # all rows one after the other
    widths: NDArray[np.int64]  # numbers in each row; 0 if none was asked for


def sketch_tensors(tensors: Sequence[RawArray], widths: Sequence[int], seed: int = 0) -> SketchedTensors:
    """Return statistics, digests and sketches of tensors.

    Tensors of the same dtype, shape and bits have equal digests; others do not, but for a chance of 2**-128. A width
    that is no power of two is rounded down to one, unless it holds the whole tensor.
    """
    counts = np.array([raw.count for raw in tensors], np.int64)
    numbers = counts * np.array([_NUMBERS_PER_ELEMENT.get(raw.dtype, 0) for raw in tensors], np.int64)
    row_widths = _fit_widths(numbers, np.array(widths, np.int64))
    row_ends = np.cumsum(row_widths)
    result = SketchedTensors(
        np.empty((len(tensors), len(STATISTICS))),
        np.empty((len(tensors), _DIGEST_SIZE), np.uint8),
        np.empty(int(row_widths.sum()), np.float32),
        row_widths,
    )
    for_numpy = list(range(len(tensors)))
    if digests.native is not None:
        for_numpy = _sketch_with_native(tensors, counts, row_ends - row_widths, seed, result)
    for index in for_numpy:
        row = result.sketches[row_ends[index] - row_widths[index] : row_ends[index]]
        _sketch_with_numpy(tensors[index], seed, result.statistics[index], result.digests[index], row)
    return result


def _fit_widths(numbers: NDArray[np.int64], widths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the widths of rows: all numbers of a tensor if they fit, else a power of two."""
    if numbers.shape != widths.shape:
        raise ValueError(f"got {widths.size} widths for {numbers.size} tensors")
    if np.any((widths < 0) | (widths > LARGEST_WIDTH)):
        raise ValueError(f"the width of a sketch is 0 to {LARGEST_WIDTH}, got {widths.min()} to {widths.max()}")
    powers = np.left_shift(1, np.frexp(widths)[1].astype(np.int64)) >> 1
    return np.where(numbers <= widths, numbers, powers)


def _sketch_with_native(
    tensors: Sequence[RawArray],
    counts: NDArray[np.int64],
    row_starts: NDArray[np.int64],
    seed: int,
    result: SketchedTensors,
) -> list[int]:
    """Fill the rows of all tensors that the C extension can read; return the indices of the others."""
    packed = np.empty((len(tensors), 5), np.int64)
    packed[:, 0] = [raw.address for raw in tensors]
    packed[:, 1] = counts
    packed[:, 2] = [NATIVE_CODES.get(raw.dtype, -1) for raw in tensors]
    packed[:, 3] = result.widths
    packed[:, 4] = row_starts
    unknown = packed[:, 2] < 0
    packed[unknown, 1:4] = 0
    sizes = packed[:, 1] * _ITEM_SIZES[packed[:, 2]]
    part_ends = np.cumsum(-(-sizes // PART))
    hashes = bytearray(int(part_ends[-1]) * _DIGEST_SIZE if len(tensors) else 0)
    moments = np.empty((len(tensors), 8))
    digests.native.sketch(packed, seed & _ALL_BITS, threads_for(int(sizes.sum())), hashes, moments, result.sketches)
    finite, nonfinite, mean, centred, squares, low, high, overflow = moments.T
    with np.errstate(invalid="ignore", divide="ignore"):
        std = np.sqrt(np.maximum(centred, 0.0) / finite)
    result.statistics[:] = np.stack((np.sqrt(squares), mean, std, low, high, nonfinite), axis=1)
    result.statistics[finite == 0, 1:5] = np.nan
    _fill_digests(tensors, bytes(hashes), part_ends.tolist(), result.digests)
    return [int(index) for index in np.flatnonzero(unknown | (overflow != 0))]


def _fill_digests(tensors: Sequence[RawArray], hashes: bytes, part_ends: list[int], table: NDArray[np.uint8]) -> None:
    rows, start = [], 0
    for raw, part_end in zip(tensors, part_ends, strict=True):
        stop = part_end * _DIGEST_SIZE
        rows.append(hashlib.sha256(_cached_header(raw.dtype, raw.shape) + hashes[start:stop]).digest()[:_DIGEST_SIZE])
        start = stop
    table.reshape(-1)[:] = np.frombuffer(b"".join(rows), np.uint8)


@lru_cache(maxsize=1 << 14)
def _cached_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    return digest_header(dtype, shape)


def _sketch_with_numpy(
    raw: RawArray,
    seed: int,
    statistics: NDArray[np.float64],
    digest: NDArray[np.uint8],
    row: NDArray[np.float32],
) -> None:
    """Fill the rows of one tensor."""
    dtype = find_dtype(raw.dtype)
    elements = raw.view_elements()
    measured = measure_tensor(RawTensor(elements, dtype, raw.shape))
    digest[:] = np.frombuffer(bytes.fromhex(measured.digest)[:_DIGEST_SIZE], np.uint8)
    statistics[:] = np.nan
    if measured.stats is not None:
        stats = measured.stats
        statistics[:] = stats.l2, stats.mean, stats.std, stats.min, stats.max, stats.nonfinite
    if row.size == 0:
        return
    with np.errstate(all="ignore"):
        if row.size == raw.count * _NUMBERS_PER_ELEMENT[raw.dtype]:
            row[:] = _read_numbers(dtype.decode(elements))
        else:
            row[:] = _sketch_elements(elements, dtype, row.size, seed)


def _sketch_elements(elements: NDArray[Any], dtype: DType, width: int, seed: int) -> NDArray[np.float64]:
    per_element = 2 if dtype.kind == "complex" else 1
    sums = np.zeros(max(width, _RUN))
    for start in range(0, elements.size, SKETCH_PART // per_element):
        numbers = _read_numbers(dtype.decode(elements[start : start + SKETCH_PART // per_element]))
        sums += _sum_buckets(numbers, start * per_element, sums.size, seed)
    return fold_sketch(sums, width)


def _read_numbers(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return values as float64, a complex one as two; 0 for what is not finite."""
    if values.dtype.kind == "c":
        values = values.view(values.real.dtype)
    numbers = values.astype(np.float64)
    numbers[~np.isfinite(numbers)] = 0
    return numbers


def _sum_buckets(numbers: NDArray[np.float64], first: int, width: int, seed: int) -> NDArray[np.float64]:
    """Return the sum in each bucket; `first` is the place of the first number, a multiple of a group."""
    words = _draw_words(seed, 2 * (first // _GROUP), 2 * -(-numbers.size // _GROUP)).reshape(-1, 2)
    masks = np.ascontiguousarray(words[:, 0]).astype("<u8").view("<u2").astype(np.int64)
    signs = np.unpackbits(np.ascontiguousarray(words[:, 1]).astype("<u8").view(np.uint8), bitorder="little")
    places = np.arange(first, first + numbers.size) ^ np.repeat(masks, _RUN)[: numbers.size]
    run_starts = np.arange(numbers.size) & -_RUN
    negative = signs[run_starts + (places & (_RUN - 1))]
    return np.bincount(places & (width - 1), np.where(negative, -numbers, numbers), width).astype(
        np.float64, copy=False
    )


def _draw_words(seed: int, first: int, count: int) -> NDArray[np.uint64]:
    """Return outputs of SplitMix64 from the one numbered `first` on, counting from zero."""
    start = np.array([(seed + (first + 1) * _GOLDEN) & _ALL_BITS], np.uint64)  # arrays wrap around, scalars warn
    words: NDArray[np.uint64] = start + np.arange(count, dtype=np.uint64) * np.uint64(_GOLDEN)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST_FACTOR)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND_FACTOR)
    words ^= words >> np.uint64(31)
    return words


def hash_rows(array_bytes: Any, rows: int) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each row of a contiguous buffer: XXH3 of its bytes, padded with zeros to 256.

    Only hashes of rows of equal length can be compared.
    """
    data = np.frombuffer(array_bytes, np.uint8) if memoryview(array_bytes).nbytes else np.empty(0, np.uint8)
    if rows < 0 or (rows == 0 and data.size) or (rows and data.size % rows):
        raise ValueError(f"{data.size} bytes do not make {rows} rows of equal length")
    if digests.native is not None:
        native_hashes: bytes = digests.native.hash_rows(data, rows, threads_for(data.size))
        return np.frombuffer(native_hashes, np.uint64)
    hashes = np.empty(rows, np.uint64)
    if rows == 0:
        return hashes
    table = data.reshape(rows, -1)
    at_once = max(1, _ROWS_AT_ONCE // max(table.shape[1], 1))
    for first in range(0, rows, at_once):
        both_halves = np.frombuffer(hash_equal_parts(table[first : first + at_once]), "<u8")
        hashes[first : first + at_once] = both_halves[::2]
    return hashes


def fold_sketch(sketches: NDArray[Any], width: int) -> NDArray[np.float64]:
    """Return sketches (along the last axis) at a smaller width, a power of two."""
    folded: NDArray[np.float64] = sketches.astype(np.float64)
    while folded.shape[-1] > width:
        half = folded.shape[-1] // 2
        folded = folded[..., :half] + folded[..., half:]
    return folded


def sketch_exact_row(row: NDArray[np.float32], width: int, seed: int = 0) -> NDArray[np.float64]:
    """Return the sketch of a tensor that was kept as it is, to compare it with a sketch."""
    return _sketch_elements(row, DTYPES["float32"], width, seed)


def match_rows(
    first: NDArray[np.float32], second: NDArray[np.float32], count: int, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return two rows of tensors of `count` numbers at one width, the larger one that both can have."""
    if first.size == second.size:
        return first.astype(np.float64), second.astype(np.float64)
    width = min(first.size, second.size)
    matched = []
    for row in (first, second):
        matched.append(sketch_exact_row(row, width, seed) if row.size == count else fold_sketch(row, width))
    return matched[0], matched[1]


def estimate_distance(first: NDArray[np.float32], second: NDArray[np.float32], count: int, seed: int = 0) -> float:
    """Return the estimated L2 distance of two tensors of `count` numbers from their rows; exact if both rows are."""
    if min(first.size, second.size) == 0 < count:
        return math.nan  # no sketch was asked for
    one, two = match_rows(first, second, count, seed)
    return math.sqrt(float(np.square(two - one).sum()))


def estimate_cosine(first_l2: float, second_l2: float, distance: float) -> float:
    """Return the cosine that exact norms and an estimated distance imply; NaN if a norm is 0."""
    if first_l2 == 0 or second_l2 == 0:
        return math.nan
    ratio = first_l2 / second_l2
    return min(1.0, max(-1.0, (ratio + 1 / ratio - distance / first_l2 * (distance / second_l2)) / 2))


def relative_error(width: int) -> float:
    """Return one standard deviation of an L2 estimated at this width, as a share of it: sqrt(1 / (2 k)).

    It is the largest over all patterns of differences; two tensors that differ in one element have no error.
    """
    return math.sqrt(0.5 / width)


def allocate_widths(counts: Sequence[int], budget: int) -> list[int]:
    """Return widths for tensors of so many elements: powers of two, or all elements, of about `budget` numbers in all.

    Every tensor has at least 16 numbers, or all of its elements, even if that exceeds the budget.
    """
    widths = [min(count, SMALLEST_WIDTH) for count in counts]
    room = budget - sum(widths)
    needs = []  # the tensor that is short of most comes first, and of two alike the earlier one
    for index, count in enumerate(counts):
        if count > widths[index]:
            needs.append((-(count**_WIDTH_EXPONENT) / widths[index], index))
    heapq.heapify(needs)
    while needs:
        _, index = heapq.heappop(needs)
        count, width = counts[index], widths[index]
        wider = min(2 * width, count, LARGEST_WIDTH)
        if wider == width or wider - width > room:
            continue
        room -= wider - width
        widths[index] = wider
        if wider < count:
            heapq.heappush(needs, (-(count**_WIDTH_EXPONENT) / wider, index))
    return widths
