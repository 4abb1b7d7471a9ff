"""Sketches: the C functions against NumPy, both against the written rule, estimates against the truth in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from nndiff.dtypes import DTYPES
from nndiff.recording.format import digests
from nndiff.recording.format.digests import RawTensor, measure_tensor
from nndiff.stats import sketches
from nndiff.stats.sketches import (
    LARGEST_WIDTH,
    SKETCH_PART,
    RawArray,
    SketchedTensors,
    allocate_widths,
    estimate_cosine,
    estimate_distance,
    fold_sketch,
    hash_rows,
    match_rows,
    relative_error,
    sketch_exact_row,
    sketch_tensors,
)

needs_native = pytest.mark.skipif(digests.native is None, reason="the extension was not built")
LEVELS = digests.native.levels() if digests.native is not None else ()


@contextmanager
def numpy_only() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "native", None)
        yield


@contextmanager
def native_level(level: str, threads: int) -> Iterator[None]:
    before = digests.native.level()
    digests.native.use(level)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sketches, "threads_for", lambda nbytes: threads)
        try:
            yield
        finally:
            digests.native.use(before)


def name_array(array: NDArray[Any], dtype: str) -> RawArray:
    """Name an array whose elements are the stored form of any dtype."""
    return RawArray(array.ctypes.data, array.size, dtype, array.shape)


def draw_elements(dtype: str, count: int, seed: int = 0) -> NDArray[Any]:
    """Return stored elements: ordinary numbers if the dtype has them, else any bytes."""
    rng = np.random.default_rng(seed)
    storage, numbers = DTYPES[dtype].storage, rng.standard_normal(count)
    if dtype == "bfloat16":
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if DTYPES[dtype].kind == "float" and storage.kind == "f":
        return numbers.astype(storage)
    if DTYPES[dtype].kind == "complex":
        return (numbers + 1j * rng.standard_normal(count)).astype(storage)
    return rng.integers(0, 256, count * storage.itemsize).astype(np.uint8).view(storage)


def sketch_one(array: NDArray[Any], width: int, seed: int = 0) -> NDArray[np.float32]:
    return sketch_tensors([RawArray.from_array(array)], [width], seed).sketches


def assert_same(ours: SketchedTensors, theirs: SketchedTensors) -> None:
    assert np.array_equal(ours.widths, theirs.widths)
    assert np.array_equal(ours.digests, theirs.digests)
    assert np.array_equal(ours.sketches, theirs.sketches, equal_nan=True)
    assert np.array_equal(ours.statistics[:, 3:], theirs.statistics[:, 3:], equal_nan=True)
    reach = np.nan_to_num(np.abs(theirs.statistics[:, 3:5]).max(axis=1, initial=0.0, keepdims=True))
    for column in range(3):
        allowed = 1e-13 * reach[:, 0] if column else 0.0
        close = np.isclose(ours.statistics[:, column], theirs.statistics[:, column], 1e-12, allowed, equal_nan=True)
        assert close.all(), (ours.statistics[~close], theirs.statistics[~close])


def check_twins(arrays: Sequence[tuple[NDArray[Any], str]], widths: Sequence[int], seed: int) -> SketchedTensors:
    """Return the result of NumPy; that of the extension has the same bits at any vector width and number of threads."""
    tensors = [name_array(array, dtype) for array, dtype in arrays]
    with numpy_only():
        expected = sketch_tensors(tensors, widths, seed)
    for level in LEVELS:
        for threads in (1, 2, 5):
            with native_level(level, threads):
                assert_same(sketch_tensors(tensors, widths, seed), expected)
    return expected


# --- the rule -------------------------------------------------------------------------------------------


def split_mix(seed: int, count: int) -> list[int]:
    """Return the first outputs of SplitMix64, as Java's SplittableRandom has them."""
    outputs, state, bits = [], seed, (1 << 64) - 1
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & bits
        word = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & bits
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & bits
        outputs.append(word ^ (word >> 31))
    return outputs


def sketch_by_the_rule(numbers: NDArray[Any], width: int, seed: int) -> NDArray[np.float64]:
    words = split_mix(seed, 2 * (len(numbers) // 64 + 1))
    sums = np.zeros(width)
    for i, number in enumerate(numbers.tolist()):
        group, run = i // 64, i // 16 % 4
        m = words[2 * group] >> (16 * run) & 0xFFFF
        minus = words[2 * group + 1] >> (16 * run + (i ^ m) % 16) & 1
        sums[(i ^ m) % width] += -number if minus else number
    return sums


def test_split_mix_is_the_known_generator() -> None:
    assert split_mix(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("width", [1, 8, 16, 128, 1024])
def test_sketches_follow_the_written_rule(width: int) -> None:
    numbers = np.random.default_rng(0).integers(-50, 50, 3000).astype(np.float32)  # whole: sums are exact in any order
    for seed in (0, 1, 2**64 - 1):
        expected = sketch_by_the_rule(numbers, width, seed)
        assert np.array_equal(sketch_one(numbers, width, seed), expected)
        with numpy_only():
            assert np.array_equal(sketch_one(numbers, width, seed), expected)


def test_half_of_a_width_is_the_sum_of_both_halves() -> None:
    numbers = np.random.default_rng(0).integers(-50, 50, 70_000).astype(np.float32)
    widest = sketch_one(numbers, LARGEST_WIDTH)
    for width in (1, 2, 16, 512, 32768):
        assert np.array_equal(fold_sketch(widest, width), sketch_one(numbers, width))
    stacked = np.stack([widest, 2 * widest])
    assert np.array_equal(fold_sketch(stacked, 64), np.stack([fold_sketch(widest, 64), fold_sketch(2 * widest, 64)]))


def test_the_sketch_of_a_difference_is_the_difference_of_the_sketches() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.integers(-50, 50, (2, 10_000)).astype(np.float32)
    difference = sketch_one(second - first, 256)
    assert np.array_equal(sketch_one(second, 256) - sketch_one(first, 256), difference)


# --- twins ----------------------------------------------------------------------------------------------


@needs_native
def test_twins_agree_around_the_ends_of_everything() -> None:
    part = SKETCH_PART
    counts = [
        0,
        1,
        15,
        16,
        17,
        63,
        64,
        65,
        255,
        256,
        257,
        511,
        513,
        2048,
        8193,
        65537,
        part - 1,
        part,
        part + 1,
        2 * part + 77,
    ]
    arrays = [(draw_elements("float32", count, count), "float32") for count in counts]
    check_twins(arrays, [64] * len(counts), seed=3)
    check_twins(arrays, [LARGEST_WIDTH] * len(counts), seed=4)


@needs_native
@pytest.mark.parametrize("dtype", [*DTYPES, "nobody_knows"])
def test_twins_agree_on_every_dtype(dtype: str) -> None:
    known = dtype if dtype in DTYPES else "uint8"
    arrays = [(draw_elements(known, count, count), dtype) for count in (1, 7, 1000, 9000, 70_001)]
    expected = check_twins(arrays, [64] * len(arrays), seed=1)
    if dtype not in DTYPES:
        assert expected.widths.tolist() == [0] * 5
        assert np.isnan(expected.statistics).all()


@needs_native
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_twins_agree_on_any_bits(data: st.DataObject) -> None:
    arrays, widths = [], []
    for _ in range(data.draw(st.integers(0, 4))):
        dtype = data.draw(st.sampled_from(sorted(DTYPES)))
        content = data.draw(st.binary(max_size=3000))
        itemsize = DTYPES[dtype].itemsize
        elements = np.frombuffer(content[: len(content) // itemsize * itemsize], DTYPES[dtype].storage)
        arrays.append((np.tile(elements, data.draw(st.sampled_from((1, 3, 100)))), dtype))
        widths.append(data.draw(st.integers(0, LARGEST_WIDTH) | st.integers(0, 200)))
    check_twins(arrays, widths, data.draw(st.integers(0, 2**64 - 1)))


@needs_native
def test_flushing_subnormals_elsewhere_changes_nothing() -> None:
    torch = pytest.importorskip("torch")
    numbers = np.full(100_000, 1e-40, np.float32)
    expected = sketch_tensors([RawArray.from_array(numbers)], [64])
    try:
        torch.set_flush_denormal(True)
        got = sketch_tensors([RawArray.from_array(numbers)], [64])
    finally:
        torch.set_flush_denormal(False)
    assert np.array_equal(got.sketches.view(np.uint32), expected.sketches.view(np.uint32))
    assert np.any(got.sketches.view(np.uint32) & 0x7FFFFFFF)
    assert np.array_equal(got.statistics, expected.statistics)


@needs_native
def test_what_is_no_tensor_is_refused() -> None:
    memory = np.zeros(64, np.float32)
    place, moments, rows = memory.ctypes.data, np.empty((1, 8)), np.empty(32, np.float32)
    impossible = [
        (place, 64, 99, 0, 0),
        (place, -1, 1, 0, 0),
        (place, 64, 1, 24, 0),
        (place, 64, 1, 32, 1),
        (place, 64, 1, 16, -1),
    ]
    for tensor in impossible:
        with pytest.raises(ValueError, match="no such elements"):
            digests.native.sketch(np.array([tensor]), 0, 1, bytearray(16), moments, rows)
    with pytest.raises(ValueError, match="buffer"):
        digests.native.sketch(np.array([(place, 64, 1, 32, 0)]), 0, 1, bytearray(15), moments, rows)
    with pytest.raises(ValueError, match="no such rows"):
        digests.native.hash_rows(b"1234", 3, 1)


# --- what a row holds -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_digests_are_those_of_recordings(dtype: str) -> None:
    elements = draw_elements(dtype, 300_000)
    result = sketch_tensors([name_array(elements, dtype)], [0])
    recorded = measure_tensor(RawTensor(elements, DTYPES[dtype], elements.shape))
    assert result.digests[0].tobytes() == bytes.fromhex(recorded.digest)[:16]
    assert recorded.stats is not None
    stats = recorded.stats
    expected = [stats.l2, stats.mean, stats.std, stats.min, stats.max, stats.nonfinite]
    assert np.allclose(result.statistics[0], expected, rtol=1e-12, equal_nan=True)
    assert result.sketches.size == 0


def test_digests_tell_dtypes_shapes_and_bits_apart() -> None:
    zeros = np.zeros(6, np.float32)
    views = [zeros, zeros.reshape(2, 3), zeros.reshape(3, 2), zeros.view(np.int32), -zeros, zeros.copy()]
    rows = sketch_tensors([RawArray.from_array(view) for view in views], [0] * 6).digests
    assert len({row.tobytes() for row in rows}) == 5
    assert rows[0].tobytes() == rows[5].tobytes()


def test_statistics_are_those_of_float64() -> None:
    rng = np.random.default_rng(0)
    numbers = (3 + rng.standard_normal(1_100_003)).astype(np.float32)
    numbers[[5, 70_000, 1_100_000]] = np.nan, np.inf, -np.inf
    finite = numbers[np.isfinite(numbers)].astype(np.float64)
    expected = [np.sqrt(np.square(finite).sum()), finite.mean(), finite.std(), finite.min(), finite.max(), 3]
    result = sketch_tensors([RawArray.from_array(numbers)], [1024])
    assert np.allclose(result.statistics[0], expected, rtol=1e-12)
    assert np.array_equal(result.sketches, sketch_one(np.nan_to_num(numbers, nan=0, posinf=0, neginf=0), 1024))


def test_small_tensors_are_kept_as_they_are() -> None:
    small = np.array([[1.5, np.nan], [np.inf, -2.0]], np.float64)
    scalar, empty = np.array(7, np.int64), np.zeros((0, 3), np.float32)
    result = sketch_tensors([RawArray.from_array(array) for array in (small, scalar, empty)], [5, 1, 8])
    assert result.widths.tolist() == [4, 1, 0]
    assert result.sketches.tolist() == [1.5, 0.0, 0.0, -2.0, 7.0]
    assert result.statistics[:, 5].tolist() == [2, 0, 0]
    assert result.statistics[2, 0] == 0
    assert np.isnan(result.statistics[2, 1:5]).all()
    nothing = sketch_tensors([], [])
    assert nothing.statistics.shape == (0, 6)
    assert nothing.digests.shape == (0, 16)


def test_a_width_that_does_not_fit_is_rounded_down_or_refused() -> None:
    zeros = np.zeros(1000, np.float32)
    numbers = RawArray.from_array(zeros)
    assert sketch_tensors([numbers] * 3, [999, 1000, 3]).widths.tolist() == [512, 1000, 2]
    with pytest.raises(ValueError, match="0 to 65536, got -1"):
        sketch_tensors([numbers], [-1])
    with pytest.raises(ValueError, match="got 65537 to 65537"):
        sketch_tensors([numbers], [65537])
    with pytest.raises(ValueError, match="2 widths for 1 tensors"):
        sketch_tensors([numbers], [1, 2])
    with pytest.raises(ValueError, match="expected a contiguous array"):
        RawArray.from_array(np.zeros((4, 4))[:, 1])
    with pytest.raises(ValueError, match="known dtype"):
        RawArray.from_array(np.zeros(4, "U3"))


def test_squares_beyond_float64_leave_the_sketch_as_it_is() -> None:
    huge = np.full(100, 1e200)
    result = (
        check_twins([(huge, "float64")], [16], seed=0) if LEVELS else sketch_tensors([RawArray.from_array(huge)], [16])
    )
    assert result.statistics[0, 4] == 1e200
    assert np.isinf(result.sketches).any()  # float32 ends before


# --- estimates ------------------------------------------------------------------------------------------

WIDTH, COUNT, SEEDS = 64, 1 << 16, 400


def make_patterns() -> dict[str, NDArray[np.float32]]:
    """Return differences of one squared norm each, in a matrix of 256 by 256."""
    rng = np.random.default_rng(5)
    patterns = {
        name: np.zeros((256, 256), np.float32) for name in ("row", "column", "every 4096th", "neighbours", "diagonal")
    }
    patterns["row"][7] = rng.standard_normal(256)
    patterns["column"][:, 13] = rng.standard_normal(256)  # its stride is a multiple of the width
    patterns["every 4096th"].reshape(-1)[5::4096] = 1
    patterns["neighbours"].reshape(-1)[1000:1016] = 1
    np.fill_diagonal(patterns["diagonal"], 1)
    patterns["everywhere"] = rng.standard_normal((256, 256)).astype(np.float32)
    patterns["constant"] = np.ones((256, 256), np.float32)
    patterns["sixteenth"] = np.zeros((256, 256), np.float32)
    patterns["sixteenth"].reshape(-1)[3::16] = 1  # one element of each run
    return patterns


def measure_spread(sketched_squares: NDArray[np.float64], square: float) -> tuple[float, float]:
    """Return how far estimates of a square are off on average, and their spread, in parts of what is promised."""
    promised = math.sqrt(2 / WIDTH)
    ratios = sketched_squares / square
    return float(ratios.mean() - 1) / (promised / math.sqrt(len(ratios))), float(ratios.std()) / promised


@pytest.mark.parametrize("name", make_patterns())
def test_estimates_have_no_bias_and_the_promised_spread(name: str) -> None:
    pattern = make_patterns()[name]
    squares = np.array([np.square(sketch_one(pattern, WIDTH, seed).astype(np.float64)).sum() for seed in range(SEEDS)])
    bias, spread = measure_spread(squares, float(np.square(pattern.astype(np.float64)).sum()))
    assert abs(bias) < 4
    assert spread < 1.25


def test_the_check_of_the_spread_can_fail() -> None:
    column = make_patterns()["column"][:, 13]
    signs = np.random.default_rng(0).choice([-1, 1], (SEEDS, column.size))
    squares = np.square((signs * column).sum(axis=1))  # without m, the column is one bucket
    assert measure_spread(squares, float(np.square(column).sum()))[1] > 4


def test_one_element_has_no_error() -> None:
    pattern = np.zeros(COUNT, np.float32)
    pattern[4242] = -3
    for seed in range(20):
        assert np.linalg.norm(sketch_one(pattern, WIDTH, seed)) == 3


def test_the_relative_error_is_that_of_the_norm() -> None:
    rng = np.random.default_rng(0)
    difference = rng.standard_normal(COUNT).astype(np.float32)
    first = rng.standard_normal(COUNT).astype(np.float32)
    second = first + difference
    truth = float(np.linalg.norm((second - first).astype(np.float64)))
    for width in (16, 1024):
        ratios = []
        for seed in range(SEEDS):
            rows = sketch_one(first, width, seed), sketch_one(second, width, seed)
            ratios.append(estimate_distance(*rows, COUNT, seed) / truth)
        assert np.std(ratios) == pytest.approx(relative_error(width), rel=0.15)


def test_rows_of_any_two_widths_can_be_compared() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.integers(-50, 50, (2, 1000)).astype(np.float32)
    truth = float(np.linalg.norm(second.astype(np.float64) - first))
    exact_first, exact_second = sketch_one(first, 1000, 9), sketch_one(second, 1000, 9)
    assert estimate_distance(exact_first, exact_second, 1000, 9) == pytest.approx(truth, rel=1e-12)
    narrow = sketch_one(second, 64, 9)
    assert np.array_equal(sketch_exact_row(exact_second, 64, 9), narrow)
    for row in (exact_first, sketch_one(first, 512, 9), sketch_one(first, 64, 9)):
        matched = match_rows(row, narrow, 1000, 9)
        assert np.array_equal(matched[0], sketch_one(first, 64, 9))
        assert np.array_equal(matched[1], narrow)
    assert math.isnan(estimate_distance(np.empty(0, np.float32), narrow, 1000))
    assert estimate_distance(np.empty(0, np.float32), np.empty(0, np.float32), 0) == 0


def test_the_cosine_follows_from_norms_and_distance() -> None:
    first, second = np.random.default_rng(0).standard_normal((2, 1000))
    norms = float(np.linalg.norm(first)), float(np.linalg.norm(second))
    cosine = float(first @ second) / (norms[0] * norms[1])
    assert estimate_cosine(*norms, float(np.linalg.norm(second - first))) == pytest.approx(cosine, abs=1e-12)
    assert estimate_cosine(1.0, 1.0, 2.1) == -1
    assert math.isnan(estimate_cosine(0.0, 1.0, 1.0))


# --- widths ---------------------------------------------------------------------------------------------


def count_resnet50() -> list[int]:
    """Return the sizes of the 161 parameters of torchvision's ResNet-50."""
    counts, channels = [64 * 3 * 49, 64, 64], 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            counts += [
                channels * width,
                width,
                width,
                width * width * 9,
                width,
                width,
                width * width * 4,
                4 * width,
                4 * width,
            ]
            counts += [channels * 4 * width, 4 * width, 4 * width] if block == 0 else []
            channels = 4 * width
    return [*counts, 2048 * 1000, 1000]


def predict_group_error(counts: Sequence[int], widths: Sequence[int], squares: Sequence[float]) -> float:
    """Return two standard deviations of the L2 of a group, given the squared distance of each tensor."""
    variance = 0.0
    for count, width, square in zip(counts, widths, squares, strict=True):
        if width < count:
            variance += (2 * relative_error(width) * square) ** 2
    return 2 * math.sqrt(variance) / (2 * sum(squares))


def test_widths_of_resnet50_give_the_promised_errors() -> None:
    counts = count_resnet50()
    assert (len(counts), sum(counts)) == (161, 25_557_032)
    widths = allocate_widths(counts, 65_536)
    assert sum(widths) <= 65_536
    assert predict_group_error(counts, widths, [float(count) for count in counts]) < 0.01
    largest = [float(count == max(counts)) for count in counts]
    assert predict_group_error(counts, widths, largest) < 0.025
    for concentrated in (index for index, count in enumerate(counts) if count == max(counts)):
        squares = [float(index == concentrated) for index in range(len(counts))]
        assert predict_group_error(counts, widths, squares) < 0.025
    biases = [width for count, width in zip(counts, widths, strict=True) if count == 2048]
    assert min(biases) >= 32


def test_measured_errors_of_a_group_are_the_predicted_ones() -> None:
    counts = [1000, 40, 30_000, 100_000]
    widths = allocate_widths(counts, 1024)
    rng = np.random.default_rng(0)
    tensors = [rng.standard_normal(count).astype(np.float32) for count in counts]
    truth = math.sqrt(sum(float(np.square(tensor.astype(np.float64)).sum()) for tensor in tensors))
    raws = [RawArray.from_array(tensor) for tensor in tensors]
    ratios = [
        np.linalg.norm(sketch_tensors(raws, widths, seed).sketches.astype(np.float64)) / truth for seed in range(300)
    ]
    predicted = predict_group_error(counts, widths, [float(count) for count in counts])
    assert 2 * np.std(ratios) == pytest.approx(predicted, rel=0.2)


@given(st.lists(st.integers(0, 10**7), max_size=40), st.integers(0, 10**6))
def test_widths_keep_to_the_budget(counts: list[int], budget: int) -> None:
    widths = allocate_widths(counts, budget)
    least = sum(min(count, 16) for count in counts)
    assert sum(widths) <= max(budget, least)
    for count, width in zip(counts, widths, strict=True):
        assert min(count, 16) <= width <= min(count, LARGEST_WIDTH)
        assert width == count or width & (width - 1) == 0
    assert widths == allocate_widths(counts, budget)
    if budget >= sum(counts) and max(counts, default=0) <= LARGEST_WIDTH:
        assert widths == counts


# --- rows of a batch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 8, 240, 241, 255, 256, 257, 1024, 1025, 150_528, 600_000])
def test_hashes_of_rows_are_those_of_the_library(size: int) -> None:
    rows = np.random.default_rng(size).integers(0, 256, (7, size), dtype=np.uint8)
    expected = [xxhash.xxh3_64_intdigest(row.tobytes().ljust(256, b"\0")) for row in rows]
    assert hash_rows(rows.tobytes(), 7).tolist() == expected
    with numpy_only():
        assert hash_rows(rows.tobytes(), 7).tolist() == expected
    for level in LEVELS:
        for threads in (1, 3):
            with native_level(level, threads):
                assert hash_rows(rows, 7).tolist() == expected


def test_rows_that_cannot_be_are_refused() -> None:
    assert hash_rows(b"", 0).tolist() == []
    for rows in (0, 3, -1):
        with pytest.raises(ValueError, match="4 bytes do not make"):
            hash_rows(b"1234", rows)
    batch = np.zeros((4, 3, 2), np.float32)
    batch[2, 1, 1] = 1
    assert [int(count) for count in np.unique(hash_rows(batch, 4), return_counts=True)[1]] in ([3, 1], [1, 3])
