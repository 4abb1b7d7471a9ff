"""TrainingRecorder on trainings that are really run: what it keeps, and that it changes nothing."""

from __future__ import annotations

import copy
import gc
import itertools
import math
import random
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from trainings import assert_same_runs, digest_of, make_batch, make_model, train, train_step

from nndiff.errors import NndiffError, UsageError
from nndiff.recording.capture.tensors import raw_tensor
from nndiff.recording.format.digests import measure_tensor
from nndiff.runs.reader import open_run
from nndiff.runs.recorder import TrainingRecorder
from nndiff.runs.run import TensorKey, TensorKind


def expect_digest(tensor: torch.Tensor) -> bytes:
    return bytes.fromhex(measure_tensor(raw_tensor(tensor), with_stats=False).digest)[:16]


@pytest.mark.parametrize("keep", ["stats", "sketch", "full"])
def test_equal_trainings_are_equal_to_the_last_bit(keep: str, tmp_path: Path) -> None:
    train(tmp_path / "a", keep=keep)
    train(tmp_path / "b", keep=keep)
    assert_same_runs(open_run(tmp_path / "a"), open_run(tmp_path / "b"))
    model = make_model()
    with torch.no_grad():
        model[4].bias[0] += 1e-6
    train(tmp_path / "c", model=model, keep=keep)
    with pytest.raises(AssertionError):
        assert_same_runs(open_run(tmp_path / "a"), open_run(tmp_path / "c"))


def test_what_is_kept_is_what_there_was(tmp_path: Path) -> None:
    seen: dict[int, dict[TensorKey, torch.Tensor]] = {}

    def remember(number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        tensors: dict[TensorKey, torch.Tensor] = {}
        for name, parameter in model.named_parameters():
            tensors[TensorKey(TensorKind.WEIGHT, name)] = parameter
            tensors[TensorKey(TensorKind.GRADIENT, name)] = parameter.grad
            for state, value in optimizer.state[parameter].items():
                tensors[TensorKey(TensorKind.STATE, name, state)] = value
        for name, buffer in model.named_buffers():
            tensors[TensorKey(TensorKind.BUFFER, name)] = buffer
        seen[number] = {key: tensor.detach().clone() for key, tensor in tensors.items()}

    train(tmp_path / "run", after_step=remember, keep="full")
    run = open_run(tmp_path / "run")
    for place in range(8):
        tensors = run.read_tensors(place)
        assert set(tensors.keys) == set(seen[place])
        for row, key in enumerate(tensors.keys):
            expected = seen[place][key]
            whole = tensors.whole(row)
            assert whole is not None
            assert np.array_equal(whole.numpy(), expected.numpy())
            assert tensors.shapes[row] == tuple(expected.shape)
            assert tensors.digests[row].tobytes() == expect_digest(expected)
            assert tensors.statistics[row, 0] == pytest.approx(float(expected.double().norm()), rel=1e-12)
            assert np.array_equal(tensors.sketch(row), expected.float().flatten().numpy())  # small: kept as it is
    initial = run.read_tensors(None)
    for name, parameter in make_model().named_parameters():
        assert digest_of(initial, TensorKind.WEIGHT, name) == expect_digest(parameter)
    assert {key.kind for key in initial.keys} == {TensorKind.WEIGHT, TensorKind.BUFFER}


def test_scalars_of_every_step(tmp_path: Path) -> None:
    model, losses = make_model(), []
    groups = [{"params": model[0].parameters()}, {"params": model[4].parameters(), "lr": 0.5, "momentum": 0.25}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.125)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    with TrainingRecorder(tmp_path / "run", model, optimizer, every=2) as recorder:
        for number in range(4):
            data, loss = train_step(model, optimizer, number)
            losses.append(loss.item())
            recorder.step(data=data, scalars={"loss": loss, "acc": np.float32(0.5), "lr/1": 7})
            scheduler.step()
    run = open_run(tmp_path / "run")
    assert [step.scalars["loss"] for step in run.steps] == losses
    assert [step.scalars["lr/0"] for step in run.steps] == [0.1, 0.05, 0.025, 0.0125]
    first = run.steps[0].scalars
    assert (first["momentum/0"], first["momentum/1"], first["weight_decay/1"]) == (0.9, 0.25, 0.125)
    assert (first["nesterov/0"], first["acc"], first["lr/1"]) == (1.0, 0.5, 7.0)  # what was given counts
    assert ["grad_norm" in step.scalars for step in run.steps] == [True, False, True, False]
    assert run.description.param_groups == (("0.weight", "0.bias"), ("4.weight", "4.bias"))
    assert (run.description.optimizer, run.description.model) == ("SGD", "Sequential")


def test_the_gradient_norm_is_exact(tmp_path: Path) -> None:
    norms = []

    def measure(number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        norms.append(math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters())))

    train(tmp_path / "run", after_step=measure, keep="stats")
    assert [step.scalars["grad_norm"] for step in open_run(tmp_path / "run").steps] == pytest.approx(norms, rel=1e-12)


def test_betas_and_flags_are_numbers_of_their_group(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.25), betas=(0.5, 0.75), amsgrad=True)
    train(tmp_path / "run", range(1), model, optimizer)
    scalars = open_run(tmp_path / "run").steps[0].scalars
    assert (scalars["lr/0"], scalars["betas.0/0"], scalars["betas.1/0"]) == (0.25, 0.5, 0.75)
    assert (scalars["amsgrad/0"], scalars["eps/0"]) == (1.0, 1e-8)
    assert not any(name.startswith("foreach") for name in scalars)  # None is no number


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"every": 3}, [0, 3, 6, 9]),
        ({"steps": [2, 5]}, [0, 2, 5]),
        ({"first_epochs": 1}, [0, 1, 2, 3]),
        ({"first_epochs": 2, "every": 3}, [0, 3, 6]),
    ],
)
def test_which_steps_have_tensors(settings: dict[str, Any], expected: list[int], tmp_path: Path) -> None:
    train(tmp_path / "run", numbers=range(10), **settings)
    run = open_run(tmp_path / "run")
    assert [step.number for step in run.steps] == list(range(10))
    assert [step.number for step in run.steps if step.has_tensors] == expected
    for step in run.steps:
        assert step.data is not None
        assert set(step.random_states) >= {"torch", "numpy", "python"}
    with pytest.raises(LookupError):
        run.read_tensors(1 if 1 not in expected else 9)


def test_every_counts_global_steps(tmp_path: Path) -> None:
    model, optimizer = make_model(), None
    with TrainingRecorder(tmp_path / "run", model, optimizer, every=10) as recorder:
        for number in (7, 8, 10, 15, 20):
            assert recorder.step(step=number) == number
    run = open_run(tmp_path / "run")
    assert [step.number for step in run.steps if step.has_tensors] == [7, 10, 20]


def test_recording_changes_nothing(tmp_path: Path) -> None:
    def run_training(path: Path | None) -> tuple[nn.Module, Any]:
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        recorder = TrainingRecorder(path, model, optimizer, keep="full") if path else None
        for number in range(6):
            optimizer.zero_grad()
            x, y = make_batch(number)
            loss = nn.functional.cross_entropy(model(x + torch.randn_like(x)), y)  # draws from the global generator
            loss.backward()
            optimizer.step()
            if recorder:
                recorder.step(data=(x, y), scalars={"loss": loss})
                assert loss.grad_fn is not None
        if recorder:
            recorder.close()
        return model, (random.random(), np.random.rand(), float(torch.rand(1)))

    plain, plain_draws = run_training(None)
    recorded, recorded_draws = run_training(tmp_path / "run")
    assert plain_draws == recorded_draws
    for (name, one), two in zip(plain.state_dict().items(), recorded.state_dict().values(), strict=True):
        assert torch.equal(one, two), name
    for one, two in zip(plain.parameters(), recorded.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)
        assert two.grad.grad_fn is None


def test_no_graph_stays_alive(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with TrainingRecorder(tmp_path / "run", model, optimizer) as recorder:
        data, loss = train_step(model, optimizer, 0)
        held = [weakref.ref(data[0]), weakref.ref(loss), weakref.ref(model[0].weight.grad)]
        recorder.step(data=data, scalars={"loss": loss})
        optimizer.zero_grad(set_to_none=True)
        del data, loss
        gc.collect()
        assert [reference() for reference in held] == [None, None, None]


def test_generators_are_told_apart(tmp_path: Path) -> None:
    with TrainingRecorder(tmp_path / "run") as recorder:
        for draw in (lambda: None, lambda: None, torch.rand, np.random.rand, random.random):
            draw(1) if draw is torch.rand else draw()
            recorder.step()
    states = [step.random_states for step in open_run(tmp_path / "run").steps]
    changes = []
    for before, after in itertools.pairwise(states):
        changes.append([name for name in before if before[name] != after[name]])
    assert changes == [[], ["torch"], ["numpy"], ["python"]]


class Nasty(nn.Module):
    """Hold what is hard to record."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4, sparse=True)
        self.transposed = nn.Parameter(torch.randn(4, 6).t())
        self.short = nn.Parameter(torch.randn(5, dtype=torch.bfloat16))
        self.complex = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.unused = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.scalar = nn.Parameter(torch.tensor(2.0))
        self.tied = self.scalar
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("missing", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = (
            self.embedding(x).sum(),
            self.transposed.square().sum(),
            self.short.float().sum(),
            self.complex.abs().sum(),
        )
        return sum(parts) * self.scalar


def test_nasty_parameters(tmp_path: Path) -> None:
    model = Nasty()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p is not model.frozen], lr=0.1)
    with TrainingRecorder(tmp_path / "run", model, optimizer, keep="full") as recorder:
        model(torch.tensor([1, 3, 3])).backward()
        optimizer.step()
        recorder.step()
    run = open_run(tmp_path / "run")
    tensors = run.read_tensors(0)
    weights = {key.name for key in tensors.keys if key.kind is TensorKind.WEIGHT}
    assert weights == {"embedding.weight", "transposed", "short", "complex", "unused", "frozen", "empty", "scalar"}
    for name, parameter in model.named_parameters():
        assert digest_of(tensors, TensorKind.WEIGHT, name) == expect_digest(parameter)
        whole = tensors.whole(tensors.rows[TensorKey(TensorKind.WEIGHT, name)])
        assert whole is not None
        expected = parameter.detach().float() if name == "short" else parameter.detach()
        assert np.array_equal(whole.numpy(), expected.numpy())
    gradients = {key.name for key in tensors.keys if key.kind is TensorKind.GRADIENT}
    assert gradients == {"embedding.weight", "transposed", "short", "complex", "scalar"}
    dense = model.embedding.weight.grad.to_dense()
    assert digest_of(tensors, TensorKind.GRADIENT, "embedding.weight") == expect_digest(dense)
    assert digest_of(tensors, TensorKind.BUFFER, "mask") == expect_digest(model.mask)
    assert run.description.trainable == frozenset(name for name, p in model.named_parameters() if p.requires_grad)


def test_optimizer_state_goes_by_name_not_by_index(tmp_path: Path) -> None:
    """The same training with the groups the other way round leaves the same state under the same names."""
    for name, turn in (("a", False), ("b", True)):
        model = make_model()
        groups = [{"params": list(model[0].parameters())}, {"params": list(model[4].parameters())}]
        optimizer = torch.optim.Adam(groups[::-1] if turn else groups, lr=0.01)
        train(tmp_path / name, range(3), model, optimizer)
    first, second = open_run(tmp_path / "a").read_tensors(2), open_run(tmp_path / "b").read_tensors(2)
    assert set(first.keys) == set(second.keys)
    for key in first.keys:
        assert digest_of(first, key.kind, key.name, key.state) == digest_of(second, key.kind, key.name, key.state)
    assert {key.state for key in first.keys} == {"", "step", "exp_avg", "exp_avg_sq"}


def test_state_that_is_no_tensor_or_is_nested(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x = torch.randn(5, 3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    with TrainingRecorder(tmp_path / "run", model, optimizer) as recorder:
        optimizer.step(closure)
        recorder.step()
    tensors = open_run(tmp_path / "run").read_tensors(0)
    row = tensors.rows[TensorKey(TensorKind.STATE, "weight", "n_iter")]
    assert tensors.sketch(row) == [optimizer.state[model.weight]["n_iter"]]
    assert TensorKey(TensorKind.STATE, "weight", "old_dirs.0") in tensors.rows


def test_a_model_passed_to_step_leaves_no_initial_state_and_says_so(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with TrainingRecorder(tmp_path / "run") as recorder:
        train_step(model, optimizer, 0)
        recorder.step(model=model, optimizer=optimizer)
    run = open_run(tmp_path / "run")
    assert not run.has_initial
    assert run.steps[0].has_tensors
    assert "the initial state was not recorded: no model was given" in run.description.notes[0]
    assert run.description.optimizer == "SGD"


def test_lazy_modules_have_no_initial_state(tmp_path: Path) -> None:
    model = nn.Sequential(nn.LazyLinear(4))
    with TrainingRecorder(tmp_path / "run", model) as recorder:
        model(torch.ones(2, 3))
        recorder.step()
    run = open_run(tmp_path / "run")
    assert not run.has_initial
    assert run.read_tensors(0).shapes == ((4, 3), (4,))
    assert "made by its first call" in run.description.notes[0]


def test_a_parameter_that_thaws_is_noted(tmp_path: Path) -> None:
    model = make_model()
    model[0].weight.requires_grad_(False)

    def thaw(number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if number == 3:
            model[0].weight.requires_grad_(True)  # type: ignore[index]

    train(tmp_path / "run", model=model, after_step=thaw)
    description = open_run(tmp_path / "run").description
    assert description.notes == (
        "which parameters require a gradient changed by step 4; what is listed is as it was at first",
    )
    assert description.trainable is not None
    assert "0.weight" not in description.trainable


def test_wrapped_models_are_recorded_by_their_own_names(tmp_path: Path) -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.module(x)

    train(tmp_path / "plain", range(2))
    train(tmp_path / "wrapped", range(2), Wrapper(make_model()))
    train(tmp_path / "compiled", range(2), torch.compile(make_model(), backend="eager"))
    plain = open_run(tmp_path / "plain").read_tensors(1)
    for name, prefix in (("wrapped", "module."), ("compiled", "_orig_mod.")):
        tensors = open_run(tmp_path / name).read_tensors(1)
        assert {key.name for key in tensors.keys} == {prefix + key.name for key in plain.keys}
        weight = digest_of(tensors, TensorKind.WEIGHT, f"{prefix}0.weight")
        assert weight == digest_of(plain, TensorKind.WEIGHT, "0.weight")


def test_full_keeps_the_same_bits_once(tmp_path: Path) -> None:
    def measure(name: str, freeze: bool) -> list[int]:
        model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 2))
        for parameter in model[0].parameters():
            parameter.requires_grad_(not freeze)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        with TrainingRecorder(tmp_path / name, model, optimizer, keep="full") as recorder:
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.randn(4, 64)).square().sum().backward()
                optimizer.step()
                recorder.step()
        return [path.stat().st_size for path in sorted((tmp_path / name).glob("state-*"))]

    sizes, free_sizes = measure("frozen", True), measure("free", False)
    backbone, head = 4 * (64 * 512 + 512), 4 * (512 * 2 + 2)
    fixed = 40_000 + 4 * 65_536  # statistics and sketches, which are kept besides
    assert sizes[0] > backbone
    assert all(size < 2 * head + fixed for size in sizes[1:])
    assert min(free_sizes[1:]) > max(sizes[1:]) + backbone
    run = open_run(tmp_path / "frozen")
    last, initial = run.read_tensors(3), run.read_tensors(None)
    key = TensorKey(TensorKind.WEIGHT, "0.weight")
    one, two = last.whole(last.rows[key]), initial.whole(initial.rows[key])
    assert one is not None
    assert two is not None
    assert np.array_equal(one.numpy(), two.numpy())


def test_bytes_of_a_step_of_a_large_model(tmp_path: Path) -> None:
    """The tensors of ResNet-50, by count and size; the issue allows a hundredth of 100 MB."""
    transformers = pytest.importorskip("transformers")
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
        optimizer.state[parameter] = {
            "step": torch.tensor(1.0),
            "exp_avg": parameter.grad,
            "exp_avg_sq": parameter.grad,
        }
    with TrainingRecorder(tmp_path / "run", model, optimizer, keep="sketch") as recorder:
        x = torch.zeros(64, 3, 8, 8)
        recorder.step(epoch=0, batch=0, data=(x, torch.zeros(64)))
    line = (tmp_path / "run" / "steps.jsonl").read_bytes().splitlines()[-1]
    size = (tmp_path / "run" / "state-000001.safetensors").stat().st_size + len(line)
    assert size < 1_000_000
    tensors = open_run(tmp_path / "run").read_tensors(0)
    kinds = {(key.kind, key.state) for key in tensors.keys}
    assert len(kinds) == 6
    for kind, state, budget in (
        (TensorKind.WEIGHT, "", 65_536),
        (TensorKind.GRADIENT, "", 32_768),
        (TensorKind.STATE, "exp_avg", 32_768),
        (TensorKind.STATE, "exp_avg_sq", 32_768),
        (TensorKind.BUFFER, "", 8_192),
    ):
        width = sum(
            int(tensors.widths[row]) for row, key in enumerate(tensors.keys) if (key.kind, key.state) == (kind, state)
        )
        assert budget / 2 < width <= budget, kind


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0}, "every must be a whole number of 1 or more, not 0"),
        ({"keep": "all"}, "keep must be one of stats, sketch, full, not 'all'"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        TrainingRecorder(tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_steps_that_make_no_sense(tmp_path: Path) -> None:
    recorder = TrainingRecorder(tmp_path / "run", first_epochs=1)
    with pytest.raises(UsageError, match="the scalar 'loss' must be one number, not a tensor of shape \\[2\\]"):
        recorder.step(scalars={"loss": torch.ones(2)})
    with pytest.raises(UsageError, match="the scalar 'loss' must be one number, not 'high'"):
        recorder.step(scalars={"loss": "high"})
    with pytest.raises(UsageError, match=r"epoch must be a whole number of 0 or more, not 0.5"):
        recorder.step(epoch=0.5)  # type: ignore[arg-type]
    recorder.step(epoch=0, model=nn.Linear(2, 2))
    with pytest.raises(UsageError, match="first_epochs needs to know the epoch of every step"):
        recorder.step(model=nn.Linear(2, 2))
    recorder.close()
    recorder.close()
    with pytest.raises(NndiffError, match="after close"):
        recorder.step()
    assert len(open_run(tmp_path / "run").steps) == 1, "what failed left nothing behind"


def test_scalars_that_json_lacks(tmp_path: Path) -> None:
    with TrainingRecorder(tmp_path / "run") as recorder:
        recorder.step(scalars={"loss": math.nan, "high": math.inf, "low": -math.inf})
    scalars = open_run(tmp_path / "run").steps[0].scalars
    assert math.isnan(scalars["loss"])
    assert (scalars["high"], scalars["low"]) == (math.inf, -math.inf)


def test_copies_of_a_model_share_no_recorder_state(tmp_path: Path) -> None:
    """The model that is recorded is the one given, though a copy trains on."""
    model = make_model()
    twin = copy.deepcopy(model)
    with TrainingRecorder(tmp_path / "run", model) as recorder:
        with torch.no_grad():
            twin[0].weight.zero_()
        recorder.step()
    run = open_run(tmp_path / "run")
    assert np.array_equal(run.read_tensors(0).digests, run.read_tensors(None).digests)


def test_tensors_without_elements_here_are_noted(tmp_path: Path) -> None:
    model = nn.Module()
    model.there = nn.Parameter(torch.ones(3))
    model.meta = nn.Parameter(torch.ones(3, device="meta"))
    model.freed = nn.Parameter(torch.ones(3))
    model.freed.untyped_storage().resize_(0)  # as FSDP does
    with TrainingRecorder(tmp_path / "run", model) as recorder:
        recorder.step()
    run = open_run(tmp_path / "run")
    assert [key.name for key in run.read_tensors(0).keys] == ["there"]
    note = "not recorded, because they have no elements in this process: 2 tensors (weight meta first)"
    assert run.description.notes == (note,)
