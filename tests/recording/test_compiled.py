"""Parts that are compiled or TorchScript: recorded as a whole, said so, and compiled no differently for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from nndiff.recording.record import record
from recording.runs import SEED, bare, check_recording, fingerprint, names

# the compiler's own
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
ALL = ["a.fc:output", "a.act:output", "a:output", "b.fc:output", "b.act:output", "b:output", "(model):output"]
A_WHOLE = ["a:output", "b.fc:output", "b.act:output", "b:output", "(model):output"]
ROOT_WHOLE = ["(model):output"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.act, self.drop = nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.fc(x)) * 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Block(), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x)) + 1


class CallsCompiled(Net):
    def __init__(self, backend: Any) -> None:
        super().__init__()
        self.run_a = torch.compile(lambda x: self.a(x) * 2, backend=backend, fullgraph=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.run_a(x))


def in_place(backend: Any) -> nn.Module:
    model = Net()
    model.a.compile(backend=backend, fullgraph=True)
    return model


def all_in_place(backend: Any) -> nn.Module:
    model = Net()
    model.compile(backend=backend, fullgraph=True)
    return model


def wrapped(backend: Any) -> nn.Module:
    model = Net()
    model.a = torch.compile(model.a, backend=backend, fullgraph=True)
    return model


def all_wrapped(backend: Any) -> nn.Module:
    return torch.compile(Net(), backend=backend, fullgraph=True)


def its_forward(backend: Any) -> nn.Module:
    model = Net()
    model.a.forward = torch.compile(model.a.forward, backend=backend, fullgraph=True)
    return model


def decorated(backend: Any) -> nn.Module:
    class Decorated(Block):
        forward = torch.compile(Block.forward, backend=backend, fullgraph=True)

    model = Net()
    model.a = Decorated()
    return model


COMPILED: dict[str, tuple[Callable[[Any], nn.Module], list[str], str]] = {
    "in place": (in_place, A_WHOLE, "a is compiled in place and is recorded as a whole"),
    "all in place": (all_in_place, ROOT_WHOLE, "(model) is compiled in place and is recorded as a whole"),
    "wrapped": (wrapped, A_WHOLE, "a is compiled and is recorded as a whole"),
    "all wrapped": (all_wrapped, ROOT_WHOLE, "(model) is compiled and is recorded as a whole"),
    "its forward": (its_forward, A_WHOLE, "a is compiled and is recorded as a whole"),
    "decorated": (decorated, A_WHOLE, "a is compiled and is recorded as a whole"),
    "a function": (CallsCompiled, A_WHOLE[1:], "(model) calls a compiled function"),
}


@pytest.fixture(autouse=True)
def _from_the_beginning() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", COMPILED)
@pytest.mark.parametrize("ran_before", [True, False])
@pytest.mark.parametrize("backward", [True, False])
def test_compiled_parts_are_recorded_as_a_whole(kind: str, ran_before: bool, backward: bool, tmp_path: Path) -> None:
    make, expected, said = COMPILED[kind]
    counter = CompileCounter()
    model = make(counter).eval()
    wanted = bare(model, X, backward) if ran_before else {}
    recording = record(model, X, path=tmp_path / "a.nnrec", seed=SEED, backward=backward)
    assert names(recording) == expected
    assert recording.warnings[0].startswith(said)
    assert counter.frame_count == 1, "neither torn apart by hooks nor compiled once more for them"
    held = {event.site.name: event.digest for event in recording.tensors}
    wanted = wanted or bare(model, X, backward)
    assert {name: held.get(name) for name in wanted} == wanted
    if backward:
        assert "b.fc.weight:param_grad" in " ".join(held)
        assert "(model):grad_output" in held


def test_a_compiled_call_is_itself_again_afterwards(tmp_path: Path) -> None:
    model = in_place("eager")
    before, calls = fingerprint(model), model.a._compiled_call_impl
    check_recording(model, X, tmp_path / "a.nnrec")
    assert model.a._compiled_call_impl is calls
    assert fingerprint(model) == before


def test_a_compiled_part_that_is_not_asked_for_is_not_named(tmp_path: Path) -> None:
    recording = record(in_place("eager").eval(), X, path=tmp_path / "a.nnrec", exclude=["a"])
    assert names(recording) == A_WHOLE[1:]
    assert recording.warnings == ()


def test_a_function_that_must_not_be_compiled_is_no_compiled_one(tmp_path: Path) -> None:
    model = Net()
    model.a.forward = torch.compiler.disable(model.a.forward)
    assert names(check_recording(model, X, tmp_path / "a.nnrec")) == ALL


@pytest.mark.parametrize("kind", ["all in place", "all wrapped"])
def test_dropout_is_off_in_compiled_parts(kind: str, tmp_path: Path) -> None:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(self.drop(self.fc(x)), 0.5, self.training)

    model: nn.Module = Drops()
    if kind == "all in place":
        model.compile(backend="eager", fullgraph=True)
    else:
        model = torch.compile(model, backend="eager", fullgraph=True)
    model.train()
    before = bare(model, X)
    outputs = {}
    for dropout in (None, "off"):
        found = [
            record(model, X, path=tmp_path / f"{dropout}{seed}", seed=seed, dropout=dropout, backward=True)
            for seed in (1, 2)
        ]
        outputs[dropout] = len({each.source().tensors["(model):output"].trace.digest for each in found})
    assert outputs == {None: 2, "off": 1}
    assert bare(model, X) == before


SCRIPTED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "scripted": torch.jit.script,
    "traced": lambda module: torch.jit.trace(module, X),
    "frozen": lambda module: torch.jit.freeze(torch.jit.script(module.eval())),
}


@pytest.mark.parametrize("kind", SCRIPTED)
@pytest.mark.parametrize("backward", [True, False])
def test_torchscript_parts_are_recorded_as_a_whole(kind: str, backward: bool, tmp_path: Path) -> None:
    model = Net().eval()
    model.a = SCRIPTED[kind](model.a)
    recording = check_recording(model, X, tmp_path / "a.nnrec", backward=backward)
    assert names(recording) == A_WHOLE
    assert recording.warnings == ("a is TorchScript and is recorded as a whole, not inside",)
    check_recording(model, X, tmp_path / "b.nnrec", backward=backward, mode="eval")


@pytest.mark.parametrize("kind", SCRIPTED)
def test_torchscript_models_are_recorded_as_a_whole(kind: str, tmp_path: Path) -> None:
    recording = check_recording(SCRIPTED[kind](Net().eval()), X, tmp_path / "a.nnrec", backward=kind != "frozen")
    assert names(recording) == ROOT_WHOLE


def test_dropout_modules_in_torchscript_are_off(tmp_path: Path) -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))).train()
    outputs = {
        record(model, X, path=tmp_path / str(seed), seed=seed, dropout="off").tensors[-1].digest for seed in (1, 2)
    }
    assert len(outputs) == 1
    assert len({record(model, X, path=tmp_path / f"d{seed}", seed=seed).tensors[-1].digest for seed in (1, 2)}) == 2
