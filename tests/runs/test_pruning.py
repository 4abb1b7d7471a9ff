"""A run that is thinned out keeps what was asked for, to the last bit, and is never half."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainings import assert_same_runs, make_model, train

from helpers import nndiff
from nndiff.errors import NndiffError, SourceError, UsageError
from nndiff.runs import pruning
from nndiff.runs.pruning import prune_run
from nndiff.runs.reader import open_run
from nndiff.runs.recorder import TrainingRecorder


def list_recorded(path: Path) -> list[int]:
    return [step.number for step in open_run(path).steps if step.has_tensors]


@pytest.mark.parametrize("keep", ["sketch", "full"])
def test_keep_every_leaves_what_recording_with_every_leaves(keep: str, tmp_path: Path) -> None:
    train(tmp_path / "all", range(12), keep=keep)
    train(tmp_path / "some", range(12), keep=keep, every=5)
    pruned = prune_run(tmp_path / "all", keep_every=5)
    assert (pruned.steps_before, pruned.steps_after) == (12, 3)
    assert pruned.bytes_after < pruned.bytes_before / 2
    one, two = open_run(tmp_path / "all"), open_run(tmp_path / "some")
    for first, second in zip(one.steps, two.steps, strict=True):
        assert first.scalars.items() >= second.scalars.items()
        assert (first.data, first.has_tensors) == (second.data, second.has_tensors)
    for place in (None, 0, 5, 10):
        tensors, expected = one.read_tensors(place), two.read_tensors(place)
        assert np.array_equal(tensors.digests, expected.digests)
        assert np.array_equal(tensors.sketches, expected.sketches)
        for row, key in enumerate(tensors.keys):
            whole, expected_whole = tensors.whole(row), expected.whole(row)
            assert (whole is None) == (expected_whole is None) == (keep == "sketch"), key
            if whole is not None and expected_whole is not None:
                assert np.array_equal(whole.numpy(), expected_whole.numpy()), key
    train(tmp_path / "all", range(12, 14), keep=keep)  # it can still be resumed
    assert list_recorded(tmp_path / "all") == [0, 5, 10, 12, 13]


def test_whole_tensors_move_with_the_steps_that_need_them(tmp_path: Path) -> None:
    """The tensors of steps 1 to 5 are in the file of step 1; that step goes, and they stay."""
    model = make_model()
    with TrainingRecorder(tmp_path / "run", keep="full") as recorder:
        recorder.step()
        for _ in range(5):
            recorder.step(model=model)
    prune_run(tmp_path / "run", last=2)
    run = open_run(tmp_path / "run")
    assert list_recorded(tmp_path / "run") == [4, 5]
    for place in (4, 5):
        whole = run.read_tensors(place).whole(0)
        assert whole is not None
        assert np.array_equal(whole.numpy(), model[0].weight.detach().numpy())
    sizes = sorted(path.stat().st_size for path in (tmp_path / "run").glob("state-*"))
    assert len(sizes) == 2
    assert sizes[0] < sizes[1], "the tensors are there once"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"last": 2}, [0, 7, 8]),
        ({"keep_every": 4, "last": 1}, [0, 4, 8]),
        ({"keep_every": 100}, [0]),
        ({"last": 100}, list(range(9))),
    ],
)
def test_which_steps_keep_their_tensors(options: dict[str, Any], expected: list[int], tmp_path: Path) -> None:
    train(tmp_path / "run", range(9))
    prune_run(tmp_path / "run", **options)
    assert list_recorded(tmp_path / "run") == expected
    assert open_run(tmp_path / "run").has_initial
    assert len(list((tmp_path / "run").glob("state-*"))) == len(expected) + 1


@pytest.mark.parametrize(("keep", "to"), [("full", "sketch"), ("full", "stats"), ("sketch", "stats")])
def test_less_of_each_step(keep: str, to: str, tmp_path: Path) -> None:
    train(tmp_path / "run", keep=keep)
    train(tmp_path / "expected", keep=to)
    prune_run(tmp_path / "run", to=to)
    assert_same_runs(open_run(tmp_path / "run"), open_run(tmp_path / "expected"))
    assert open_run(tmp_path / "run").description == open_run(tmp_path / "expected").description
    assert open_run(tmp_path / "run").read_tensors(0).tensors == ()
    with pytest.raises(UsageError, match="cannot be made; only less than it keeps can"):
        prune_run(tmp_path / "run", to="sketch" if to == "stats" else "full")


def test_a_run_that_is_written_or_is_none_is_refused(tmp_path: Path) -> None:
    with TrainingRecorder(tmp_path / "run") as recorder:
        recorder.step()
        with pytest.raises(SourceError, match="is being written"):
            prune_run(tmp_path / "run", last=1)
        done = nndiff("prune", tmp_path / "run", "--last", 1)
        assert done.returncode == 2
        assert "is being written by another process" in done.stderr
    with pytest.raises(NndiffError, match="say what to drop"):
        prune_run(tmp_path / "run")
    with pytest.raises(SourceError, match="not a training run"):
        prune_run(tmp_path, last=1)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (0, "before"),  # killed at the first state file,
        (2, "before"),  # at the last one,
        (3, "before"),  # at steps.jsonl,
        (4, "after"),  # at the removal of files,
        (5, "after"),  # at run.json
    ],
)
def test_a_kill_leaves_the_run_as_it_was_or_as_it_should_be(calls: int, expected: str, tmp_path: Path) -> None:
    program = """
import os, signal, sys
from nndiff.runs import pruning, store

calls = int(sys.argv[2])

def count(function):
    def run(*args):
        global calls
        if calls == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        calls -= 1
        return function(*args)
    return run

pruning.write_atomically = count(pruning.write_atomically)
store.write_state = count(store.write_state)
store.StateStore.remove_unused_files = count(store.StateStore.remove_unused_files)
pruning.prune_run(sys.argv[1], keep_every=2, to="sketch")
"""
    train(tmp_path / "run", range(4), keep="full")
    train(tmp_path / "before", range(4), keep="full")
    train(tmp_path / "after", range(4), keep="full")
    prune_run(tmp_path / "after", keep_every=2, to="sketch")
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "run"), str(calls)], check=False)
    assert done.returncode == -9
    assert_same_runs(open_run(tmp_path / "run"), open_run(tmp_path / expected))
    prune_run(tmp_path / "run", keep_every=2, to="sketch")  # a second try finishes, and cleans up
    assert_same_runs(open_run(tmp_path / "run"), open_run(tmp_path / "after"))
    assert len(os.listdir(tmp_path / "run")) == len(os.listdir(tmp_path / "after"))


def test_the_command_says_what_it_freed(tmp_path: Path) -> None:
    train(tmp_path / "run", range(9))
    done = nndiff("prune", tmp_path / "run", "--keep-every", 4)
    assert done.returncode == 0
    assert ": tensors of 3 of 9 recorded steps stay; " in done.stdout
    assert "kB freed, " in done.stdout
    assert nndiff("prune", tmp_path / "run").stderr.startswith("nndiff: say what to drop: --keep-every N, --last N or")
    assert nndiff("prune", tmp_path / "run", "--last", 1, "-q").stdout == ""


def test_progress_is_told(tmp_path: Path) -> None:
    train(tmp_path / "run", range(3))
    seen: list[tuple[int, int]] = []
    pruning.prune_run(tmp_path / "run", last=1, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
