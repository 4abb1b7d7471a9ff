"""Quantised weights: bits and groups are found where every element is within half a step; packed forms are unpacked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stored_tensors import draw, store

from nndiff.relations import load_relation, quantised
from nndiff.relations.groups import relate_groups
from nndiff.relations.packed import AWQ_ORDER, Dequantise, PackedForm, spread_scales
from nndiff.relations.quantised import NORMAL_FLOAT, find_grid
from nndiff.verdict import RelationKind

WEIGHT = draw(64, 512, size=0.02)


def round_symmetric(weight, bits, group, dtype=torch.float32):
    """Return the integers, the scales and the dequantised weight."""
    groups = weight.reshape(-1, group)
    scales = groups.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    numbers = torch.round(groups / scales)
    return numbers.reshape(weight.shape), scales, (numbers * scales).reshape(weight.shape).to(dtype)


def round_between(weight, bits, group):
    groups = weight.reshape(-1, group)
    low, high = groups.amin(1, keepdim=True).clamp(max=0), groups.amax(1, keepdim=True).clamp(min=0)
    scales = (high - low) / (2**bits - 1)
    zeros = torch.round(-low / scales)
    numbers = torch.clamp(torch.round(groups / scales) + zeros, 0, 2**bits - 1)
    return numbers, scales, zeros, ((numbers - zeros) * scales).reshape(weight.shape)


def find(one, other):
    return find_grid(store(one), store(other))


# 128 elements on 255 levels, or levels nearer than the digits of float16, would tell too little
@pytest.mark.parametrize(
    ("bits", "group", "dtype"),
    [
        (4, 512, torch.float32),
        (4, 128, torch.float32),
        (4, 128, torch.float16),
        (4, 512, torch.bfloat16),
        (8, 512, torch.float32),
    ],
)
def test_bits_and_groups_of_symmetric_rounding(bits, group, dtype):
    grid = find(WEIGHT, round_symmetric(WEIGHT, bits, group, dtype)[2])
    assert (grid.bits, grid.group_size, grid.is_uniform) == (bits, group, True)
    assert 0.4 < grid.largest_error < 0.52


@pytest.mark.parametrize("group", [512, 64])
def test_bits_and_groups_of_rounding_between_extremes(group):
    grid = find(WEIGHT, round_between(WEIGHT, 4, group)[3])
    assert (grid.bits, grid.group_size) == (4, group)


def test_one_scale_for_the_whole_tensor():
    grid = find(WEIGHT, round_symmetric(WEIGHT, 4, WEIGHT.numel())[2])
    assert (grid.bits, grid.group_size) == (4, 0)


def test_levels_of_a_normal_distribution():
    levels = torch.tensor(NORMAL_FLOAT)
    groups = WEIGHT.reshape(-1, 64)
    largest = groups.abs().amax(1, keepdim=True)
    nearest = (groups[..., None] / largest[..., None] - levels).abs().argmin(-1)
    other = (levels[nearest] * largest).reshape(WEIGHT.shape)
    grid = find(WEIGHT, other)
    assert (grid.bits, grid.group_size, grid.is_uniform) == (4, 64, False)
    other[5, 5] = -other[5, 5]
    assert find(WEIGHT, other) is None


def break_one(values, place, number):
    broken = values.clone()
    broken.reshape(-1)[place] += number
    return broken


@pytest.mark.parametrize(
    "case",
    [
        "equal",
        "cast",
        "trained",
        "unrelated",
        "one level off",
        "off the grid",
        "other weight",
        "pruned",
        "zeros",
        "nan",
    ],
)
def test_what_is_not_quantised(case):
    numbers, scales, other = round_symmetric(WEIGHT, 4, 128)
    inside = int((numbers.abs() < 5).reshape(-1).nonzero()[1000])
    step = float(scales.reshape(-1)[inside // 128])
    changed = {
        "equal": WEIGHT,
        "cast": WEIGHT.bfloat16(),
        "trained": WEIGHT + 1e-3 * draw(64, 512, seed=1),
        "unrelated": draw(64, 512, seed=2),
        "one level off": break_one(other, inside, step),
        "off the grid": break_one(other, inside, step / 7),
        "other weight": round_symmetric(draw(64, 512, seed=3, size=0.02), 4, 128)[2],
        "pruned": torch.where(WEIGHT.abs() > 0.02, WEIGHT, 0.0),
        "zeros": torch.zeros_like(WEIGHT),
        "nan": break_one(other, inside, torch.nan),
    }[case]
    assert find(WEIGHT, other) is not None
    assert find(WEIGHT, changed) is None


def test_limits_of_half_a_step():
    assert (quantised.HALF_STEP, quantised.MOST_LEVELS) == (0.51, 256)
    numbers, scales, other = round_symmetric(WEIGHT, 4, 128)
    inside = int((numbers.abs() < 5).reshape(-1).nonzero()[1000])
    step = float(scales.reshape(-1)[inside // 128])
    for error, fits in ((0.505, True), (0.53, False)):
        one = WEIGHT.clone()
        one.reshape(-1)[inside] = other.reshape(-1)[inside] + error * step
        assert (find(one, other) is not None) is fits
    assert (quantised.LEVEL_ROUNDINGS, quantised.LEAST_STEP) == (2, 8)
    for units, fits in ((1, True), (5, False)):  # of the largest element of the group
        assert (find(WEIGHT, break_one(other, inside, units * 2.0**-24 * 7 * step)) is not None) is fits
    largest = float(WEIGHT.abs().max())
    for units, fits in ((14, False), (18, True)):  # of bfloat16, between two levels
        step = units * 2.0**-8 * largest
        grid = find(WEIGHT, (torch.round(WEIGHT / step) * step).bfloat16())
        assert (grid is not None) is fits
    row = draw(8, 4096)
    for levels, fits in ((250, True), (300, False)):
        step = (row.amax(1, keepdim=True) - row.amin(1, keepdim=True)) / levels
        assert (find(row, torch.round(row / step) * step) is not None) is fits


def pack(numbers, bits, axis, order=None):
    count = 32 // bits
    numbers = np.moveaxis(numbers.numpy().astype(np.int64), axis, 0)
    words = np.zeros((len(numbers) // count, *numbers.shape[1:]), np.int64)
    for number in range(count):
        place = number if order is None else order[number]
        words |= numbers[number::count] << (bits * place)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(words, 0, axis)).astype(np.uint32).view(np.int32))


def prove(parts, weight):
    relation = quantised.prove_packed([store(part) for part in parts], [store(weight)], 1e-5, 1e-5)
    if relation is not None:
        assert relation.kind is RelationKind.QUANTISED
        assert load_relation(relation.to_dict()) == relation
        turned = quantised.prove_packed([store(weight)], [store(part) for part in parts], 1e-5, 1e-5)
        assert (turned.candidate, turned.reference) == (relation.reference, ())
    return relation


def assert_makes(relation, parts, expected, atol=1e-6):
    made, _ = relation.apply([store(part).numpy() for part in parts], [expected.numpy()])
    assert np.allclose(made, expected.double().numpy(), atol=atol)


def make_gptq(bits=4, less_one=1):
    numbers, scales, zeros, dequantised = round_between(WEIGHT, bits, 128)
    integers = numbers.reshape(WEIGHT.shape).T
    grouped = scales.reshape(64, 4).T.contiguous(), zeros.reshape(64, 4).T
    packed_zeros = pack((grouped[1] - less_one).clamp(min=0).contiguous(), bits, 1)
    return [pack(integers.contiguous(), bits, 0), grouped[0], packed_zeros], dequantised


def test_gptq():
    parts, dequantised = make_gptq()
    for weight in (dequantised, WEIGHT):
        relation = prove(parts, weight)
        assert relation.reference == (Dequantise(PackedForm.GPTQ, 4, 1, 1.0),)
        assert_makes(relation, parts, dequantised)
    groups = (torch.arange(512) // 128).int()
    assert_makes(prove([*parts, groups], dequantised), [*parts, groups], dequantised)
    assert prove([*parts, groups.flip(0)], dequantised) is None
    assert prove(make_gptq(less_one=0)[0], WEIGHT).reference == (Dequantise(PackedForm.GPTQ, 4, 0, 1.0),)
    assert prove(make_gptq(bits=8)[0], WEIGHT).reference[0].bits == 8


def test_awq():
    numbers, scales, zeros, dequantised = round_between(WEIGHT, 4, 128)
    parts = [
        pack(numbers.reshape(WEIGHT.shape).T.contiguous(), 4, 1, AWQ_ORDER),
        scales.reshape(64, 4).T.contiguous(),
        pack(zeros.reshape(64, 4).T.contiguous(), 4, 1, AWQ_ORDER),
    ]
    relation = prove(parts, WEIGHT)
    assert relation.reference == (Dequantise(PackedForm.AWQ, 4, 0, 1.0),)
    assert_makes(relation, parts, dequantised)
    # the order that AutoAWQ packs in: number i of a word is column order[i]
    assert [AWQ_ORDER.index(place) for place in range(8)] == [0, 2, 4, 6, 1, 3, 5, 7]


def test_packed_rows():
    numbers, scales, dequantised = round_symmetric(WEIGHT, 4, 128)
    parts = [pack(numbers + 8, 4, 1), scales.reshape(64, 4)]
    relation = prove(parts, WEIGHT)
    assert relation.reference == (Dequantise(PackedForm.ROWS, 4, 8, 1.0),)
    assert_makes(relation, parts, dequantised)


@pytest.mark.parametrize("group", [512, 128, 64 * 512])
def test_eight_bits(group):
    numbers, scales, dequantised = round_symmetric(WEIGHT, 8, group)
    parts = [numbers.to(torch.int8), scales.squeeze() if group != 128 else scales.reshape(64, 4)]
    relation = prove(parts, WEIGHT)
    assert relation.reference == (Dequantise(PackedForm.PLAIN, 8, 0, 1.0),)
    assert_makes(relation, parts, dequantised)
    largest = [parts[0], parts[1] * 127]
    assert prove(largest, WEIGHT).reference[0].divisor == 127


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scales_that_were_rounded_after_the_integers_were_found(dtype):
    numbers, scales, _ = round_symmetric(WEIGHT, 8, 512)
    parts = [numbers.to(torch.int8), scales.squeeze().to(dtype)]
    assert_makes(prove(parts, WEIGHT), parts, parts[0].float() * parts[1].float()[:, None])
    assert prove([parts[0], parts[1] * 1.02], WEIGHT) is None


def test_short_floats_with_scales_of_rows_and_blocks():
    weight = draw(200, 300)
    scales = weight.abs().amax(1, keepdim=True) / 448
    parts = [(weight / scales).to(torch.float8_e4m3fn), scales]
    assert_makes(prove(parts, weight), parts, parts[0].float() * scales)
    blocks = torch.rand(2, 3, generator=torch.Generator().manual_seed(0)) + 0.5
    spread = torch.from_numpy(spread_scales(blocks.numpy(), (200, 300)).copy())
    assert float(spread[127, 127]) == float(blocks[0, 0])
    assert float(spread[128, 256]) == float(blocks[1, 2])
    parts = [(weight / spread).to(torch.float8_e4m3fn), blocks]
    assert prove(parts, weight) is not None
    assert prove([parts[0], blocks.flip(0)], weight) is None


@pytest.mark.parametrize("case", ["weight", "one element", "one scale", "one word", "shape", "no scales"])
def test_what_was_not_packed(case):
    parts, dequantised = make_gptq()
    assert prove(parts, dequantised) is not None
    weight = dequantised
    if case == "weight":
        weight = draw(64, 512, seed=4, size=0.02)
    elif case == "one element":
        weight = break_one(dequantised, 4321, 0.02)
    elif case == "one scale":
        parts[1] = break_one(parts[1], 7, 0.01)
    elif case == "one word":
        parts[0] = break_one(parts[0], 99, 1 << 20)
    elif case == "shape":
        weight = dequantised[:, :256]
    else:
        parts = [parts[0]]
    assert prove(parts, weight) is None


def test_packed_weights_are_found_by_their_names():
    parts, _ = make_gptq()
    reference = {"layer.0.weight": store(WEIGHT, "layer.0.weight")}
    candidate = {}
    for leaf, part in zip(("qweight", "scales", "qzeros"), parts, strict=True):
        candidate[f"layer.0.{leaf}"] = store(part, f"layer.0.{leaf}")
    (group,) = relate_groups(reference, candidate, [], 1e-5, 1e-5)
    assert group.relation.kind is RelationKind.QUANTISED
    numbers, scales, _ = round_symmetric(WEIGHT, 8, 512)
    candidate = {
        "layer.0.weight": store(numbers.to(torch.int8), "layer.0.weight"),
        "layer.0.weight_scale": store(scales, "layer.0.weight_scale"),
    }
    (group,) = relate_groups(reference, candidate, [("layer.0.weight", "layer.0.weight")], 1e-5, 1e-5)
    assert [tensor.name for tensor in group.candidate] == ["layer.0.weight", "layer.0.weight_scale"]
