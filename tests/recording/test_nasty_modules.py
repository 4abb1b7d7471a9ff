"""What real models do to hooks, one small module each."""

from __future__ import annotations

import copy
import gc
import random
import weakref
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from nndiff.recording.record import record
from recording.runs import SEED, check, fingerprint, names, numbers


def linear(size: int = 4) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(size, size)


X = torch.arange(12.0).reshape(3, 4) / 7 - 1


class Shared(nn.Module):
    """One ReLU under two names, called three times; a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = linear()
        self.first = nn.ReLU()
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(self.fc(self.second(self.fc(self.first(x)))))


def test_shared_modules_and_repeated_calls_are_numbered(tmp_path: Path) -> None:
    recording = check(Shared(), X, tmp_path / "a.nnrec")
    assert names(recording) == [
        "first:output", "fc:output", "first@1:output", "fc@1:output", "first@2:output", "(model):output",
    ]  # fmt: skip
    assert sorted(names(recording, "grad_output")) == sorted(
        name.replace("output", "grad_output") for name in names(recording) if name != "first:output"
    )
    assert recording.meta["shared"] == {"first": ["second"]}


Named = namedtuple("Named", "left right")


@dataclass
class Answer:
    scores: torch.Tensor
    extra: Any


class Containers(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.fc = linear()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> Any:
        y = self.fc(x)
        return {
            "tuple": (y, None, 3, (y + 1, "text")),
            "list": [y, [y * 2]],
            "dict": {"a.b": y, "c": {"d": y + 1, "e": True}},
            "named": Named(y, y + 1),
            "dataclass": Answer(y, Answer(y + 1, None)),
            "none": None,
            "empty": (),
        }[self.kind]


@pytest.mark.parametrize(
    ("kind", "tensors", "values"),
    [
        ("tuple", ["0", "3.0"], {"1": ("NoneType", None), "2": ("int", 3), "3.1": ("str", "text")}),
        ("list", ["0", "1.0"], {}),
        ("dict", ["a%2Eb", "c.d"], {"c.e": ("bool", True)}),
        ("named", ["left", "right"], {}),
        ("dataclass", ["scores", "extra.scores"], {"extra.extra": ("NoneType", None)}),
    ],
)
def test_containers(kind: str, tensors: list[str], values: dict[str, Any], tmp_path: Path) -> None:
    recording = check(Containers(kind), X, tmp_path / "a.nnrec")
    outputs = [event for event in recording.tensors if event.site.slot == "output" and not event.site.module]
    assert [event.site.path for event in outputs] == tensors
    assert {event.site.path: (event.type, event.value) for event in recording.values} == values


@pytest.mark.parametrize(("kind", "type_name"), [("none", "NoneType"), ("empty", "tuple")])
def test_outputs_without_tensors_are_not_lost(kind: str, type_name: str, tmp_path: Path) -> None:
    recording = record(Containers(kind), X, path=tmp_path / "a.nnrec")
    assert [(event.site.name, event.type) for event in recording.values] == [("(model):output", type_name)]


class Ambiguous(nn.Module):
    """Modules and keys that are called as names of other sites are written."""

    MODULES = ("x@1", "x:output", "x@1:output", "(model)", "x%401", "a b", "new\nline\x1b[31m", "<script>")

    def __init__(self) -> None:
        super().__init__()
        self.x = linear()
        for name in self.MODULES:
            self.add_module(name, linear())

    def forward(self, x: torch.Tensor) -> dict[Any, Any]:
        x = self.x(self.x(x))
        for name in self.MODULES:
            x = getattr(self, name)(x)
        return {"0": x + 1, 0: x + 2, "0~1": x + 3, "a#1": x + 4, "": {"b": x + 5}, "b": x + 6}


def test_no_name_can_be_mistaken_for_another(tmp_path: Path) -> None:
    found = record(Ambiguous(), X, path=tmp_path / "a.nnrec", backward=True, params=True)
    tensors = found.source().tensors
    modules = [ref.meta["module"] for ref in tensors.values() if ref.meta["slot"] == "output" and ref.meta["module"]]
    assert modules == ["x", "x", *Ambiguous.MODULES]
    assert [name for name, ref in tensors.items() if ref.meta["slot"] == "output"][1:6] == [
        "x@1:output",
        "x%401:output",
        "x%3Aoutput:output",
        "x%401%3Aoutput:output",
        "%28model):output",
    ]
    final = [name.removeprefix("(model):output.") for name in tensors if name.startswith("(model):output")]
    assert final == ["0", "0~1", "0~1~1", "a%231", "%.b", "b"]


class KeywordsOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, *, signal: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 2.0) -> torch.Tensor:
        return self.inner(input=signal) * scale


def test_keyword_only_calls(tmp_path: Path) -> None:
    recording = check(KeywordsOnly(), {"signal": X, "mask": None, "scale": 0.5}, tmp_path / "a.nnrec", inputs_kept=True)
    assert np.array_equal(numbers(recording, "inner:input.input"), X.numpy())
    model_call = recording.calls[-1]
    assert {link.path: (link.how, link.value) for link in model_call.inputs if link.how == "value"} == {
        "mask": ("value", None),
        "scale": ("value", 0.5),
    }


class InPlace(nn.Module):
    """In-place work on a module's input, on its output after it returned, and on a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = linear()
        self.relu = nn.ReLU(inplace=True)
        self.last = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        z = self.relu(y[:, 1:])
        y = y * 1.0
        y[:, 0] += 5
        y.mul_(2)
        return self.last(y) + z.sum()


def test_in_place_operations_do_not_reach_what_was_recorded(tmp_path: Path) -> None:
    model = InPlace()
    recording = check(model, X, tmp_path / "a.nnrec", inputs_kept=True)
    before = model.fc(X).detach().numpy()
    assert np.array_equal(numbers(recording, "fc:output"), before)
    assert np.array_equal(numbers(recording, "relu:input.0"), before[:, 1:])
    assert (numbers(recording, "relu:output") >= 0).all()
    assert (before[:, 1:] < 0).any()


class InPlaceOnInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x += 1
        return self.fc(x)


def test_the_callers_inputs_are_left_alone_and_kept_as_they_were(tmp_path: Path) -> None:
    x = X.clone()
    recording = check(InPlaceOnInput(), x, tmp_path / "a.nnrec", inputs_kept=True)
    assert torch.equal(x, X)
    assert np.array_equal(numbers(recording, "(model):model_input.0"), X.numpy())
    assert np.array_equal(numbers(recording, "fc:input.0"), X.numpy() + 1)


class PastTorch(nn.Module):
    """Writes to a tensor behind torch's back, so that its version does not move."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = linear()
        self.same = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        y.data.add_(1)
        return self.same(y)


def test_writes_past_torch_are_noticed(tmp_path: Path) -> None:
    recording = check(PastTorch(), X, tmp_path / "a.nnrec", backward=False)
    first, second = numbers(recording, "fc:output"), numbers(recording, "same:output")
    assert np.allclose(first + 1, second)


class ReturnsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = linear()
        self.same = nn.Identity()
        self.view = nn.Flatten()
        self.off = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.off(self.view(self.same(self.fc(x)).reshape(3, 2, 2)).T)


def test_modules_that_return_their_input_or_views(tmp_path: Path) -> None:
    recording = check(ReturnsInput().eval(), X, tmp_path / "a.nnrec")
    events = {event.site.name: event for event in recording.tensors}
    assert events["same:output"].same == events["fc:output"].order
    assert np.array_equal(numbers(recording, "(model):output"), numbers(recording, "fc:output").T)
    links = {call.module: call.inputs[0] for call in recording.calls}
    assert (links["same"].how, links["same"].event) == ("same", events["fc:output"].order)
    assert (links["view"].how, links["view"].event) == ("view", events["fc:output"].order)
    assert links["off"].how == "view"


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = linear()
        self.b = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        return self.b(y + x) + y


def test_every_input_says_where_it_comes_from(tmp_path: Path) -> None:
    recording = check(Residual(), X, tmp_path / "a.nnrec")
    calls = {call.module: call for call in recording.calls}
    events = {event.site.name: event for event in recording.tensors}
    assert calls["a"].inputs[0].event == events["(model):model_input.0"].order
    own = calls["b"].inputs[0]
    assert (own.how, own.event) == ("own", events["b:input.0"].order)
    assert events["b:input.0"].keep == "sketch"
    assert calls["a"].parent == calls["b"].parent == calls[""].entered
    assert calls[""].entered < calls["a"].entered < calls["a"].order < calls["b"].entered < calls[""].order


def test_the_gradient_of_an_output_used_twice_is_the_sum(tmp_path: Path) -> None:
    model = Residual()
    recording = check(model, X, tmp_path / "a.nnrec", loss=lambda output: output.sum())
    expected = torch.ones(3, 4) @ model.b.weight + 1
    assert np.allclose(numbers(recording, "a:grad_output"), expected.detach().numpy(), atol=1e-6)


class Slices(nn.Module):
    """The halves of one tensor are not each other's history."""

    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Identity()
        self.other = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = x * 2
        left, right = both.chunk(2, dim=1)
        return self.same(left) + self.other(right)


def test_slices_of_one_storage_are_told_apart(tmp_path: Path) -> None:
    recording = check(Slices(), X, tmp_path / "a.nnrec", backward=False)
    links = {call.module: call.inputs[0] for call in recording.calls}
    assert links["other"].how == "own"
    assert not np.array_equal(numbers(recording, "same:output"), numbers(recording, "other:output"))


class Random(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand_like(x) + random.random() + float(np.random.rand())
        return self.fc(x + noise)


def test_generators_of_randomness_are_seeded_and_put_back(tmp_path: Path) -> None:
    recording = check(Random(), X, tmp_path / "a.nnrec", repeat=2)
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
    recording = check(Checkpointed(reentrant), x, tmp_path / "a.nnrec")
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
    recording = check(NoGrad(), X, tmp_path / "a.nnrec")
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
    recording = check(Unused(), X, tmp_path / "a.nnrec")
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
    recording = check(Catches(), X, tmp_path / "a.nnrec")
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
    recording = check(model, X, tmp_path / "a.nnrec")
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
    recording = check(WritesWeights(), X, tmp_path / "a.nnrec", backward=False)
    assert recording.meta["changed_parameters"] == ["fc.weight"]
    assert any("wrote to 1 parameter (fc.weight)" in warning for warning in recording.warnings)


def test_existing_gradients_stay(tmp_path: Path) -> None:
    model = Shared()
    model(X).sum().backward()
    assert model.fc.weight.grad is not None
    kept = model.fc.weight.grad.clone()
    check(model, X, tmp_path / "a.nnrec")
    assert torch.equal(model.fc.weight.grad, kept)


def test_gradients_of_inputs_that_ask_for_them(tmp_path: Path) -> None:
    x = X.clone().requires_grad_()
    recording = check(Shared(), x, tmp_path / "a.nnrec")
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
    recording = check(WritesPastTorch(), X, tmp_path / "a.nnrec")
    (link,) = next(call for call in recording.calls if call.module == "last").inputs
    assert link.how == "own"
    assert np.array_equal(numbers(recording, "last:output"), 3 * numbers(recording, "first:output")[1:])


class DTypes(nn.Module):
    """Every element type torch computes with, 0-dim, empty, conjugate, not contiguous."""

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        kinds = (torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.int64, torch.uint8, torch.bool)
        found: dict[str, Any] = {str(kind): (x * 9).to(kind) for kind in kinds}
        found["float8"] = x.to(torch.float8_e4m3fn)
        spectrum = torch.fft.fft(x.double())
        turned = x.T[:, ::2]
        return {
            **found,
            "zero": x.sum(),
            "empty": x[:0],
            "complex": spectrum,
            "conj": spectrum.conj(),
            "turned": turned,
        }


def test_element_types_and_layouts(tmp_path: Path) -> None:
    model = DTypes()
    recording = check(model, X, tmp_path / "a.nnrec", backward=False)
    for key, value in model(X).items():
        ref = recording.source().tensors[f"(model):output.{key.replace('.', '%2E')}"]
        assert ref.shape == tuple(value.shape)
        assert ref.dtype.name == str(value.dtype).removeprefix("torch.")
        wanted = value.resolve_conj()
        wanted = wanted.float() if wanted.dtype in (torch.bfloat16, torch.float8_e4m3fn) else wanted
        assert np.array_equal(ref.numpy(), wanted.numpy())


class Exotic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sparse = nn.Embedding(5, 3, sparse=True)
        self.meta = nn.Identity()

    def forward(self, x: torch.Tensor) -> Any:
        self.meta(torch.empty(3, device="meta"))
        return self.sparse(torch.tensor([1, 1])), x.to_sparse()


def test_sparse_and_meta_tensors(tmp_path: Path) -> None:
    recording = check(Exotic(), X, tmp_path / "a.nnrec")
    assert np.array_equal(numbers(recording, "(model):output.1"), X.numpy())
    assert numbers(recording, "sparse.weight:param_grad").shape == (5, 3)
    assert {event.site.name for event in recording.values if "meta device" in event.note} == {
        "meta:input.0",
        "meta:output",
    }


class FastPath(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x)


def test_the_fused_path_of_transformer_layers_stays_fused(tmp_path: Path) -> None:
    model = FastPath().eval()
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(3))
    fused = check(model, x, tmp_path / "a.nnrec", backward=False)
    assert names(fused) == [
        "encoder.layers.0:output", "encoder.layers.1:output", "encoder:output", "(model):output",
    ]  # fmt: skip
    assert any("fused path" in warning for warning in fused.warnings)
    inside = check(model, x, tmp_path / "b.nnrec")
    assert "encoder.layers.0.linear1:output" in names(inside)


class CopiesItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return copy.deepcopy(self.fc)(x) + self.fc(x)


def test_a_model_that_copies_its_parts(tmp_path: Path) -> None:
    check(CopiesItself(), X, tmp_path / "a.nnrec")


def test_nothing_of_the_run_is_kept_alive(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Watch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(weakref.ref(x))
            return x * 2

    model = nn.Sequential(linear(), Watch())
    record(model, X, path=tmp_path / "a.nnrec", backward=True)
    gc.collect()
    assert seen[0]() is None


class Twice(nn.Module):
    """A gradient inside the forward pass (a penalty), then the real backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = linear()
        self.act = nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        y = self.act(self.fc(x))
        (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.sum() + grad.pow(2).sum()


def test_gradients_taken_twice_are_numbered(tmp_path: Path) -> None:
    recording = check(Twice(), X, tmp_path / "a.nnrec")
    assert {"act:grad_output", "act:grad_output#1", "fc:grad_output", "fc:grad_output#1"} <= set(
        names(recording, "grad_output")
    )


class Counter(nn.Module):
    """A module whose hash changes with its state, as that of torchmetrics does."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __hash__(self) -> int:
        return hash((id(self), self.seen))

    def __eq__(self, other: object) -> bool:
        return self is other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x + 1


def test_modules_are_known_by_identity_not_by_a_hash_that_changes(tmp_path: Path) -> None:
    count = Counter()
    model = nn.Sequential(count, linear(), count)
    recording = record(model, X, path=tmp_path / "a.nnrec", backward=True)
    assert names(recording) == ["0:output", "1:output", "0@1:output", "(model):output"]
    assert "never_called" not in recording.meta
