"""The demo: its files are what it says, it finds what was planted, and a step that ends otherwise is noticed."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from safetensors.torch import load_file

from nndiff.commands import main
from nndiff.commands.demo import run_command
from nndiff.demo.models import MISCONVERTED, make_weights, write_checkpoints
from nndiff.demo.story import CHAPTERS, REPORTS, play

STEPS = [step for chapter in CHAPTERS for step in chapter.steps]


def test_its_checkpoints_are_safetensors_and_one_matrix_is_transposed(tmp_path):
    write_checkpoints(tmp_path)
    reference, converted = (load_file(tmp_path / f"{name}.safetensors") for name in ("ref", "converted"))
    weights = make_weights()
    assert reference.keys() == converted.keys() == weights.keys()
    for name, values in weights.items():
        is_wrong = name == f"layers.{MISCONVERTED}.attention.out.weight"
        assert np.array_equal(reference[name].numpy(), values)
        assert np.array_equal(converted[name].numpy(), values.T if is_wrong else values)
        assert not is_wrong or not np.array_equal(values, values.T)


@pytest.mark.parametrize("wrong", [None, *range(len(STEPS))])
def test_it_fails_if_a_step_does(wrong, tmp_path, capsys):
    commands = []

    def run_command(words):
        commands.append(" ".join(words))
        number = len(commands) - 1
        return 2 if number == wrong else STEPS[number].status

    start = os.getcwd()
    assert play(run_command, tmp_path, has_torch=True) is (wrong is None)
    assert os.getcwd() == start
    assert commands == [step.command for step in STEPS], "a failure stops nothing"
    text = capsys.readouterr().out
    assert all(f"$ {command}\n" in text for command in commands)
    assert ("this should have ended with exit status" in text) is (wrong is not None)


def test_without_torch_it_tells_what_needs_none(tmp_path, capsys):
    commands = []

    def run_command(words):
        commands.append(" ".join(words))
        return next(step.status for step in STEPS if step.command == commands[-1])

    assert play(run_command, tmp_path, has_torch=False)
    assert commands == [step.command for step in CHAPTERS[0].steps]
    assert "Install torch" in capsys.readouterr().out


def test_it_overwrites_nothing(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("")
    assert main(["demo", "-o", str(tmp_path)]) == 2
    assert "the folder is not empty; give a new one, or leave out -o" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert main(["demo", "-o", str(tmp_path / "mine.txt")]) == 2


def test_it_finds_what_was_planted(tmp_path):
    """Run all of it as a user would."""
    folder = tmp_path / "new" / "demo"
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "nndiff", "demo", "-o", str(folder)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    text = re.sub(r"\s+", " ", done.stdout)
    planted = (
        "layers.2.attention.out.weight",
        "agrees after permute(1, 0)",
        "31 of 31 tensors can be made 30 as it is (embedding.weight, ...) 1 layout: permute(1, 0)",
        "wrote repaired.safetensors: 31 tensors",
        "all 22 layers agree inside",
        "first divergence at layers.0.act:output",
        "gelu (tanh) in the candidate, gelu (erf) in the reference",
        "the trainings part at epoch 1, batch 0: the batches differ first",
        "data-order",
        "KEEP = ['layers.2.down'",
    )
    for fact in planted:
        assert fact in text
    ranking = re.findall(r"^(fp16|int8|w8a8|int4) .* dB", done.stdout, re.MULTILINE)
    assert ranking == ["fp16", "int8", "w8a8", "int4"]
    weights = make_weights()
    repaired = load_file(folder / "repaired.safetensors")
    assert repaired.keys() == weights.keys()
    assert all(np.array_equal(repaired[name].numpy(), values) for name, values in weights.items())
    reports = sorted(path.name for path in (folder / REPORTS).iterdir())
    assert reports == ["checkpoint.html", "modes.html", "port.html", "repaired.html", "training.html"]
    assert f"Open the reports in {folder / REPORTS}" in done.stdout
    assert re.search(r"Done in \d+ s", done.stdout)
    assert list(tmp_path.iterdir()) == [tmp_path / "new"]
    assert f"Every command can be typed again after: cd {folder}" in done.stdout


def test_its_commands_work_when_they_are_typed_again(tmp_path, monkeypatch, capsys):
    assert play(run_command, tmp_path, has_torch=True)
    monkeypatch.chdir(tmp_path)
    for step in STEPS:
        assert run_command(step.command.split()) == step.status, step.command
