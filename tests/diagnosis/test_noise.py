"""What rounding may do: each threshold is held from both sides, closer than a factor of three."""

from __future__ import annotations

import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from diagnosis_builders import make_pair, make_tensor
from nndiff.diagnosis.noise import (
    PRECISIONS,
    GradientScale,
    is_rounding,
    judge_bias_gradients,
    look_for_rounding,
)
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.dtypes import DTYPES
from nndiff.result import NoteSlug
from nndiff.tensors import NoData, Site, Slot, Stats, TensorRef, Trace
from nndiff.verdict import Verdict

EPS = PRECISIONS["float32"].eps
SHORT_EPS = PRECISIONS["bfloat16"].eps


def gradient_of(shape, largest, slot=Slot.PARAM_GRAD, module="fc", size=None):
    """Return a gradient that is known by its statistics; `size` is that of all its elements, if they have one."""
    count = math.prod(shape)
    stats = Stats(count, 0, 0.0, 1.0, -largest, largest, largest, math.sqrt(count) * (size or largest))
    site = Site(module, slot, tensor="bias" if slot is Slot.PARAM_GRAD else "")
    return TensorRef(site.name, shape, DTYPES["float32"], NoData(""), site=site, trace=Trace(stats=stats))


def scale_of(gradient, *others):
    return GradientScale([gradient, *others]).of(gradient)


def test_a_gradient_is_judged_on_its_own_scale():
    assert scale_of(gradient_of((4,), 0.5)) == 0.5
    assert scale_of(gradient_of((4,), 0.0)) == 1.0
    assert GradientScale([]).of(make_tensor([0.5], "fc")) == 1.0


def test_noise_is_judged_on_a_share_of_the_largest_of_its_kind():
    assert scale_of(gradient_of((4,), 1e-7), gradient_of((4,), 1.0, module="other")) == pytest.approx(0.01)
    # what the loss hands to the model is no kind of gradient to measure others by
    of_loss = gradient_of((4,), 1.0, Slot.GRAD_OUTPUT, "")
    assert scale_of(gradient_of((4,), 1e-7, Slot.GRAD_OUTPUT), of_loss) == pytest.approx(1e-7)


def test_last_digits_of_large_gradients_are_forgiven():
    assert scale_of(gradient_of((4,), 50.0)) == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("places", "size", "largest", "scale"),
    [
        (100, 1.0, 10.0, 50.0),  # LAST_DIGITS_OF_SUM: 0.05 * places ** 1.5
        (10_000, 0.01, 100.0, 4000.0),  # LAST_DIGITS_OF_EQUALS: 0.004 * places ** 2 * size
        (10_000, 0.01, 1.0, 100.0),  # MOST_LAST_DIGITS: 100 * largest
        (1_000_000, 1.0, 60.0, 5e7),  # NOISE_SHARE_OF_SUM: below 0.1 * root of places it is noise alone
        (1_000_000, 1.0, 170.0, 17_000.0),
    ],
)
def test_rounding_of_sums_is_forgiven(places, size, largest, scale):
    terms = gradient_of((places, 4), size, Slot.GRAD_OUTPUT, size=size)
    assert scale_of(gradient_of((4,), largest), terms) == pytest.approx(scale)


def bias_pairs(gradient, error, rtol=1e-5):
    """Return the pairs of a layer whose bias gradient is off by a share of the moduli it is the sum of."""
    sums, moduli = gradient.sum(axis=0, dtype=np.float64), np.abs(gradient).sum(axis=0, dtype=np.float64)
    at_output = make_tensor(gradient, "fc", Slot.GRAD_OUTPUT, 1)
    values = [sums.astype(gradient.dtype), (sums + error * moduli).astype(gradient.dtype)]
    biases = [make_tensor(value, "fc", Slot.PARAM_GRAD, 2, tensor="bias") for value in values]
    return [make_pair(at_output, at_output), make_pair(*biases, rtol=rtol)]


def balanced(places):
    """Return gradients whose sum is zero."""
    return np.where(np.arange(places) % 2, 1.0, -1.0).astype(np.float32)[:, None] * np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("places", "error", "is_sum"),
    [
        (100, 1.5e-6, True),  # SUM_ERROR: 2e-6 + 2e-8 * 10
        (100, 4e-6, False),
        (40_000, 5e-6, True),  # SUM_ERROR_PER_ROOT: 2e-6 + 2e-8 * 200
        (40_000, 8e-6, False),
        (1_000_000, 1.4e-6, True),  # MOST_SUM_ERROR: 0.002 / 1000
        (1_000_000, 3e-6, False),
    ],
)
def test_a_bias_is_judged_as_a_sum_only_where_it_is_one(places, error, is_sum):
    pairs = bias_pairs(balanced(places), error)
    assert pairs[1].pair.verdict is Verdict.DIFFERENT
    judged = judge_bias_gradients(pairs)[1]
    assert judged.has_note(NoteSlug.SUM_OF_GRADIENTS) is is_sum
    assert judged.verdict is (Verdict.CLOSE if is_sum else Verdict.DIFFERENT)


@pytest.mark.parametrize(
    ("dtype", "error", "is_sum"),
    [
        (np.float32, 2.9e-6, True),  # OWN_ERROR: 1e-6, beside a SUM_ERROR of 2.2e-6
        (np.float32, 4e-6, False),
        (np.float16, 3e-3, True),  # OWN_ERROR: 4e-3
        (np.float16, 8e-3, False),
        (ml_dtypes.bfloat16, 2e-2, True),  # OWN_ERROR: 3e-2
        (ml_dtypes.bfloat16, 6e-2, False),
    ],
)
def test_the_last_digits_of_the_gradient_itself_are_forgiven(dtype, error, is_sum):
    pairs = bias_pairs(np.ones((100, 2), dtype), error, rtol=1e-7)
    assert judge_bias_gradients(pairs)[1].has_note(NoteSlug.SUM_OF_GRADIENTS) is is_sum


def test_a_bias_behind_gradients_that_differ_is_not_excused():
    pairs = bias_pairs(balanced(100), 1.5e-6)
    wrong = replace(pairs[0], pair=replace(pairs[0].pair, verdict=Verdict.DIFFERENT))
    assert judge_bias_gradients([wrong, pairs[1]])[1] == pairs[1].pair


def site_with(error, slot=Slot.OUTPUT, dtype="float32", count=64, order=0, shift=0.0, shape=None) -> SitePair:
    """Return a pair that is off by a share of its size, `shift` of it in one direction."""
    values = np.linspace(-1, 1, count)
    site = make_pair(make_tensor(values, "m", slot, order), make_tensor(values + 1.0, "m", slot, order))
    assert site.pair.stored is not None
    square = site.pair.stored.ref_std**2
    mse = error**2 * square
    numbers = replace(
        site.pair.stored, rel_l2=error, max_abs=error, mse=mse, rmse=math.sqrt(mse), diff_mean=shift * math.sqrt(mse),
        ref_mean=0.0, cand_mean=0.0, cand_std=math.sqrt(square + mse), ref_min=-1.0, ref_max=1.0,
    )  # fmt: skip
    pair = replace(site.pair, stored=numbers, dtype=(dtype, dtype))
    reference = replace(site.reference, shape=shape) if shape else site.reference
    return SitePair(pair, reference, site.candidate)


@pytest.mark.parametrize(
    ("error", "worst", "options", "expected"),
    [
        (1.5 * EPS, 0.0, {}, True),  # EPS_PER_OPERATION: 2
        (4 * EPS, 0.0, {}, False),
        (25e-6, 1e-6, {}, True),  # steepness of long types: 32
        (60e-6, 1e-6, {}, False),
        (800 * EPS, 1e-3, {}, True),  # most_eps of long types: 1024
        (1500 * EPS, 1e-3, {}, False),
        (100e-6, 1e-6, {"slot": Slot.GRAD_OUTPUT}, True),  # STEEPNESS_OF_GRADIENTS: 4 * 32
        (200e-6, 1e-6, {"slot": Slot.GRAD_OUTPUT}, False),
        (6000 * EPS, 1e-2, {"slot": Slot.GRAD_OUTPUT}, True),  # GROWTH_OF_GRADIENTS: 8 * 1024
        (12_000 * EPS, 1e-2, {"slot": Slot.GRAD_OUTPUT}, False),
        (0.08, 0.02, {"dtype": "bfloat16"}, True),  # steepness of short types: 4
        (0.11, 0.02, {"dtype": "bfloat16"}, False),
        (12 * SHORT_EPS, 1.0, {"dtype": "bfloat16"}, True),  # most_eps of short types: 16
        (24 * SHORT_EPS, 1.0, {"dtype": "bfloat16"}, False),
        (20 * EPS, 1e-6, {"shift": 0.6}, True),  # SYSTEMATIC_COSINE: 0.9
        (20 * EPS, 1e-6, {"shift": 0.95}, False),
        (20 * EPS, 1e-6, {"shift": 0.95, "count": 20}, True),  # FEWEST_TELLING_ELEMENTS: 32
        (20 * EPS, 1e-6, {"shift": 0.95, "count": 64}, False),
    ],
)
def test_rounding_is_small_undirected_and_grows_slowly(error, worst, options, expected):
    assert is_rounding(site_with(error, **options), worst, terms=1) is expected


@pytest.mark.parametrize(("error", "expected"), [(2.5e-5, True), (4e-5, False)])
def test_long_sums_are_added_up_in_pieces(error, expected):
    first = site_with(error, shape=(1_000_000,))  # MOST_TERMS: 2 eps * root of 2 ** 14
    assert (look_for_rounding([first], first, {}) is not None) is expected


@pytest.mark.parametrize(
    ("first_error", "later_error", "is_fault"),
    [
        (2e-7, 1e-4, False),  # FAULT_EPS: 1000 eps
        (2e-7, 2e-4, True),
        (1e-5, 6e-4, False),  # FAULT_JUMP: 100 times
        (1e-5, 2e-3, True),
    ],
)
def test_a_later_fault_must_be_beyond_doubt(first_error, later_error, is_fault):
    first, later = site_with(first_error, shape=(4096,)), site_with(later_error, order=1, shape=(1,))
    rounding = look_for_rounding([first, later], first, {})
    assert (rounding is not None and rounding.jump is later) is is_fault


def test_a_gradient_that_may_be_more_is_doubtful_beside_outputs_that_are_rounding():
    first, later = site_with(EPS), site_with(1e-2, Slot.GRAD_OUTPUT, order=1)
    rounding = look_for_rounding([first, later], first, {})
    assert rounding is not None
    assert (rounding.jump, rounding.doubtful) == (None, later)


def test_other_inputs_are_no_rounding():
    first = site_with(EPS)
    assert look_for_rounding([first], first, {}) is not None
    assert look_for_rounding([site_with(EPS, Slot.MODEL_INPUT), first], first, {}) is None


def test_whole_numbers_know_no_rounding():
    first = site_with(EPS, dtype="int64")
    assert look_for_rounding([first], first, {}) is None


def test_a_guess_without_numbers_does_not_hide_rounding():
    first, later = site_with(EPS), site_with(EPS, order=1)
    guess = replace(later, pair=replace(later.pair, stored=None, verdict=Verdict.SHAPE, certain=False))
    sure = replace(guess, pair=replace(guess.pair, certain=True))
    for site, jump in ((guess, None), (sure, sure)):
        rounding = look_for_rounding([first, site], first, {})
        assert rounding is not None
        assert rounding.jump is jump
