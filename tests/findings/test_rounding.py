"""What the noise floor says: rounding is told as such, a fault sticks out of it, and what nobody can tell is named."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import nndiff
from diagnosis_builders import explain, make_pair, make_tensor
from nndiff import compare
from nndiff.errors import UsageError
from nndiff.result import NoteSlug
from nndiff.tensors import Slot
from noisy import compare_by_noise

CAUSES = {"rounding", "more-than-rounding", "low-precision"}


def t5(attention="eager", factor=4.0):
    """Return a model whose activations are large, so that their last digits alone are out of tolerance."""
    from transformers import T5Config, T5Model

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=3, num_heads=4, attn_implementation=attention
    )  # fmt: skip
    return scaled(T5Model(config).eval(), factor)


def scaled(model, factor):
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(factor)
    return model


def tokens():
    generator = torch.Generator().manual_seed(1)
    names = {"input_ids": 12, "decoder_input_ids": 7}
    return {name: torch.randint(0, 100, (2, length), generator=generator) for name, length in names.items()}


def found(result):
    return {finding.cause: finding for finding in result.findings if finding.cause in CAUSES}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_rounding_of_large_activations_is_told_and_stays_a_difference(backward, tmp_path):
    result = compare_by_noise(tmp_path, t5(), t5("sdpa"), tokens(), backward=backward)
    assert result.exit_code == 1
    assert set(found(result)) == {"rounding"}
    finding = found(result)["rounding"]
    assert finding.harmless
    assert "every difference is within 8 times the noise floor (at most " in finding.evidence
    assert "no more than rounding does" in result.first_divergence.why
    assert result.first_divergence.times_noise < 8
    again = compare(tmp_path / "reference.nnrec", tmp_path / "candidate.nnrec", tolerance="noise")  # the way out
    assert again.exit_code == 0


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(width) for _ in range(4)))
        self.head = nn.Linear(width, 8)

    def forward(self, x):
        return self.head(self.blocks(x))


def net(factor=1.0):
    torch.manual_seed(0)
    return scaled(Net().eval(), factor)


INPUT = torch.randn(3, 5, 48, generator=torch.Generator().manual_seed(3))


class OtherWay(nn.Module):
    """The same layer, its sum cut in two."""

    def __init__(self, layer):
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x):
        half = x.shape[-1] // 2
        return x[..., :half] @ self.weight[:, :half].T + (x[..., half:] @ self.weight[:, half:].T + self.bias)


def summed_otherwise(factor):
    one = net(factor)
    other = copy.deepcopy(one)
    for block in other.blocks:
        block.up, block.down = OtherWay(block.up).eval(), OtherWay(block.down).eval()
    return one, other


@pytest.mark.usefixtures("without_experiments")
def test_without_floors_nothing_is_said_but_how_to_tell():
    result = compare(*summed_otherwise(300.0), inputs=INPUT, atol=1e-7, rtol=1e-7)
    assert result.exit_code == 1
    assert not found(result)
    (note,) = [note for note in result.notes if note.slug is NoteSlug.NOISE_NOT_MEASURED]
    assert "nndiff record --noise" in note.text
    assert not [note for note in compare(net(), net(), inputs=INPUT).notes if note.slug is NoteSlug.NOISE_NOT_MEASURED]


def test_judging_by_noise_needs_floors(tmp_path):
    with pytest.raises(UsageError, match="nndiff record --noise"):
        compare_by_noise(tmp_path, net(), net(), INPUT, noise=0, tolerance="noise")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_candidate_in_a_shorter_type_is_told(dtype, tmp_path):
    one = net()
    other = copy.deepcopy(one).to(getattr(torch, dtype))
    plain = other.forward
    other.forward = lambda x: plain(x.to(getattr(torch, dtype)))
    result = compare_by_noise(tmp_path, one, other, INPUT)
    assert result.exit_code == 1
    assert set(found(result)) == {"low-precision"}
    assert f"noise floor of {dtype}" in found(result)["low-precision"].evidence
    assert f"the candidate computes in {dtype}" in found(result)["low-precision"].evidence
    with torch.no_grad():
        other.blocks[1].up.weight.mul_(1.5)
    assert not found(compare_by_noise(tmp_path, one, other, INPUT)).keys() & {"rounding", "low-precision"}


def by_a_factor(layer, size):
    layer.weight.mul_(1 + size)
    layer.bias.mul_(1 + size)


def at_random(layer, size):
    generator = torch.Generator().manual_seed(5)
    layer.weight.mul_(1 + size * torch.randn(layer.weight.shape, generator=generator))


def in_one_row(layer, size):
    layer.weight[0].mul_(1 + size)


def by_a_shift(layer, size):
    layer.bias.add_(size * layer.weight.abs().mean())


FAULTS = [(fault, size) for fault in (by_a_factor, at_random, in_one_row, by_a_shift) for size in (1e-3, 1e-2)]
FAULTS += [(by_a_factor, 3e-5), (by_a_factor, 1e-4), (at_random, 1e-4)]


@pytest.mark.parametrize(("fault", "size"), FAULTS)
@pytest.mark.parametrize("at", [0, 2])
def test_a_fault_is_no_rounding(fault, size, at, tmp_path):
    one = net(factor=4.0)
    other = copy.deepcopy(one)
    with torch.no_grad():
        fault(other.blocks[at].up, size)
    result = compare_by_noise(tmp_path, one, other, INPUT, tolerance="noise")
    assert result.exit_code == 1
    assert result.first_divergence.module == f"blocks.{at}.up"
    assert result.first_divergence.times_noise > 8
    assert not found(result)
    assert "rounding" not in result.first_divergence.why


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_fault_in_a_short_type_is_no_rounding(dtype, tmp_path):
    one = net().to(getattr(torch, dtype))
    other = copy.deepcopy(one)
    with torch.no_grad():
        other.blocks[1].up.weight.mul_(1.3)
    result = compare_by_noise(tmp_path, one, other, INPUT.to(getattr(torch, dtype)), tolerance="noise")
    assert result.first_divergence.module == "blocks.1.up"
    assert not found(result)


def test_a_fault_behind_rounding_is_named(tmp_path):
    one, other = summed_otherwise(2.0)
    with torch.no_grad():
        other.blocks[3].norm.weight.mul_(1.001)
    result = compare_by_noise(tmp_path, one, other, INPUT, atol=1e-7, rtol=1e-7)
    assert result.first_divergence.module.startswith("blocks.0")
    assert set(found(result)) == {"more-than-rounding"}
    assert found(result)["more-than-rounding"].where == ("blocks.3.norm:output",)
    again = compare(tmp_path / "reference.nnrec", tmp_path / "candidate.nnrec", tolerance="noise")  # the way out
    assert again.first_divergence.module == "blocks.3.norm"


def test_what_rounding_makes_of_a_sum_that_is_zero_is_undecidable(tmp_path):
    torch.manual_seed(0)
    one = nn.Sequential(nn.Conv1d(4, 8, 1), nn.BatchNorm1d(8), nn.Tanh())
    other = copy.deepcopy(one)
    with torch.no_grad():
        other[1].weight.mul_(1.1)
    result = compare_by_noise(tmp_path, one, other, torch.randn(8, 4, 64), backward=True, mode="train")
    (finding,) = [finding for finding in result.findings if finding.cause == "undecidable"]
    assert finding.harmless
    assert finding.where == ("0.bias:param_grad",)


@pytest.mark.parametrize(("share", "is_told"), [(0.06, False), (0.24, True)])
def test_a_place_is_undecidable_from_a_share_of_its_size_on(share, is_told):
    pair = make_pair(make_tensor([2.0, 1.0], "fc"), make_tensor([2.5, 1.0], "fc"))
    pair = replace(pair, pair=replace(pair.pair, noise=2.0 * share))
    causes = {finding.cause for finding in explain([pair], []).findings}
    assert ("undecidable" in causes) is is_told


def pad(kind, side):
    """Return an input that says which positions of (3, 5) are padding, where that is, and what is said of it."""
    is_padding = torch.zeros(3, 5, dtype=torch.bool)
    is_padding[1, 3:] = is_padding[2, 1:] = True
    is_padding = is_padding if side == "right" else is_padding.flip(1)
    name = "(model):model_input.attention_mask"
    made = {
        "whole numbers": ((~is_padding).long(), f"{name} is 0"),
        "floats": ((~is_padding).float(), f"{name} is 0"),
        "four axes": ((~is_padding).long()[:, None, None], f"{name} is 0"),
        "boolean": (~is_padding, f"{name} is 0"),
        "boolean, of padding": (is_padding, f"{name} is 1"),
        "additive": (is_padding * -1e4, f"{name} is -10000"),
        "lengths": ((~is_padding).sum(1), f"positions are beyond {name}"),
    }[kind]
    return *made, is_padding


PADDINGS = [
    (kind, side)
    for kind in ("whole numbers", "floats", "four axes", "boolean", "boolean, of padding", "additive", "lengths")
    for side in ("right", "left")
    if (kind, side) != ("lengths", "left")
]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("kind", "side"), PADDINGS)
def test_differences_at_masked_positions_are_told(kind, side, last):
    mask, words, is_padding = pad(kind, side)

    class Masked(nn.Module):
        def __init__(self, fill):
            super().__init__()
            self.fc, self.fill = nn.Linear(6, 6), fill

        def forward(self, x, attention_mask):
            y = self.fc(torch.where(is_padding[..., None], self.fill, x))
            return y.transpose(1, 2) if last else y

    torch.manual_seed(0)
    one, other = Masked(0.0), Masked(7.0)
    other.load_state_dict(one.state_dict())
    given = {"x": torch.randn(3, 5, 6), "attention_mask": mask}
    result = compare(one, other, inputs=given)
    (finding,) = [finding for finding in result.findings if finding.cause == "masked-positions"]
    assert finding.harmless
    assert finding.evidence == f"2 of 2 tensors that differ do so only where {words}"
    with torch.no_grad():
        other.fc.weight[0, 0] += 1
    assert not [each for each in compare(one, other, inputs=given).findings if each.cause == "masked-positions"]


def test_padding_that_is_read_is_not_harmless():
    class Mean(nn.Module):
        def __init__(self, fill):
            super().__init__()
            self.fc, self.fill = nn.Linear(6, 6), fill

        def forward(self, x, mask):
            return self.fc(torch.where(mask[..., None] == 0, self.fill, x)).mean(1)

    torch.manual_seed(0)
    one, other = Mean(0.0), Mean(7.0)
    other.load_state_dict(one.state_dict())
    result = compare(one, other, inputs=(torch.randn(3, 5, 6), pad("whole numbers", "right")[0]))
    (finding,) = [finding for finding in result.findings if finding.cause == "masked-positions"]
    assert not finding.harmless
    assert finding.evidence.startswith("1 of 2 tensors")


def test_token_ids_are_no_mask(tmp_path):
    class Embedded(nn.Module):
        def __init__(self, shift):
            super().__init__()
            self.table, self.shift = nn.Embedding(9, 4), shift

        def forward(self, ids):
            return self.table(ids) + self.shift * (ids == 0)[..., None]

    torch.manual_seed(0)
    one, other = Embedded(0.0), Embedded(1.0)
    other.load_state_dict(one.state_dict())
    result = compare(one, other, inputs={"ids": torch.tensor([[0, 3, 5], [2, 0, 1]])})
    assert result.exit_code == 1
    assert not [each for each in result.findings if each.cause == "masked-positions"]


def test_other_inputs_are_no_rounding(tmp_path):
    paths = [tmp_path / name for name in "ab"]
    nndiff.record(net(), INPUT, path=paths[0], noise=2)
    nndiff.record(net(), INPUT + 1e-4, path=paths[1])
    result = compare(*paths, tolerance="noise")
    assert result.first_divergence.slot is Slot.MODEL_INPUT
    assert not found(result)


def explain_masked(one, other, **given):
    other.load_state_dict(one.state_dict())
    return [each for each in compare(one, other, inputs=given).findings if each.cause == "masked-positions"]


class Filled(nn.Module):
    """Put another number where an input says so; nothing mixes positions."""

    def __init__(self, fill, select):
        super().__init__()
        self.fill, self.select = fill, select

    def forward(self, x, types):
        return torch.where(self.select(types)[..., None], x + self.fill, x)


@pytest.mark.parametrize("types", [[[0, 0, 0, 1, 1], [0, 0, 1, 1, 1]], [[1, 0, 1, 0, 1], [0, 0, 1, 1, 1]]])
def test_token_types_and_features_are_no_padding(types):
    sides = Filled(0.0, lambda kept: kept == 0), Filled(1.0, lambda kept: kept == 0)
    assert not explain_masked(*sides, x=torch.randn(2, 5, 3), types=torch.tensor(types))


@pytest.mark.parametrize(("positions", "count"), [(9, 0), (7, 1)])
def test_lengths_have_an_input_of_the_longest(positions, count):
    def select(lengths):
        return torch.arange(7) >= lengths[:, None]

    class Labelled(Filled):
        def forward(self, x, types):
            return super().forward(x[:, :7], types)

    given = {"x": torch.randn(3, positions, 4), "types": torch.tensor([7, 2, 4])}
    assert len(explain_masked(Labelled(0.0, select), Labelled(1.0, select), **given)) == count


def test_another_dtype_is_not_at_masked_positions():
    class Half(nn.Module):
        def __init__(self, dtype):
            super().__init__()
            self.dtype = dtype

        def forward(self, x, mask):
            return (x * 2).to(self.dtype)

    mask = (torch.arange(7) < 5).long().expand(3, 7).contiguous()
    given = {"x": torch.randint(0, 9, (3, 7)).float(), "mask": mask}
    result = compare(Half(torch.float32), Half(torch.float16), inputs=given, strict_dtype=True)
    assert result.exit_code == 1
    assert not [each for each in result.findings if each.cause == "masked-positions"]
