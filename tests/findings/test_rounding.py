"""What looks like rounding is told as such, with ways out that work; a fault is not, however small it is."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
import torch
from torch import nn

import nndiff
from diagnosis_builders import explain, make_pair, make_tensor
from nndiff import compare

CAUSES = {"rounding", "more-than-rounding"}


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
def test_rounding_of_large_activations_is_told_and_stays_a_difference(backward):
    result = compare(t5(), t5("sdpa"), inputs=tokens(), backward=backward)
    assert result.exit_code == 1
    assert "looks like rounding" in found(result)["rounding"].evidence
    assert "looks like rounding" in result.first_divergence.why
    assert found(result)["rounding"].where == (result.first_divergence.name,)


def test_the_ways_out_work():
    told = found(compare(t5(), t5("sdpa"), inputs=tokens()))["rounding"].repair
    assert "--dtype float64" in told
    assert compare(t5().double(), t5("sdpa").double(), inputs=tokens()).exit_code == 0
    atol, rtol = (float(re.search(rf"--{name} (\S+)", told)[1]) for name in ("atol", "rtol"))
    assert compare(t5(), t5("sdpa"), inputs=tokens(), atol=atol, rtol=rtol).exit_code == 0


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


def test_sums_in_another_order_look_like_rounding():
    result = compare(*summed_otherwise(300.0), inputs=INPUT, atol=1e-7, rtol=1e-7)
    assert result.exit_code == 1
    assert set(found(result)) == {"rounding"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_short_type_against_a_long_one_looks_like_rounding(dtype):
    one = net()
    other = copy.deepcopy(one).to(getattr(torch, dtype))
    plain = other.forward
    other.forward = lambda x: plain(x.to(getattr(torch, dtype)))
    result = compare(one, other, inputs=INPUT)
    assert result.exit_code == 1
    assert f"eps of {dtype}" in found(result)["rounding"].evidence
    assert "--dtype float32" in found(result)["rounding"].repair


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
def test_a_fault_does_not_look_like_rounding(fault, size, at):
    one = net(factor=4.0)
    other = copy.deepcopy(one)
    with torch.no_grad():
        fault(other.blocks[at].up, size)
    result = compare(one, other, inputs=INPUT, atol=1e-6, rtol=1e-6)
    assert result.exit_code == 1
    assert result.first_divergence.module == f"blocks.{at}.up"
    assert not found(result)
    assert "rounding" not in result.first_divergence.why


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_fault_in_a_short_type_does_not_look_like_rounding(dtype):
    one = net().to(getattr(torch, dtype))
    other = copy.deepcopy(one)
    with torch.no_grad():
        other.blocks[1].up.weight.mul_(1.1)
    assert not found(compare(one, other, inputs=INPUT.to(getattr(torch, dtype))))


def test_a_fault_behind_rounding_is_named():
    one, other = summed_otherwise(2.0)
    with torch.no_grad():
        other.blocks[3].norm.weight.mul_(1.001)
    result = compare(one, other, inputs=INPUT, atol=1e-7, rtol=1e-7)
    assert result.first_divergence.module.startswith("blocks.0")
    assert set(found(result)) == {"more-than-rounding"}
    told = found(result)["more-than-rounding"]
    assert told.where == ("blocks.3.norm:output",)
    atol, rtol = (float(re.search(rf"--{name} (\S+)", told.repair)[1]) for name in ("atol", "rtol"))
    again = compare(one, other, inputs=INPUT, atol=atol, rtol=rtol)
    assert again.first_divergence.module == "blocks.3.norm"


def test_other_inputs_are_no_rounding(tmp_path):
    one, other = (
        nndiff.record(net(), given, path=tmp_path / str(number)) for number, given in enumerate((INPUT, INPUT + 1e-7))
    )
    result = compare(one, other, atol=1e-8, rtol=0.0)
    assert result.first_divergence.slot == "model_input"
    assert not found(result)


def test_a_gradient_that_may_be_more_than_rounding_is_named_beside_outputs_that_are_not(tmp_path):
    """What is summed over many places cancels out, and rounding is all that is left of it."""
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    other = copy.deepcopy(one).bfloat16()
    inputs = torch.randn(64, 8)

    def cancelling(output):
        signs = torch.ones(len(output), 1)
        signs[1::2] = -1
        return (output.float() * signs).sum()

    paths = [tmp_path / "a.nnrec", tmp_path / "b.nnrec"]
    for path, made, given in zip(paths, (one, other), (inputs.bfloat16().float(), inputs.bfloat16()), strict=True):
        nndiff.record(made, given, path=path, backward=True, loss=cancelling)
    (found,) = [each for each in compare(*paths).findings if each.cause == "rounding"]
    assert "which may be more" in found.evidence
    assert found.confidence == 0.5


def test_only_models_that_nndiff_ran_are_advised_to_run_in_a_wider_type():
    base = np.linspace(1e4, 2e4, 64, dtype=np.float32)
    other = np.nextafter(base, np.where(np.arange(64) % 2, np.inf, -np.inf).astype(np.float32))
    pairs = [make_pair(make_tensor(base), make_tensor(other), rtol=1e-9)]
    for producer in ("nndiff.record", "a script"):
        (finding,) = explain(pairs, [], {"producer": producer}, {"producer": "nndiff.record"}).findings
        assert finding.cause == "rounding"
        assert ("--dtype float64" in finding.repair) is (producer == "nndiff.record")
        assert "let it pass with --atol" in finding.repair
