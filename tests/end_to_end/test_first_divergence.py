"""A planted fault is the first divergence, a copy is identical, another kernel is close: on real architectures."""

from __future__ import annotations

import pytest
import torch
from zoo import ZOO, built

import nndiff
from gradients import slightly
from nndiff.recording.record import record


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    folder = tmp_path_factory.mktemp("references")
    return {
        name: record(built(name), exhibit.inputs(), path=folder / f"{name}.nnrec", backward=True).path
        for name, exhibit in ZOO.items()
    }


@pytest.mark.parametrize("name", ZOO)
def test_a_copy_is_identical(name, references, tmp_path):
    record(built(name), ZOO[name].inputs(), path=tmp_path / "copy.nnrec", backward=True)
    result = nndiff.compare(references[name], tmp_path / "copy.nnrec")
    assert result.verdict == "identical"
    assert result.first_divergence is None
    assert result.totals.pairs > 50


@pytest.mark.parametrize("name", ZOO)
def test_a_planted_fault_is_the_first_divergence(name, references, tmp_path):
    broken = built(name)
    with torch.no_grad():
        broken.get_submodule(ZOO[name].victim).weight.mul_(1.05)
    record(broken, ZOO[name].inputs(), path=tmp_path / "broken.nnrec", backward=True)
    result = nndiff.compare(references[name], tmp_path / "broken.nnrec")
    assert result.verdict == "different"
    assert result.first_divergence.module == ZOO[name].victim
    assert "inputs agree" in result.first_divergence.why


@pytest.mark.parametrize("name", ["llama", "bert", "whisper"])
def test_another_attention_kernel_is_close(name, references, tmp_path):
    record(built(name, attention="sdpa"), ZOO[name].inputs(), path=tmp_path / "sdpa.nnrec", backward=True)
    result = nndiff.compare(references[name], tmp_path / "sdpa.nnrec")
    assert result.verdict in ("close", "identical"), [str(pair) for pair in result.worst(3)]


def test_a_fault_in_the_code_of_a_composite_is_found_there(references, tmp_path):
    broken = built("llama")
    block = broken.model.layers[1]
    plain = block.forward
    block.forward = lambda *args, **kwargs: plain(*args, **kwargs) * 1.01
    record(broken, ZOO["llama"].inputs(), path=tmp_path / "broken.nnrec")
    result = nndiff.compare(references["llama"], tmp_path / "broken.nnrec")
    assert result.first_divergence.module == "model.layers.1"
    assert result.first_divergence.inputs == "in tolerance"


def test_gradients_that_part_while_outputs_agree_are_told(references, tmp_path):
    broken = built("llama")
    broken.model.layers[1].register_forward_hook(lambda module, args, output: slightly(output))
    record(broken, ZOO["llama"].inputs(), path=tmp_path / "broken.nnrec", backward=True)
    result = nndiff.compare(references["llama"], tmp_path / "broken.nnrec")
    assert result.verdict == "different"
    assert all(pair.verdict.passed for pair in result.pairs if pair.slot == "output")
    assert "gradients-only" in {finding.cause for finding in result.findings}
    assert result.first_divergence.slot == "grad_output"
    assert result.first_divergence.module.startswith("model.layers.1")


class _BadGelu(torch.nn.Module):
    """Right forward, wrong backward."""

    def forward(self, value):
        return torch.nn.functional.gelu(slightly(value))


def test_a_wrong_backward_is_blamed_on_the_module_it_is_in(tmp_path):
    def net():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 4)).eval()

    broken = net()
    broken[1] = _BadGelu().train()
    result = nndiff.compare(net(), broken, inputs=torch.randn(3, 4), backward=True)
    assert result.first_divergence.name == "0:grad_output"
    assert result.first_divergence.module == "1"
    assert "its backward" in result.first_divergence.why
    assert "train-mode" not in {finding.cause for finding in result.findings}


def test_losses_of_another_kind_are_told(tmp_path):
    def net():
        torch.manual_seed(0)
        return torch.nn.Linear(4, 4)

    inputs = torch.randn(3, 4)
    one = nndiff.record(net(), inputs, path=tmp_path / "one", backward=True, loss=lambda out: out.pow(2).sum())
    other = nndiff.record(net(), inputs, path=tmp_path / "other", backward=True)
    assert "losses-differ" in {finding.cause for finding in nndiff.compare(one, other).findings}
