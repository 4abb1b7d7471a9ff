"""What goes wrong inside a step: gradients, buffers, state, precision, reporting; planted for real, and named."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from memory_runs import (
    ADAM,
    EXACT,
    LARGE,
    SMALL,
    Encoder,
    Training,
    compare_trainings,
    expect_cause,
    make_batches,
    make_convnet,
    make_norm_mlp,
    make_token_batches,
    use,
)
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from nndiff.findings.causes import Cause
from nndiff.runs.causes import explain_runs
from nndiff.runs.causes.onset import Onset, read_losses

BOTH = pytest.mark.parametrize("base", [SMALL, LARGE], ids=["elements", "sketches"])
NAMES = ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"]
MOMENTUM = use(torch.optim.SGD, lr=0.1, momentum=0.9)
CONV = Training(make_convnet, ADAM, make_batches(features=64))
TOKENS = Training(Encoder, ADAM, make_token_batches())
NORM = replace(SMALL, make_model=make_norm_mlp)


def scale_gradients(factor):
    def scale(step, model):
        for parameter in model.parameters():
            parameter.grad.mul_(factor)

    return scale


@BOTH
@pytest.mark.parametrize(("factor", "text"), [(4.0, "4 times"), (0.125, "0.125 times"), (0.37, "0.37 times")])
def test_gradients_scaled(base, factor, text):
    finding = expect_cause(
        compare_trainings(base, change_gradients=scale_gradients(factor)), Cause.GRADIENTS_SCALED, where=NAMES
    )
    assert text in finding.evidence


def test_a_sum_in_place_of_a_mean():
    def sum_up(model, x, y):
        return functional.cross_entropy(model(x), y, reduction="sum")

    finding = expect_cause(compare_trainings(TOKENS, loss=sum_up), Cause.GRADIENTS_SCALED)
    assert "16 times the reference's; so is the loss" in finding.evidence
    assert "batch size" in finding.repair


def test_the_gradient_of_one_parameter_scaled():
    case = compare_trainings(SMALL, change_gradients=lambda step, model: model[4].weight.grad.mul_(2))
    expect_cause(case, Cause.GRADIENTS_SCALED, where=["4.weight"])


@pytest.mark.parametrize("base", [SMALL, LARGE, CONV, TOKENS])
def test_missing_zero_grad(base):
    expect_cause(compare_trainings(base, zero_grad=False), Cause.GRADIENTS_ACCUMULATED, "epoch 0, batch 1")


@BOTH
def test_clipped_by_norm(base):
    case = compare_trainings(base, change_gradients=lambda step, model: clip_grad_norm_(model.parameters(), 0.2))
    finding = expect_cause(case, Cause.GRADIENTS_CLIPPED, where=NAMES)
    assert "in 6 of 6 recorded steps" in finding.evidence


def test_clipped_by_norm_in_a_single_recorded_step():
    base = replace(SMALL, every=10)
    case = compare_trainings(base, change_gradients=lambda step, model: clip_grad_norm_(model.parameters(), 0.2))
    expect_cause(case, Cause.GRADIENTS_CLIPPED)


@BOTH
def test_clipped_by_value(base):
    case = compare_trainings(base, change_gradients=lambda step, model: clip_grad_value_(model.parameters(), 0.02))
    assert "exceeds 0.02" in expect_cause(case, Cause.GRADIENTS_CLIPPED).evidence


@BOTH
def test_frozen_parameters(base):
    case = compare_trainings(base, prepare_model=lambda model: model[0].requires_grad_(False))
    finding = expect_cause(case, Cause.FROZEN, where=["0.weight", "0.bias"])
    assert "do not require one" in finding.evidence


def test_parameters_that_the_optimizer_was_not_given():
    def make(model):
        return torch.optim.SGD([*model[2].parameters(), *model[4].parameters()], lr=0.1)

    finding = expect_cause(compare_trainings(SMALL, make_optimizer=make), Cause.FROZEN, where=["0.weight", "0.bias"])
    assert "was not given them" in finding.evidence


def lose_state(step, model, optimizer):
    if step == 3:
        optimizer.state.clear()


@BOTH
@pytest.mark.parametrize("optimizer", [ADAM, MOMENTUM])
def test_state_lost_at_resume(base, optimizer):
    case = compare_trainings(replace(base, make_optimizer=optimizer), before_step=lose_state)
    expect_cause(case, Cause.STATE_LOST, "epoch 0, batch 3", NAMES)


def test_state_lost_between_recorded_steps():
    base = replace(SMALL, batches=make_batches(epochs=3), make_optimizer=ADAM, every=5)

    def lose_late(step, model, optimizer):
        if step == 13:
            optimizer.state.clear()

    expect_cause(compare_trainings(base, before_step=lose_late), Cause.STATE_LOST, "begins again at epoch 2, batch 1")


def round_state(step, model, optimizer):
    for state in optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            state[name].copy_(state[name].bfloat16().float())


def round_weights(step, model, optimizer):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())


@BOTH
def test_state_in_low_precision(base):
    case = compare_trainings(replace(base, make_optimizer=ADAM), after_step=round_state)
    assert "bfloat16" in expect_cause(case, Cause.LOW_PRECISION, where=NAMES).evidence


def test_weights_in_low_precision():
    case = compare_trainings(SMALL, after_step=round_weights, prepare_model=lambda model: round_weights(0, model, None))
    expect_cause(case, Cause.LOW_PRECISION, "before the first step", NAMES)
    expect_cause(compare_trainings(SMALL, after_step=round_weights), Cause.LOW_PRECISION, where=NAMES)


@BOTH
@pytest.mark.parametrize("decay", [0.9, 0.999])
def test_averaged_weights(base, decay):
    averages = []

    def copy_model(model):
        averages.append(copy.deepcopy(model))
        return averages[0]

    def average(step, model, optimizer):
        with torch.no_grad():
            for mean, parameter in zip(averages[0].parameters(), model.parameters(), strict=True):
                mean.mul_(decay).add_(parameter, alpha=1 - decay)

    case = compare_trainings(base, recorded_model=copy_model, after_step=average)
    assert f"decay {decay}" in expect_cause(case, Cause.AVERAGED_WEIGHTS, where=NAMES).evidence


def change_norms(change):
    def prepare(model):
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                change(module)

    return prepare


@pytest.mark.parametrize("base", [NORM, CONV, replace(CONV, width=16)])
def test_another_momentum_of_batch_norm(base):
    case = compare_trainings(base, prepare_model=change_norms(lambda norm: setattr(norm, "momentum", 0.3)))
    finding = expect_cause(case, Cause.BATCH_NORM_MOMENTUM)
    assert "momentum 0.1 against 0.3" in finding.evidence
    assert all("running_" in name for name in finding.where)


class Siamese(nn.Module):
    """Use one batch norm twice in a step, for both halves of what it is given."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        first, second = x.chunk(2, dim=1)
        return self.head(self.trunk(first) - self.trunk(second))


STATISTICS = ["trunk.1.running_mean", "trunk.1.running_var"]


def test_another_momentum_of_a_batch_norm_that_is_used_twice():
    base = replace(SMALL, make_model=Siamese)
    case = compare_trainings(base, prepare_model=change_norms(lambda norm: setattr(norm, "momentum", 0.01)))
    finding = expect_cause(case, Cause.BATCH_NORM_MOMENTUM, where=STATISTICS)
    assert "about 0.1" in finding.evidence
    assert "gradients are equal bit for bit" in finding.evidence


def test_a_batch_norm_that_is_used_once_more_is_not_called_another_momentum():
    def pass_again(step, model, optimizer):
        with torch.no_grad():
            model.trunk(torch.ones(4, 3))

    (finding,) = explain_runs(compare_trainings(replace(SMALL, make_model=Siamese), after_step=pass_again))
    assert finding.cause is Cause.UNEXPLAINED


def test_a_variance_that_is_kept_differently_is_not_called_another_momentum():
    def unbias(step, model, optimizer):
        model.trunk[1].running_var.mul_(0.9)

    (finding,) = explain_runs(compare_trainings(replace(SMALL, make_model=Siamese), after_step=unbias))
    assert finding.cause is Cause.UNEXPLAINED


@pytest.mark.parametrize("base", [NORM, CONV])
def test_batch_norm_in_eval_mode(base):
    finding = expect_cause(
        compare_trainings(base, prepare_model=change_norms(lambda norm: norm.eval())), Cause.BATCH_NORM_MODE
    )
    assert "the candidate leaves the running statistics" in finding.evidence


def poison(step, model):
    if step == 2:
        model[0].weight.grad[0, 0] = float("inf")


@BOTH
def test_a_gradient_that_is_not_finite(base):
    case = compare_trainings(base, change_gradients=poison, skips_update=lambda step: step == 2)
    finding = expect_cause(case, Cause.NOT_FINITE, "epoch 0, batch 2", ["0.weight"])
    assert "makes no update" in finding.evidence


@pytest.mark.parametrize("optimizer", [use(torch.optim.SGD, lr=0.1), ADAM, MOMENTUM])
def test_a_skipped_step(optimizer):
    case = compare_trainings(replace(SMALL, make_optimizer=optimizer), skips_update=lambda step: step == 2)
    assert "in 1 of 4 steps" in expect_cause(case, Cause.STEP_SKIPPED, "epoch 0, batch 2").evidence


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (lambda step, loss: 16 * loss, "16 times the reference's at every step (16 is the batch size"),
        (lambda step, loss: loss / 4, "0.25 times"),
        (lambda step, loss: loss + 1, "+1 away"),
        (lambda step, loss: loss**2, "no constant factor"),
    ],
)
def test_a_loss_that_is_reported_differently(report, text):
    assert text in expect_cause(compare_trainings(SMALL, report_loss=report), Cause.REPORTING, where=["loss"]).evidence


def test_other_scalars_are_no_settings_and_no_losses():
    def add_scalars(factor):
        return lambda step, loss: {"seconds": factor * (step % 3), "share/0": factor, "accuracy": factor * (step + 1)}

    base = replace(SMALL, add_scalars=add_scalars(1.0))
    (finding,) = explain_runs(compare_trainings(base, add_scalars=add_scalars(100.0)))
    assert (finding.cause, finding.where, finding.harmless) == (Cause.REPORTING, ("accuracy",), True)
    assert "percent against a share" in finding.evidence


def test_a_loss_that_is_averaged():
    losses = []

    def report(step, loss):
        losses.append(loss)
        return sum(losses) / len(losses)

    finding = expect_cause(compare_trainings(SMALL, report_loss=report), Cause.REPORTING, "epoch 0, batch 1")
    assert "is the mean of the other side's" in finding.evidence


def test_a_loss_that_is_reported_differently_and_another_rate_are_both_named():
    case = compare_trainings(
        SMALL, report_loss=lambda step, loss: 2 * loss, make_optimizer=use(torch.optim.SGD, lr=0.2)
    )
    assert {finding.cause for finding in explain_runs(case)} == {Cause.REPORTING, Cause.LEARNING_RATE}


def test_a_gradient_that_nothing_explains():
    def bend(step, model):
        if step == 2:
            model[2].weight.grad[0] += 0.3

    finding = expect_cause(compare_trainings(SMALL, change_gradients=bend), Cause.GRADIENTS_ONLY, "epoch 0, batch 2")
    assert finding.where == ("2.weight",)


def compute_in_double(model, x, y):
    """Return the loss, computed in float64: what differs is the rounding of float32."""
    tensors = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        tensors[name] = tensor.double() if tensor.is_floating_point() else tensor
    output = torch.func.functional_call(model, tensors, (x.double() if x.is_floating_point() else x,))
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(tensors[name])
    return functional.cross_entropy(output, y).float()


def reverse_batch(model, x, y):
    return functional.cross_entropy(model(x.flip(0)), y.flip(0))


@pytest.mark.parametrize("base", [SMALL, LARGE, NORM, CONV, TOKENS])
@pytest.mark.parametrize("optimizer", [MOMENTUM, ADAM, use(torch.optim.RMSprop, lr=0.001)])
@pytest.mark.parametrize("loss", [compute_in_double, reverse_batch])
def test_rounding_is_harmless_and_nothing_else(base, optimizer, loss):
    for keeps_settings in (True, False):
        for every in (1, 4):
            case = compare_trainings(
                replace(base, make_optimizer=optimizer, keeps_settings=keeps_settings, every=every), loss=loss
            )
            (finding,) = explain_runs(case)
            assert finding.cause == Cause.ROUNDING, finding
            assert finding.harmless


@BOTH
def test_a_fault_that_begins_after_rounding_is_found(base):
    base = replace(base, make_optimizer=ADAM)
    case = compare_trainings(base, loss=compute_in_double, skips_update=lambda step: step == 3)
    expect_cause(case, Cause.STEP_SKIPPED, "epoch 0, batch 3")
    case = compare_trainings(base, loss=compute_in_double, before_step=lose_state)
    expect_cause(case, Cause.STATE_LOST, "epoch 0, batch 3")
    case = compare_trainings(base, loss=compute_in_double, zero_grad=False)
    expect_cause(case, Cause.GRADIENTS_ACCUMULATED, "epoch 0, batch 1")


def test_what_was_not_recorded_is_said():
    base = replace(SMALL, keeps_initial=False, keeps_gradients=False, keeps_data=False, every=4)
    (finding,) = explain_runs(compare_trainings(base, change_gradients=scale_gradients(3.0)))
    assert finding.cause == Cause.UNEXPLAINED
    assert "gradients: the reference and the candidate have no gradients" in finding.evidence
    assert "initial weights: the reference and the candidate have no state before the first step" in finding.evidence


def test_runs_with_statistics_alone_get_no_cause_from_arithmetic():
    base = replace(SMALL, width=0)
    finding = expect_cause(
        compare_trainings(base, change_gradients=scale_gradients(3.0)), Cause.GRADIENTS_ONLY, "epoch 0, batch 0"
    )
    assert "only statistics of them were kept" in finding.evidence
    assert explain_runs(compare_trainings(base)) == ()


def test_sketches_with_different_seeds_are_not_compared():
    case = compare_trainings(LARGE, sketch_seed=8, make_optimizer=use(torch.optim.SGD, lr=0.3))
    assert not any(case.widths[name] for name in ("0.weight", "2.weight"))
    assert [finding.cause for finding in explain_runs(case)] == [Cause.LEARNING_RATE]
    assert SMALL.width == EXACT


def test_causes_look_at_the_loss_that_reports_name():
    case = compare_trainings(SMALL, report_loss=lambda step, loss: 2 * loss)
    steps = tuple(replace(step, scalars={"aux_loss": (7.0, 7.0), **step.scalars}) for step in case.facts.steps)
    case.facts = replace(case.facts, steps=steps)
    assert read_losses(case, 0) == case.facts.steps[0].scalars["loss"]
    assert Onset(case, 0).same_loss is False
    unnamed = tuple(replace(step, scalars={"accuracy": (0.5, 0.5)}) for step in steps)
    case.facts = replace(case.facts, steps=unnamed)
    assert read_losses(case, 0) is None
