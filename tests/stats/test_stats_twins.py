"""The native engine against its NumPy twin: dtypes, sizes at block boundaries, special values, strides."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from stats_pairs import LEVELS, apart, both, job, raw, tensor

from nndiff.dtypes import DTYPES
from nndiff.stats import ENVELOPE_RTOLS

pytestmark = pytest.mark.skipif(not LEVELS, reason="built without the native engine")

SIZES = (
    0,
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    17,
    31,
    32,
    33,
    63,
    64,
    65,
    255,
    256,
    1024,
    2047,
    2048,
    2049,
    4095,
    4096,
    4097,
    16383,
    16384,
    16385,
)
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38, -3e38, 1.0)


def sprinkle(values: NDArray[Any], seed: int) -> NDArray[Any]:
    out = values.copy()
    places = np.random.default_rng(seed).integers(0, max(values.size, 1), values.size // 9)
    for number, place in enumerate(places):
        out[place] = SPECIAL[number % len(SPECIAL)]
    return out


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 37, 5000, 40_000])
def test_every_dtype(dtype: str, size: int, level: str) -> None:
    ref, cand = raw(dtype, size), raw(dtype, size, seed=1)
    cand[::3] = ref[::3]
    assert apart(*both(job(tensor(ref, dtype), tensor(cand, dtype)), level)) == {}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64"])
@pytest.mark.parametrize("size", SIZES)
def test_sizes_at_the_edges_of_vectors_blocks_and_chunks(dtype: str, size: int, level: str) -> None:
    ref = raw(dtype, size)
    cand = ref.copy()
    if size:
        cand.view(np.uint8)[:: 3 * ref.itemsize] ^= 1
    assert apart(*both(job(tensor(ref, dtype), tensor(cand, dtype)), level)) == {}


@pytest.mark.parametrize("cand_type", DTYPES)
@pytest.mark.parametrize("ref_type", DTYPES)
def test_mixed_dtypes(ref_type: str, cand_type: str) -> None:
    one = job(tensor(raw(ref_type, 3000), ref_type), tensor(raw(cand_type, 3000, seed=2), cand_type))
    assert apart(*both(one)) == {}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("size", [9, 100, 2048, 20_000, 70_000])
def test_what_is_not_finite(dtype: type, size: int, level: str) -> None:
    random = np.random.default_rng(size)
    base = random.normal(size=size)
    with np.errstate(over="ignore"):
        ref, cand = sprinkle(base, 1).astype(dtype), sprinkle(base * 1.001, 2).astype(dtype)
    cand[:5] = ref[:5]
    assert apart(*both(job(tensor(ref), tensor(cand)), level)) == {}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mean", [1.0, 1e4, -3e6])
def test_large_means(mean: float, level: str) -> None:
    random = np.random.default_rng(0)
    ref = mean + random.normal(size=50_000)
    for dtype in (np.float64, np.float32):
        cand = (ref * (1 + 1e-3) + 1e-3 * random.normal(size=ref.size)).astype(dtype)
        assert apart(*both(job(tensor(ref.astype(dtype)), tensor(cand)), level)) == {}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("scale", [1e-6, 0.03, 1.0, 200.0])
def test_a_candidate_of_another_scale(scale: float, level: str) -> None:
    random = np.random.default_rng(0)
    ref = random.normal(size=30_000).astype(np.float32)
    cand = (scale * random.normal(size=ref.size)).astype(np.float32)
    assert apart(*both(job(tensor(ref), tensor(cand)), level)) == {}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["absolute", "relative", "sparse", "zeros", "constant", "outliers", "heavy"])
@pytest.mark.parametrize("size", [6000, 300_000])
def test_kinds_of_difference(kind: str, size: int, level: str) -> None:
    random = np.random.default_rng(3)
    ref = random.normal(size=size)
    noise = random.normal(size=size)
    cand = {
        "absolute": ref + 1e-3 * noise,
        "relative": ref * (1 + 1e-3 * noise),
        "sparse": np.where(random.random(size) < 1e-3, ref + noise, ref),
        "zeros": np.where(ref > 0, ref, 0) + 1e-4 * noise,
        "constant": ref + 0.25,
        "outliers": ref + np.where(random.random(size) < 1e-4, 1e6, 1e-7) * noise,
        "heavy": ref + 1e-5 * noise / np.abs(random.normal(size=size)),
    }[kind]
    if kind == "zeros":
        ref = np.where(ref > 0, ref, 0)
    for dtype in (np.float32, np.float64, np.float16):
        with np.errstate(over="ignore"):
            narrow = cand.astype(dtype)
        assert apart(*both(job(tensor(ref.astype(dtype)), tensor(narrow)), level)) == {}


@pytest.mark.parametrize(
    "tolerance", [(0.0, 0.0), (1e-3, 0.0), (0.0, 1e-3), (1e-50, 1e-50), (1e30, 1.0), (np.inf, 0.0)]
)
def test_tolerances(tolerance: tuple[float, float]) -> None:
    random = np.random.default_rng(4)
    ref = random.normal(size=9000).astype(np.float32)
    cand = (ref * (1 + 1e-3 * random.choice([0, 1, -1, 2], size=9000))).astype(np.float32)
    assert apart(*both(job(tensor(ref), tensor(cand), *tolerance))) == {}


@pytest.mark.parametrize("level", LEVELS)
def test_elements_on_the_edge_of_the_tolerance(level: str) -> None:
    """Differences whose float32 cannot tell whether they are in tolerance must be decided in float64."""
    ref = np.linspace(0.5, 2, 4096).astype(np.float32)
    edge = ref.astype(np.float64) * (1 + 2.0**-12)
    steps = np.arange(-3, 4)[np.arange(ref.size) % 7]
    cand = (edge.astype(np.float32).view(np.int32) + steps.astype(np.int32)).view(np.float32)
    ours, twin = both(job(tensor(ref), tensor(cand), 0.0, 2.0**-12), level)
    assert 0 < ours.mismatched < ref.size
    assert apart(ours, twin) == {}


@pytest.mark.parametrize("axes", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
def test_strides(axes: tuple[int, ...]) -> None:
    random = np.random.default_rng(5)
    ref = random.normal(size=(30, 40, 50)).astype(np.float32)
    cand = ref + random.normal(size=ref.shape).astype(np.float32)
    turned, copied = np.transpose(ref, axes), np.transpose(cand, axes).copy()
    ours, twin = both(job(tensor(turned), tensor(copied)))
    assert apart(ours, twin) == {}
    assert ours.max_abs_index == np.unravel_index(np.abs(copied - turned).argmax(), turned.shape)


def test_steps_and_reversed_views() -> None:
    values = np.random.default_rng(6).normal(size=70_000).astype(np.float32)
    assert apart(*both(job(tensor(values[::-2]), tensor(values[1::2])))) == {}


def test_elements_at_odd_addresses() -> None:
    values = np.random.default_rng(6).normal(size=9001).astype(np.float32)
    crooked = np.frombuffer(b"x" + values.tobytes(), np.uint8)[1:].view(np.float32)
    assert not crooked.flags.aligned
    assert apart(*both(job(tensor(crooked), tensor(values[::-1].copy())))) == {}


def test_bool_bytes_other_than_zero_and_one() -> None:
    ref = np.array([0, 1, 2, 255, 7], np.uint8)
    cand = np.array([0, 1, 1, 255, 0], np.uint8)
    ours, twin = both(job(tensor(ref, "bool"), tensor(cand, "bool")))
    assert apart(ours, twin) == {}
    assert (ours.unequal, ours.max_abs) == (2, 7.0)


@pytest.mark.parametrize(("ref_type", "cand_type"), [("int64", "int64"), ("int64", "uint64"), ("uint64", "int8")])
def test_whole_numbers_beyond_the_mantissa(ref_type: str, cand_type: str) -> None:
    ref, cand = raw(ref_type, 5000), raw(cand_type, 5000, seed=9)
    if ref_type == cand_type:
        cand = ref + np.int64(1)
    ours, twin = both(job(tensor(ref), tensor(cand)))
    assert apart(ours, twin) == {}
    assert ours.unequal == np.count_nonzero([int(a) != int(b) for a, b in zip(ref, cand, strict=True)])


def test_float32_whose_difference_is_no_float32() -> None:
    ref = np.array([3e38, -3e38, 1.0, 2.0], np.float32)
    ours, twin = both(job(tensor(ref), tensor(-ref)))
    assert apart(ours, twin) == {}
    assert ours.max_abs == 2 * float(np.float32(3e38))


def test_float64_whose_squares_overflow() -> None:
    ref = np.array([1e200, 1.0, -1e250], np.float64)
    assert apart(*both(job(tensor(ref), tensor(ref * 2)))) == {}


floats = st.sampled_from([np.float32, np.float64, np.float16])


@given(st.data())
def test_any_small_arrays(data: st.DataObject) -> None:
    """Subnormals, infinities, NaN, signed zeros: whatever there is, at every width."""
    dtype = np.dtype(data.draw(floats))
    shape = data.draw(arrays.array_shapes(max_dims=3, max_side=6))
    elements = arrays.from_dtype(dtype)
    pool = data.draw(st.lists(elements, min_size=1, max_size=4))
    ref = data.draw(arrays.arrays(dtype, shape, elements=st.sampled_from(pool) | elements))
    cand = data.draw(arrays.arrays(dtype, shape, elements=st.sampled_from(pool) | elements))
    tolerance = data.draw(st.sampled_from([(0.0, 0.0), (1e-5, 1e-5), (1e-3, 0.0), (0.0, 1e-1)]))
    level = data.draw(st.sampled_from(LEVELS))
    assert apart(*both(job(tensor(ref), tensor(cand), *tolerance), level)) == {}


@given(st.integers(0, 2**32), st.integers(1, 9000), st.sampled_from(LEVELS), st.integers(-140, 100))
def test_any_scale(seed: int, size: int, level: str, exponent: int) -> None:
    random = np.random.default_rng(seed)
    ref = np.ldexp(random.normal(size=size), exponent).astype(np.float32)
    cand = np.where(random.random(size) < 0.5, ref, ref * random.normal(size=size)).astype(np.float32)
    assert apart(*both(job(tensor(ref), tensor(cand)), level)) == {}


def test_this_comparison_can_fail() -> None:
    ref = np.arange(1000, dtype=np.float32)
    cand = ref.copy()
    cand[500] += 1
    ours, _ = both(job(tensor(ref), tensor(cand)))
    _, twin = both(job(tensor(ref), tensor(ref)))
    assert {"unequal", "max_abs", "max_abs_index", "mse"} <= set(apart(ours, twin))


@pytest.mark.parametrize("ref", [[1.0, 2.0], [np.inf, np.inf]])
def test_squares_beyond_float64(ref: list[float]) -> None:
    reference, candidate = np.array(ref), np.array([2.7e154, 0.0])
    for level in LEVELS:
        pair = both(job(tensor(reference), tensor(candidate), 0.0, 0.0), level)
        assert apart(*pair) == {}
        assert all(each.cand_mean == each.cand_std == 1.35e154 for each in pair)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("factor", [1e-200, 1e-290, 1e200, 1e290])
def test_what_does_not_depend_on_the_unit(factor: float, level: str) -> None:
    """Squares that float64 cannot hold must not read as agreement, nor as nothing."""
    random = np.random.default_rng(7)
    ref = random.normal(size=40_000)
    cand = ref + 0.1 * random.normal(size=ref.size)
    _, plain = both(job(tensor(ref), tensor(cand), 0.0, 0.0), level)
    for made in both(job(tensor(ref * factor), tensor(cand * factor), 0.0, 0.0), level):
        for name in ("cosine", "correlation", "sqnr_db", "rel_mse", "rel_mae", "rel_l2", "max_rel"):
            assert getattr(made, name) == pytest.approx(getattr(plain, name), rel=1e-9), name
        for name in ("mean_abs", "rmse", "l2", "ref_std", "cand_std", "diff_std", "cand_mean", "diff_mean", "p90"):
            assert getattr(made, name) == pytest.approx(getattr(plain, name) * factor, rel=1e-9), name


@pytest.mark.parametrize("level", LEVELS)
def test_a_tiny_difference_of_ordinary_numbers(level: str) -> None:
    ref = np.zeros(5000)
    ref[:100] = 1.0
    cand = ref.copy()
    cand[2000:] = 1e-200
    for made in both(job(tensor(ref), tensor(cand), 0.0, 0.0), level):
        assert made.l2 == pytest.approx(1e-200 * np.sqrt(3000))
        assert made.sqnr_db == pytest.approx(10 * np.log10(100 / 3000) + 4000)
        assert made.cosine == 1.0
        assert made.unequal == 3000


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("dtype", "offset"), [("float64", 1e8), ("float64", 1e12), ("int64", 10**15), ("uint64", 10**18)]
)
def test_digits_under_a_large_offset(dtype: str, offset: float, level: str) -> None:
    random = np.random.default_rng(8)
    small = random.integers(0, 2000, 100_000)
    other = small + random.integers(-300, 300, small.size)
    ref, cand = ((x + 500).astype(dtype) + np.array(offset, dtype) for x in (small, other))
    exact = offset < 2**52
    for made in both(job(tensor(ref), tensor(cand)), level):
        assert made.ref_std == pytest.approx(small.std(), rel=1e-12 if exact else 5e-3)
        assert made.cand_std == pytest.approx(other.std(), rel=1e-12 if exact else 5e-3)
        assert made.diff_std == pytest.approx((other - small).std(), rel=1e-12)
        assert made.correlation == pytest.approx(np.corrcoef(small, other)[0, 1], rel=1e-12 if exact else 5e-3)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_long_whole_numbers_against_floats(dtype: str, level: str) -> None:
    whole = np.array([2**53 + 1, 2**53, 2**62 + 3, 5, 2**63 - 1, 0], dtype)
    near = whole.astype(np.float64)
    distance = [abs(int(a) - int(b)) for a, b in zip(whole, near, strict=True)]
    for ref, cand in ((whole, near), (near, whole)):
        for made in both(job(tensor(ref), tensor(cand), 0.0, 0.0), level):
            assert (made.unequal, made.max_abs) == (3, max(distance))
            assert made.mean_abs == pytest.approx(sum(distance) / 6)


@given(st.integers(0, 2**32), st.sampled_from(LEVELS), st.sampled_from([np.float32, np.float64]))
def test_the_needed_tolerance_passes(seed: int, level: str, dtype: type) -> None:
    random = np.random.default_rng(seed)
    ref = random.normal(size=int(random.integers(1, 600))).astype(dtype)
    cand = (ref * (1 + random.normal(size=ref.size) * 10.0 ** random.integers(-9, 2))).astype(dtype)
    found = both(job(tensor(ref), tensor(cand)), level)
    assert found[0].needed_tolerance == found[1].needed_tolerance
    needed = found[0].needed_tolerance
    assert both(job(tensor(ref), tensor(cand), needed, needed), level)[0].mismatched == 0
    if needed:
        less = needed * (1 - 2.0**-50)
        assert both(job(tensor(ref), tensor(cand), less, less), level)[0].mismatched > 0
    for rtol, atol in zip(ENVELOPE_RTOLS, found[0].envelope, strict=True):
        assert both(job(tensor(ref), tensor(cand), atol, rtol), level)[0].mismatched == 0


@pytest.mark.parametrize("level", LEVELS)
def test_distances_beyond_float64(level: str) -> None:
    """A difference of finite numbers may be infinite: that is left to the twin, and must not lead C astray."""
    random = np.random.default_rng(0)
    for size in (*range(1, 40), 1000, 5000, 16384):
        for scale in (1.0, 1e-3, 1e200):
            ref = scale * random.normal(size=size)
            cand = ref + random.normal(size=size)
            ref[size // 2], cand[size // 2] = -1.7e308, 1.7e308
            assert apart(*both(job(tensor(ref), tensor(cand)), level)) == {}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("value", [-1, 1, -3000, 3000, -(2**53), 2**53])
def test_whole_numbers_against_floats_round_once(value: int, level: str) -> None:
    ref = np.array([value], np.int64)
    for apart_by in (0.3, 0.7, 1e-9):
        cand = np.array([apart_by])
        for got in both(job(tensor(ref), tensor(cand)), level):
            assert got.max_abs == abs(apart_by - float(value))
