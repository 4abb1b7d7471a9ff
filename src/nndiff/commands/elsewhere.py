"""Record a model in a process of its own, by any interpreter: implementations need not share an environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import nndiff
from nndiff.errors import ModelError, UsageError
from nndiff.recording.format.folder import BEFORE, FINISHED, LEFT, put_aside
from nndiff.sources import Source, open_source


@dataclass(frozen=True)
class Order:
    """Say which model is to be recorded where, and how."""

    model: str
    output: str
    python: str | None = None  # None: the interpreter that runs now
    options: Sequence[str] = field(default_factory=tuple)  # as `nndiff record` takes them
    variant: str | None = None  # one of those the model's file has
    kept: bool = False  # what it leaves outlives the command

    @property
    def label(self) -> str:
        """Return what reports call it."""
        return self.model if self.variant is None else f"{self.model}@{self.variant}"


def record_elsewhere(order: Order, who: str) -> Source:
    """Run `nndiff record` in its own process and open what it wrote, or say in one sentence why that failed.

    A process for each side even with one interpreter: two folders may both hold a `layers.py`, and a second
    import would silently give the first one's.
    """
    python = _interpreter(order.python) if order.python else sys.executable
    command = [python, "-m", "nndiff", "record", order.model, "-o", order.output, "--overwrite", *order.options]
    if order.variant is not None:
        command += ["--variant", order.variant]
    with tempfile.TemporaryDirectory(prefix="nndiff-path-") as folder:
        try:
            done = subprocess.run(command, env=_environment(folder), capture_output=True, text=True, check=False)
        except OSError as error:
            raise UsageError(f"{python} cannot be run: {(error.strerror or str(error)).lower()}") from None
    by = f" by {python}" if order.python else ""
    if done.returncode != 0:
        reason = _reason(done.stderr, done.returncode)
        raise ModelError(f"the {who} {order.model} could not be recorded{by}: {_about_what_is_left(reason, order)}")
    if not os.path.isdir(order.output):
        raise UsageError(f"{python} ran and recorded nothing: is it a Python interpreter?")
    return replace(open_source(order.output), label=order.label)


def _interpreter(path: str) -> str:
    """Return the interpreter that is meant; the folder of an environment stands for its own."""
    path = os.path.expanduser(path)
    if not os.path.isdir(path):
        return path
    found = [os.path.join(path, *inside) for inside in (("bin", "python"), ("Scripts", "python.exe"))]
    for each in found:
        if os.path.isfile(each):
            return each
    raise UsageError(f"{path} is a folder and no Python environment: it has no {os.path.join('bin', 'python')}")


def _environment(folder: str) -> dict[str, str]:
    """Return an environment in which this very nndiff is found, and nothing else of where it is installed."""
    package = Path(nndiff.__file__).resolve().parent
    (Path(folder) / "nndiff").symlink_to(package, target_is_directory=True)
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _about_what_is_left(reason: str, order: Order) -> str:
    """Return a reason with what is true of what it left: nothing, where its folder goes."""
    if not order.kept:
        return reason.partition(f"; {LEFT} ")[0].removesuffix(f"; {FINISHED}")
    before = put_aside(order.output)
    return f"{reason}; {BEFORE} {before}" if before and BEFORE not in reason else reason


def _reason(stderr: str, status: int) -> str:
    """Return what the other process said last in its own words."""
    ours = [line for line in stderr.splitlines() if line.startswith("nndiff: ")]
    if ours:
        return ours[-1].removeprefix("nndiff: ")
    lines = [line for line in stderr.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "it said nothing"
    if status < 0:
        memory = "; out of memory?" if status == -9 else ""
        return f"its process was killed by signal {-status}{memory}: {last}"
    return f"its process ended with status {status}: {last}"
