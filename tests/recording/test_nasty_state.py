"""What real models do to their state, and how a recording leaves it: randomness, gradients, buffers, failures."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from nndiff.recording.record import record
from recording.runs import SEED, Shared, X, check_recording, fingerprint, linear, names, numbers


class Random(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand_like(x) + random.random() + float(np.random.rand())
        return self.fc(x + noise)


def test_generators_of_randomness_are_seeded_and_put_back(tmp_path: Path) -> None:
    recording = check_recording(Random(), X, tmp_path / "a.nnrec", repeat=2)
    assert recording.meta["self_agreement"] == {
        "runs": 2, "agrees": True, "sites": len(recording.tensors), "disagreeing": 0, "names": [],
    }  # fmt: skip


class OwnGenerator(nn.Module):
    def __init__(self, own: Any) -> None:
        super().__init__()
        self.fc = linear()
        self.fc.own = own

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = self.fc.own[0] if isinstance(self.fc.own, list) else self.fc.own
        if isinstance(own, torch.Generator):
            return self.fc(x + torch.rand(1, generator=own))
        return self.fc(x + (own.random() if hasattr(own, "random") else own.rand()))


OWN: list[Callable[[], Any]] = [
    torch.Generator,
    lambda: [torch.Generator()],
    np.random.default_rng,
    np.random.RandomState,
    random.Random,
]


@pytest.mark.parametrize("make", OWN)
@pytest.mark.parametrize("repeat", [1, 2])
def test_generators_of_the_models_own_are_told_and_put_back(
    make: Callable[[], Any], repeat: int, tmp_path: Path
) -> None:
    model = OwnGenerator(make())
    one, other = (record(model, X, path=tmp_path / f"{name}.nnrec", repeat=repeat) for name in "ab")
    assert np.array_equal(numbers(one, "fc:output"), numbers(other, "fc:output")), "it was put back"
    (warning,) = [each for each in one.warnings if "generator" in each]
    assert warning.startswith("random numbers are drawn from 1 generator (fc.own) of the model's own")
    assert ("--repeat 2 (repeat=2) tells" in warning) == (repeat == 1)
    assert any("does not agree with itself" in each for each in one.warnings) == (repeat == 2)


def test_generators_that_are_not_used_are_not_told(tmp_path: Path) -> None:
    class Idle(OwnGenerator):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x)

    assert record(Idle(torch.Generator()), X, path=tmp_path / "a.nnrec").warnings == ()


class Restless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = linear()
        self.late = linear()
        self.count = [0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count[0] += 1
        return self.late(self.fc(x) * self.count[0])


def test_a_model_that_does_not_agree_with_itself_is_told(tmp_path: Path) -> None:
    recording = record(Restless(), X, path=tmp_path / "a.nnrec", repeat=2)
    found = recording.meta["self_agreement"]
    assert found["agrees"] is False
    assert found["names"] == ["late:input.0", "late:output", "(model):output"]
    assert any("does not agree with itself" in warning for warning in recording.warnings)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.3)) for _ in range(3))
        self.act = nn.Tanh()
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(lambda value, block=block: self.act(block(value)), x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_is_marked_and_never_mistaken(reentrant: bool, tmp_path: Path) -> None:
    x = X.clone().requires_grad_()
    recording = check_recording(Checkpointed(reentrant), x, tmp_path / "a.nnrec")
    assert [name for name in names(recording) if name.startswith("act")] == [
        "act:output",
        "act@1:output",
        "act@2:output",
    ]
    again = [event for event in recording.tensors if event.site.slot == "recompute"]
    assert again
    assert {event.phase for event in again} == {"recompute"}
    assert all(event.same is not None for event in again), "recomputed outputs are those of the forward pass"
    grads = {event.site.name: event for event in recording.tensors if event.site.slot == "grad_output"}
    plain = record(Checkpointed(reentrant), x, path=tmp_path / "b.nnrec", seed=SEED, backward=True)
    assert {f"blocks.{number}.0:grad_output" for number in range(3)} <= grads.keys()
    forward = {event.order: event.site for event in recording.tensors}
    for event in grads.values():
        origin = forward[event.forward]
        assert (origin.module, origin.call, origin.slot) == (event.site.module, event.site.call, "output")
    assert names(plain, "grad_output") == names(recording, "grad_output")


def test_gradients_with_and_without_checkpointing_belong_to_the_same_calls(tmp_path: Path) -> None:
    class Direct(Checkpointed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = self.act(block(x))
            return x

    x = X.clone().requires_grad_()
    direct = record(Direct(True).eval(), x, path=tmp_path / "a.nnrec", backward=True)
    wanted = {name: numbers(direct, name) for name in names(direct, "grad_output")}
    for reentrant in (False, True):
        model = Checkpointed(reentrant).eval()
        found = record(model, x, path=tmp_path / "b.nnrec", backward=True, overwrite=True)
        assert {name: numbers(found, name).tobytes() for name in names(found, "grad_output")} == {
            name: value.tobytes() for name, value in wanted.items()
        }


class NoGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = linear()
        self.fc = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = self.frozen(x)
        with torch.inference_mode():
            self.frozen(x)
        return self.fc(y)


def test_parts_without_gradient(tmp_path: Path) -> None:
    recording = check_recording(NoGrad(), X, tmp_path / "a.nnrec")
    assert names(recording, "grad_output") == ["fc:grad_output", "(model):grad_output"] or set(
        names(recording, "grad_output")
    ) == {"fc:grad_output", "(model):grad_output"}
    unreached = [event.site.name for event in recording.values if event.note == "got no gradient"]
    assert unreached == ["frozen.weight:param_grad", "frozen.bias:param_grad"]
    assert "frozen@1:output" in names(recording)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = linear()
        self.side = linear()
        self.never = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.side(x)
        return self.fc(x)


def test_what_was_not_reached_is_named(tmp_path: Path) -> None:
    recording = check_recording(Unused(), X, tmp_path / "a.nnrec")
    assert recording.meta["never_called"] == ["never"]
    assert recording.meta["without_gradient"] == ["side:output"]


class Fails(nn.Module):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.fc = linear()
        self.bn = nn.BatchNorm1d(4)
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.bn(self.fc(x))
        raise self.error("stop")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_hooks_and_state_are_put_back_whatever_happens(error: type[BaseException], tmp_path: Path) -> None:
    from nndiff.recording.reader import open_recording

    model = Fails(error)
    before = fingerprint(model)
    with pytest.raises(error, match="stop"):
        record(model, X, path=tmp_path / "a.nnrec", mode="eval", dropout="off")
    assert fingerprint(model) == before
    found = open_recording(tmp_path / "a.nnrec")
    assert not found.complete
    assert "fc:output" in names(found)


class Catches(nn.Module):
    """A call that fails inside and is tried another way must not confuse who called whom."""

    def __init__(self) -> None:
        super().__init__()
        self.bad = nn.Sequential(linear(), nn.Linear(9, 9))
        self.good = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return self.bad(x)
        except RuntimeError:
            return self.good(x)


def test_a_failed_call_leaves_no_frame_behind(tmp_path: Path) -> None:
    recording = check_recording(Catches(), X, tmp_path / "a.nnrec")
    calls = {call.module: call for call in recording.calls}
    assert set(calls) == {"bad.0", "good", ""}
    assert calls["good"].parent == calls[""].entered


class Buffers(nn.Module):
    """Buffers that are written, replaced and added while running."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(4)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.mean = x.mean(0)
        if not hasattr(self, "cache"):
            self.register_buffer("cache", x * 2, persistent=False)
        return self.bn(x) + self.mean


def test_changed_buffers_are_kept_before_and_after_and_put_back(tmp_path: Path) -> None:
    model = Buffers()
    recording = check_recording(model, X, tmp_path / "a.nnrec")
    assert names(recording, "buffer") == [
        "steps:buffer", "mean:buffer", "cache:buffer",
        "bn.running_mean:buffer", "bn.running_var:buffer", "bn.num_batches_tracked:buffer",
    ]  # fmt: skip
    assert numbers(recording, "steps:buffer") == 1
    assert numbers(recording, "steps:buffer_before") == 0
    assert not hasattr(model, "cache")


class WritesWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.fc.weight.mul_(0.5)
        return self.fc(x)


def test_parameters_the_run_writes_to_are_put_back_and_told(tmp_path: Path) -> None:
    recording = check_recording(WritesWeights(), X, tmp_path / "a.nnrec", backward=False)
    assert recording.meta["changed_parameters"] == ["fc.weight"]
    assert any("wrote to 1 parameter (fc.weight)" in warning for warning in recording.warnings)


def test_existing_gradients_stay(tmp_path: Path) -> None:
    model = Shared()
    model(X).sum().backward()
    assert model.fc.weight.grad is not None
    kept = model.fc.weight.grad.clone()
    check_recording(model, X, tmp_path / "a.nnrec")
    assert torch.equal(model.fc.weight.grad, kept)


def test_gradients_of_inputs_that_ask_for_them(tmp_path: Path) -> None:
    x = X.clone().requires_grad_()
    recording = check_recording(Shared(), x, tmp_path / "a.nnrec")
    assert names(recording, "model_input_grad") == ["(model):model_input_grad.0"]
    assert x.grad is None


class WritesPastTorch(nn.Module):
    """An output is written to through `.data` before a part of it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = linear(), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x.data.mul_(3)
        return self.last(x[1:])


def test_what_was_written_past_torch_is_not_taken_for_what_it_was(tmp_path: Path) -> None:
    recording = check_recording(WritesPastTorch(), X, tmp_path / "a.nnrec")
    (link,) = next(call for call in recording.calls if call.module == "last").inputs
    assert link.how == "own"
    assert np.array_equal(numbers(recording, "last:output"), 3 * numbers(recording, "first:output")[1:])


class SparseBuffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = linear()
        self.register_buffer("coo", torch.eye(4).to_sparse())
        self.register_buffer("csr", torch.eye(4).to_sparse_csr())
        self.register_buffer("nested", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) + torch.sparse.mm(self.coo, x.T).T  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested")
def test_sparse_buffers_are_recorded_and_put_back(tmp_path: Path) -> None:
    recording = record(SparseBuffers(), X, path=tmp_path / "a.nnrec", backward=True)
    assert set(recording.meta["held"]) == {"fc.weight", "fc.bias", "coo", "csr", "nested"}
