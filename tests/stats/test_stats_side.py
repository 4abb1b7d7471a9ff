"""One tensor alone: the functions in C against NumPy, and both against the hash of its own library."""

from __future__ import annotations

import hashlib
import math
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from nndiff.dtypes import DTYPES, DType, opaque
from nndiff.recording.format import digests
from nndiff.recording.format.digests import Measurement, RawTensor, digest_header, measure_tensor
from nndiff.recording.format.hashes import PART, hash_parts
from nndiff.tensors import Stats

_native = pytest.importorskip("nndiff.stats._native")

SIZES = (
    *(0, 1, 240, 241, 255, 256, 257, 319, 320, 1023, 1024, 1025, 1088, 2048, 8191, 8192, 8193),
    *(PART - 1, PART, PART + 1, 2 * PART, 2 * PART + 64, 5 * PART + 7, 17 * PART + 1024),
)


def documented(data: NDArray[np.uint8]) -> bytes:
    """Return the hashes of the parts as docs/recording-format.md has them."""
    parts = (data[start : start + PART].tobytes().ljust(256, b"\0") for start in range(0, data.size, PART))
    return b"".join(xxhash.xxh3_128_intdigest(part).to_bytes(16, "little") for part in parts)


def drawn(dtype: DType, count: int, seed: int = 0) -> RawTensor:
    """Return elements of any type, ordinary numbers where it has them."""
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal(count) * 3
    if dtype.name == "bfloat16":
        flat: NDArray[Any] = (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    elif dtype.kind == "float" and dtype.storage.kind == "u":
        flat = rng.integers(0, 256, count).astype(np.uint8)
    elif dtype.kind == "complex":
        flat = (numbers + 1j * rng.standard_normal(count)).astype(dtype.storage)
    elif dtype.kind == "bool":
        flat = rng.integers(0, 2, count).astype(np.uint8)
    elif dtype.kind == "float":
        flat = numbers.astype(dtype.storage)
    else:
        flat = rng.integers(0, 256, count * dtype.itemsize).astype(np.uint8).view(dtype.storage)
    return RawTensor(flat, dtype, (count,))


def plainly(raw: RawTensor, with_stats: bool = True) -> Measurement:
    """Measure without the functions in C."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "native", None)
        return measure_tensor(raw, with_stats)


def agree(one: Stats | None, other: Stats | None) -> None:
    assert (one is None) == (other is None)
    if one is None or other is None:
        return
    assert (one.count, one.nonfinite) == (other.count, other.nonfinite)
    for name in ("min", "max", "abs_max"):
        assert np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True), name
    reach = one.abs_max if math.isfinite(one.abs_max) else 0.0
    for a, b in zip(astuple(one)[2:], astuple(other)[2:], strict=True):
        assert np.isclose(a, b, rtol=1e-12, atol=1e-13 * reach, equal_nan=True), (one, other)


def check_both_ways(raw: RawTensor) -> Measurement:
    ours, plain = measure_tensor(raw), plainly(raw)
    assert ours.digest == plain.digest
    agree(ours.stats, plain.stats)
    return ours


@pytest.mark.parametrize("level", _native.levels())
@pytest.mark.parametrize("size", SIZES)
def test_hashes_of_every_length_are_those_of_the_library(size: int, level: str) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    expected, before = documented(data), _native.level()
    _native.use(level)
    try:
        for threads in (1, 2, 100):
            assert _native.measure(data, -1, threads) == (expected, None)
            assert _native.hashes(data.ctypes.data if size else 0, size, threads) == expected
    finally:
        _native.use(before)


@pytest.mark.parametrize("size", SIZES)
def test_digests_are_the_documented_ones_with_and_without_the_extension(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert hash_parts(data) == documented(data)
    expected = hashlib.sha256(digest_header("uint8", (size,)) + documented(data)).hexdigest()
    raw = RawTensor(data, DTYPES["uint8"], (size,))
    assert measure_tensor(raw).digest == expected == plainly(raw).digest


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_agrees_around_the_ends_of_parts(name: str) -> None:
    dtype = DTYPES[name]
    per_part = PART // dtype.itemsize
    for count in (0, 1, 7, 2047, 2048, 2049, per_part - 1, per_part, per_part + 1, 3 * per_part + 5):
        check_both_ways(drawn(dtype, count, count))


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_counted_and_left_out(name: str, bad: float) -> None:
    raw = drawn(DTYPES[name], 70000)
    code = int(np.float32(bad).view(np.uint32) >> 16) if name == "bfloat16" else bad
    raw.flat[[0, 2047, 2048, 65536, 69999]] = code
    stats = check_both_ways(raw).stats
    assert stats is not None
    assert stats.nonfinite == 5
    raw.flat[:] = code
    stats = check_both_ways(raw).stats
    assert stats is not None
    assert (stats.nonfinite, stats.l2) == (70000, 0.0)
    assert math.isnan(stats.mean)


def test_numbers_close_together_far_from_zero_keep_their_spread() -> None:
    flat = 1e6 + np.random.default_rng(0).standard_normal(300_000)
    stats = check_both_ways(RawTensor(flat, DTYPES["float64"], flat.shape)).stats
    assert stats is not None
    assert np.isclose(stats.std, flat.std(), rtol=1e-9)
    constant = check_both_ways(RawTensor(np.full(70000, 0.1, np.float32), DTYPES["float32"], (70000,))).stats
    assert constant is not None
    assert constant.std < 1e-15


def test_squares_beyond_float64_and_shapes_without_axes() -> None:
    check_both_ways(RawTensor(np.array([1e300, -2e300, 1.0]), DTYPES["float64"], (3,)))
    check_both_ways(RawTensor(np.array([2.5], np.float32), DTYPES["float32"], ()))
    assert measure_tensor(RawTensor(np.zeros(5, np.uint8), opaque("odd"), (5,))).stats is None
    assert measure_tensor(drawn(DTYPES["float32"], 5), with_stats=False).stats is None


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_bits_agree(data: st.DataObject) -> None:
    dtype = DTYPES[data.draw(st.sampled_from(sorted(DTYPES)))]
    raw = data.draw(st.binary(max_size=4000))
    flat = np.frombuffer(raw[: len(raw) // dtype.itemsize * dtype.itemsize], dtype.storage)
    repeat = data.draw(st.sampled_from((1, 3, 500)))
    flat = np.tile(flat, repeat)
    check_both_ways(RawTensor(flat, dtype, flat.shape))


def test_the_hashes_notice_any_one_bit_and_any_exchange() -> None:
    data = np.random.default_rng(0).integers(0, 256, PART + 100, dtype=np.uint8)
    before = _native.hashes(data.ctypes.data, data.size, 1)
    for place in (0, 63, 64, PART - 1, PART, PART + 99):
        for bit in (0, 7):
            data[place] ^= 1 << bit
            assert _native.hashes(data.ctypes.data, data.size, 1) != before
            data[place] ^= 1 << bit
    assert _native.hashes(data.ctypes.data, data.size, 2) == before
    data[:128] = np.roll(data[:128], 64)
    assert _native.hashes(data.ctypes.data, data.size, 1) != before


def test_the_same_bytes_are_the_same() -> None:
    one = np.arange(1000, dtype=np.uint8)
    other = one.copy()
    assert _native.same(one.ctypes.data, other.ctypes.data, 1000)
    other[999] ^= 1
    assert not _native.same(one.ctypes.data, other.ctypes.data, 1000)
    assert _native.same(one.ctypes.data, other.ctypes.data, 999)
    assert _native.same(0, 0, 0)


def test_what_makes_no_elements_is_refused() -> None:
    with pytest.raises(ValueError, match="no such elements"):
        _native.measure(b"123", 1, 1)
    with pytest.raises(ValueError, match="no such elements"):
        _native.measure(b"1234", 99, 1)
