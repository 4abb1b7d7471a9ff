"""What real models do to hooks, one small module each."""

from __future__ import annotations

import copy
import gc
import weakref
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nndiff.recording.record import record
from recording.runs import Shared, X, check_recording, linear, names, numbers


def test_shared_modules_and_repeated_calls_are_numbered(tmp_path: Path) -> None:
    recording = check_recording(Shared(), X, tmp_path / "a.nnrec")
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
    recording = check_recording(Containers(kind), X, tmp_path / "a.nnrec")
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
    modules = [ref.site.module for ref in tensors.values() if ref.site.slot == "output" and ref.site.module]
    assert modules == ["x", "x", *Ambiguous.MODULES]
    assert [name for name, ref in tensors.items() if ref.site.slot == "output"][1:6] == [
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
    recording = check_recording(
        KeywordsOnly(), {"signal": X, "mask": None, "scale": 0.5}, tmp_path / "a.nnrec", inputs_kept=True
    )
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
    recording = check_recording(model, X, tmp_path / "a.nnrec", inputs_kept=True)
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
    recording = check_recording(InPlaceOnInput(), x, tmp_path / "a.nnrec", inputs_kept=True)
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
    recording = check_recording(PastTorch(), X, tmp_path / "a.nnrec", backward=False)
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
    recording = check_recording(ReturnsInput().eval(), X, tmp_path / "a.nnrec")
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
    recording = check_recording(Residual(), X, tmp_path / "a.nnrec")
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
    recording = check_recording(model, X, tmp_path / "a.nnrec", loss=lambda output: output.sum())
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
    recording = check_recording(Slices(), X, tmp_path / "a.nnrec", backward=False)
    links = {call.module: call.inputs[0] for call in recording.calls}
    assert links["other"].how == "own"
    assert not np.array_equal(numbers(recording, "same:output"), numbers(recording, "other:output"))


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
    recording = check_recording(model, X, tmp_path / "a.nnrec", backward=False)
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
    recording = check_recording(Exotic(), X, tmp_path / "a.nnrec")
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
    fused = check_recording(model, x, tmp_path / "a.nnrec", backward=False)
    assert names(fused) == [
        "encoder.layers.0:output", "encoder.layers.1:output", "encoder:output", "(model):output",
    ]  # fmt: skip
    assert any("fused path" in warning for warning in fused.warnings)
    inside = check_recording(model, x, tmp_path / "b.nnrec")
    assert "encoder.layers.0.linear1:output" in names(inside)


class CopiesItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return copy.deepcopy(self.fc)(x) + self.fc(x)


def test_a_model_that_copies_its_parts(tmp_path: Path) -> None:
    check_recording(CopiesItself(), X, tmp_path / "a.nnrec")


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
    recording = check_recording(Twice(), X, tmp_path / "a.nnrec")
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
