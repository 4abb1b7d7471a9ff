"""nndiff show on recorded trainings."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from helpers import nndiff

sys.path.insert(0, str(Path(__file__).parent / "runs"))
from planted_trainings import train as train_dumps
from trainings import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "ours"
    train(path, range(5), every=2)
    return path


def test_steps_and_what_was_kept_of_them(run: Path) -> None:
    lines = nndiff("show", run, COLUMNS="160").stdout.splitlines()
    assert lines[0] == f"{run}: recorded training, 5 steps, tensors at 3"
    assert "  optimizer AdamW; groups of 6 parameters" in lines
    assert "  initial   the state before the first step was kept" in lines
    assert "  tensors   weight 6, buffer 3, gradient 6, step 6, exp_avg 6, exp_avg_sq 6" in lines
    header, *rows = [line.split() for line in lines[-6:]]
    assert header == ["step", "epoch", "batch", "loss", "lr/0", "grad_norm", "data", "tensors"]
    assert [" ".join(row[:3]) for row in rows] == ["0 0 0", "1 0 1", "2 0 2", "3 0 3", "4 1 0"]
    assert [row[-1] == "kB" for row in rows] == [True, False, True, False, True]


def test_json_and_quiet(run: Path) -> None:
    body = json.loads(nndiff("show", run, "--json").stdout)
    assert (body["kind"], body["keep"], body["initial"], len(body["steps"])) == ("run", "sketch", True, 5)
    assert body["steps"][1]["bytes"] is None
    assert body["steps"][2]["bytes"] > 1000
    assert "grad_norm" in body["steps"][2]["scalars"]
    assert "grad_norm" not in nndiff("show", run, "-q").stdout


def test_a_folder_of_checkpoints_by_step(tmp_path: Path) -> None:
    train_dumps(tmp_path / "old", dump=True)
    lines = nndiff("show", tmp_path / "old", COLUMNS="160").stdout.splitlines()
    assert lines[0] == f"{tmp_path / 'old'}: checkpoints of a training, 10 steps, tensors at 10"
    assert "  initial   not kept" in lines
    header, *rows = [line.split() for line in lines[-11:]]
    assert header[:4] == ["step", "epoch", "batch", "loss"]
    assert [row[:3] for row in rows[4:6]] == [["4", "0", "4"], ["5", "1", "0"]]
    body = json.loads(nndiff("show", tmp_path / "old", "--json").stdout)
    assert (body["kind"], body["keep"], body["initial"]) == ("run", "dump", False)
    files = sorted((tmp_path / "old").rglob("*.pt"))
    assert [step["bytes"] for step in body["steps"]] == [file.stat().st_size for file in files]
    assert body["bytes"] == sum(file.stat().st_size for file in files)
    assert body["steps"][3]["scalars"]["loss"] == pytest.approx(float(rows[3][3]), rel=1e-5)
    files[2].write_bytes(b"no checkpoint")
    done = nndiff("show", tmp_path / "old")
    assert (done.returncode, done.stdout) == (2, "")
    assert files[2].name in done.stderr


def test_what_makes_no_sense_for_a_run(run: Path, tmp_path: Path) -> None:
    done = nndiff("show", run, "--check")
    assert done.returncode == 2
    assert "--check, --include and --exclude are not for recorded trainings" in done.stderr
    train(tmp_path / "empty", range(0))
    assert nndiff("show", tmp_path / "empty").returncode == 2
