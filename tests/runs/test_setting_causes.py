"""Settings of optimisers, recorded or solved for: planted in real trainings, and named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from memory_runs import ADAM, LARGE, SGD, SMALL, compare_trainings, expect_cause, use
from torch.optim import Adam, AdamW

from nndiff.findings.causes import Cause
from nndiff.runs.causes import explain_runs

BOTH = pytest.mark.parametrize("base", [SMALL, LARGE], ids=["elements", "sketches"])
NAMES = ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"]
MOMENTUM = use(torch.optim.SGD, lr=0.1, momentum=0.9)


@BOTH
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "solved"])
@pytest.mark.parametrize(
    ("optimizer", "other", "cause", "values"),
    [
        (SGD, use(torch.optim.SGD, lr=0.3), Cause.LEARNING_RATE, "learning rate 0.1 against 0.3"),
        (SGD, use(torch.optim.SGD, lr=0.1, weight_decay=0.02), Cause.WEIGHT_DECAY, "weight decay 0 against 0.02"),
        (MOMENTUM, use(torch.optim.SGD, lr=0.1, momentum=0.8), Cause.MOMENTUM, "momentum 0.9 against 0.8"),
        (
            MOMENTUM,
            use(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.2),
            Cause.DAMPENING,
            "dampening 0 against 0.2",
        ),
        (
            MOMENTUM,
            use(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
            Cause.NESTEROV,
            "nesterov in the candidate only",
        ),
        (ADAM, use(Adam, lr=0.02), Cause.LEARNING_RATE, "learning rate 0.01 against 0.02"),
        (ADAM, use(Adam, lr=0.01, weight_decay=0.1), Cause.WEIGHT_DECAY, "weight decay 0 against 0.1"),
        (ADAM, use(Adam, lr=0.01, betas=(0.8, 0.999)), Cause.BETAS, "beta 1 0.9 against 0.8"),
        (ADAM, use(Adam, lr=0.01, betas=(0.9, 0.99)), Cause.BETAS, "beta 2 0.999 against 0.99"),
        (
            use(AdamW, lr=0.01, weight_decay=0.0),
            use(AdamW, lr=0.01, weight_decay=0.1),
            Cause.WEIGHT_DECAY,
            "weight decay 0 against 0.1",
        ),
    ],
)
def test_a_setting_that_differs(base, recorded, optimizer, other, cause, values):
    case = compare_trainings(replace(base, make_optimizer=optimizer, keeps_settings=recorded), make_optimizer=other)
    step = "epoch 0, batch " if cause in (Cause.MOMENTUM, Cause.DAMPENING) else "epoch 0, batch 0"
    finding = expect_cause(case, cause, step)
    assert values in finding.evidence
    assert set(finding.where) >= set(NAMES[:5])  # the last has three elements, too few for what momentum has unknowns


@pytest.mark.parametrize("recorded", [True, False])
def test_another_eps(recorded):
    base = replace(SMALL, make_optimizer=ADAM, keeps_settings=recorded)
    case = compare_trainings(base, make_optimizer=use(Adam, lr=0.01, eps=1e-4))
    assert "eps 1e-08 against 0.0001" in expect_cause(case, Cause.OPTIMIZER_EPS, where=NAMES).evidence


@BOTH
def test_the_ratio_of_the_first_updates_confirms_a_recorded_rate(base):
    case = compare_trainings(base, make_optimizer=use(torch.optim.SGD, lr=1.0))
    assert "the first updates are 10 times as large" in expect_cause(case, Cause.LEARNING_RATE).evidence


@BOTH
def test_adam_against_adamw(base):
    base = replace(base, make_optimizer=use(Adam, lr=0.01, weight_decay=0.1))
    case = compare_trainings(base, make_optimizer=use(AdamW, lr=0.01, weight_decay=0.1))
    assert "Adam against AdamW" in expect_cause(case, Cause.DECOUPLED_DECAY, where=NAMES).evidence


def test_adam_against_adamw_without_settings():
    base = replace(SMALL, make_optimizer=use(Adam, lr=0.01, weight_decay=0.1), keeps_settings=False)
    case = compare_trainings(base, make_optimizer=use(AdamW, lr=0.01, weight_decay=0.1))
    assert Cause.DECOUPLED_DECAY in [finding.cause for finding in explain_runs(case)]


def test_adam_and_adamw_are_the_same_without_decay():
    case = compare_trainings(replace(SMALL, make_optimizer=ADAM), make_optimizer=use(AdamW, lr=0.01, weight_decay=0.0))
    assert all(finding.harmless for finding in explain_runs(case))


def halve_rate(step, model, optimizer):
    if step >= 3:
        optimizer.param_groups[0]["lr"] = 0.05


@BOTH
@pytest.mark.parametrize("recorded", [True, False])
def test_a_schedule_that_parts_at_a_step(base, recorded):
    case = compare_trainings(replace(base, keeps_settings=recorded), before_step=halve_rate)
    finding = expect_cause(case, Cause.SCHEDULE, "epoch 0, batch 3", NAMES)
    assert "learning rate 0.1 against 0.05" in finding.evidence


def make_groups(rate):
    def make(model):
        groups = [{"params": model[4].parameters(), "lr": rate}, {"params": model[2].parameters()}]
        return torch.optim.SGD([{"params": model[0].parameters()}, *groups], lr=0.1)

    return make


@BOTH
@pytest.mark.parametrize("recorded", [True, False])
def test_the_rate_of_one_group(base, recorded):
    base = replace(base, make_optimizer=make_groups(0.1), keeps_settings=recorded)
    case = compare_trainings(base, make_optimizer=make_groups(0.5))
    finding = expect_cause(case, Cause.LEARNING_RATE, where=["4.weight", "4.bias"])
    assert "0.1 against 0.5" in finding.evidence


def decay_weights_only(model):
    parameters = dict(model.named_parameters())
    weights = {"params": [tensor for name, tensor in parameters.items() if "weight" in name], "weight_decay": 0.1}
    biases = {"params": [tensor for name, tensor in parameters.items() if "bias" in name], "weight_decay": 0.0}
    return AdamW([weights, biases], lr=0.01)


@BOTH
@pytest.mark.parametrize("recorded", [True, False])
def test_weight_decay_on_the_biases_too(base, recorded):
    base = replace(base, make_optimizer=decay_weights_only, keeps_settings=recorded)
    case = compare_trainings(base, make_optimizer=use(AdamW, lr=0.01, weight_decay=0.1))
    expect_cause(case, Cause.WEIGHT_DECAY, where=["0.bias", "2.bias", "4.bias"])


def test_rate_and_decay_are_both_named():
    case = compare_trainings(SMALL, make_optimizer=use(torch.optim.SGD, lr=0.2, weight_decay=0.1))
    assert [finding.cause for finding in explain_runs(case)] == [Cause.LEARNING_RATE, Cause.WEIGHT_DECAY]


def test_another_optimizer():
    assert (
        "SGD against Adam"
        in expect_cause(compare_trainings(SMALL, make_optimizer=ADAM), Cause.ANOTHER_OPTIMIZER).evidence
    )


def halve_step(optimizer):
    """Return an optimiser of the same name that makes half the steps its settings say."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= 0.5
        optimizer.step(self)
        for group in self.param_groups:
            group["lr"] *= 2

    return type(optimizer.__name__, (optimizer,), {"step": step})


@BOTH
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, AdamW])
def test_a_side_that_does_not_follow_its_own_rule(base, optimizer):
    base = replace(base, make_optimizer=use(optimizer, lr=0.01))
    case = compare_trainings(base, make_optimizer=use(halve_step(optimizer), lr=0.01))
    finding = expect_cause(case, Cause.LEARNING_RATE, where=NAMES)
    assert f"is not the {optimizer.__name__} step of its gradient" in finding.evidence
    assert "it is the one with 0.005" in finding.evidence


@pytest.mark.parametrize(
    "settings",
    [
        {"amsgrad": True},
        {"maximize": True, "weight_decay": 0.1},
        {"betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1},
    ],
)
def test_every_option_of_adam_is_replayed(settings):
    for optimizer in (Adam, AdamW):
        base = replace(SMALL, make_optimizer=use(optimizer, lr=0.01, **settings))
        case = compare_trainings(base, make_optimizer=use(halve_step(optimizer), lr=0.01, **settings))
        expect_cause(case, Cause.LEARNING_RATE, where=NAMES)


def test_an_update_that_no_setting_explains_is_said_to_be_unexplained():
    def shift_weight(step, model, optimizer):
        with torch.no_grad():
            model[0].weight[0, 0] += 0.1

    finding = expect_cause(compare_trainings(SMALL, after_step=shift_weight), Cause.UPDATE_RULE, where=["0.weight"])
    assert "gradients are equal" in finding.evidence
