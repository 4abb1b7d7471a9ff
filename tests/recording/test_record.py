"""nndiff.record as a whole: options, metadata, selection, replay, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nndiff
from nndiff.errors import ModelError, SourceError, UsageError
from nndiff.models.inputs import load_inputs
from nndiff.recording import open_recording
from nndiff.recording.environment.dropout import active_dropout, dropout_off
from nndiff.recording.format import shard_store
from nndiff.recording.record import record
from recording.runs import check_recording, names, numbers


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4, eps=1e-3)
        self.ffn = nn.Sequential(nn.Linear(4, 8), nn.GELU(approximate="tanh"), nn.Dropout(0.25), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.ffn(self.norm(x))


class Net(nn.Module):
    attention_dropout = 0.0

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Conv1d(4, 2, 3, stride=2, padding=1)
        self.drop_path = 0.5
        self.where = "/somewhere/secret"

    def forward(self, x: torch.Tensor, flags: dict[str, Any] | None = None) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return nn.functional.dropout(self.head(x.transpose(1, 2)), self.drop_path, self.training)


X = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(5))


def test_selection(tmp_path: Path) -> None:
    def heard(**options: Any) -> set[str]:
        found = record(Net().eval(), X, path=tmp_path / "a.nnrec", overwrite=True, **options)
        return {event.site.module for event in found.tensors if event.site.slot == "output"}

    everything = heard()
    assert len(everything) == 1 + 3 * 7 + 1
    assert heard(depth=1) == {"", "head"}
    assert heard(depth=0) == {""}
    assert heard(depth=2) == {"", "head", "layers.0", "layers.1", "layers.2"}
    assert heard(include=["layers.1"]) == {name for name in everything if name.startswith("layers.1") or not name}
    assert heard(exclude=["*.ffn", "*.ffn.*"]) == {name for name in everything if "ffn" not in name}
    assert heard(leaves=True) == {name for name in everything if name.count(".") > 1 and not name.endswith("ffn")} | {
        "",
        "head",
    }
    assert heard(include="head") == {"", "head"}
    assert heard(include="(model)") == {""}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"include": "laiers.1"}, r"include 'laiers.1' matches no module \(did you mean layers.1 or layers.2 or"),
        ({"include": ["hed.*", "re:^no"]}, r"include 'hed.\*' matches .*mean head\?\); include 're:\^no' matches no"),
        ({"include": "zzz"}, r"matches no module \(the model has layers, head\)"),
        ({"include": "layers.1", "depth": 1}, "no module is selected: nothing is left by include 'layers.1', depth 1"),
        ({"include": "layers.1", "exclude": "layers"}, "nothing is left by include 'layers.1', exclude 'layers'"),
        ({"exclude": "*"}, r"no module is selected: nothing is left by exclude '\*'"),
        ({"depth": -1}, "depth must be 0 .* or more, not -1"),
        ({"depth": "1"}, "depth must be 0 .* or more, not '1'"),
        ({"seed": "1"}, "the seed must be a whole number .*, not '1'"),
    ],
)  # fmt: skip
def test_a_selection_that_leaves_nothing_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        record(Net().eval(), X, path=tmp_path / "a.nnrec", **options)
    assert not (tmp_path / "a.nnrec").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"include": ["head", "laiers.1"]}, "include 'laiers.1' matches no module (did you mean layers.1"),
        ({"exclude": ["haed"]}, "exclude 'haed' matches no module (did you mean head?)"),
        ({"exclude": ["head", "layers"]}, "only one module is recorded: exclude leaves out all others"),
        ({"keep": ["stats", "full:haed"]}, "keep 'full:haed' matches nothing that was recorded (did you mean head?)"),
        ({"keep": ["stats", "full:head"]}, None),
        ({"keep": ["stats", "full:*:output"]}, None),
    ],
)
def test_patterns_that_match_nothing_are_told(options: dict[str, Any], said: str | None, tmp_path: Path) -> None:
    found = record(Net().eval(), X, path=tmp_path / "a.nnrec", **options)
    if said is None:
        assert found.warnings == ()
    else:
        assert found.warnings[0].startswith(said)
        assert found.source().notes == found.warnings, "a comparison tells it too"


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.two = self.one
        self.script = torch.jit.script(nn.Sequential(nn.Linear(4, 4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.script(self.two(self.one(x)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit is
@pytest.mark.parametrize("pattern", ["two", "script.0"])
def test_modules_that_go_by_another_name_or_are_out_of_reach(pattern: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="matches only modules that cannot be recorded under that name"):
        record(Tied(), X, path=tmp_path / "a.nnrec", include=pattern)


def test_metadata_is_plain_and_tells_what_matters(tmp_path: Path) -> None:
    record(Net(), X, path=tmp_path / "a.nnrec", seed=11, backward=True, mode="train")
    text = (tmp_path / "a.nnrec" / "manifest.json").read_text()
    meta = json.loads(text)["meta"]
    assert (meta["seed"], meta["mode"], meta["backward"], meta["loss"]) == (11, "train", True, "projection")
    assert meta["environment"]["versions"]["torch"] == torch.__version__
    modules = {module["name"]: module for module in meta["modules"]}
    assert modules["layers.0.norm"]["attributes"]["eps"] == 1e-3
    assert modules["layers.0.ffn.1"]["attributes"]["approximate"] == "tanh"
    assert modules["head"]["attributes"]["stride"] == [2]
    assert modules["head"]["parameters"] == ["weight", "bias"]
    assert "parameters" not in modules["layers.0.ffn.1"], "it holds none itself"
    assert modules["head"]["file"] == "torch/nn/modules/conv.py"
    assert modules[""]["line"] == _line_of("class Net(nn.Module):")
    assert modules[""]["file"].endswith("test_record.py")
    assert meta["flags"]["float32_matmul_precision"] == torch.get_float32_matmul_precision()
    assert "/somewhere" not in text
    assert str(Path(__file__).parent.parent.parent) not in text


def _line_of(text: str) -> int:
    return Path(__file__).read_text().splitlines().index(text) + 1


def test_dropout_off_and_its_warning(tmp_path: Path) -> None:
    model = Net().train()
    noisy = check_recording(model, X, tmp_path / "a.nnrec")
    assert any("active dropout in 4 modules" in warning for warning in noisy.warnings)
    quiet = record(model, X, path=tmp_path / "b.nnrec", dropout="off", backward=True)
    assert quiet.warnings == ()
    calm = record(model, X, path=tmp_path / "c.nnrec", mode="eval", backward=True)
    assert (calm.meta["mode"], quiet.meta["mode"]) == ("eval", "train"), "a replay runs in the mode it finds there"
    same = "(model):output"
    assert quiet.source().tensors[same].trace.digest == calm.source().tensors[same].trace.digest
    assert noisy.source().tensors[same].trace.digest != calm.source().tensors[same].trace.digest
    assert model.training
    assert model.drop_path == 0.5
    with dropout_off(model):
        assert active_dropout(model) == []
    assert len(active_dropout(model)) == 4


def test_one_seed_one_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_store, "SHORTEST_WAIT", 3600.0)  # however slow the machine is just now
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        record(Net().train(), lambda: torch.randn(2, 6, 4), path=tmp_path / name, seed=seed, backward=True)
    events = [(tmp_path / name / "events.jsonl").read_text() for name in "abc"]
    assert events[0] == events[1]
    assert events[0] != events[2]


@pytest.mark.parametrize("seed", [-(1 << 63), (1 << 64) - 1])
def test_any_seed_of_torch_will_do(seed: int, tmp_path: Path) -> None:
    assert record(nn.Linear(4, 4), X, path=tmp_path / "a.nnrec", seed=seed, backward=True).complete
    with pytest.raises(UsageError, match=r"the seed must be a whole number from -2\*\*63 to 2\*\*64 - 1"):
        record(nn.Linear(4, 4), X, path=tmp_path / "b.nnrec", seed=seed * 3)
    assert not (tmp_path / "b.nnrec").exists()


def test_inputs_are_fed_again_from_a_recording(tmp_path: Path) -> None:
    inputs = {"x": X, "flags": {"list": [1, X[0], None], "pair": (True, "text")}}
    record(Net().eval(), inputs, path=tmp_path / "a.nnrec")
    again = load_inputs(str(tmp_path / "a.nnrec"), Net()).inputs
    assert again.args == ()
    assert torch.equal(again.kwargs["x"], X)
    flags = again.kwargs["flags"]
    assert torch.equal(flags["list"][1], X[0])
    assert (flags["list"][0], flags["list"][2], flags["pair"]) == (1, None, (True, "text"))
    record(Net().eval(), again, path=tmp_path / "b.nnrec")
    assert (tmp_path / "a.nnrec/events.jsonl").read_text() == (tmp_path / "b.nnrec/events.jsonl").read_text()


def test_inputs_that_ask_for_a_gradient_ask_for_it_again(tmp_path: Path) -> None:
    model, asking = nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
    record(model, asking, path=tmp_path / "a.nnrec", backward=True)
    assert load_inputs(str(tmp_path / "a.nnrec"), model).inputs.args[0].requires_grad
    assert nndiff.compare(tmp_path / "a.nnrec", model).verdict == "identical"
    record(model, asking.detach(), path=tmp_path / "b.nnrec", backward=True)
    assert not load_inputs(str(tmp_path / "b.nnrec"), model).inputs.args[0].requires_grad


@pytest.mark.parametrize(
    "node", [{"event": 0, "grad": 1}, {"event": 1, "grad": True}, {"event": 0, "other": True}, {"grad": True}]
)
def test_an_input_that_is_no_input_is_refused(node: dict[str, Any], tmp_path: Path) -> None:
    record(Net().eval(), (X, torch.arange(3)), path=tmp_path / "a.nnrec")
    manifest = tmp_path / "a.nnrec/manifest.json"
    claims = json.loads(manifest.read_text())
    claims["meta"]["inputs"]["args"][0] = node
    manifest.write_text(json.dumps(claims))
    with pytest.raises(SourceError, match="the structure of its inputs is damaged"):
        open_recording(tmp_path / "a.nnrec").inputs()


def test_inputs_a_recording_cannot_hold_are_told_when_they_are_asked_for(tmp_path: Path) -> None:
    found = record(Net().eval(), (X, {"object": object()}), path=tmp_path / "a.nnrec")
    with pytest.raises(SourceError, match="a object, which a recording cannot hold"):
        found.inputs()


LOSSES = [
    (lambda output: output.pow(2).mean(), "given"),
    (lambda model, inputs, output: output.sum(), "given"),
    (None, "projection"),
]


@pytest.mark.parametrize(("loss", "origin"), LOSSES)
def test_losses(loss: Any, origin: str, tmp_path: Path) -> None:
    found = check_recording(Net(), X, tmp_path / "a.nnrec", loss=loss)
    assert found.meta["loss"] == origin
    assert names(found, "loss") == ["(model):loss"]


def test_the_projection_is_not_blind_behind_a_norm(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, elementwise_affine=False))
    found = record(model, X, path=tmp_path / "a.nnrec", backward=True)
    assert np.abs(numbers(found, "0.weight:param_grad")).max() > 1e-3


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda output: 3.0, "returned a float"),
        (lambda output: output, "starts from a single number"),
        (lambda output: output.detach().sum(), "does not depend on any parameter"),
    ],
)
def test_losses_that_are_none(loss: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        record(Net(), X, path=tmp_path / "a.nnrec", backward=True, loss=loss)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"must be a torch.nn.Module, not function"):
        record(lambda x: x, X, path=tmp_path / "a")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="repeat must be 1 or more"):
        record(Net(), X, path=tmp_path / "a", repeat=0)
    with pytest.raises(UsageError, match="mode is"):
        record(Net(), X, path=tmp_path / "a", mode="test")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="keep"):
        record(Net(), X, path=tmp_path / "a", keep="everything")
    assert not (tmp_path / "a").exists()


def test_keep_levels_per_module(tmp_path: Path) -> None:
    found = record(Net().eval(), X, path=tmp_path / "a.nnrec", keep=["full:layers.1.ffn", "digest"])
    levels = {event.site.name: event.keep for event in found.tensors}
    assert levels["layers.1.ffn.0:output"] == "full"
    assert levels["layers.0.ffn.0:output"] == "digest"
    assert levels["(model):model_input.0"] == "full"


def test_composites_finish_after_their_children(tmp_path: Path) -> None:
    found = record(Net().eval(), X, path=tmp_path / "a.nnrec")
    calls = {call.module: call for call in found.calls}
    for name, call in calls.items():
        for other, inner in calls.items():
            if other.startswith(f"{name}.") and name:
                assert call.entered < inner.entered < inner.order < call.order


def test_the_public_name() -> None:
    assert nndiff.record is record


@pytest.mark.parametrize("module", ["nndiff", "nndiff.recording", "nndiff.models", "nndiff.commands.record"])
def test_nothing_heavy_is_imported_before_it_is_needed(module: str) -> None:
    heavy = ("torch", "rich", "safetensors", "transformers", "matplotlib")
    program = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    record(Net(), X, path=tmp_path / "a.nnrec", backward=True)
    program = (
        "import sys; sys.modules['torch'] = None; from nndiff.recording import open_recording; "
        f"tensors = open_recording({str(tmp_path / 'a.nnrec')!r}).source().tensors.values(); "
        "print(len([tensor.numpy() for tensor in tensors if not tensor.missing]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 50


def test_inputs_may_be_anything_a_call_may_be(tmp_path: Path) -> None:
    for number, inputs in enumerate((X, (X,), [X], {"x": X}, lambda: X, lambda: {"x": X})):
        found = record(Net().eval(), inputs, path=tmp_path / str(number))
        assert np.array_equal(found.source().tensors["(model):output"].numpy(), Net().eval()(X).detach().numpy())


class Late(nn.Module):
    """Make a part of itself when it is first called."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "late"):
            self.late = nn.Linear(4, 4)
        return self.late(x)


@pytest.mark.parametrize("make", [lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU()), Late])
def test_parameters_that_come_to_be_in_the_run(make: Any, tmp_path: Path) -> None:
    model = make()
    found = record(model, X, path=tmp_path / "a.nnrec", backward=True, params=True, repeat=2)
    assert found.meta["self_agreement"]["agrees"], found.warnings
    assert len(names(found, "param")) == len(names(found, "param_grad")) == 2
    assert [each.grad for each in model.parameters()] == [None, None]
    again = record(model, X, path=tmp_path / "b.nnrec", backward=True, params=True)
    assert nndiff.compare(found.path, again.path).verdict == "identical"


def test_progress_counts_calls_forward_and_backward(tmp_path: Path) -> None:
    """One model call, three blocks of six modules and the head; backward each of these outputs gets a gradient."""
    seen: list[tuple[int, int | None]] = []

    def progress(calls_done: int, calls_total: int | None) -> None:
        seen.append((calls_done, calls_total))

    found = record(Net().eval(), X, path=tmp_path / "a.nnrec", progress=progress)
    assert len(found.calls) == 23
    assert seen == [(number, None) for number in range(1, 24)]
    seen.clear()
    found = record(Net().eval(), X, path=tmp_path / "b.nnrec", backward=True, repeat=2, progress=progress)
    gradients = [event for event in found.tensors if event.site.slot == "grad_output"]
    assert seen == [(number, None) for number in range(1, 2 * (23 + len(gradients)) + 1)]


def test_progress_may_stop_the_run(tmp_path: Path) -> None:
    def stop(calls_done: int, calls_total: int | None) -> None:
        if calls_done == 3:
            raise KeyboardInterrupt

    model = Net()
    with pytest.raises(KeyboardInterrupt):
        record(model, X, path=tmp_path / "a.nnrec", progress=stop)
    assert len(open_recording(tmp_path / "a.nnrec").calls) == 3
    assert not any(module._forward_hooks for module in model.modules())
