"""One process with NeMo for all tests; an ordinary test run leaves the tests of this folder out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from environments import NEMO, ROOT, NemoSide, run_in

# `make test-systems` builds the environments and sets this.
if not os.environ.get("NNDIFF_SYSTEMS"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def nemo(tmp_path_factory: pytest.TempPathFactory) -> NemoSide:
    """Run everything that needs NeMo in one process: importing it takes most of the time."""
    return side("nemo_side.py", tmp_path_factory.mktemp("nemo"), ROOT / "tests/fixtures")


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> NemoSide:
    """Run one tiny model of every class in another such process."""
    return side("nemo_zoo_side.py", tmp_path_factory.mktemp("zoo"))


def side(script: str, folder: Path, *arguments: Path) -> NemoSide:
    done = run_in(NEMO, Path(__file__).with_name(script), folder, *arguments)
    assert done.returncode == 0, done.stderr[-4000:]
    return NemoSide(folder, json.loads((folder / "facts.json").read_text()), done.stdout)
