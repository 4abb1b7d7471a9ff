"""Two trainings, made for real: what parts first, and the numbers against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from planted_trainings import build_model, draw_batches, train
from torch import nn

import nndiff
from nndiff.facts.runs import Quantity
from nndiff.runs.comparison import RunRules, compare_pair
from nndiff.runs.opening import open_training
from nndiff.tolerance import Tolerance
from nndiff.verdict import Outcome, Verdict


def compare(reference, candidate, **rules):
    return compare_pair(open_training(reference), open_training(candidate), Tolerance(), RunRules(**rules))


def parted(compared):
    return {quantity.value: mark.number for quantity, mark in compared.case.facts.parting.items() if mark}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "reference")


def adam(learning_rate):
    return lambda model: torch.optim.Adam(model.parameters(), lr=learning_rate)


@pytest.mark.parametrize("options", [{}, {"keep": "full"}, {"keep": "stats"}, {"every": 3}, {"dump": True}])
def test_equal_trainings_are_identical_however_they_were_kept(reference, tmp_path, options):
    compared = compare(reference, train(tmp_path / "candidate", **options))
    assert compared.outcome is Outcome.IDENTICAL
    assert compared.case.facts.first_divergence is None
    assert len(compared.case.facts.steps) == 10


@pytest.mark.parametrize("keep", ["sketch", "full"])
def test_another_learning_rate_parts_the_weights_first(reference, tmp_path, keep):
    compared = compare(reference, train(tmp_path / "candidate", optimizer=adam(0.011), keep=keep))
    assert compared.outcome is Outcome.DIFFERENT
    assert parted(compared) == {"weights": 0, "loss": 1, "gradients": 1, "optimizer": 1}
    first = compared.case.facts.first_divergence
    assert (first.quantity, first.mark.epoch, first.mark.batch) == (Quantity.WEIGHTS, 0, 0)


def test_another_order_parts_the_data_first_and_only_from_its_step_on(reference, tmp_path):
    batches = draw_batches(5)
    compared = compare(reference, train(tmp_path / "candidate", batches=[*batches[:3], batches[4], batches[3]]))
    assert compared.case.facts.first_divergence.quantity is Quantity.DATA
    assert parted(compared)["data"] == 3
    assert [step.verdict for step in compared.case.facts.steps][:4] == [Verdict.IDENTICAL] * 3 + [Verdict.DIFFERENT]


def test_another_initialisation_parts_before_the_first_step(reference, tmp_path):
    model = build_model()
    with torch.no_grad():
        model[3].bias[1] += 0.5
    compared = compare(reference, train(tmp_path / "candidate", model=model))
    first = compared.case.facts.first_divergence
    assert (first.quantity, first.mark.number, first.tensor) == (Quantity.INITIAL_WEIGHTS, -1, "3.bias")


def test_a_gradient_changed_before_the_step_parts_the_gradients(reference, tmp_path):
    def scale_gradient(step, model, optimizer):
        if step >= 4:
            model[0].weight.grad *= 1.01

    compared = compare(reference, train(tmp_path / "candidate", before_step=scale_gradient))
    first = compared.case.facts.first_divergence
    assert (first.quantity, first.mark.number, first.tensor) == (Quantity.GRADIENTS, 4, "0.weight")


def test_buffers_alone_are_a_difference(reference, tmp_path):
    model = build_model()
    model[1].momentum = 0.3  # running statistics have no part in training
    compared = compare(reference, train(tmp_path / "candidate", model=model))
    assert parted(compared) == {"weights": 0}
    assert compared.case.facts.first_divergence.tensor in ("1.running_mean", "1.running_var")
    assert compared.case.facts.steps[0].groups["buffers"].out == 2
    assert compared.case.facts.steps[0].groups["all"].identical == 6


def test_the_numbers_are_those_of_the_checkpoints(tmp_path):
    """The same trainings dumped as checkpoints give the truth."""
    sides = []
    for name, rate in (("reference", 0.01), ("candidate", 0.02)):
        recorded = train(tmp_path / name, optimizer=adam(rate))
        dumped = train(tmp_path / f"{name}-dumps", optimizer=adam(rate), dump=True)
        sides.append((recorded, dumped))
    for kind in (0, 1):
        facts = compare(sides[0][kind], sides[1][kind]).case.facts
        for step in facts.steps:
            file = f"epoch_{step.mark.epoch:03d}/batch_{step.mark.batch:04d}.pt"
            states = [torch.load(side[1] / file)["model_state_dict"] for side in sides]
            names = [name for name, _ in build_model().named_parameters()]
            vectors = [np.concatenate([state[name].double().numpy().ravel() for name in names]) for state in states]
            numbers, difference = step.groups["all"], vectors[1] - vectors[0]
            assert numbers.l2 == pytest.approx(np.linalg.norm(difference), rel=1e-6)
            assert numbers.max_abs == pytest.approx(np.abs(difference).max(), rel=1e-6)
            cosine = vectors[0] @ vectors[1] / np.linalg.norm(vectors[0]) / np.linalg.norm(vectors[1])
            assert numbers.cosine == pytest.approx(cosine, abs=1e-8)
            each = [np.linalg.norm((states[1][name] - states[0][name]).double()) for name in names]
            assert numbers.mean_l2 == pytest.approx(np.mean(each), rel=1e-5)
            assert (numbers.max_l2, numbers.max_l2_name) == (pytest.approx(max(each)), names[int(np.argmax(each))])


def test_wrapped_cut_short_and_otherwise_kept_is_no_difference(reference, tmp_path):
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = build_model()

        def forward(self, inputs):
            return self.module(inputs)

    compared = compare(reference, train(tmp_path / "candidate", model=Wrapper(), epochs=1, every=2))
    assert compared.outcome is Outcome.IDENTICAL
    assert len(compared.case.facts.only_reference_steps) == 5
    assert len(compared.case.facts.steps) == 5


def test_no_common_step_is_nothing_compared(reference, tmp_path):
    import nndiff

    with nndiff.TrainingRecorder(tmp_path / "candidate", model=build_model()) as record:
        record.step(epoch=7, batch=0, scalars={"loss": 1.0})
    compared = compare(reference, tmp_path / "candidate")
    assert compared.outcome is Outcome.NOTHING
    assert len(compared.case.facts.only_reference_steps) == 10


def test_a_parameter_that_only_one_run_has_is_a_difference(reference, tmp_path):
    model = build_model()
    model.register_parameter("extra", nn.Parameter(torch.zeros(3)))
    compared = compare(reference, train(tmp_path / "candidate", model=model))
    assert compared.outcome is Outcome.DIFFERENT
    assert [(leftover.side, leftover.name) for leftover in compared.leftovers] == [("candidate", "extra")]
    assert compare(reference, tmp_path / "candidate", exclude=["extra"]).outcome is Outcome.IDENTICAL


def test_other_names_are_paired_by_equal_content_at_the_start(reference, tmp_path):
    class Renamed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, _, self.last = build_model()

        def forward(self, inputs):
            return self.last(torch.relu(self.norm(self.first(inputs))))

    compared = compare(reference, train(tmp_path / "candidate", model=Renamed()))
    assert compared.case.names["0.weight"] == "first.weight"
    mapping = {"1.weight": "norm.weight", "1.bias": "norm.bias", "1.running_mean": "norm.running_mean"}
    mapping |= {"1.running_var": "norm.running_var", "1.num_batches_tracked": "norm.num_batches_tracked"}
    assert compared.outcome is Outcome.DIFFERENT, "ones and zeros are like each other: nobody knows which is which"
    assert compare(reference, tmp_path / "candidate", mapping=mapping).outcome is Outcome.IDENTICAL


def test_a_filter_lets_only_its_part_decide(tmp_path):
    def build(seed=0):
        torch.manual_seed(seed)
        return nn.ModuleDict({"body": nn.Linear(8, 6), "fc": nn.Linear(6, 3)})

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = build()

        def forward(self, inputs):
            return self.parts["fc"](self.parts["body"](inputs))

    changed = Net()
    with torch.no_grad():
        changed.parts["fc"].weight += 1
    runs = train(tmp_path / "a", model=Net(), epochs=1), train(tmp_path / "b", model=changed, epochs=1)
    head, body = compare(*runs, filter="mlp"), compare(*runs, filter="backbone")
    numbers = head.case.facts.steps[0].groups
    assert numbers["mlp"].tensors == 2
    assert numbers["all"].tensors == 4
    assert head.case.facts.first_divergence.quantity is Quantity.INITIAL_WEIGHTS
    assert body.case.facts.parting[Quantity.INITIAL_WEIGHTS] is None
    assert head.case.facts.details.names == ("parts.fc.weight", "parts.fc.bias")


def test_a_loss_that_is_only_logged_otherwise_is_a_difference(reference, tmp_path):
    import nndiff

    run = open_training(reference)
    with nndiff.TrainingRecorder(tmp_path / "candidate") as record:
        for step in run.steps:
            record.step(epoch=step.epoch, batch=step.batch, scalars={"loss": step.scalars["loss"] * 2, "speed": 1.0})
    compared = compare(reference, tmp_path / "candidate")
    assert compared.outcome is Outcome.DIFFERENT
    assert parted(compared) == {"loss": 0}


def test_statistics_alone_are_no_pass(tmp_path):
    class Turned(nn.Module):
        def __init__(self, turned):
            super().__init__()
            weight = torch.arange(12.0)
            self.weight = nn.Parameter(weight.flip(0) if turned else weight)

        def forward(self, inputs):
            return inputs[:, :3] + 0 * self.weight.sum()

    runs = [train(tmp_path / str(turned), model=Turned(turned), epochs=1, keep="stats") for turned in (False, True)]
    compared = compare(*runs)
    assert compared.outcome is Outcome.DIFFERENT
    assert compared.case.facts.first_divergence is None, "nothing is known to be out"
    assert compared.notes[0].slug == "not-kept"


def test_weights_that_are_not_finite_have_no_distance(reference, tmp_path):
    def break_gradient(step, model, optimizer):
        if step == 5:
            model[0].weight.grad[0, 0] = float("nan")

    facts = compare(reference, train(tmp_path / "candidate", before_step=break_gradient)).case.facts
    assert facts.first_divergence.quantity is Quantity.GRADIENTS
    assert facts.steps[4].groups["all"].l2 == 0
    assert np.isnan(facts.steps[5].groups["all"].l2)


def test_what_was_not_compared_is_said(reference, tmp_path):
    import nndiff

    sparse = nndiff.compare(reference, train(tmp_path / "sparse", every=5))
    assert [note.slug for note in sparse.notes] == ["recorded-without"]
    assert "2 of 10 steps" in sparse.notes[0].text
    filtered = nndiff.compare(reference, tmp_path / "sparse", filter="backbone", group=["none=nothing*"])
    assert [note.slug for note in filtered.notes] == ["recorded-without", "left-out", "rule-without-effect"]


def test_models_without_a_common_parameter_have_no_common_initial_weights(tmp_path):
    runs = []
    for name in ("first", "second"):
        model = nn.Sequential()
        model.add_module(name, nn.Linear(8, 3 if name == "first" else 4))
        runs.append(train(tmp_path / name, model=model, epochs=1))
    facts = compare(*runs).case.facts
    assert Quantity.INITIAL_WEIGHTS in facts.unknown
    assert facts.growth is None


def test_a_layer_frozen_midway_is_not_an_optimizer_that_begins_again(reference, tmp_path):
    import nndiff

    def freeze(step, model, optimizer):
        if step >= 5:
            for parameter in model[0].parameters():
                parameter.grad = None

    result = nndiff.compare(reference, train(tmp_path / "candidate", before_step=freeze))
    assert [finding.cause for finding in result.findings] == ["frozen"]


def test_a_printed_comparison_is_the_report_of_training_runs(reference, tmp_path):
    text = str(nndiff.compare(reference, train(tmp_path / "candidate", optimizer=adam(0.02))))
    assert "in causal order" in text
    assert "weight L2" in text
