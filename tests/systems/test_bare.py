"""Recording where there is only torch, numpy and safetensors: by the API and by the command line."""

from __future__ import annotations

import sys

import pytest
from environments import ROOT, diff_without_torch, run_in

from nndiff.recording import open_recording

PYTHONS = sorted(ROOT.glob(".venv-bare*/bin/python"))

MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)
        self.relu, self.attention = nn.ReLU(inplace=True), nn.MultiheadAttention(16, 4, batch_first=True)
        with torch.no_grad():  # the same numbers whatever this version of torch would draw
            for number, each in enumerate(self.parameters()):
                each.copy_(torch.linspace(-1, 1, each.numel()).view_as(each) / (number + 2))

    def forward(self, x, scale=1.0):
        x = self.relu(self.norm(self.first(x)))
        x, weights = self.attention(x[None], x[None], x[None])
        return {"logits": self.last(x[0]) * scale, "weights": weights}


def model():
    return Net()


def inputs():
    return {"x": torch.linspace(-2, 2, 40).view(5, 8), "scale": 0.5}


def loss(output):
    return output["logits"].square().mean()
"""

API = """
import sys
from importlib.util import find_spec

sys.path.insert(0, sys.argv[1])
import net, torch
from nndiff import record

made = net.model()
made(**net.inputs())  # without nndiff, to see that nothing of it is left behind
found = record(made, net.inputs(), path=sys.argv[2], backward=True, loss=net.loss, mode="train")
assert found.complete and found.warnings == ()
assert not any(module._forward_hooks or module._forward_pre_hooks for module in made.modules())
assert find_spec("rich") is None and "rich" not in sys.modules
print(torch.__version__)
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "api.py").write_text(API)
    return tmp_path


def record_by_command(python, files, out):
    done = run_in(python, "-m", "nndiff", "record", files / "net.py", "-o", out, "--backward")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_is_an_environment_to_test():
    assert ROOT / ".venv-bare/bin/python" in PYTHONS


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parts[-3])
def test_the_api_records_there_and_the_recording_is_read_here(python, files):
    done = run_in(python, files / "api.py", files, files / "api.nnrec")
    assert done.returncode == 0, done.stderr
    recording = open_recording(files / "api.nnrec")
    assert recording.meta["environment"]["versions"]["torch"] == done.stdout.strip()
    assert {event.site.slot for event in recording.tensors} >= {"output", "grad_output", "param_grad", "buffer", "loss"}


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parts[-3])
def test_the_command_records_there_and_the_recordings_are_compared_here(python, files):
    assert "forward and backward" in record_by_command(python, files, files / "there.nnrec")
    record_by_command(sys.executable, files, files / "here.nnrec")
    status, data = diff_without_torch(files / "here.nnrec", files / "there.nnrec")
    assert status == 0
    assert data["totals"]["pairs"] > 20
    assert data["only_reference"] == data["only_candidate"] == []
    if python.parts[-3] == ".venv-bare":
        assert data["verdict"] == "identical", "the same torch gives the same bits"
