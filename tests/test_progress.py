"""The progress bar: after a second, on a terminal, and never elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from helpers import nndiff, run_on_terminal
from nndiff.commands import progress


class Screen(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.mark.parametrize("total", [100, None])
@pytest.mark.parametrize(
    ("terminal", "quiet", "patience", "shown"),
    [(True, False, 0.0, True), (True, False, 60.0, False), (False, False, 0.0, False), (True, True, 0.0, False)],
)
def test_a_bar_is_shown_to_those_who_wait_and_watch(monkeypatch, terminal, quiet, patience, shown, total):
    screen = Screen(terminal)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(progress, "_PATIENCE", patience)
    monkeypatch.setenv("TERM", "xterm")
    with progress.ProgressBar("comparing", quiet) as bar:
        for done in range(0, 101, 10):
            bar(done, total)
    assert ("comparing" in screen.getvalue()) is shown
    assert ("100 calls" in screen.getvalue()) is (shown and total is None)


def test_without_rich_there_is_no_bar_and_no_trouble(monkeypatch):
    screen = Screen(terminal=True)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with progress.ProgressBar("comparing") as bar:
        bar(1, None)
        bar(2, None)
    assert screen.getvalue() == ""


SLOW = """
import time, torch

class Slow(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.3)
        return x

def model():
    return torch.nn.Sequential(*(Slow() for _ in range(5)))

def quick():
    return torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(5)))

def inputs():
    return torch.ones(2)
"""


@pytest.fixture
def slow(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path / "slow.py"


def test_running_shows_which_model_is_recorded_and_how_many_calls_are_done(slow):
    shown = run_on_terminal([sys.executable, "-m", "nndiff", "run", str(slow), f"{slow}:quick"], 200)
    assert "recording the reference" in shown
    assert "recording the candidate" in shown
    assert "4 calls" in shown, "told by the process that records"


def test_recording_shows_how_many_calls_are_done(slow, tmp_path):
    command = [sys.executable, "-m", "nndiff", "record", str(slow), "-o", str(tmp_path / "a.nnrec")]
    shown = run_on_terminal(command, 200)
    assert f"recording {slow}" in shown
    assert "calls" in shown.partition("forward: 6 calls")[0], "before it ends"
    shown = run_on_terminal([*command, "--overwrite", "--quiet"], 200)
    assert shown == ""
    assert nndiff("record", slow, "-o", tmp_path / "b.nnrec").stderr == "", "no bar where nobody watches"


def test_record_tells_how_far_it_is(tmp_path):
    import torch

    from nndiff import record

    told = []
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU())
    record(model, torch.ones(2), path=tmp_path / "a", progress=lambda done, total: told.append((done, total)))
    assert told == [(1, None), (2, None), (3, None)]
