"""Factors and shifts of weights in files: one for all or along an axis, exact to the bit; anything less is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_tensors import assert_gives_bits, draw, store

from nndiff.relations import along, read_factor, scale, shift
from nndiff.relations.operations import Multiply
from nndiff.relations.value_operations import MultiplyAlong, Shift, ShiftAlong
from nndiff.verdict import RelationKind

ONE = draw(96, 64, size=0.02)
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def prove_scale(reference, candidate, hints=()):
    return scale.prove_stored([store(reference)], [store(candidate)], 1e-5, 1e-5, hints)


def prove_shift(reference, candidate, hints=()):
    return shift.prove([store(reference)], [store(candidate)], 1e-5, 1e-5, hints)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("factor", [2.0, 0.125, -1.0, 0.1, 1.001 + 1 / 128, 64**-0.5, 24**0.5, -(32**-0.5)])
def test_one_factor_is_found(dtype, factor):
    one = ONE.to(dtype)
    other = one * factor
    for sides in ((one, other), (other, one)):
        relation = prove_scale(*sides)
        if dtype is not torch.float64:  # whose products float64 itself rounds
            assert_gives_bits(relation, sides[:1], sides[1:])
        found = read_factor(relation) if sides[0] is one else 1 / read_factor(relation)
        assert found == pytest.approx(factor, rel=1e-3 if dtype in (torch.bfloat16, torch.float16) else 1e-7)


def test_a_factor_across_types():
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e5m2):
        other = (ONE * 8).to(dtype)
        assert_gives_bits(prove_scale(ONE, other), [ONE], [other])
        assert_gives_bits(prove_scale(other, ONE), [other], [ONE])
        assert read_factor(prove_scale(ONE, other)) == 8.0


def test_roots_of_sizes_are_named():
    wide = draw(48, 96)
    relation = prove_scale(wide, wide * math.sqrt(96))
    assert relation.text == "reference: multiply by 9.79796 = sqrt(96), round to float32"
    relation = prove_scale(wide, wide / math.sqrt(24))
    assert relation.text == "reference: multiply by 0.204124 = 1/sqrt(24), round to float32"
    assert Multiply(-math.sqrt(2)).text == "multiply by -1.41421 = -sqrt(2)"
    assert Multiply(math.sqrt(16383)).text == "multiply by 127.996 = sqrt(16383)"  # the widest root that is named
    assert Multiply(math.sqrt(16385)).text == "multiply by 128.004"
    assert (Multiply(8.0).text, Multiply(0.1).text, Multiply(0.5).text) == (
        "multiply by 8",
        "multiply by 0.1",
        "multiply by 0.5",
    )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("shape", "axis"), [((40, 30), 0), ((40, 30), 1), ((12, 8, 3, 3), 0), ((12, 8, 3, 5), 1), ((6, 5, 7), 2)]
)
def test_factors_along_an_axis_are_found(dtype, shape, axis):
    one = draw(*shape, dtype=dtype)
    factors = torch.exp(draw(shape[axis], seed=1)).to(dtype)
    other = one * factors.reshape((-1,) + (1,) * (len(shape) - axis - 1))
    relation = assert_gives_bits(prove_scale(one, other), [one], [other])
    assert isinstance(relation.reference[0], MultiplyAlong)
    assert relation.reference[0].axis == axis


def test_signs_are_told_as_signs_and_rows_of_zeros_stay():
    signs = torch.ones(96)
    signs[[3, 50, 51]] = -1
    one = ONE.clone()
    one[7] = 0
    relation = assert_gives_bits(prove_scale(one, one * signs[:, None]), [one], [one * signs[:, None]])
    assert relation.text == "reference: flip the sign of 3 of 96 places along axis 0, round to float32"


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("number", [1.0, -1.0, 0.3])
def test_one_shift_is_found(dtype, number):
    one = draw(512, dtype=dtype, size=0.3)
    other = one + number
    relation = assert_gives_bits(prove_shift(one, other), [one], [other])
    assert relation.kind is RelationKind.SHIFT
    assert isinstance(relation.reference[0], Shift)
    assert relation.reference[0].number == pytest.approx(number, abs=1e-2 if dtype.itemsize == 2 else 1e-6)
    if abs(number) == 1:
        assert relation.reference[0].number == number


def test_shifts_along_an_axis_are_found():
    one = draw(50, 40)
    means = one.mean(dim=1, keepdim=True)
    other = one - means
    relation = assert_gives_bits(prove_shift(one, other), [one], [other])
    assert isinstance(relation.reference[0], ShiftAlong)
    assert np.allclose(relation.reference[0].numbers, -means[:, 0].double().numpy(), atol=1e-7)


def subtly_changed(changed):
    """Yield pairs that look like a factor or a shift, and are none; `changed` gives the planted pair."""
    one, other = changed
    for place in (0, 1111, one.numel() - 1):
        wrong = other.clone().reshape(-1)
        wrong[place] *= 1 + 3e-7  # a few units in the last place
        yield one, wrong.reshape(other.shape)
    yield one, other + 1e-5 * draw(*one.shape, seed=3)  # noise
    yield one, other * (1 + 1e-4 * draw(*one.shape, seed=4))
    wrong = other.clone()
    wrong[5] = draw(*wrong[5].shape, seed=5)  # one row of its own
    yield one, wrong
    wrong = other.clone()
    wrong[5] = wrong[6]
    yield one, wrong
    wrong = other.clone()
    wrong[2, 2] = np.nan
    yield one, wrong
    yield one, other.flip(0)


PLANTED = {
    "factor": (ONE, ONE * 0.37),
    "factors": (ONE, ONE * torch.exp(draw(96, 1, seed=1))),
    "shift": (ONE, ONE + 1),
    "shifts": (ONE, ONE + draw(96, 1, seed=1)),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_nothing_is_said_of_what_was_changed_subtly(planted):
    assert prove_scale(*PLANTED[planted]) or prove_shift(*PLANTED[planted])
    for one, other in subtly_changed(PLANTED[planted]):
        assert prove_scale(one, other) is None
        assert prove_shift(one, other) is None


UNRELATED = {
    "unrelated": (ONE, draw(96, 64, seed=9)),
    "equal": (ONE, ONE),
    "cast": (ONE, ONE.to(torch.bfloat16)),
    "trained apart": (ONE, ONE + 1e-3 * draw(96, 64, seed=2)),
    "constants": (torch.ones(96, 64), 2 * torch.ones(96, 64)),
    "zeros": (torch.zeros(96, 64), torch.zeros(96, 64)),
    "zeros and numbers": (torch.zeros(96, 64), ONE),
    "one element each": (draw(96, 1), draw(96, 1, seed=1)),
    "one element": (draw(1), draw(1, seed=1)),
    "two elements in each row": (draw(3, 2), draw(3, 2, seed=1)),
    "rows of one number": (draw(96, 1).expand(96, 4), draw(96, 1, seed=1).expand(96, 4)),
    "another shape": (ONE, 2 * ONE[:, :32]),
    "integers": (torch.arange(20), 2 * torch.arange(20)),
    "vanished": (ONE * 1e-5, (1 + ONE * 1e-5).to(torch.bfloat16)),
    "hardly any digits": (draw(8).to(torch.float8_e5m2), draw(8, seed=1).to(torch.float8_e5m2)),
}


@pytest.mark.parametrize("case", UNRELATED)
def test_nothing_is_said_of_what_is_not_related(case):
    for one, other in (UNRELATED[case], UNRELATED[case][::-1]):
        assert prove_scale(one, other) is None
        assert prove_shift(one, other) is None


def test_constants_confirm_a_hint():
    known = prove_shift(draw(64), draw(64) + 1)
    assert prove_shift(torch.zeros(64), torch.ones(64), [known]) == known
    assert prove_shift(torch.zeros(64), torch.full((64,), 1.5), [known]) is None
    known = prove_scale(draw(64), draw(64) * 2)
    assert prove_scale(torch.ones(64), torch.full((64,), 2.0), [known]) == known
    assert prove_scale(torch.ones(64), torch.full((64,), 2.1), [known]) is None


def test_evidence_must_be_beyond_chance():
    assert along.LEAST_EVIDENCE == 40
    for count, is_enough in ((5, False), (6, True)):  # one number is fitted; 5 times 8 digits are 40
        one = draw(count, dtype=torch.bfloat16)
        assert (prove_scale(one, one * 2) is not None) is is_enough
    for count, is_enough in ((2, False), (3, True)):
        one = draw(count)
        assert (prove_scale(one, one * 2) is not None) is is_enough


def test_blocks_share_their_numbers(monkeypatch):
    monkeypatch.setattr(along, "BLOCK", 128)
    monkeypatch.setattr(along, "PEEKED", 64)
    other = ONE * torch.exp(draw(96, 1, seed=1))
    assert_gives_bits(prove_scale(ONE, other), [ONE], [other])
    other[90] *= torch.linspace(1, 1.1, 64)
    assert prove_scale(ONE, other) is None
    row = draw(1000)
    assert_gives_bits(prove_shift(row, row + 1), [row], [row + 1])


def test_what_is_not_finite_stays_in_its_place():
    one = ONE.clone()
    one[0, 0], one[1, 1], one[2, 2] = np.nan, np.inf, -np.inf
    assert_gives_bits(prove_scale(one, -2 * one), [one], [-2 * one])
    assert_gives_bits(prove_shift(one, one + 1), [one], [one + 1])
    other = -2 * one
    other[1, 1] = np.inf
    assert prove_scale(one, other) is None
    other = one + 1
    other[1, 1] = 3.0
    assert prove_shift(one, other) is None


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.floats(0.01, 100.0), st.sampled_from(TYPES))
def test_any_factor_of_any_type(seed, factor, dtype):
    one = draw(40, 10, seed=seed, dtype=dtype)
    other = one * factor
    relation = prove_scale(one, other)
    if torch.equal(one, other):
        assert relation is None
    else:
        assert relation is not None
        sides = relation.apply([store(one).numpy()], [store(other).numpy()])
        assert np.allclose(*[side.astype(np.float64) for side in sides], rtol=torch.finfo(dtype).eps, atol=1e-7)
