"""The README cannot rot: its Python is run, its commands parse, its screen is real."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import nndiff
from nndiff.commands import build_parser

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
FIXTURES = ROOT / "tests" / "fixtures"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_python_of_the_readme_prints_what_it_says(tmp_path):
    code, printed = _blocks("python")[1], _blocks("text")[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stderr == ""
    assert done.stdout == printed


def _commands() -> list[str]:
    lines = [line.strip() for line in README.splitlines() if line.startswith("    nndiff ")]
    return [line.split("  #")[0] for line in lines if "[" not in line]


@pytest.mark.parametrize("command", _commands())
def test_the_commands_of_the_readme_parse(command):
    args = build_parser().parse_args(shlex.split(command)[1:])
    assert callable(args.run)


def test_the_screen_of_the_readme_is_real():
    (screen, *_) = _blocks("console")
    command, *shown = screen.rstrip("\n").splitlines()
    done = subprocess.run(
        [sys.executable, "-m", "nndiff", *shlex.split(command)[2:]],
        capture_output=True,
        text=True,
        cwd=FIXTURES,
        env={**os.environ, "COLUMNS": "110"},
        check=False,
    )
    assert done.stdout.splitlines() == shown


def test_the_demo_ends_well():
    done = nndiff("demo")
    assert done.returncode == 0, done.stdout
    assert "Traceback" not in done.stderr
