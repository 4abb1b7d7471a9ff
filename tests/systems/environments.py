"""The other environments: how to run something in them, and how to compare here what they left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nndiff.recording import Recording, open_recording

ROOT = Path(__file__).parents[2]
NEMO = ROOT / ".venv-nemo/bin/python"


def run_in(python: Path | str, *arguments: object, timeout: int = 600) -> subprocess.CompletedProcess[str]:
    """Run another interpreter on this source tree, as a user would who has not installed nndiff there."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(python), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=env, check=False)


def diff_without_torch(*arguments: object) -> tuple[int, dict[str, Any]]:
    """Run `nndiff diff` in the ordinary environment; fail if NeMo is there or torch gets imported."""
    program = (
        "import sys\n"
        "from importlib.util import find_spec\n"
        "from nndiff.commands import main\n"
        "assert find_spec('nemo') is None\n"
        "status = main(sys.argv[1:])\n"
        "assert 'torch' not in sys.modules\n"
        "sys.exit(status)\n"
    )
    done = run_in(sys.executable, "-c", program, "diff", *arguments, "--report", "json")
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


@dataclass(frozen=True)
class NemoSide:
    """Hold what the NeMo process left behind."""

    folder: Path
    facts: dict[str, Any]
    stdout: str

    def recording(self, name: str) -> Recording:
        return open_recording(self.folder / f"{name}.nnrec")

    def truth(self, name: str) -> dict[str, np.ndarray[Any, Any]]:
        with np.load(self.folder / f"{name}.npz") as held:
            return dict(held)
