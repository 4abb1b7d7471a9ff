"""Real architectures run the same, bit by bit, with and without recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from end_to_end.zoo import ZOO, built
from recording.runs import bare, check_recording, names

MODELS = sorted(ZOO)


@pytest.mark.parametrize("name", MODELS)
def test_eval_forward(name: str, tmp_path: Path) -> None:
    recording = check_recording(built(name), ZOO[name].inputs(), tmp_path / "a.nnrec", backward=False)
    assert len(names(recording)) > 20
    assert recording.complete


@pytest.mark.parametrize("name", MODELS)
def test_train_with_dropout_and_backward(name: str, tmp_path: Path) -> None:
    model = built(name).train()
    recording = check_recording(model, ZOO[name].inputs(), tmp_path / "a.nnrec", inputs_kept=True, params=True)
    assert len(names(recording, "grad_output")) > 20
    params = {name for name, _ in model.named_parameters()}
    assert {
        event.site.name.removesuffix(":param") for event in recording.tensors if event.site.slot == "param"
    } == params


def test_the_models_own_loss_is_taken(tmp_path: Path) -> None:
    inputs: dict[str, Any] = ZOO["llama"].inputs()
    recording = check_recording(built("llama"), {**inputs, "labels": inputs["input_ids"]}, tmp_path / "a.nnrec")
    assert recording.meta["loss"] == "model"
    source = recording.source().tensors
    assert source["(model):loss"].trace.digest == source["(model):output.loss"].trace.digest


def test_the_check_can_fail() -> None:
    model = built("bert")
    first = bare(model, ZOO["bert"].inputs())
    with torch.no_grad():
        model.encoder.layer[2].output.dense.bias[0] += 1e-6
    second = bare(model, ZOO["bert"].inputs())
    assert first.keys() == second.keys()
    assert first != second
