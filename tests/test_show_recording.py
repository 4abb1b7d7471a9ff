"""nndiff show of a recording: which model ran how, what was heard, and whether that is all."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from torch import nn

from helpers import nndiff
from nndiff.recording import Writer
from nndiff.recording.format.arrays import raw_array
from nndiff.recording.record import record
from nndiff.tensors import Site, Slot


class Net(nn.Module):
    def __init__(self, stop: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.act, self.unused = nn.Linear(4, 3), nn.ReLU(), nn.Linear(1, 1)
        self.stop = stop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.act(self.fc(x)))
        if self.stop:
            raise ValueError("stop")
        return x


X = -torch.ones(2, 4)


def show(path, *args):
    done = nndiff("show", path, *args, COLUMNS="160")
    assert done.stderr == ""
    return done.stdout


def test_a_recording_is_told_as_what_it_is(tmp_path):
    out = tmp_path / "a.nnrec"
    record(Net(), X, path=out, seed=7, backward=True, mode="train", dropout="off", keep=["stats", "full:fc"], repeat=2)
    lines = show(out).splitlines()
    assert lines[0] == f"{out}: recording, complete, 12 tensors"
    found = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[1 : lines.index("")]}
    assert found["model"] == "Net, 17 parameters, float32, cpu"
    assert found["run"] == "forward and backward, train mode, dropout off, seed 7"
    assert re.fullmatch(r"-?\d\.\d+ \(the output projected on fixed random numbers\)", found["loss"])
    assert found["modules"] == "4 modules, 3 called (4 calls), never called: 1 module (unused)"
    assert found["tensors"] == "model_input 1, output 4, grad_output 4, loss 1, param_grad 2"
    assert re.fullmatch(r"full \d, stats \d+, [\d.]+ kB on disk", found["kept"])
    assert f"torch {torch.__version__}" in found["versions"]
    assert found["repeated"] == "2 runs with the same seed are equal"
    assert "parameters  " not in "\n".join(lines[2:])


def test_tensors_stand_in_order_of_execution_with_what_is_known_of_them(tmp_path):
    record(Net(), X, path=tmp_path / "a.nnrec", keep=["digest", "stats:fc"])
    names = [line.split()[0] for line in show(tmp_path / "a.nnrec").partition("\n\n")[2].splitlines()[1:]]
    assert names == ["(model):model_input.0", "fc:output", "act:output", "act@1:output", "(model):output"]
    text = show(tmp_path / "a.nnrec")
    assert re.search(r"fc:output +\[2, 3\] +float32 +-?[\d.]+ .* stats kept\n", text)
    assert re.search(r"act:output +\[2, 3\] +float32 +digest kept\n", text)
    without = show(tmp_path / "a.nnrec", "--no-stats")
    assert "mean" not in without


def test_one_that_was_cut_off_says_so_first(tmp_path):
    with pytest.raises(ValueError, match="stop"):
        record(Net(stop=True), X, path=tmp_path / "a.nnrec")
    text = show(tmp_path / "a.nnrec")
    assert text.startswith(f"{tmp_path / 'a.nnrec'}: recording, incomplete, 4 tensors\n")
    assert "note: incomplete: the run was cut off, 7 events can be read" in text
    data = json.loads(show(tmp_path / "a.nnrec", "--json"))
    assert (data["complete"], data["calls"], len(data["tensors"])) == (False, 3, 4)
    assert [each["slot"] for each in data["tensors"]] == ["model_input", "output", "output", "output"]


def test_one_tensor_is_one_tensor(tmp_path):
    with Writer(tmp_path / "a.nnrec", {"label": "mine", "colour": "blue"}) as writer:
        writer.add_tensor(Site("fc", Slot.BUFFER, tensor="mean"), lambda: raw_array(np.ones(3)))
    lines = show(tmp_path / "a.nnrec").splitlines()
    assert lines[0].endswith("recording, complete, 1 tensor")
    assert "  model     mine" in lines
    assert "  tensors   buffer 1" in lines
    assert "  colour: blue" in lines


@pytest.mark.parametrize("value", [None, 3, "text", [1], {"parameters": "many", "versions": 3, "runs": "x"}], ids=str)
def test_metadata_of_any_kind_is_no_trouble(value, tmp_path):
    keys = ("model", "environment", "selection", "self_agreement", "modules", "never_called", "loss")
    with Writer(tmp_path / "a.nnrec", {**dict.fromkeys(keys, value), "warnings": "none"}) as writer:
        writer.add("fc", "loss", np.ones(1))
    assert "recording, complete, 1 tensor" in show(tmp_path / "a.nnrec")


def test_the_part_that_is_shown_is_told(tmp_path):
    record(Net(), X, path=tmp_path / "a.nnrec")
    assert "shown: 1 of 5 tensors, by --include/--exclude" in show(tmp_path / "a.nnrec", "-q", "--include", "fc*")
