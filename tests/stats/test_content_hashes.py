"""Hashes of content: their laws, NumPy against C at every vector width, rounding against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from helpers import refs, save
from nndiff.dtypes import DTYPES, opaque
from nndiff.sources import open_source
from nndiff.stats import content_hashes
from nndiff.stats.content_hashes import (
    ALL_BITS,
    ContentHash,
    Rounding,
    find_roundings,
    hash_content,
    is_constant,
    round_values,
)
from nndiff.tensors import MemoryData, TensorRef

_native = pytest.importorskip("nndiff.stats._native")

TORCH_TYPES = {
    Rounding.FLOAT32: torch.float32,
    Rounding.FLOAT16: torch.float16,
    Rounding.BFLOAT16: torch.bfloat16,
    Rounding.FLOAT8_E4M3FN: torch.float8_e4m3fn,
    Rounding.FLOAT8_E5M2: torch.float8_e5m2,
}
ROUNDED = list(TORCH_TYPES)


def hashed(array: NDArray[Any], rounding: Rounding = Rounding.NOTHING) -> ContentHash:
    return hash_content(refs({"x": array})["x"], rounding)


def by_numpy(tensor: TensorRef, rounding: Rounding = Rounding.NOTHING) -> ContentHash:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content_hashes, "native", None)
        return hash_content(tensor, rounding)


floats = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.float16]), st.integers(0, 60), elements=st.floats(width=16)
)


@settings(deadline=None)
@given(floats, st.randoms())
def test_order_and_shape_do_not_matter(array: NDArray[Any], random: Any) -> None:
    places = list(range(array.size))
    random.shuffle(places)
    assert hashed(array).key == hashed(array[places]).key == hashed(array.reshape(-1, 1)).key


@settings(deadline=None)
@given(floats, st.integers(0, 60))
def test_the_sum_of_the_parts_is_the_whole(array: NDArray[Any], cut: int) -> None:
    parts = hashed(array[:cut]), hashed(array[cut:])
    assert hashed(array).key == ((parts[0].values + parts[1].values) & ALL_BITS, parts[0].count + parts[1].count)


def test_order_is_told_by_the_second_sum() -> None:
    array = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    swapped = array[[1, 0, *range(2, 64)]]
    assert hashed(array).key == hashed(swapped).key == hashed(array.T.copy()).key
    assert len({hashed(array).placed, hashed(swapped).placed, hashed(array.T.copy()).placed}) == 3
    assert hashed(array) == hashed(array.reshape(48, 64))


def test_one_bit_in_one_element_changes_the_hash() -> None:
    array = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    changed = array.copy()
    changed[77_777] = np.nextafter(changed[77_777], np.float32(9))
    assert hashed(array).values != hashed(changed).values


def test_sums_and_squares_that_agree_are_no_collision() -> None:
    assert hashed(np.array([1.0, 4.0])).values != hashed(np.array([2.0, 3.0])).values
    assert hashed(np.array([0.0, 4, 5])).values != hashed(np.array([1.0, 2, 6])).values  # equal sum and squares


def test_a_value_has_one_hash_in_every_dtype() -> None:
    numbers = [0, 1, 3, 120]
    dtypes = [np.float32, np.float64, np.float16, np.int64, np.int32, np.int16, np.int8, np.uint8, np.uint32, np.uint64]
    assert len({hashed(np.array(numbers, dtype)) for dtype in dtypes}) == 1
    assert hashed(np.array([-0.0, np.nan], np.float32)) == hashed(np.array([0.0, -np.nan], np.float64))
    thirds = np.array([1 / 3])
    assert hashed(thirds) != hashed(thirds.astype(np.float32))
    assert hashed(thirds, Rounding.FLOAT32) == hashed(thirds.astype(np.float32))


@pytest.mark.parametrize("level", _native.levels())
@pytest.mark.parametrize("name", [*DTYPES, "mystery"])
def test_c_is_numpy(level: str, name: str) -> None:
    random = np.random.default_rng(1)
    dtype = DTYPES.get(name) or opaque(name)
    before = _native.level()
    _native.use(level)
    try:
        for count in (0, 1, 7, 8, 9, 8191, 8193, 70_001):
            raw = random.integers(0, 256, count * dtype.itemsize).astype(np.uint8).view(dtype.storage)
            if dtype.kind == "bool":
                raw = raw & 1
            tensor = TensorRef("x", (count,), dtype, MemoryData(raw))
            for rounding in (Rounding.NOTHING, *ROUNDED) if count < 9000 else (Rounding.NOTHING,):
                assert hash_content(tensor, rounding) == by_numpy(tensor, rounding)
    finally:
        _native.use(before)


@pytest.mark.parametrize("rounding", ROUNDED)
def test_rounding_is_that_of_torch(rounding: Rounding) -> None:
    random = np.random.default_rng(2)
    bits = random.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    near = (random.standard_normal(100_000) * 10.0 ** random.integers(-9, 6, 100_000)).astype(np.float32)
    ties = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16) | np.uint32(0x8000)).view(np.float32)
    edges = np.array([448, 464, 464.1, 65504, 65519, 65520, 57344, 61440, 1e38, np.inf, -np.inf, np.nan], np.float32)
    numbers = np.concatenate([bits, near, ties, edges])
    expected = torch.from_numpy(numbers).to(TORCH_TYPES[rounding]).float().numpy()
    rounded = round_values(numbers, rounding)
    assert np.array_equal(rounded, expected, equal_nan=True)
    assert np.array_equal(np.signbit(rounded[~np.isnan(rounded)]), np.signbit(expected[~np.isnan(expected)]))
    assert hashed(numbers, rounding) == hashed(expected)


@pytest.mark.parametrize("rounding", ROUNDED)
def test_what_a_tensor_was_rounded_to_is_seen(rounding: Rounding) -> None:
    numbers = np.random.default_rng(3).standard_normal(5000) / 3
    assert find_roundings(refs({"x": numbers})["x"]) == ()
    assert rounding in find_roundings(refs({"x": round_values(numbers, rounding)})["x"])
    assert find_roundings(refs({"x": np.arange(5)})["x"]) == ()


def test_constants_are_known_without_reading_them_again() -> None:
    for array in (np.ones((5, 7)), np.zeros(3, np.int8), np.full(9, 1 / 3), np.ones(1), np.full(4, 1 + 2j)):
        tensor = refs({"x": array})["x"]
        assert is_constant(tensor, hash_content(tensor))
    tensor = refs({"x": np.array([1.0, 1, 2])})["x"]
    assert not is_constant(tensor, hash_content(tensor))


def test_files_are_hashed_piece_by_piece(tmp_path, monkeypatch) -> None:
    array = np.random.default_rng(4).standard_normal((999, 801)).astype(np.float32)
    monkeypatch.setattr(content_hashes, "_MAPPED", 1 << 14)
    monkeypatch.setattr(content_hashes, "_READ", 1 << 12)
    tensor = open_source(save(tmp_path / "a.safetensors", {"odd": np.ones(3, np.uint8), "x": array})).tensors["x"]
    assert hash_content(tensor) == by_numpy(tensor) == hashed(array)
