"""Every hostile file, through the API and through the command line.

One clear sentence that names the file and the trouble, exit 2, no traceback, nothing executed,
less than a gigabyte, within seconds.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import generate
import numpy as np
import pytest
from cases import CASES, Case

from helpers import Done, get_zygote
from nndiff.errors import NndiffError
from nndiff.sources import open_source

MEGABYTES = 1024
SECONDS = 15  # of processor time; the machine may be busy
NAMES = list(CASES)


def run(*args: str) -> Done:
    """Run the command line in a process of its own, without torch: what it needs of memory is its own."""
    warm = ("nndiff.comparison", "nndiff.reports.terminal", "nndiff.sources.distributed", "nndiff.sources.nemo")
    return get_zygote(*warm).run(*args, COLUMNS="120")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("good") / "good.npz"
    np.savez(path, w=np.ones(4, np.float32), large=np.ones(4000, np.float32))
    return str(path)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


def says(case: Case, where: str, message: str) -> None:
    assert case.trouble is not None
    assert re.search(case.trouble, message), message
    assert where.partition("::")[0] in message, message


@pytest.mark.parametrize("name", NAMES)
def test_the_command_line(name: str, tmp_path: Path, canary: Path, good: str) -> None:
    case = CASES[name]
    where = case.write(tmp_path, canary)
    runs = [("diff", where, good)] if case.heavy else [("diff", where, good), ("show", where)]
    for argv in runs:
        done = run(*argv)
        assert not canary.exists()
        assert "Traceback" not in done.stderr, done.stderr
        assert "a bug in nndiff" not in done.stderr, done.stderr
        assert "\x1b" not in done.stdout + done.stderr
        assert done.megabytes < MEGABYTES, done.megabytes
        assert done.seconds < SECONDS, done.seconds
        if case.trouble is None:
            assert done.returncode in (0, 1, 2)
            continue
        reads_nothing = argv[0] == "show" and done.returncode == 0  # trouble that only shows when data is read
        if reads_nothing:
            continue
        assert done.returncode == 2, done
        assert done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith("nndiff: ")
        assert len(done.stderr) < 2200
        says(case, where, done.stderr)


@pytest.mark.parametrize("name", [name for name in NAMES if not CASES[name].heavy and CASES[name].trouble is None])
def test_what_does_no_harm_can_be_read(name: str, tmp_path: Path, canary: Path) -> None:
    for tensor in open_source(CASES[name].write(tmp_path, canary)).tensors.values():
        if not tensor.missing:
            tensor.read(0, min(tensor.count, 1000))
    assert not canary.exists()


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("payload_global_reduce", {"os.system"}),
        ("payload_inst", {"os.system"}),
        ("payload_stack_global", {"posix.system"}),
        ("payload_newobj", {"builtins.eval"}),
        ("payload_getattr_chain", {"builtins.getattr", "builtins.__import__"}),
        ("payload_in_a_torch_zip", {"os.system"}),
        ("payload_build_pollutes_nndiff", {"nndiff.errors.SourceError"}),
    ],
)
def test_what_a_payload_would_have_called_is_named(name: str, classes: set[str], tmp_path: Path, canary: Path) -> None:
    opened = open_source(CASES[name].write(tmp_path, canary))
    assert set(opened.foreign) == classes
    assert NndiffError.exit_code == 2


def test_the_payload_would_work(tmp_path: Path, canary: Path) -> None:
    """A canary that cannot sing proves nothing."""
    import pickle

    path = Path(CASES["payload_global_reduce"].write(tmp_path, canary))
    pickle.loads(path.read_bytes())
    assert canary.exists()


@pytest.mark.parametrize("name", ["payload_in_a_nemo_file", "safetensors_offsets_beyond", "file_is_a_pipe"])
def test_a_process_from_scratch(name: str, tmp_path: Path, canary: Path, good: str) -> None:
    where = CASES[name].write(tmp_path, canary)
    command = [sys.executable, "-m", "nndiff", "diff", where, good]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "a bug in nndiff" not in done.stderr
    assert not canary.exists()


def test_a_name_that_no_file_has(good: str) -> None:
    with pytest.raises(NndiffError, match="not a file name"):
        open_source("a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(b"x")
    path.chmod(0)
    with pytest.raises(NndiffError, match="permission denied"):
        open_source(path)


def test_a_file_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(b"x" * 100)

    def refuse(*_: Any) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(NndiffError, match=r"x\.pt: permission denied"):
        open_source(path)


def test_the_generator_runs_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {name: CASES[name] for name in ("payload_inst", "file_of_text", "index_of_itself")}
    monkeypatch.setattr(generate, "CASES", small)
    monkeypatch.setattr(sys, "argv", ["generate.py", str(tmp_path / "made")])
    generate.main()
    assert {path.stem for path in (tmp_path / "made").iterdir()} == set(small)
