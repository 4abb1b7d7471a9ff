"""Hints: only what helps if it is followed."""

from __future__ import annotations

import pytest
import torch

from helpers import nndiff
from nndiff.commands.trouble import Hint

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.first(x))

class Failing(Net):
    def forward(self, x):
        raise ValueError("no luck")

model = Net
failing = Failing

def inputs():
    return torch.ones(1, 4)
"""
PARTIAL, TRACEBACK = Hint.PARTIAL.value, Hint.TRACEBACK.value


@pytest.fixture
def net(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    return tmp_path / "net.py"


FIRST = {"first.weight": torch.ones(4, 4), "first.bias": torch.ones(4)}


@pytest.mark.parametrize(
    ("tensors", "helps"),
    [
        (FIRST, True),
        ({**FIRST, "more": torch.ones(1)}, True),
        ({"encoder.first.weight": torch.ones(4, 4)}, False),
        ({**FIRST, "first.bias": torch.ones(5)}, False),
        ({}, False),
    ],
)
def test_partial_is_suggested_if_it_loads_something(tensors, helps, net, tmp_path):
    torch.save(tensors, tmp_path / "w.pt")
    command = ("record", net, "-o", tmp_path / "a.nnrec", "--ckpt", tmp_path / "w.pt")
    done = nndiff(*command)
    assert done.returncode == 2
    assert "w.pt does not fit the model: " in done.stderr
    assert done.stderr.endswith(f"; {PARTIAL}\n") is helps
    assert (nndiff(*command, "--partial").returncode == 0) is helps


def test_partial_is_not_suggested_to_a_command_without_it(net, tmp_path):
    torch.save(FIRST, tmp_path / "w.pt")
    done = nndiff("run", net, net, "--ref-ckpt", tmp_path / "w.pt")
    assert done.returncode == 2
    assert "2 missing (second.bias, second.weight)" in done.stderr
    assert "--partial" not in done.stderr


def test_a_traceback_is_suggested_where_code_of_the_user_fails(net, tmp_path):
    failing = f"{net}:failing"
    for command in (["record", failing, "-o", tmp_path / "a.nnrec"], ["run", failing, net]):
        done = nndiff(*command)
        assert done.returncode == 2
        assert done.stderr.endswith(f"ValueError: no luck; {TRACEBACK}\n")
        assert done.stderr.count("\n") == 1
        shown = nndiff(*command, NNDIFF_TRACEBACK="1").stderr
        assert 'raise ValueError("no luck")' in shown
        assert shown.endswith("ValueError: no luck\n"), "it is there already"
        assert shown.count("Traceback") == 1
    shown = nndiff("record", failing, "-o", tmp_path / "a.nnrec", "--traceback").stderr
    assert "Traceback" in shown
    assert shown.endswith("ValueError: no luck\n")


@pytest.mark.parametrize(
    "words",
    [
        ["record", "absent.py", "-o", "OUT"],
        ["record", "NET:absent", "-o", "OUT"],
        ["record", "NET", "-o", "OUT", "--ckpt", "absent.pt"],
        ["record", "NET", "-o", "OUT", "--dtype", "int8"],
        ["record", "NET", "-o", "OUT", "--nosuch"],
        ["record", "BROKEN", "-o", "OUT"],
        ["run", "NET", "absent.py"],
        ["run", "NET:absent", "NET"],
        ["diff", "absent.pt", "NET"],
    ],
)
def test_a_traceback_is_not_suggested_where_it_tells_nothing(words, net, tmp_path):
    (tmp_path / "broken.py").write_text("def model(:\n")
    places = {"NET": str(net), "OUT": str(tmp_path / "a.nnrec"), "BROKEN": str(tmp_path / "broken.py")}
    for name, path in places.items():
        words = [word.replace(name, path) for word in words]
    done = nndiff(*words)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "TRACEBACK" not in done.stderr
    assert "--traceback" not in done.stderr
