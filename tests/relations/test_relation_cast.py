"""Cast: found in either direction, and when stored wider again; torch's own rounding is the truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stored_tensors import assert_gives_bits, draw, store

from nndiff.relations import cast
from nndiff.relations.rounding import FORMATS, bound_preimages, round_numbers
from nndiff.verdict import RelationKind

SHORT = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]
NAME = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float8_e4m3fn: "float8_e4m3fn"}
NAME[torch.float8_e5m2] = "float8_e5m2"


def prove(reference, candidate, hints=()):
    return cast.prove([store(reference)], [store(candidate)], 1e-5, 1e-5, hints)


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("size", [1e-42, 1e-6, 1.0, 300.0, 1e5])
def test_numbers_are_rounded_as_torch_does(dtype, size):
    numbers = draw(4096, size=size)
    special = torch.tensor([0.0, -0.0, np.nan, np.inf, -np.inf, 464.0, 465.0, 65519.0, 65520.0, 61440.0, 57344.0])
    ties = torch.arange(-64, 64) / 16 + 1 / 32
    numbers = torch.cat([numbers, special, ties, numbers.to(dtype).float()])
    expected = numbers.to(dtype).float().numpy()
    assert np.array_equal(round_numbers(numbers.numpy(), NAME[dtype]).astype(np.float32), expected, equal_nan=True)
    wide = round_numbers(numbers.double().numpy(), NAME[dtype])
    assert np.array_equal(wide.astype(np.float32), expected, equal_nan=True)


@pytest.mark.parametrize("name", ["float32", *NAME.values()])
def test_preimages_hold_what_is_rounded_and_little_more(name):
    numbers = draw(5000, dtype=torch.float64).numpy()
    rounded = round_numbers(numbers, name).astype(np.float64)
    low, high = bound_preimages(rounded, name)
    assert np.all((low <= numbers) & (numbers <= high))
    assert np.all(
        high - low
        <= np.abs(rounded) * 2.0 ** (1 - FORMATS[name].digits) * 1.01
        + 2.0 ** (FORMATS[name].least - FORMATS[name].digits + 1) * 1.01
    )


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("stored_as", [None, torch.float32])
def test_a_cast_is_found_in_either_direction(dtype, stored_as):
    one = draw(64, 50)
    short = one.to(dtype)
    other = short.to(stored_as) if stored_as else short
    for sides in ((one, other), (other, one)):
        relation = assert_gives_bits(prove(*sides), sides[:1], sides[1:])
        assert relation.kind is RelationKind.CAST
        assert relation.text.endswith(f"round to {NAME[dtype]}")
        assert bool(relation.reference) == (sides[0] is one)


def test_float64_and_steps_in_between():
    one = draw(300, 40, dtype=torch.float64)
    assert_gives_bits(prove(one, one.float()), [one], [one.float()])
    by_way = one.to(torch.float32).to(torch.bfloat16).to(torch.float8_e4m3fn)
    single = one.float()
    relation = assert_gives_bits(prove(single, by_way), [single], [by_way])
    assert [operation.dtype for operation in relation.reference] == ["bfloat16", "float8_e4m3fn"]


def test_range_that_is_lost_is_a_cast():
    one = draw(100, 10, dtype=torch.bfloat16, size=1e5)
    assert torch.isinf(one.to(torch.float16)).any()
    assert_gives_bits(prove(one, one.to(torch.float16)), [one], [one.to(torch.float16)])


@pytest.mark.parametrize("place", [0, 5000, 639_999])
def test_one_element_off_by_one_unit_is_no_cast(place):
    one = draw(800, 800)
    for dtype in (torch.bfloat16, torch.float16):
        other = one.to(dtype)
        bits = other.view(torch.int16).reshape(-1)
        bits[place] += 1
        assert prove(one, other) is None
        assert prove(other.float(), one) is None


def test_what_is_no_cast():
    one = draw(64, 64)
    assert prove(one, one) is None  # equal
    assert prove(one.to(torch.bfloat16), one.to(torch.bfloat16).float()) is None  # equal values
    assert prove(one, draw(64, 64, seed=1).to(torch.bfloat16)) is None  # unrelated
    assert prove(one, (one + 1e-2 * draw(64, 64, seed=1)).to(torch.bfloat16)) is None  # trained apart
    assert prove(one, one.to(torch.bfloat16)[:, :32]) is None
    assert prove(one, (one * 100).to(torch.int32)) is None
    truncated = (one.view(torch.int32) & ~0xFFFF).view(torch.float32)  # not rounded: cut off
    assert prove(one, truncated) is None


def test_ones_are_no_rounded_weight_unless_stored_short_or_hinted():
    trained = 1 + draw(500, size=1e-4)
    ones = torch.ones(500)
    assert prove(trained, ones) is None
    hint = prove(draw(50), draw(50).to(torch.bfloat16).float())
    assert prove(trained, ones, [hint]) == hint
    assert prove(trained, ones.to(torch.bfloat16)).text == hint.text
    few = torch.ones(500)
    few[-5:] = 0.5  # 5 elements of 8 digits are as much as must vary
    assert prove(few + 1e-5, few) is not None
    few[-5] = 1.0
    assert prove(few + 1e-5, few) is None


def test_a_tensor_of_several_blocks_is_read_in_all_of_them():
    one = draw(1000, 1000)
    other = one.to(torch.bfloat16)
    assert_gives_bits(prove(one, other), [one], [other])


def test_nan_is_no_evidence():
    few = torch.ones(500)
    few[0] = float("nan")
    assert prove(few + 1e-5, few) is None
    one = draw(500)
    one[0] = float("nan")
    assert prove(one, one.to(torch.bfloat16).float()) is not None
