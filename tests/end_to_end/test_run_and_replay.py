"""nndiff run and nndiff diff RECORDING MODEL: each side in a process of its own, the same seed and inputs."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch

import nndiff as api
from helpers import nndiff
from nndiff.commands import build_parser
from nndiff.recording import Writer
from nndiff.result import NoteSlug

_NET = """
import torch
from torch import nn
from layers import make_norm

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.linear, self.act = make_norm(width), nn.Linear(width, width), nn.ReLU()

    def forward(self, x):
        return x + self.act(self.linear(self.norm(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.blocks, self.head = nn.Linear(6, 8), nn.Sequential(Block(8), Block(8)), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.blocks(self.first(x)))

def model():
    torch.manual_seed(0)
    return Net().eval()

def inputs():
    return torch.randn(2, 4, 6)
"""
_LAYERS = "from torch import nn\ndef make_norm(width):\n    return nn.LayerNorm(width, eps={eps})\n"


@pytest.fixture
def nets(tmp_path):
    """Two implementations in two folders, each with a `layers.py` beside it."""
    for name, eps in (("ours", 1e-5), ("copy", 1e-5), ("theirs", 1e-2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "net.py").write_text(_NET)
        (tmp_path / name / "layers.py").write_text(_LAYERS.format(eps=eps))
    return tmp_path


def test_two_copies_are_the_same_and_what_was_recorded_is_kept_where_asked(nets):
    kept, python = nets / "kept", nets / "env"
    (python / "bin").mkdir(parents=True)
    (python / "bin/python").write_text(f'#!/bin/sh\necho ran > {nets}/ran\nexec {sys.executable} "$@"\n')
    (python / "bin/python").chmod(0o755)
    command = ("run", nets / "ours/net.py", nets / "copy/net.py", "-o", kept, "--backward", "--report", "json")
    done = nndiff(*command, "--ref-python", sys.executable, "--cand-python", python)
    data = json.loads(done.stdout)
    assert (done.returncode, data["verdict"], data["kind"]) == (0, "identical", "recording")
    assert {pair["slot"] for pair in data["pairs"]} >= {"model_input", "output", "grad_output", "param_grad", "loss"}
    assert (nets / "ran").exists(), "an environment stands for its interpreter"
    assert nndiff("diff", kept / "reference", kept / "candidate", "-q").returncode == 0
    before = (kept / "reference/events.jsonl").stat().st_mtime_ns
    refused = nndiff(*command)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "already holds a recording; replace it with --overwrite, or give another -o DIR" in refused.stderr
    assert (kept / "reference/events.jsonl").stat().st_mtime_ns == before


def test_neighbours_of_the_same_name_are_not_mixed_up(nets):
    saved, table = nets / "saved.json", nets / "table.md"
    command = ("run", nets / "ours/net.py", nets / "theirs/net.py", "--quiet", "--overwrite", "-o", nets / "kept")
    done = nndiff(*command, "--report", "terminal", "--report", f"json:{saved}", "--report", f"md:{table}")
    assert (done.returncode, done.stdout.count("\n")) == (1, 1), "quiet is about the terminal alone"
    assert table.read_text().count("\n") > 10
    data = json.loads(saved.read_text())
    assert data["first_divergence"]["name"] == "blocks.0.norm:output"
    assert data["first_divergence"]["settings"] == {"eps": [1e-05, 0.01]}
    assert data["reference"]["label"].endswith("ours/net.py")


def test_what_is_kept_is_said_in_the_same_words_of_recording_and_running():
    parser = build_parser()
    commands = next(each.choices for each in parser._actions if isinstance(each.choices, dict))
    for option in ("--keep", "--depth", "--leaves", "--params", "--inputs"):
        record, run = (commands[name]._option_string_actions[option] for name in ("record", "run"))
        assert (record.help, record.metavar, record.dest) == (run.help, run.metavar, run.dest)


def test_a_pattern_names_modules_for_comparing_as_it_does_for_recording(nets):
    whole, less = nets / "whole.nnrec", nets / "less.nnrec"
    assert nndiff("record", nets / "ours/net.py", "-o", whole, "-q").returncode == 0
    assert nndiff("record", nets / "ours/net.py", "-o", less, "-q", "--exclude", "*.norm").returncode == 0
    outputs = {name for name in api.open_source(less).tensors if name.endswith(":output")}
    for pattern in ("*.norm", r"re:\.norm$"):
        result = api.compare(whole, whole, exclude=pattern, group={"norms": pattern})
        assert {pair.name for pair in result.pairs if pair.slot == "output"} == outputs
        assert any("the group 'norms' is empty" in note.text for note in result.notes)  # all of it was left out
        result = api.compare(whole, whole, include=pattern, group={"norms": pattern})
        assert [pair.name for pair in result.pairs] == ["blocks.0.norm:output", "blocks.1.norm:output"]
        assert result.to_dict()["groups"]["norms"]["totals"]["pairs"] == 2
        assert not any(note.slug is NoteSlug.RULE_WITHOUT_EFFECT for note in result.notes)


def test_rules_that_name_nothing_are_told(nets):
    kept = nets / "a.nnrec"
    assert nndiff("record", nets / "ours/net.py", "-o", kept, "-q").returncode == 0
    rules = ("--exclude", "*.nrom", "--group", "heads=classifier", "--rename", "gamma=>weight")
    notes = json.loads(nndiff("diff", kept, kept, *rules, "--report", "json").stdout)["notes"]
    texts = [note["text"] for note in notes if note["slug"] == "rule-without-effect"]
    assert len(texts) == 3
    for named in ("'*.nrom'", "'heads' is empty: its pattern 'classifier'", "--rename 'gamma'"):
        assert any(named in text for text in texts)


_LINEAR = """
import torch

def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4))

def other():
    return torch.nn.Sequential(torch.nn.Linear(4, 4))

variants = {"other": other}

def inputs():
    return torch.ones(3, 4)
"""


@pytest.fixture
def linear(tmp_path):
    """A model in a file, and weights for it."""
    (tmp_path / "net.py").write_text(_LINEAR)
    torch.save({"0.weight": torch.eye(4), "0.bias": torch.ones(4)}, tmp_path / "w.ckpt")
    return tmp_path


def test_the_checkpoint_and_the_variant_of_a_side_are_told_in_every_report(linear):
    net, reports = linear / "net.py", ("json", "md", "html", "junit", "terminal")
    asked = [word for each in reports for word in ("--report", f"{each}:{linear / each}")]
    sides = ("--ref-variant", "other", "--cand-ckpt", linear / "w.ckpt")
    done = nndiff("run", net, net, *sides, "-o", linear / "kept", *asked)
    assert done.returncode == 1, done.stderr
    for each in reports[1:]:
        assert "net.py with w.ckpt" in (linear / each).read_text(), each
    data = json.loads((linear / "json").read_text())
    assert data["reference"]["label"].endswith("net.py@other")
    assert data["candidates"][0]["meta"]["checkpoint"] == "w.ckpt"
    assert "checkpoint" not in data["reference"]["meta"]
    manifest = (linear / "kept/candidate/manifest.json").read_text()
    assert '"checkpoint": "w.ckpt"' in manifest
    assert str(linear) not in manifest


def test_the_checkpoint_is_told_where_a_model_is_recorded_shown_and_replayed(linear):
    net, kept, weights = linear / "net.py", linear / "a.nnrec", linear / "w.ckpt"
    done = nndiff("record", net, "-o", kept, "--ckpt", weights)
    assert "net.py with w.ckpt, 20 parameters" in done.stdout.splitlines()[0]
    assert "  weights   w.ckpt\n" in nndiff("show", kept).stdout
    done = nndiff("diff", kept, kept, net, "--ckpt", weights, COLUMNS="200")
    assert done.returncode == 0
    assert done.stdout.count("a.nnrec with w.ckpt") == 2
    assert "net.py with w.ckpt" in done.stdout


def test_a_recording_is_replayed_through_a_model(nets):
    reference = nets / "ref.nnrec"
    assert nndiff("record", nets / "ours/net.py", "-o", reference, "--seed", "7", "--backward").returncode == 0
    done = nndiff("diff", reference, nets / "copy/net.py", nets / "theirs/net.py", "--report", "json")
    data = json.loads(done.stdout)
    assert done.returncode == 1
    assert [side["verdict"] for side in data["candidates"]] == ["identical", "different"]
    assert any(pair["slot"] == "param_grad" for pair in data["pairs"])


def test_a_model_whose_inputs_ask_for_a_gradient_is_the_same_as_itself(tmp_path):
    layer = torch.nn.Linear(4, 4)
    inputs = torch.randn(3, 4, requires_grad=True)
    recording = api.record(layer, inputs, path=tmp_path / "a.nnrec", backward=True)
    assert api.compare(recording, layer).verdict == "identical"


_CUT = """
import os, signal
import torch
from torch import nn
from nndiff.recording.format import shard_store

shard_store.SHORTEST_WAIT = 3600.0  # however slow the machine is just now

class Stop(nn.Module):
    def forward(self, x):
        if os.environ.get("HOW") == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if os.environ.get("HOW") == "raise":
            raise ValueError("stop")
        return x

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), Stop(), nn.Linear(4, 4)).eval()

def inputs():
    return torch.randn(2, 4)
"""


def test_a_recording_that_was_cut_off_is_replayed_as_far_as_it_goes(tmp_path):
    model, out = tmp_path / "cut.py", tmp_path / "cut.nnrec"
    model.write_text(_CUT)
    done = nndiff("record", model, "-o", out, HOW="raise")
    assert done.returncode == 2
    assert f"ValueError: stop; what ran before is in {out}; --overwrite" in done.stderr
    done = nndiff("diff", out, model, "--report", "json")
    data = json.loads(done.stdout)
    assert done.returncode == 1, "what is missing is never a pass"
    assert {pair["name"]: pair["verdict"] for pair in data["pairs"]} == {
        "(model):model_input.0": "identical",
        "0:output": "identical",
    }
    assert any("incomplete: the run was cut off" in note for note in data["reference"]["notes"])


def test_a_recording_killed_before_its_inputs_were_kept_says_so(tmp_path):
    model, out = tmp_path / "cut.py", tmp_path / "cut.nnrec"
    model.write_text(_CUT)
    assert nndiff("record", model, "-o", out, HOW="kill").returncode == -9
    done = nndiff("diff", out, model)
    assert done.returncode == 2
    assert f"{out}: is incomplete: the run was cut off before its inputs were on disk" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/bin/true", "/bin/true ran but recorded nothing: is it a Python interpreter?"),
        ("{folder}", "is a folder but no Python environment"),
        ("{folder}/python", "cannot be run: no such file or directory"),
        ("/bin/false", "could not be recorded with /bin/false: its process ended with status 1"),
    ],
)
def test_what_is_no_interpreter_is_told(nets, tmp_path, python, words):
    python = python.format(folder=tmp_path)
    done = nndiff("run", nets / "ours/net.py", nets / "copy/net.py", "--ref-python", python)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["absent.nnrec", "absent.pt", "dir/absent", "absent.nemo", "absent.py"])
def test_a_file_that_is_missing_is_told_as_such_before_a_model_is_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Writer("a.nnrec") as writer:
        writer.add("fc", "output", np.ones(3))
    for args in (["diff", "a.nnrec", name], ["diff", name, "net.py"], ["show", name]):
        done = nndiff(*args)
        assert done.returncode == 2
        assert done.stderr == f"nndiff: {name}: no such file or directory\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "ours/net.py", "absent.nnrec"], "nndiff: absent.nnrec: no such file or directory"),
        (["run", "ours/net.py:nothing", "copy/net.py"], "nothing"),
        (["diff", "ours/net.py", "copy/net.py"], "nndiff run"),
    ],
)
def test_trouble_is_one_sentence(nets, args, words):
    done = nndiff(*(nets / arg if "/" in arg or arg.endswith(".py") else arg for arg in args))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_a_killed_process_is_told_as_killed(tmp_path):
    (tmp_path / "dies.py").write_text("import os, signal\ndef model():\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    done = nndiff("run", tmp_path / "dies.py", tmp_path / "dies.py")
    assert done.returncode == 2
    assert "its process was killed by signal 9 (out of memory?): it printed nothing" in done.stderr


def test_recordings_named_in_ways_that_do_not_work_say_what_does(nets):
    recording = nets / "a.nnrec"
    assert nndiff("record", nets / "ours/net.py", "-o", recording, "--quiet").returncode == 0
    for said, *command in (
        ("the recording comes first, then the MODEL", "diff", nets / "ours/net.py", recording),
        ("give the folder it is in", "diff", recording / "manifest.json", recording),
        (
            "a recording has no parts; choose tensors with --include 'blocks*'",
            "diff",
            f"{recording}::blocks",
            recording,
        ),
        ("a recording has no parts; choose tensors with --include 'blocks*'", "show", f"{recording}::blocks"),
    ):
        done = nndiff(*command)
        assert (done.returncode, done.stdout) == (2, ""), done.stdout
        assert said in done.stderr


@pytest.fixture
def dropping():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3)).train()


def test_a_module_replays_a_recording_as_it_was_made(dropping, tmp_path):
    import torch

    recording = api.record(dropping, torch.randn(2, 6), path=tmp_path / "a.nnrec", seed=7, backward=True, params=True)
    dropping.eval()  # replayed in the mode of the recording
    for reference in (recording, tmp_path / "a.nnrec", str(tmp_path / "a.nnrec")):
        result = api.compare(reference, dropping)
        assert (result.verdict, result.kind) == ("identical", "recording")
        assert {"param_grad", "grad_output", "param", "output"} <= {pair.slot for pair in result.pairs}
    assert api.compare(recording, dropping, seed=8).exit_code == 1  # other elements are dropped
    assert not dropping.training
    with torch.no_grad():
        dropping[2].bias[0] += 1
    assert api.compare(recording, dropping).first_divergence.name.startswith("2:")


def test_a_module_before_a_recording_is_told_the_way_round(dropping, tmp_path):
    import torch

    recording = api.record(dropping, torch.randn(2, 6), path=tmp_path / "a.nnrec")
    with pytest.raises(api.NndiffError, match="the recording comes first"):
        api.compare(dropping, recording)
