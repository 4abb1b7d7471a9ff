"""Comparing: verdicts, tolerance, leftovers, several candidates, against NumPy and torch as truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nndiff
from helpers import model
from nndiff.errors import SourceError, UsageError
from nndiff.result import NoteSlug
from nndiff.tolerance import Tolerance


def only(comparison):
    (pair,) = comparison.pairs
    return pair


def test_a_model_is_identical_to_itself():
    result = nndiff.compare(model(), model())
    assert (result.verdict, result.exit_code) == ("identical", 0)
    assert result.totals.identical == len(model())
    assert result.totals.match_rate == 1.0


def test_a_planted_difference_is_found_where_it_is():
    changed = model()
    changed["layers.1.linear.weight"] = changed["layers.1.linear.weight"].copy()
    changed["layers.1.linear.weight"][2, 5] += 0.5
    result = nndiff.compare(model(), changed)
    assert (result.verdict, result.exit_code) == ("different", 1)
    (worst,) = result.worst()
    assert worst.name == "layers.1.linear.weight"
    assert worst.metrics.max_abs_index == (2, 5)
    assert worst.metrics.max_abs == pytest.approx(0.5, rel=1e-6)
    assert worst.metrics.mismatched == 1


def test_a_tensor_without_partner_is_a_difference():
    less = model()
    del less["layers.2.linear.bias"]
    for sides, leftovers in (
        ((model(), less), ("layers.2.linear.bias", None)),
        ((less, model()), (None, "layers.2.linear.bias")),
    ):
        result = nndiff.compare(*sides)
        assert (result.verdict, result.exit_code) == ("different", 1)
        assert result.only_reference == ((leftovers[0],) if leftovers[0] else ())
        assert result.only_candidate == ((leftovers[1],) if leftovers[1] else ())


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        ({}, {}),
        ({"a": np.ones(2)}, {"b": np.ones(3)}),
        ({"a": np.ones(0)}, {"a": np.ones(0)}),
    ],
)
def test_nothing_compared_is_never_a_pass(reference, candidate):
    result = nndiff.compare(reference, candidate)
    assert (result.verdict, result.exit_code) == ("nothing compared", 2)


@pytest.mark.parametrize(("one", "other"), [((3, 1), (3,)), ((), (1,)), ((2, 3), (3, 2)), ((0,), (0, 1))])
def test_shapes_are_never_broadcast(one, other):
    result = nndiff.compare({"a": np.ones(one)}, {"a": np.ones(other)})
    assert only(result).verdict == "shape"
    assert result.exit_code == 1


def test_a_dtype_that_differs_is_compared_after_widening_and_said():
    exact = {"a": np.array([1.0, 0.5], np.float32)}
    result = nndiff.compare(exact, {"a": exact["a"].astype(np.float16)})
    assert only(result).verdict == "close"
    assert only(result).has_note(NoteSlug.DTYPES_DIFFER)
    assert only(result).dtype == ("float32", "float16")
    rounded = nndiff.compare({"a": np.array([0.1], np.float32)}, {"a": np.array([0.1], np.float16)})
    assert rounded.verdict == "different"


def test_unsigned_numbers_do_not_wrap():
    result = nndiff.compare({"a": np.array([250], np.uint8)}, {"a": np.array([5], np.uint8)})
    assert only(result).metrics.max_abs == 245


def test_whole_numbers_must_be_equal_unless_a_step_is_asked_for():
    sides = {"a": np.array([10**6], np.int64)}, {"a": np.array([10**6 + 1], np.int64)}
    assert nndiff.compare(*sides).verdict == "different"
    assert nndiff.compare(*sides, rtol=1.0).verdict == "different"
    assert nndiff.compare(*sides, atol=1.0).verdict == "close"


def test_large_whole_numbers_are_compared_exactly():
    result = nndiff.compare({"a": np.array([2**62], np.int64)}, {"a": np.array([2**62 + 1], np.int64)})
    assert (only(result).verdict, only(result).metrics.max_abs) == ("different", 1.0)


nan, inf = math.nan, math.inf


@pytest.mark.parametrize(
    ("reference", "candidate", "verdict"),
    [
        ([1.0, nan], [1.0, nan], "identical"),
        ([1.0, nan], [1.0, 2.0], "not finite"),
        ([1.0, 2.0], [1.0, nan], "not finite"),
        ([nan, 1.0], [1.0, nan], "not finite"),
        ([inf], [inf], "identical"),
        ([inf], [-inf], "not finite"),
        ([inf, 1.0], [inf, 1.1], "different"),
        ([nan], [inf], "not finite"),
        ([1.0, nan], [1.0 + 1e-9, nan], "close"),
    ],
)
def test_what_is_not_finite_is_judged_by_place(reference, candidate, verdict):
    result = nndiff.compare({"a": np.array(reference)}, {"a": np.array(candidate)})
    assert only(result).verdict == verdict
    assert only(result).metrics.nonfinite_ref == np.count_nonzero(~np.isfinite(reference))
    assert only(result).metrics.nonfinite_cand == np.count_nonzero(~np.isfinite(candidate))


def test_no_tolerance_forgives_what_is_not_finite():
    result = nndiff.compare({"a": np.array([1.0])}, {"a": np.array([nan])}, atol=1e30, rtol=1e30)
    assert result.exit_code == 1
    assert result.needed_tolerance is None


_FLOATS = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.float16]),
    hnp.array_shapes(max_dims=3, max_side=5, min_dims=0),
    elements=st.floats(-100, 100, width=16),
)


@given(_FLOATS, st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_the_verdict_is_that_of_torch_allclose_in_float64(values, atol, rtol, seed):
    noise = np.random.default_rng(seed).normal(0, 0.3, values.shape)
    other = (values + noise).astype(values.dtype)
    result = nndiff.compare({"a": values}, {"a": other}, atol=atol, rtol=rtol)
    wide = [torch.tensor(np.asarray(each), dtype=torch.float64) for each in (other, values)]
    assert (result.exit_code == 0) == torch.allclose(*wide, atol=atol, rtol=rtol)


@given(_FLOATS, st.integers(0, 2**32 - 1))
def test_the_smallest_tolerance_passes_and_a_smaller_one_does_not(values, seed):
    other = values + np.random.default_rng(seed).normal(0, 0.3, values.shape).astype(values.dtype)
    sides = {"a": values}, {"a": other.astype(values.dtype)}
    needed = nndiff.compare(*sides).needed_tolerance
    assert nndiff.compare(*sides, atol=needed * (1 + 1e-12), rtol=needed * (1 + 1e-12)).exit_code == 0
    if needed > 0:
        assert nndiff.compare(*sides, atol=needed * 0.999, rtol=needed * 0.999).exit_code == 1


@given(_FLOATS, st.integers(0, 2**32 - 1))
def test_swapping_the_sides_keeps_symmetric_metrics(values, seed):
    other = np.asarray(values + np.random.default_rng(seed).normal(0, 1, values.shape).astype(values.dtype))
    there = only(nndiff.compare({"a": values}, {"a": other})).metrics
    back = only(nndiff.compare({"a": other}, {"a": values})).metrics
    for name in ("max_abs", "mean_abs", "mse", "rmse", "l2", "cosine", "correlation", "p50", "p99", "unequal"):
        assert getattr(there, name) == pytest.approx(getattr(back, name), rel=1e-9, abs=1e-12, nan_ok=True), name
    assert there.ref_mean == back.cand_mean
    assert there.diff_mean == pytest.approx(-back.diff_mean, abs=1e-12)


def test_tolerance_auto_is_that_of_torch_testing():
    for name in ("float16", "bfloat16", "float32", "float64"):
        dtype = getattr(torch, name)
        values = torch.linspace(0.5, 2, 64, dtype=torch.float64).to(dtype)
        for step in (0.0, 1e-8, 1e-6, 3e-6, 5e-4, 2e-3, 1e-2, 3e-2):
            other = (values.double() * (1 + step)).to(dtype)
            verdict = nndiff.compare({"a": values}, {"a": other}, tolerance="auto").exit_code == 0
            try:
                torch.testing.assert_close(other, values)
                assert verdict, (name, step)
            except AssertionError as error:
                if "Tensor-likes" not in str(error):
                    raise
                assert not verdict, (name, step)


@pytest.mark.parametrize("bad", [{"atol": -1.0}, {"rtol": nan}, {"atol": inf}, {"tolerance": "auto", "atol": 1.0}])
def test_senseless_tolerances_are_refused(bad):
    with pytest.raises(UsageError, match=r"atol|rtol|tolerance"):
        nndiff.compare({"a": np.ones(1)}, {"a": np.ones(1)}, **bad)


def test_a_tolerance_knows_where_it_came_from():
    sides = {"a": np.ones(1)}, {"a": np.ones(1)}
    assert nndiff.compare(*sides).tolerance == Tolerance(1e-5, 1e-5, "default")
    assert nndiff.compare(*sides, atol=1e-3).tolerance == Tolerance(1e-3, 1e-5, "given")
    assert nndiff.compare(*sides, tolerance="auto").tolerance.origin == "auto"


def test_several_candidates_are_judged_apart_and_together():
    off = model()
    off["layers.0.linear.bias"] = off["layers.0.linear.bias"] + 1
    result = nndiff.compare(model(), model(), off, {"stranger": np.ones(3)})
    outcomes = [result.outcome_of(side.label).value for side in result.candidates]
    assert outcomes == ["identical", "different", "nothing compared"]
    assert result.exit_code == 1
    assert len({side.label for side in result.candidates}) == 3
    assert result.totals_of(result.candidates[0].label).identical == len(model())


def test_include_and_exclude_choose_pairs_and_leftovers_and_say_so():
    less = model()
    del less["layers.2.linear.bias"]
    less["layers.0.linear.weight"] = less["layers.0.linear.weight"] + 1
    result = nndiff.compare(model(), less, exclude=["layers.2", "layers.0.linear.weight"])
    assert result.verdict == "identical"
    assert [note.slug for note in result.notes] == [NoteSlug.LEFT_OUT]
    assert nndiff.compare(model(), less, include=["*.bias"]).only_reference == ("layers.2.linear.bias",)
    assert nndiff.compare(model(), less, include=["nope"]).exit_code == 2


def test_groups_are_counted_on_their_own():
    off = model()
    off["layers.0.linear.bias"] = off["layers.0.linear.bias"] + 1
    result = nndiff.compare(model(), off, group={"first": "layers.0", "rest": "re:layers\\.[12]"})
    assert result.totals_of_group("first").different == 1
    assert result.totals_of_group("rest").different == 0
    assert result.totals_of_group("rest").pairs == 6


def test_a_meta_tensor_is_not_compared_and_not_a_pass():
    result = nndiff.compare(
        {"a": torch.ones(2), "b": torch.ones(2)}, {"a": torch.ones(2), "b": torch.ones(2, device="meta")}
    )
    assert {pair.name: pair.verdict for pair in result.pairs} == {"a": "identical", "b": "not compared"}
    assert result.exit_code == 1


def test_modules_are_sources():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    same = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    same.load_state_dict(net.state_dict())
    assert nndiff.compare(net, same).verdict == "identical"
    with torch.no_grad():
        same[0].weight[1, 1] += 1
    assert [pair.name for pair in nndiff.compare(net, same).worst()] == ["0.weight"]


def test_parameters_are_counted():
    side = nndiff.compare(model(), model()).reference
    assert side.elements == 3 * (64 + 8 + 1)
    assert side.trainable == 3 * (64 + 8)


def test_pairs_come_in_natural_order():
    arrays = {f"layers.{number}.w": np.ones(1) for number in (10, 9, 2, 1)}
    assert [pair.name for pair in nndiff.compare(arrays, arrays).pairs] == [f"layers.{n}.w" for n in (1, 2, 9, 10)]


def test_numbers_whose_difference_overflows_are_judged_all_the_same():
    result = nndiff.compare({"a": np.array([1e308, 1.0])}, {"a": np.array([-1e308, 1.0])})
    metrics = only(result).metrics
    assert (only(result).verdict, metrics.mismatched, metrics.max_abs) == ("different", 1, math.inf)
    assert metrics.cosine == -1.0  # squares beyond float64 are summed on another scale


def test_rules_that_name_nothing_are_told():
    weights = {"fc.weight": np.ones(3), "fc.bias": np.zeros(3)}
    notes = nndiff.compare(weights, weights, group={"head": "classifier"}, rename="gamma=>weight").notes
    assert {note.slug for note in notes} == {NoteSlug.RULE_WITHOUT_EFFECT}
    texts = sorted(note.text for note in notes)
    assert texts[0] == "--rename 'gamma' changed no name of the candidate"
    assert texts[1].startswith("the group 'head' is empty: its pattern 'classifier'")


def test_a_rule_that_sees_names_without_their_wrappers_is_not_told_to_do_nothing():
    reference = {"enc.weight": np.ones(3), "enc.bias": np.zeros(3)}
    candidate = {"module.fc.weight": np.ones(3), "module.fc.bias": np.zeros(3)}
    result = nndiff.compare(reference, candidate, rename="^fc=>enc", group={"all": "enc"})
    assert (result.verdict, result.notes) == ("identical", ())


@pytest.mark.parametrize("side", [0, 1])
def test_a_file_that_is_written_to_meanwhile_is_no_pass(tmp_path, side):
    """Every element read may be the same although the files never were."""
    values = np.arange(1 << 23, dtype=np.float32)
    paths = [tmp_path / name for name in ("a.npy", "b.npy")]
    for path in paths:
        np.save(path, values)

    def write(done, total):
        if paths[side].stat().st_mtime_ns == stamps[side]:
            held = np.load(paths[side], mmap_mode="r+")
            held[0] += 1  # seen already
            held.flush()

    stamps = [path.stat().st_mtime_ns for path in paths]
    with pytest.raises(SourceError, match=r"[ab]\.npy: was changed while it was being read"):
        nndiff.compare(*paths, progress=write)
    assert nndiff.compare(paths[0], paths[0]).verdict == "identical"
