"""The loss a backward pass begins with: the same whatever tensors come in, and told where it reaches nothing."""

from __future__ import annotations

import copy
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nndiff
from nndiff.errors import ModelError
from nndiff.recording.capture.inputs import Inputs
from nndiff.recording.capture.losses import compute_loss
from nndiff.recording.record import record
from runs import names

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


@dataclass
class Held:
    logits: torch.Tensor
    hidden: torch.Tensor


Named = namedtuple("Named", "logits hidden")  # as models return them


class Net(nn.Module):
    """Return two tensors of one shape in some form."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.form = {"of": form}

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.a(x)
        return self.form["of"](self.b(hidden), hidden)


def pair(logits: torch.Tensor, hidden: torch.Tensor) -> Any:
    return logits, hidden


FORMS = {
    "tuple": pair,
    "list": lambda logits, hidden: [logits, hidden],
    "dict": lambda logits, hidden: {"logits": logits, "hidden": hidden},
    "dict in another order": lambda logits, hidden: {"hidden": hidden, "logits": logits},
    "dataclass": Held,
    "named tuple": Named,
    "nested": lambda logits, hidden: {"x": (logits,), "y": {"h": hidden}},
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_tensors_in_another_container_make_the_same_loss(form: str) -> None:
    result = nndiff.compare(Net(pair), Net(FORMS[form]), inputs=X, backward=True)
    assert result.verdict == "identical", result.first_divergence


def test_outputs_that_add_up_to_a_constant_still_have_gradients(tmp_path: Path) -> None:
    found = record(Net(lambda y, _: (y, 1 - y)), X, path=tmp_path / "a.nnrec", backward=True)
    grad = found.source().tensors["b.weight:param_grad"].numpy()
    assert abs(grad).max() > 1e-3


@pytest.mark.parametrize("labels", [False, True])
def test_transformers_with_and_without_return_dict(labels: bool) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        output_hidden_states=True,
    )  # fmt: skip

    def made(return_dict: bool) -> nn.Module:
        torch.manual_seed(0)
        model: nn.Module = BertForSequenceClassification(config).eval()
        plain = model.forward
        model.forward = lambda **given: plain(**given, return_dict=return_dict)  # type: ignore[method-assign]
        return model

    inputs = {"input_ids": torch.arange(14).reshape(2, 7)}
    inputs |= {"labels": torch.tensor([0, 1])} if labels else {}
    result = nndiff.compare(made(return_dict=True), made(return_dict=False), inputs=inputs, backward=True)
    assert result.verdict == "identical", result.first_divergence


def loss(output: Any) -> tuple[torch.Tensor, str]:
    return compute_loss(None, nn.Identity(), Inputs(), output, 42)


def test_a_loss_without_a_name_is_the_one_number_in_the_first_place() -> None:
    one = torch.tensor(2.0, requires_grad=True)
    logits = torch.ones(3, requires_grad=True)
    assert loss((one * 1, logits * 1))[1] == loss({"loss": one * 1, "logits": logits * 1})[1] == "model"
    assert loss((logits * 1, one * 1))[1] == "projection"
    assert loss({"loss": (one * 1).detach(), "logits": logits * 1})[1] == "projection"


def test_a_mask_that_no_gradient_reaches_spoils_nothing() -> None:
    logits = torch.ones(3, requires_grad=True) * 1
    assert bool(torch.isfinite(loss((logits, torch.full((3,), -torch.inf)))[0]))


@pytest.mark.parametrize("given", [None, lambda output: output.pow(2).sum()])
def test_an_output_that_asks_for_no_gradient_is_recorded_and_told(given: Any, tmp_path: Path) -> None:
    model = Net(lambda logits, _: logits.detach())
    found = record(model, X, path=tmp_path / "a.nnrec", backward=True, loss=given)
    assert names(found, "loss") == ["(model):loss"]
    assert not names(found, "param_grad")
    assert any("nothing in the output requires a gradient" in warning for warning in found.warnings)


def test_an_output_without_numbers_has_no_loss() -> None:
    with pytest.raises(ModelError, match="so there is no backward pass"):
        loss(torch.arange(3))


class Spectrum(nn.Module):
    """Return complex numbers that torch has only marked as conjugated, and a part of them marked as negated."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        conjugated = torch.fft.rfft(self.a(x)).conj()
        return conjugated, conjugated.imag


def test_outputs_that_are_conjugated_or_negated_in_name_only_have_a_loss() -> None:
    model = Spectrum()
    conjugated, negated = model(X)
    assert conjugated.is_conj()
    assert negated.is_neg()
    assert torch.equal(loss(conjugated)[0], loss(conjugated.resolve_conj())[0])
    assert nndiff.compare(model, copy.deepcopy(model), inputs=X, backward=True).verdict == "identical"
