"""Folded layers: torch folds, nndiff finds what was folded and with which eps; near-misses are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from relation_tensors import check
from stored_tensors import draw, store
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from nndiff.relations import fold, low_rank
from nndiff.relations.fold_operations import FoldNorm
from nndiff.verdict import RelationKind

TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}


def train_norm(norm, seed=0):
    with torch.no_grad():
        norm.weight.copy_(1 + 0.3 * draw(norm.num_features, seed=seed))
        norm.bias.copy_(draw(norm.num_features, seed=seed + 1))
        norm.running_mean.copy_(draw(norm.num_features, seed=seed + 2))
        norm.running_var.copy_(draw(norm.num_features, seed=seed + 3).square() + 1e-3)
    return norm.eval()


def list_parts(layer, norm):
    own = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
    return [*own, norm.weight, norm.bias, norm.running_mean, norm.running_var]


def make_folded(kind="conv", bias=True, eps=1e-5):
    torch.manual_seed(0)
    if kind == "linear":
        layer, norm = torch.nn.Linear(20, 12, bias=bias), torch.nn.BatchNorm1d(12, eps=eps)
        folded = fuse_linear_bn_eval(layer.eval(), train_norm(norm))
    elif kind == "transposed":
        layer, norm = torch.nn.ConvTranspose2d(6, 12, 3, bias=bias), torch.nn.BatchNorm2d(12, eps=eps)
        folded = fuse_conv_bn_eval(layer.eval(), train_norm(norm), transpose=True)
    else:
        layer, norm = torch.nn.Conv2d(6, 12, 3, bias=bias), torch.nn.BatchNorm2d(12, eps=eps)
        folded = fuse_conv_bn_eval(layer.eval(), train_norm(norm))
    return list_parts(layer, norm), [folded.weight, folded.bias]


def prove(prove_family, reference, candidate):
    return prove_family([store(tensor) for tensor in reference], [store(tensor) for tensor in candidate], 1e-5, 1e-5)


def decode(tensors):
    return [store(tensor).numpy() for tensor in tensors]


@pytest.mark.parametrize("kind", ["conv", "linear", "transposed"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("eps", [1e-5, 1e-3, 3e-4])
def test_batch_norm_is_found_with_its_eps(kind, bias, eps):
    parts, folded = make_folded(kind, bias, eps)
    for sides in ((parts, folded), (folded, parts)):
        relation = prove(fold.prove_batch_norm, *sides)
        assert relation.kind is RelationKind.FOLD
        operation = (relation.reference if sides[0] is parts else relation.candidate)[0]
        assert operation.eps == eps
        check(relation, decode(sides[0]), decode(sides[1]))


def test_batch_norm_in_short_types():
    parts, folded = make_folded()
    for dtype in (torch.float16, torch.bfloat16):
        short = [tensor.to(dtype) for tensor in folded]
        assert prove(fold.prove_batch_norm, parts, short) is not None
        short[0].view(torch.int16).reshape(-1)[5] += 40
        assert prove(fold.prove_batch_norm, parts, short) is None


def change_one(tensors, number, units):
    changed = [tensor.detach().clone() for tensor in tensors]
    flat = changed[number].reshape(-1)
    place = flat.abs().argmax()
    flat[place] *= 1 + units * 2.0**-24
    return changed


@pytest.mark.parametrize("number", range(6))
def test_batch_norm_with_one_element_changed_is_refused(number):
    parts, folded = make_folded()
    assert prove(fold.prove_batch_norm, change_one(parts, number, 4000), folded) is None


def test_what_was_not_folded_is_refused():
    parts, folded = make_folded()
    assert prove(fold.prove_batch_norm, parts, change_one(folded, 0, 60)) is None
    assert prove(fold.prove_batch_norm, parts, [draw(*folded[0].shape), folded[1]]) is None
    assert prove(fold.prove_batch_norm, parts, [folded[0], draw(12)]) is None
    assert prove(fold.prove_batch_norm, parts, [parts[0], parts[1]]) is None
    assert prove(fold.prove_batch_norm, parts, [folded[0] + 1e-5 * draw(*folded[0].shape), folded[1]]) is None
    swapped = [*parts[:4], parts[5], parts[4]]  # mean and variance
    assert prove(fold.prove_batch_norm, swapped, folded) is None
    assert prove(fold.prove_batch_norm, parts[:5], folded) is None
    assert prove(fold.prove_batch_norm, parts, folded[:1]) is None


@pytest.mark.parametrize(("error", "agrees"), [(7.0, True), (9.0, False), (2.9, True), (23.0, False)])
def test_rounding_is_some_units_and_no_more(error, agrees):
    assert fold.ROUNDINGS == 8
    made = np.array([1.0, 2.0, 3.0])
    stored = made + np.array([0, 0, 3.0 * error * 2.0**-24])
    assert fold.agree_but_for_rounding(made, stored, np.abs(made), 2.0**-24) is agrees


def test_a_norm_is_found_in_the_layer_behind_it():
    weight, gamma = draw(24, 16), 1 + 0.2 * draw(16, seed=1)
    folded = weight * gamma
    ones = torch.ones(16)
    relation = prove(fold.prove_norm, [weight, gamma], [folded])
    assert relation.reference == (FoldNorm(1, False),)
    check(relation, decode([weight, gamma]), decode([folded]))
    relation = prove(fold.prove_norm, [weight, gamma], [folded, ones])
    check(relation, decode([weight, gamma]), decode([folded, ones]))
    smooth = torch.exp(draw(16, seed=2))
    smoothed = [weight * smooth, gamma / smooth]
    check(prove(fold.prove_norm, [weight, gamma], smoothed), decode([weight, gamma]), decode(smoothed))
    turned = [weight.T.contiguous(), gamma]
    assert prove(fold.prove_norm, turned, [folded.T.contiguous()]).reference == (FoldNorm(0, False),)
    for wrong in ([folded.flip(0)], [folded * gamma], [weight], [draw(24, 16, seed=3)], change_one([folded], 0, 40)):
        assert prove(fold.prove_norm, [weight, gamma], wrong) is None
    assert prove(fold.prove_norm, [weight, gamma.flip(0)], [folded]) is None
    assert prove(fold.prove_norm, [weight], [weight]) is None


def test_the_bias_of_a_norm_goes_into_that_of_the_layer():
    layer, norm = torch.nn.Linear(16, 24), torch.nn.LayerNorm(16)
    with torch.no_grad():
        norm.weight.copy_(draw(16, seed=1))
        norm.bias.copy_(draw(16, seed=2))
        inputs = draw(4, 16, seed=3)
        expected = layer(norm(inputs)).numpy()
        plain = torch.nn.functional.layer_norm(inputs, (16,)).numpy().astype(np.float64)
    arrays = [tensor.detach().numpy() for tensor in (layer.weight, layer.bias, norm.weight, norm.bias)]
    weight, bias = FoldNorm(1, True).apply(arrays)
    assert np.allclose(plain @ weight.T + bias, expected, atol=1e-5)
    weight, bias = FoldNorm(1, False).apply([arrays[0], *arrays[2:]])
    assert np.allclose(plain @ weight.T + bias + arrays[1], expected, atol=1e-5)


def make_adapter(height=48, width=64, rank=4, scale=2.0, dtype=torch.float32):
    weight = draw(height, width, size=0.02).to(dtype)
    down, up = draw(rank, width, seed=1, size=0.05).to(dtype), draw(height, rank, seed=2, size=0.05).to(dtype)
    return [weight, down, up], weight + scale * (up @ down)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [2.0, 0.25, 16 / 3, -1.0])
def test_a_merged_adapter_is_found_with_its_scale(dtype, scale):
    parts, merged = make_adapter(scale=scale, dtype=dtype)
    for sides in ((parts, [merged]), ([merged], parts)):
        relation = prove(low_rank.prove_adapter, *sides)
        operation = (relation.reference if len(sides[0]) == 3 else relation.candidate)[0]
        assert operation.scale == pytest.approx(scale, rel=1e-6 if dtype is torch.float32 else 5e-3)
        check(
            relation,
            decode(sides[0]),
            decode(sides[1]),
            rtol=torch.finfo(dtype).eps * 2,
            atol=1e-3 if dtype.itemsize == 2 else 1e-7,
        )


def test_a_merged_adapter_of_a_transposed_layer():
    parts, merged = make_adapter()
    parts[0], merged = parts[0].T.contiguous(), merged.T.contiguous()
    relation = prove(low_rank.prove_adapter, parts, [merged])
    assert relation.text == "reference: add 2 * (B @ A).T"
    check(relation, decode(parts), decode([merged]))


def test_an_adapter_that_adds_nothing():
    parts, _ = make_adapter()
    parts[2] = torch.zeros_like(parts[2])
    assert prove(low_rank.prove_adapter, parts, [parts[0]]) is not None
    assert prove(low_rank.prove_adapter, parts, [parts[0] + 1e-3]) is None


def test_what_is_no_merged_adapter():
    parts, merged = make_adapter()
    assert prove(low_rank.prove_adapter, parts, [parts[0]]) is None  # not merged
    for wrong in (
        change_one([merged], 0, 60),
        [merged + 1e-6 * draw(48, 64, seed=5)],
        [draw(48, 64)],
        [merged.flip(1)],
    ):
        assert prove(low_rank.prove_adapter, parts, wrong) is None
    assert prove(low_rank.prove_adapter, [parts[0], draw(4, 64), parts[2]], [merged]) is None
    assert prove(low_rank.prove_adapter, [parts[0], parts[1], parts[2][:, :3]], [merged]) is None


@pytest.mark.parametrize("rank", [1, 8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_rank_of_a_difference_is_found(rank, dtype):
    parts, merged = make_adapter(100, 80, rank)
    pair = parts[0].to(dtype), merged.to(dtype)
    assert low_rank.find_rank(*map(store, pair)) == rank


def test_a_large_difference_is_sampled_first():
    parts, merged = make_adapter(700, 600, 16)
    assert low_rank.find_rank(store(parts[0]), store(merged)) == 16
    merged[699, 599] += 1e-3
    assert low_rank.find_rank(store(parts[0]), store(merged)) is None


@pytest.mark.parametrize(
    "case", ["equal", "trained", "one element", "one row", "few columns", "unrelated", "high rank", "nan"]
)
def test_what_has_no_low_rank(case):
    (weight, _, _), merged = make_adapter(60, 80, 4)
    other = {
        "equal": weight,
        "trained": weight + 1e-3 * draw(60, 80, seed=3),
        "one element": change_one([weight], 0, 1e6)[0],
        "one row": torch.cat([weight[:59], draw(1, 80)]),
        "few columns": torch.cat([weight[:, :70], draw(60, 1) * draw(1, 10)], dim=1),
        "unrelated": draw(60, 80, seed=7),
        "high rank": make_adapter(60, 80, 20)[1],
        "nan": torch.full_like(merged, torch.nan),
    }[case]
    assert low_rank.find_rank(store(weight), store(other)) is None


def test_limits_of_low_rank():
    assert (low_rank.NOISE, low_rank.LEAST_CHANGED, low_rank.MOST_IN_ONE_ROW) == (8, 0.5, 0.5)
    weight = draw(60, 80)
    for changed, is_low in ((25, False), (35, True)):
        mask = torch.zeros(60, 1)
        mask[:changed] = 1
        other = weight + mask * draw(60, 2, seed=1) @ draw(2, 80, seed=2)
        assert (low_rank.find_rank(store(weight), store(other)) is not None) is is_low
    for largest_share, is_low in ((0.3, True), (0.8, False)):
        up = draw(60, 1, seed=1) / draw(60, 1, seed=1).norm()
        up[7] = (largest_share / (1 - largest_share)) ** 0.5
        other = weight + up @ draw(1, 80, seed=2)
        assert (low_rank.find_rank(store(weight), store(other)) is not None) is is_low
    largest = float(weight.abs().max())
    for units, is_low in ((6, True), (20, False)):
        other = weight.double() + (draw(60, 2, seed=1) @ draw(2, 80, seed=2)).double() / 1000
        other[3, 3] += units * largest * 2.0**-24
        assert (low_rank.find_rank(store(weight), store(other)) is not None) is is_low
