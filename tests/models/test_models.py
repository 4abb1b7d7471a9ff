"""From the name of a model to something that runs, and every way that can go wrong."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from end_to_end.zoo import ZOO, built
from nndiff.commands import main
from nndiff.commands import record as command
from nndiff.errors import CheckpointError, ModelError, NndiffError, SourceError, UsageError
from nndiff.models import BuildOptions, build_model
from nndiff.models.checkpoint import load_checkpoint
from nndiff.models.inputs import load_inputs, make_input_drawer, parse_description
from nndiff.models.kinds import looks_like_model
from nndiff.recording import Writer, open_recording

FILE = """
import torch
from torch import nn
from neighbour import WIDTH

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(WIDTH, 2)

    def forward(self, x):
        if x.shape[-1] == 5:
            raise ValueError("five is too many")
        return self.fc(x)

def model():
    return Net()

def wide():
    net = Net()
    net.fc = nn.Linear(WIDTH, 7)
    return net

ready = Net()
nothing = 3

def broken():
    return Net(1, 2, 3)

def inputs(batch_size=2, seq_len=None):
    return {"x": torch.randn(batch_size, WIDTH)}

def loss(model, inputs, output):
    return output.sum() + 0 * inputs["x"].sum()

variants = {"half": lambda: Net().bfloat16(), "wide": wide}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("WIDTH = 4\n")
    (tmp_path / "net.py").write_text(FILE)
    yield tmp_path / "net.py"
    sys.path[:] = [path for path in sys.path if path != str(tmp_path)]
    sys.modules.pop("neighbour", None)


def test_a_file_brings_model_inputs_loss_and_variants(file: Path) -> None:
    spec = build_model(str(file), BuildOptions(batch_size=5))
    assert type(spec.model).__name__ == "Net"
    assert spec.inputs()["x"].shape == (5, 4)
    assert list(spec.variants) == ["half", "wide"]
    assert spec.loss is not None
    assert build_model(f"{file}:wide").model.fc.out_features == 7
    assert build_model(f"{file}:Net").model.fc.out_features == 2
    assert build_model(f"{file}:ready").model.fc.out_features == 2
    assert next(build_model(str(file), BuildOptions(variant="half")).model.parameters()).dtype is torch.bfloat16


def test_weights_are_drawn_from_the_seed(file: Path) -> None:
    one, two, other = (build_model(str(file), BuildOptions(seed=seed)).model.fc.weight for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_modules_by_their_dotted_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    monkeypatch.delitem(sys.modules, "net", raising=False)
    assert type(build_model("net:wide").model).__name__ == "Net"
    assert build_model("torch.nn:ReLU").model(torch.tensor(-1.0)) == 0
    monkeypatch.delitem(sys.modules, "net", raising=False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{file}:modle", "defines no 'modle'; did you mean .*:model"),
        ("{file}:nothing", "is a int, not a torch.nn.Module"),
        (
            "{file}:broken",
            r"broken\(\) failed at .*net.py:28: TypeError: .*takes 1 positional argument but 4 were given",
        ),
        ("{file}x.py", "no such file"),
        ("no.such.package:F", r"^no.such.package: no such file or folder, and no Python module 'no'; "),
        ("torch.nn.modles:ReLU", r"no Python module 'torch.nn.modles' \(did you mean torch.nn.modules\?\)"),
        (
            "torch.nn:Linear",
            "^torch.nn:Linear cannot be called without in_features, out_features: give them defaults, or",
        ),
        ("what is this", "is not a model"),
        ("hf:{folder}", "no config.json"),
        ("hf:{folder}/absent", "no such folder; nothing is downloaded"),
        ("{folder}", "is a folder, not a model"),
        ("{folder}/x.nemo", "no such file"),
    ],
)
def test_names_that_lead_nowhere(name: str, message: str, file: Path) -> None:
    with pytest.raises(NndiffError, match=message) as caught:
        build_model(name.format(file=file, folder=file.parent))
    assert "\n" not in str(caught.value)


SAVED = ["x.nnrec", "x.pt", "x.pth", "x.safetensors", "x.npz", "dir/x", "./x"]


@pytest.mark.parametrize("name", [*SAVED, "x.py", "x.py:net", "x.nemo", "x.ckpt"])
def test_what_looks_like_a_file_is_never_taken_for_a_module(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=rf"^{re.escape(name.removesuffix(':net'))}: no such file or directory$"):
        build_model(name)
    assert looks_like_model(name) == (".py" in name)


def test_a_recording_and_a_folder_of_hugging_face_are_told_apart_from_models(tmp_path: Path) -> None:
    (tmp_path / "x.nnrec").mkdir()
    with pytest.raises(
        UsageError, match=r"x.nnrec holds tensors, not a model to run: .*; to compare files, use nndiff diff$"
    ):
        build_model(str(tmp_path / "x.nnrec"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=f"to run its Hugging Face model, write hf:{tmp_path}"):
        build_model(str(tmp_path))


NEEDS = """from torch import nn
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(4, width)
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def model(:", r"^importing .*bad.py failed at .*bad.py:1: SyntaxError: [^(]*$"),
        (
            "\nimport no_such_thing",
            r"^importing .*bad.py failed at .*bad.py:2: ModuleNotFoundError: No module named 'no_",
        ),
        ("import broken_neighbour", r"^importing .*bad.py failed at .*broken_neighbour.py:3: ValueError: broken$"),
        (
            "def model(width, *, depth):\n    pass",
            r"bad.py:model at .*bad.py:1 cannot be called without width, depth: ",
        ),
        (NEEDS + "model = Net", r"bad.py:model at .*bad.py:3 cannot be called without width: "),
        (NEEDS + "def model(): return Net(-1)", r"bad.py:model\(\) failed at .*bad.py:5: RuntimeError: .*negative"),
        ("import sys; sys.exit(3)", r"exited the program \(exit status 3\)"),
        ("1 / 0", r"failed at .*bad.py:1: ZeroDivisionError"),
        ("variants = [1]\ndef model(): pass", "`variants` is a list"),
        ("loss = 3\nimport torch\nmodel = torch.nn.ReLU", "`loss` is not a function"),
    ],
)
def test_files_that_fail(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "broken_neighbour.py").write_text("\n\nraise ValueError('broken')\n")
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(ModelError, match=message) as caught:
        build_model(str(tmp_path / "bad.py"))
    assert "frozen" not in str(caught.value)
    assert "src/nndiff" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(ZOO))
def test_hugging_face_folders(name: str, tmp_path: Path) -> None:
    model = built(name)
    model.save_pretrained(tmp_path)
    spec = build_model(f"hf:{tmp_path}", BuildOptions(batch_size=1, seq_len=100 if name == "whisper" else 8))
    assert type(spec.model) is type(model)
    assert spec.notes == ()
    held = spec.model.state_dict()
    assert all(torch.equal(value, held[key]) for key, value in model.state_dict().items())
    if name != "resnet":
        spec.model.eval()(**spec.inputs())


def test_inputs_are_drawn_as_described() -> None:
    torch.manual_seed(0)
    made = make_input_drawer(
        ["x=float16[B,3]", "ids=int64[B,T]:5..9", "u=float32[4]:-1..1", "m=bool[2]", "s=float64[]"], 3, 7
    )
    assert made is not None
    found = made().kwargs
    assert {name: (str(each.dtype), tuple(each.shape)) for name, each in found.items()} == {
        "x": ("torch.float16", (3, 3)), "ids": ("torch.int64", (3, 7)), "u": ("torch.float32", (4,)),
        "m": ("torch.bool", (2,)), "s": ("torch.float64", ()),
    }  # fmt: skip
    assert 5 <= int(found["ids"].min()) <= int(found["ids"].max()) < 9
    assert float(found["u"].abs().max()) <= 1
    by_position = make_input_drawer(["1=float32[2]", "0=int8[1]"], None, None)
    assert by_position is not None
    assert [each.dtype for each in by_position().args] == [torch.int8, torch.float32]


@pytest.mark.parametrize(
    "spec",
    ["x=float32", "x=float99[2]", "x=float32[a]", "x=float32[-1]", "x=int64[2]:9..3", "x=int64[2]:a..b", "=f[2]"],
)
def test_descriptions_that_are_none(spec: str) -> None:
    with pytest.raises(UsageError, match="--input"):
        parse_description(spec, None, None)


def test_inputs_given_twice_or_mixed() -> None:
    with pytest.raises(UsageError, match="describes 'x' twice"):
        make_input_drawer(["x=float32[2]", "x=float32[3]"], None, None)
    with pytest.raises(UsageError, match="not both"):
        make_input_drawer(["x=float32[2]", "file.npz"], None, None)
    assert make_input_drawer([], None, None) is None


class Takes(nn.Module):
    def forward(self, x: Any, mask: Any = None, ids: Any = None) -> Any:
        return x


@pytest.mark.parametrize("kind", ["npz", "safetensors", "pt"])
def test_saved_inputs(kind: str, tmp_path: Path) -> None:
    import safetensors.torch

    path = tmp_path / f"inputs.{kind}"
    tensors = {"x": torch.randn(2, 3), "mask": torch.tensor([True, False]), "ids": torch.arange(4)}
    if kind == "npz":
        np.savez(path, **{name: value.numpy() for name, value in tensors.items()})
    elif kind == "safetensors":
        safetensors.torch.save_file(tensors, path)
    else:
        torch.save(tensors, path)
    found = load_inputs(str(path), Takes()).inputs
    assert found.args == ()
    assert found.kwargs.keys() == tensors.keys()
    assert all(torch.equal(found.kwargs[name], value) for name, value in tensors.items())


def test_a_recording_without_inputs_cannot_feed(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.nnrec") as writer:
        writer.add("fc", "output", np.ones(3))
    with pytest.raises(NndiffError, match="holds no inputs"):
        load_inputs(str(tmp_path / "a.nnrec"), Takes())


def net(width: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 3), nn.BatchNorm1d(3))


@pytest.mark.parametrize("prefix", ["", "module.", "model.module.", "_orig_mod."])
def test_checkpoints_load_with_their_wrappers(prefix: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    source, target = net(), net()
    torch.save({prefix + name: value for name, value in source.state_dict().items()}, tmp_path / "a.pt")
    assert load_checkpoint(target, str(tmp_path / "a.pt")) == []
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in target.state_dict().items())
    assert target[0].weight.requires_grad


def test_checkpoints_that_do_not_fit_say_all_of_it(tmp_path: Path) -> None:
    state = net(5).state_dict()
    del state["1.weight"]
    state["extra"] = torch.ones(1)
    torch.save(state, tmp_path / "a.pt")
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ModelError) as caught:
        load_checkpoint(model, str(tmp_path / "a.pt"))
    text = str(caught.value)
    assert "1 missing (1.weight)" in text
    assert "1 unexpected (extra)" in text
    assert "1 with another shape (0.weight [3, 5] into [3, 4])" in text
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(ModelError, match="with another shape"):
        load_checkpoint(model, str(tmp_path / "a.pt"), partial=True)


def test_what_is_noted_of_a_checkpoint_stands_in_the_recording(file: Path, tmp_path: Path) -> None:
    """A comparison that follows must tell it too, not only the command that recorded."""
    state = {name: value.double() for name, value in build_model(str(file)).model.state_dict().items()}
    torch.save(state, tmp_path / "a.pt")
    arguments = ["record", str(file), "-o", str(tmp_path / "a.nnrec"), "--ckpt", str(tmp_path / "a.pt"), "-q"]
    assert main(arguments) == 0
    (note,) = open_recording(tmp_path / "a.nnrec").warnings
    assert note.startswith("cast to the model's dtype: 2 tensors of a.pt (")


def test_partial_and_cast_checkpoints_are_told(tmp_path: Path) -> None:
    state = {name: value.double() for name, value in net().state_dict().items() if name.startswith("0.")}
    torch.save({**state, "extra": torch.ones(1)}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"unexpected \(extra\)$") as caught:
        load_checkpoint(net(), str(tmp_path / "a.pt"))
    assert caught.value.partial_loads
    notes = load_checkpoint(net(), str(tmp_path / "a.pt"), partial=True)
    path = "a.pt"
    assert [note.partition(" (")[0] for note in notes] == [
        f"cast to the model's dtype: 2 tensors of {path}",
        f"not in {path}: 5 tensors of the model",
        f"not used: 1 tensor of {path}",
    ]
    torch.save({"other": torch.ones(1)}, tmp_path / "b.pt")
    for partial in (False, True):
        with pytest.raises(
            CheckpointError, match=r"no tensor in it has .* \(it has 'other', the model has '0.w"
        ) as caught:
            load_checkpoint(net(), str(tmp_path / "b.pt"), partial=partial)
        assert not caught.value.partial_loads


def test_tied_weights_may_be_stored_once(tmp_path: Path) -> None:
    def tied() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
        model[1].weight = model[0].weight
        return model

    torch.save({"0.weight": torch.full((3, 3), 2.0)}, tmp_path / "a.pt")
    model = tied()
    assert load_checkpoint(model, str(tmp_path / "a.pt")) == []
    assert (model[1].weight == 2).all()


def record(*args: object) -> int:
    """Run the command in this process, as the command line would."""
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    found = parser.parse_args(["record", *map(str, args)])
    return int(found.run(found))


def test_the_command_records_and_says_so(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.nnrec"
    assert record(file, "-o", out, "--backward", "--repeat", 2, "--batch-size", 3, "--params") == 0
    printed = capsys.readouterr().out
    assert "forward and backward: 2 calls" in printed
    assert "2 runs with the same seed agree at all" in printed
    found = open_recording(out)
    assert found.complete
    assert found.source().tensors["(model):output"].shape == (3, 2)
    assert found.meta["label"] == "net.py"
    assert record(f"{file}:wide", "-o", tmp_path / "b.nnrec", "--input", out, "-q") == 0
    assert capsys.readouterr().out == ""
    assert found.tensors[0].digest == open_recording(tmp_path / "b.nnrec").tensors[0].digest


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (
            "def inputs(batch_size): pass",
            (),
            r"inputs\(\) at .*net.py:\d+ cannot be called without batch_size: give --ba",
        ),
        ("def inputs(what): pass", (), r"inputs\(\) at .*net.py:\d+ cannot be called without what: give them defaults"),
        ("def inputs(): return [1, 0][5]", (), r"^inputs\(\) failed at .*net.py:\d+: IndexError"),
        ("def loss(a, b): pass", ("--backward",), r"^loss\(\) failed at .*net.py:\d+: TypeError: .*takes 2"),
        ("def loss(output): return output.sum() / []", ("--backward",), r"^loss\(\) failed at .*net.py:\d+: TypeError"),
    ],
)
def test_inputs_and_losses_that_fail_name_their_line(
    given: str, options: tuple[str, ...], message: str, file: Path, tmp_path: Path
) -> None:
    file.write_text(f"{FILE}\n{given}\n")
    with pytest.raises(ModelError, match=message) as caught:
        record(file, "-o", tmp_path / "a.nnrec", *options)
    line = str(caught.value).partition("net.py:")[2].partition(":")[0].partition(" ")[0]
    assert file.read_text().splitlines()[int(line) - 1] == given


def test_a_loss_may_have_settings_of_its_own(file: Path, tmp_path: Path) -> None:
    file.write_text(f"{FILE}\ndef loss(output, scale=2.0): return scale * output.sum()\n")
    assert record(file, "-o", tmp_path / "a.nnrec", "--backward", "-q") == 0


def test_the_command_moves_and_casts(file: Path, tmp_path: Path) -> None:
    assert record(file, "-o", tmp_path / "a", "--dtype", "float64", "--device", "cpu", "-q") == 0
    assert open_recording(tmp_path / "a").source().tensors["(model):output"].dtype.name == "float64"


def test_the_command_fails_in_one_sentence(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def trouble(*args: Any) -> str:
        with pytest.raises(NndiffError) as caught:
            record(*args)
        assert "\n" not in str(caught.value)
        assert "Traceback" not in capsys.readouterr().err
        return str(caught.value)

    out, out2 = tmp_path / "a.nnrec", tmp_path / "a2.nnrec"
    assert "net.py:13: ValueError: five is too many" in trouble(file, "-o", out, "--input", "x=float32[1,5]")
    assert not out.exists()
    assert record(file, "-o", out, "-q") == 0
    assert "holds a recording already" in trouble(file, "-o", out)
    assert "net.py:11: TypeError: Net.forward() got an unexpected" in trouble(
        file, "-o", out2, "--input", "y=float32[1]"
    )
    assert "has no inputs" in trouble("torch.nn:ReLU", "-o", tmp_path / "b")
    assert "'int8' is not a float dtype" in trouble(file, "-o", tmp_path / "b", "--dtype", "int8")
    assert "'toaster' is not a device" in trouble(file, "-o", tmp_path / "b", "--device", "toaster")
    assert "--partial needs --ckpt" in trouble(file, "-o", tmp_path / "b", "--partial")
    with pytest.raises(ModelError):
        record(file, "-o", tmp_path / "c", "--input", "x=float32[1,5]", "--traceback")
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "five is too many" in shown
    assert "src/nndiff" not in shown, "our own frames tell nothing"
