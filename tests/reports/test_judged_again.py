"""Judging saved numbers again agrees with measuring anew, and never passes what measuring would not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from report_builders import comparison, pair

from nndiff.dtypes import from_numpy
from nndiff.metrics import ENVELOPE_RTOLS
from nndiff.result import Comparison, NoteSlug, Pair
from nndiff.stats import Job
from nndiff.stats.engine import get_engine
from nndiff.tensors import MemoryData, TensorRef
from nndiff.tolerance import AUTO, Tolerance, round_up
from nndiff.verdict import Verdict

Array = NDArray[np.generic]


def measured(ref: Array, cand: Array, tolerance: Tolerance) -> Comparison:
    """Return the comparison of two arrays, measured at this tolerance."""
    first, second = tensor(ref), tensor(cand)
    atol, rtol = tolerance.for_pair(("a",), first.dtype, second.dtype)
    (numbers,) = get_engine().measure([Job(first, second, atol, rtol)])
    names = (first.dtype.name, second.dtype.name)
    verdict = numbers.judge(names[0] == names[1])
    made = pair("a", verdict, metrics=numbers, atol=atol, rtol=rtol, dtype=names, shape=(ref.shape, cand.shape))
    return comparison(made, tolerance=tolerance)


def is_doubtful(judged: Pair) -> bool:
    """Return True if the saved numbers do not decide."""
    return judged.has_note(NoteSlug.COMPARE_AGAIN)


def tensor(array: Array) -> TensorRef:
    dtype = from_numpy(array.dtype)
    assert dtype is not None
    return TensorRef("a", array.shape, dtype, MemoryData(array))


def arrays(seed: int, kind: str) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    ref = random.standard_normal(200) * 10.0 ** random.integers(-4, 4)
    cand = ref + random.standard_normal(200) * 10.0 ** random.integers(-9, 0) * random.choice([1.0, np.abs(ref).max()])
    if kind == "int":
        return (ref * 10).astype(np.int32), (cand * 10).astype(np.int32)
    if kind == "nan":
        ref[:3], cand[: random.integers(2, 5)] = np.nan, np.nan
    return ref.astype(np.float32), cand.astype(np.float16 if kind == "cast" else np.float32)


seeds = st.integers(0, 10_000)
kinds = st.sampled_from(("float", "int", "nan", "cast"))
atols = st.sampled_from([0.0, *(digit * 10.0**power for power in range(-9, 2) for digit in (1.1, 3.3, 7.7))])


def tolerances(rtols: st.SearchStrategy[float]) -> st.SearchStrategy[Tolerance]:
    return st.builds(Tolerance, atols, rtols, st.just("given"))


@given(seeds, kinds, tolerances(st.sampled_from(ENVELOPE_RTOLS)), tolerances(st.sampled_from(ENVELOPE_RTOLS)))
@settings(max_examples=300, deadline=None)
def test_on_the_grid_it_is_as_if_measured(seed: int, kind: str, first: Tolerance, then: Tolerance) -> None:
    again = measured(*arrays(seed, kind), first).judged_at(then)
    direct = measured(*arrays(seed, kind), then)
    assert again.pairs[0].verdict is direct.pairs[0].verdict
    assert again.verdict == direct.verdict
    assert not is_doubtful(again.pairs[0])


@given(seeds, kinds, tolerances(st.floats(0, 1)), tolerances(st.floats(0, 1)))
@settings(max_examples=300, deadline=None)
def test_anywhere_it_never_passes_what_measuring_would_not(
    seed: int, kind: str, first: Tolerance, then: Tolerance
) -> None:
    (again,) = measured(*arrays(seed, kind), first).judged_at(then).pairs
    (direct,) = measured(*arrays(seed, kind), then).pairs
    if again.verdict is not direct.verdict:
        assert (again.verdict, direct.verdict) == (Verdict.DIFFERENT, Verdict.CLOSE)
        assert is_doubtful(again)


def test_the_law_can_fail() -> None:
    ref, cand = np.zeros(3), np.array([0.0, 0.0, 0.1])
    lying = measured(ref, cand, Tolerance())
    numbers = replace(lying.pairs[0].metrics, envelope=(0.0,) * len(ENVELOPE_RTOLS))  # type: ignore[type-var]
    lying = replace(lying, pairs=(replace(lying.pairs[0], stored=numbers),))
    then = Tolerance(1e-3, 1e-5, "given")
    assert lying.judged_at(then).verdict == "close"
    assert measured(ref, cand, then).verdict == "different"


@given(seeds, kinds, st.sampled_from([Tolerance(), AUTO, Tolerance(1e-5, 0.0, "given")]))
@settings(max_examples=200, deadline=None)
def test_the_tolerance_printed_passes_measured_and_judged_again(seed: int, kind: str, first: Tolerance) -> None:
    result = measured(*arrays(seed, kind), first)
    needed = result.needed_tolerance
    if needed is None:
        assert result.pairs[0].verdict is Verdict.NOT_FINITE
        return
    printed = float(round_up(needed))
    then = Tolerance(printed, printed, "given")
    assert result.judged_at(then).exit_code == 0
    assert measured(*arrays(seed, kind), then).exit_code == 0
    assert printed <= needed * 1.011


@given(seeds, st.sampled_from(("float", "cast")), st.sampled_from((0.1, 1.0, 30.0)))
@settings(max_examples=200, deadline=None)
def test_what_a_gradient_needs_on_its_own_scale_passes_and_is_not_much_too_much(
    seed: int, kind: str, times: float
) -> None:
    ref, cand = arrays(seed, kind)
    largest = float(np.abs(ref).max())
    scale = times * largest
    (made,) = measured(ref, cand, Tolerance(0.0, 0.0, "given")).pairs
    assert made.metrics is not None
    found = replace(made, scale=scale).passes_at
    assume(0 < found < np.inf)
    wide, other = ref.astype(np.float64), cand.astype(np.float64)
    least = float(np.max(np.abs(other - wide) / (scale + np.abs(wide))))
    assert least * (1 - 1e-9) <= found
    assert found <= 2 * least or scale < largest
    printed = float(round_up(found))
    assert made.metrics.judge_at(True, printed * scale, printed)[0].passed
    assert measured(ref, cand, Tolerance(printed * scale, printed, "given")).exit_code == 0
    below = found * (1 - 1e-6)
    assert not made.metrics.judge_at(True, below * scale, below)[0].passed


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1.0, "1.00e+00"), (1.2345e-7, "1.24e-07"), (9.999e-5, "1.00e-04")]
)
def test_round_up(value: float, text: str) -> None:
    assert round_up(value) == text


@given(st.floats(1e-300, 1e300))
def test_rounded_up_is_never_less(value: float) -> None:
    assert value <= float(round_up(value)) <= value * 1.011


def test_a_doubt_is_gone_once_it_is_decided() -> None:
    ref, cand = np.array([1.0, 100.0]), np.array([1.1, 101.0])
    result = measured(ref, cand, Tolerance(0.0, 0.5, "given"))
    doubtful = result.judged_at(Tolerance(0.52, 5e-3, "given"))
    assert is_doubtful(doubtful.pairs[0])
    assert not is_doubtful(doubtful.judged_at(Tolerance(10.0, 0.0, "given")).pairs[0])
