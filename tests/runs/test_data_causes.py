"""Data, initial weights and randomness: planted in real trainings, and named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from memory_runs import SMALL, compare_trainings, expect_cause, make_batches, make_mlp, split_batches
from torch import nn

from nndiff.findings.causes import Cause
from nndiff.runs.causes import explain_runs

X, Y = (torch.cat([batch[part] for batch in SMALL.batches[0]]) for part in (0, 1))
ORDER = torch.randperm(len(X), generator=torch.Generator().manual_seed(5))


def test_the_same_samples_in_another_order():
    finding = expect_cause(compare_trainings(SMALL, batches=[split_batches(X[ORDER], Y[ORDER])]), Cause.DATA_ORDER)
    assert "the same 96 samples in another order" in finding.evidence


def test_another_order_from_the_second_epoch_on():
    base = replace(SMALL, batches=[SMALL.batches[0]] * 2)
    case = compare_trainings(base, batches=[SMALL.batches[0], split_batches(X[ORDER], Y[ORDER])])
    expect_cause(case, Cause.DATA_ORDER, "epoch 1, batch 0")


def test_other_samples():
    finding = expect_cause(compare_trainings(SMALL, batches=make_batches(seed=9)), Cause.DATA_DIFFER)
    assert "0 of 96 samples" in finding.evidence


def test_inputs_prepared_differently_are_other_data_and_no_other_order():
    finding = expect_cause(compare_trainings(SMALL, batches=[split_batches(X * 2, Y)]), Cause.DATA_DIFFER, where=["0"])
    assert "16 of 16 samples" in finding.evidence


def test_labels_changed_at_a_step():
    batches = list(SMALL.batches[0])
    x, y = batches[2]
    batches[2] = x, (y + torch.tensor([1] + [0] * 15)) % 3
    finding = expect_cause(compare_trainings(SMALL, batches=[batches]), Cause.LABELS_DIFFER, "epoch 0, batch 2", ["1"])
    assert "1 of 16 samples" in finding.evidence


def test_another_batch_size():
    finding = expect_cause(compare_trainings(SMALL, batches=[split_batches(X, Y, 32)]), Cause.BATCH_SIZE)
    assert "16 samples against 32" in finding.evidence


def test_batches_that_come_two_steps_early():
    batches = SMALL.batches[0]
    case = compare_trainings(replace(SMALL, batches=[batches] * 2), batches=[[*batches[2:], *batches[:2]]] * 2)
    assert "2 steps later" in expect_cause(case, Cause.DATA_SHIFTED).evidence


def test_another_seed_of_the_weights():
    finding = expect_cause(compare_trainings(SMALL, seed=3), Cause.INITIAL_WEIGHTS, "start from different values")
    assert len(finding.where) == 6
    assert "another seed" in finding.evidence


@pytest.mark.parametrize(("elements", "text"), [(16, "another seed"), (10_000, "another initialisation")])
def test_the_spread_of_initial_weights_is_judged_by_how_many_there_are(elements, text):
    def draw(std):
        return lambda model: nn.init.normal_(model[0].weight, std=std)

    base = replace(SMALL, make_model=lambda: nn.Sequential(nn.Linear(4, elements // 4), nn.Linear(elements // 4, 3)))
    base = replace(base, batches=make_batches(count=1, features=4), prepare_model=draw(0.1))
    finding = expect_cause(compare_trainings(base, prepare_model=draw(0.12), seed=5), Cause.INITIAL_WEIGHTS, "start")
    assert text in finding.evidence


def test_one_initial_tensor_that_is_scaled():
    case = compare_trainings(SMALL, prepare_model=lambda model: model[0].weight.data.mul_(2))
    finding = expect_cause(case, Cause.INITIAL_WEIGHTS, "1 of 6 parameters", ["0.weight"])
    assert finding.evidence.endswith("start from different values: 0.weight is 2 times the reference's")


def make_dropout_mlp(rate):
    return lambda: nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(rate), nn.Linear(12, 3))


def test_dropout_on_one_side():
    case = compare_trainings(replace(SMALL, make_model=make_dropout_mlp(0.0)), make_model=make_dropout_mlp(0.5))
    assert "only the candidate draws random numbers" in expect_cause(case, Cause.DROPOUT).evidence


def test_another_seed_of_dropout():
    def seed_again(step, model, optimizer):
        if step == 2:
            torch.manual_seed(99)

    case = compare_trainings(replace(SMALL, make_model=make_dropout_mlp(0.5)), before_step=seed_again)
    expect_cause(case, Cause.DROPOUT, "epoch 0, batch 2")


def test_another_seed_that_nothing_draws_from_is_no_dropout():
    def seed_again(step, model, optimizer):
        torch.manual_seed(99)

    def smooth(model, x, y):
        return nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)

    expect_cause(compare_trainings(SMALL, before_step=seed_again, loss=smooth), Cause.FORWARD_PASS)
    assert explain_runs(compare_trainings(SMALL, before_step=seed_again)) == ()


def test_another_rate_of_dropout_is_a_forward_pass_that_differs():
    case = compare_trainings(replace(SMALL, make_model=make_dropout_mlp(0.1)), make_model=make_dropout_mlp(0.5))
    assert "another dropout rate is possible" in expect_cause(case, Cause.FORWARD_PASS).evidence


def test_data_and_settings_that_differ_are_both_named():
    case = compare_trainings(
        SMALL, batches=make_batches(seed=9), make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.3)
    )
    assert {finding.cause for finding in explain_runs(case)} == {Cause.DATA_DIFFER, Cause.LEARNING_RATE}


@pytest.mark.parametrize("make_model", [make_mlp, make_dropout_mlp(0.5)])
def test_equal_runs_have_no_finding(make_model):
    assert explain_runs(compare_trainings(replace(SMALL, make_model=make_model))) == ()
