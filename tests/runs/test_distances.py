from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nndiff.dtypes import DTYPES
from nndiff.runs import distances
from nndiff.runs.distances import MISSING, RowPairs, measure_distances, sum_up_group
from nndiff.runs.run import StepTensors, TensorKey, TensorKind
from nndiff.stats.sketches import RawArray, sketch_tensors
from nndiff.tensors import MemoryData, TensorRef

ATOL, RTOL = 1e-5, 1e-5


def make_step(arrays, widths=None, kind=TensorKind.WEIGHT, whole=False):
    """A step of these arrays, kept as sketches of some widths (None: all elements), or whole."""
    arrays = [np.ascontiguousarray(array) for array in arrays]
    widths = widths or [max(1, min(array.size, 1 << 16)) for array in arrays]
    found = sketch_tensors([RawArray.from_array(array) for array in arrays], [0] * len(arrays) if whole else widths)
    names = [f"layer{number}" for number in range(len(arrays))]
    tensors = ()
    if whole:
        tensors = tuple(
            TensorRef(name, array.shape, DTYPES[array.dtype.name], MemoryData(array))
            for name, array in zip(names, arrays, strict=True)
        )
    return StepTensors(
        tuple(TensorKey(kind, name) for name in names),
        tuple(array.shape for array in arrays),
        tuple(array.dtype.name for array in arrays),
        found.statistics,
        found.digests,
        found.widths,
        found.sketches,
        tensors=tensors,
    )


def pair_all(count, scales=0, rtol=RTOL, candidate=None):
    rows = np.arange(count)
    names = tuple(f"layer{number}" for number in rows)
    candidate = rows if candidate is None else np.array(candidate)
    return RowPairs(names, rows, candidate, np.full(count, ATOL), np.full(count, rtol), np.full(count, scales))


def random_arrays(rng, count=4, size=300):
    return [rng.standard_normal(size).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("whole", [(False, False), (True, True), (True, False)], ids=["rows", "whole", "mixed"])
def test_what_is_kept_whole_has_the_numbers_of_numpy(whole):
    rng = np.random.default_rng(1)
    reference = random_arrays(rng)
    candidate = [array + rng.standard_normal(array.size).astype(np.float32) * 1e-3 for array in reference]
    candidate[2] = reference[2].copy()
    steps = make_step(reference, whole=whole[0]), make_step(candidate, whole=whole[1])
    found = measure_distances(*steps, pair_all(4))
    for number, (before, after) in enumerate(zip(reference, candidate, strict=True)):
        difference = after.astype(np.float64) - before
        assert found.l2[number] == pytest.approx(np.linalg.norm(difference), rel=1e-6)
        assert found.max_abs[number] == pytest.approx(np.abs(difference).max(), rel=1e-6)
        assert found.out[number] == (not np.allclose(after, before, rtol=RTOL, atol=ATOL))
    assert found.identical.tolist() == [False, False, True, False]
    group = sum_up_group(found)
    long_reference, long_candidate = (np.concatenate(side).astype(np.float64) for side in (reference, candidate))
    cosine = long_reference @ long_candidate / np.linalg.norm(long_reference) / np.linalg.norm(long_candidate)
    assert group.l2 == pytest.approx(np.linalg.norm(long_candidate - long_reference), rel=1e-6)
    assert group.cosine == pytest.approx(cosine, abs=1e-9)
    assert group.rel_l2 == pytest.approx(group.l2 / np.linalg.norm(long_reference))
    assert (group.error, group.tensors, group.identical, group.out) == (0, 4, 1, 3)


def test_sketches_estimate_the_distance_within_their_error():
    rng = np.random.default_rng(2)
    reference = random_arrays(rng, 6, 40_000)
    candidate = [array + rng.standard_normal(array.size).astype(np.float32) * 0.14 for array in reference]
    steps = [make_step(side, [1024] * 6) for side in (reference, candidate)]
    group = sum_up_group(measure_distances(*steps, pair_all(6)))
    long_reference, long_candidate = (np.concatenate(side).astype(np.float64) for side in (reference, candidate))
    truth = np.linalg.norm(long_candidate - long_reference)
    cosine = long_reference @ long_candidate / np.linalg.norm(long_reference) / np.linalg.norm(long_candidate)
    assert group.error == pytest.approx(math.sqrt(1 / (2 * 1024)) / math.sqrt(6), rel=0.05)
    assert abs(group.l2 / truth - 1) < 4 * group.error
    assert abs(group.cosine - cosine) < 1e-3
    assert group.max_abs is None, "a sketch does not tell"


def test_sketches_of_other_widths_are_compared_at_the_smaller_one():
    rng = np.random.default_rng(3)
    reference = random_arrays(rng, 2, 5000)
    candidate = [array * np.float32(1.1) for array in reference]
    wide, narrow = make_step(reference, [4096, 5000]), make_step(candidate, [1024, 1024])
    found = measure_distances(wide, narrow, pair_all(2))
    assert found.l2 == pytest.approx([0.1 * np.linalg.norm(array) for array in reference], rel=0.1)
    assert found.error == pytest.approx([math.sqrt(1 / 2048)] * 2)


def test_statistics_alone_do_not_tell_unless_the_norms_do():
    rng = np.random.default_rng(4)
    reference = random_arrays(rng, 2)
    steps = make_step(reference, [0, 0]), make_step([reference[0][::-1], reference[1] * 2], [0, 0])
    found = measure_distances(*steps, pair_all(2))
    assert found.out.tolist() == [False, True]
    assert found.known.tolist() == [False, False]


def test_another_shape_is_out_and_a_missing_gradient_counts_as_zeros():
    ones = np.ones(4, np.float32)
    steps = make_step([ones, ones, ones * 0]), make_step([np.ones(5, np.float32), ones, ones])
    pairs = pair_all(3, candidate=[0, MISSING, MISSING])
    found = measure_distances(*steps, pairs)
    assert found.out.tolist() == [True, True, False]
    assert found.l2[1:].tolist() == [2, 0]


def test_nan_against_a_number_is_out_and_nan_against_nan_is_not():
    reference = [np.array([1, np.nan, 3], np.float32), np.array([np.nan, 1, 2], np.float32)]
    candidate = [np.array([1, 2, 3], np.float32), reference[1].copy()]
    found = measure_distances(make_step(reference), make_step(candidate), pair_all(2))
    assert found.out.tolist() == [True, False]
    assert found.identical.tolist() == [False, True]


def test_gradients_are_judged_on_their_own_scale():
    gradient = np.array([1e-6, -2e-6, 3e-6], np.float32)
    steps = make_step([gradient]), make_step([gradient * np.float32(1.5)])
    assert not measure_distances(*steps, pair_all(1)).out.any(), "as weights these are noise"
    assert measure_distances(*steps, pair_all(1, scales=1)).out.all()


@pytest.mark.parametrize("factor", [1 / 3, 3])
def test_gradients_far_below_the_largest_are_noise(monkeypatch, factor):
    """The threshold is a share of the largest gradient of the kind. The cases lie within a factor of three of it."""
    large, small = np.full(3, 1.0, np.float32), np.full(3, 1e-9, np.float32)
    for share, is_out in ((0.9, False), (1.1, True)):
        noisy = small + np.float32(distances.NOISE_SHARE_OF_KIND * ATOL * share)
        steps = make_step([large, small]), make_step([large, noisy])
        assert bool(measure_distances(*steps, pair_all(2, scales=1, rtol=0.0)).out[1]) is is_out
    share = 1.1 if factor > 1 else 0.9
    noisy = small + np.float32(distances.NOISE_SHARE_OF_KIND * ATOL * share)
    steps = make_step([large, small]), make_step([large, noisy])
    before = bool(measure_distances(*steps, pair_all(2, scales=1, rtol=0.0)).out[1])
    monkeypatch.setattr(distances, "NOISE_SHARE_OF_KIND", distances.NOISE_SHARE_OF_KIND * factor)
    assert bool(measure_distances(*steps, pair_all(2, scales=1, rtol=0.0)).out[1]) is not before


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=5),
    st.sampled_from(["float32", "float64", "float16", "int64"]),
    st.integers(0, 2**31),
)
def test_the_distance_is_symmetric_and_zero_only_for_equals(sizes, dtype, seed):
    rng = np.random.default_rng(seed)
    arrays = [(rng.standard_normal(size) * 50).astype(dtype) for size in sizes]
    others = [array.copy() if seed % 2 else (array * 2 + 1).astype(dtype) for array in arrays]
    steps = make_step(arrays), make_step(others)
    there = measure_distances(*steps, pair_all(len(arrays)))
    back = measure_distances(*steps[::-1], pair_all(len(arrays)))
    assert there.l2.tolist() == back.l2.tolist()
    for number, (array, changed) in enumerate(zip(arrays, others, strict=True)):
        assert (there.l2[number] == 0) == np.array_equal(array, changed)
        assert there.identical[number] == np.array_equal(array, changed)
