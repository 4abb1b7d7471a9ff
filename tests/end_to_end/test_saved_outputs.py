"""The folder older scripts leave (input_data.pt, hook_data.pkl, ...) is a recording like any other."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

import nndiff

INPUT = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def old_script(model, folder, form):
    """Save what a model did the way the scripts do: with hooks that overwrite, pickled as it comes."""
    forward, backward = {}, {}
    for name, module in model.named_modules():
        if name:
            module.register_forward_hook(lambda m, i, out, name=name: forward.__setitem__(name, out.detach().clone()))
            module.register_forward_hook(
                lambda m, i, out, name=name: (
                    out.register_hook(lambda grad, name=name: backward.__setitem__(name, grad.clone())) and None
                )
            )
    output = model(INPUT)
    output.pow(2).sum().backward()
    folder.mkdir()
    torch.save({"audio_signal": INPUT}, folder / "input_data.pt")
    torch.save(output.detach(), folder / "forward_output.pt")
    torch.save({name: value.grad for name, value in model.named_parameters()}, folder / "parameter_gradients.pt")
    hooks = {"forward": forward, "backward": backward}
    if form == "by layer":
        hooks = {name: {"forward": forward[name], "backward": backward[name]} for name in forward}
    (folder / "hook_data.pkl").write_bytes(pickle.dumps(hooks))
    (folder / "metadata.pkl").write_bytes(pickle.dumps({"seed": 42, "batch_size": 3}))
    return folder


@pytest.mark.parametrize("form", ["by direction", "by layer"])
def test_an_old_folder_is_compared_with_a_recording(tmp_path, form):
    old = old_script(net(), tmp_path / "old", form)
    new = tmp_path / "new.nnrec"
    nndiff.record(net(), {"input": INPUT}, path=new, backward=True, loss=lambda out: out.pow(2).sum())
    result = nndiff.compare(old, new, exclude=["*:model_input*", "*:loss", "*:param", "(model):grad_output"])
    assert result.kind == "recording"
    assert result.exit_code == 0, [(pair.name, pair.verdict) for pair in result.worst()] + list(result.leftovers)
    assert {pair.slot for pair in result.pairs} == {"output", "grad_output", "param_grad"}
    assert result.totals.pairs == 3 + 1 + 3 + 4


def test_two_old_folders_are_compared_and_a_fault_is_found(tmp_path):
    broken = net()
    with torch.no_grad():
        broken[2].weight.mul_(1.1)
    one, other = old_script(net(), tmp_path / "one", "by direction"), old_script(broken, tmp_path / "other", "by layer")
    assert nndiff.compare(one, one).verdict == "identical"
    result = nndiff.compare(one, other)
    assert result.exit_code == 1
    assert result.first_divergence["name"] == "2:output"
