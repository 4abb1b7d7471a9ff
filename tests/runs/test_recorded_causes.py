"""Causes of trainings that were recorded into folders, and of old dumps."""

from __future__ import annotations

import copy

import pytest
import torch
from planted_trainings import build_model, train

import nndiff
from nndiff.findings.causes import Cause


def use_rate(rate):
    return lambda model: torch.optim.Adam(model.parameters(), lr=rate)


def scale_gradients(step, model, optimizer):
    for parameter in model.parameters():
        parameter.grad.mul_(4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def dumps(folder):
    return train(folder / "dumps", dump=True)


@pytest.mark.parametrize("keep", ["sketch", "full"])
def test_causes_of_recorded_trainings(folder, keep):
    reference = train(folder / f"{keep}-reference", keep=keep)
    (finding,) = nndiff.compare(reference, train(folder / f"{keep}-rate", optimizer=use_rate(0.02), keep=keep)).findings
    assert (finding.cause, len(finding.where)) == (Cause.LEARNING_RATE, 6)
    assert "0.01 against 0.02 in all parameters from epoch 0, batch 0 on" in finding.evidence
    assert "updates are 2 times as large" in finding.evidence
    (finding,) = nndiff.compare(
        reference, train(folder / f"{keep}-scale", before_step=scale_gradients, keep=keep)
    ).findings
    assert finding.cause == Cause.GRADIENTS_SCALED
    assert "epoch 0, batch 0: all gradients are 4 times" in finding.evidence
    assert nndiff.compare(reference, train(folder / f"{keep}-same", keep=keep)).findings == ()


def test_settings_of_old_dumps_are_known(folder, dumps):
    (finding,) = nndiff.compare(dumps, train(folder / "rate-dumps", optimizer=use_rate(0.02), dump=True)).findings
    assert finding.cause == Cause.LEARNING_RATE
    assert "0.01 against 0.02" in finding.evidence


def test_what_old_dumps_do_not_hold_is_said(folder, dumps):
    candidate = train(folder / "scaled-dumps", model=build_model(seed=1), dump=True)
    (finding,) = nndiff.compare(dumps, candidate).findings
    assert finding.cause == Cause.UNEXPLAINED
    for words in ("initial weights: ", "data: ", "gradients: "):
        assert words in finding.evidence


def test_old_dumps_that_hold_an_average(folder, dumps):
    average = folder / "averaged-dumps"
    mean = None
    for path in sorted(dumps.rglob("*.pt")):
        state = torch.load(path)
        weights = state["model_state_dict"]
        if mean is None:
            mean = copy.deepcopy(weights)
        for name, tensor in weights.items():
            mean[name] = 0.9 * mean[name] + 0.1 * tensor if tensor.is_floating_point() else tensor
        target = average / path.relative_to(dumps)
        target.parent.mkdir(parents=True, exist_ok=True)
        torch.save({**state, "model_state_dict": mean}, target)
    (finding,) = nndiff.compare(dumps, average).findings
    assert finding.cause == Cause.AVERAGED_WEIGHTS
    assert "decay 0.9" in finding.evidence
