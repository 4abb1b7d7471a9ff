"""What several tests need: small checkpoints, and the command line in this process or a new one."""

from __future__ import annotations

import atexit
import functools
import json
import os
import pty
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.sources import open_source
from nndiff.tensors import TensorRef

Arrays = dict[str, NDArray[Any]]


def tensors(**shapes: tuple[int, ...]) -> dict[str, TensorRef]:
    """Return zero tensors by name; `__` in a name stands for a dot."""
    return refs({name.replace("__", "."): np.zeros(shape, np.float32) for name, shape in shapes.items()})


def refs(arrays: Arrays) -> dict[str, TensorRef]:
    """Return arrays as tensors by name."""
    return dict(open_source(arrays).tensors)


def model(seed: int = 0, layers: int = 3, width: int = 8) -> Arrays:
    """Return the weights of a small network."""
    random = np.random.default_rng(seed)
    weights: Arrays = {}
    for layer in range(layers):
        weights[f"layers.{layer}.linear.weight"] = random.normal(size=(width, width)).astype(np.float32)
        weights[f"layers.{layer}.linear.bias"] = random.normal(size=width).astype(np.float32)
        weights[f"layers.{layer}.norm.num_batches_tracked"] = np.array(7, np.int64)
    return weights


def save(path: Path, arrays: Arrays) -> str:
    """Write a safetensors file and return its path."""
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(value) for name, value in arrays.items()}, path)
    return str(path)


@dataclass(frozen=True)
class Done:
    """What one run of the command line returned, printed and took."""

    returncode: int
    stdout: str
    stderr: str
    megabytes: float
    seconds: float  # of processor time


class Zygote:
    """A process that has imported some modules and runs the command line in forks of itself."""

    def __init__(self, *modules: str) -> None:
        command = [sys.executable, str(Path(__file__).parent / "zygote.py"), *modules]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self._process.communicate)

    def run(self, *args: object, **env: str) -> Done:
        """Run the command line with these arguments and variables, in the folder we are in."""
        request = {"argv": [str(arg) for arg in args], "env": {**os.environ, **env}, "cwd": os.getcwd()}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Done(**json.loads(self._process.stdout.readline()))


@functools.cache
def get_zygote(*modules: str) -> Zygote:
    """Return the one process that has imported these modules."""
    return Zygote(*modules)


def nndiff(*args: object, **env: str) -> Done:
    """Run the command line in a process of its own, in which torch is imported already."""
    return get_zygote("torch", "nndiff.comparison", "nndiff.reports.terminal").run(*args, **env)


def diff_json(*args: object) -> tuple[int, dict[str, Any]]:
    """Run `nndiff diff` and return its status and its JSON report."""
    done = nndiff("diff", *args, "--report", "json")
    return done.returncode, json.loads(done.stdout)


def run_on_terminal(args: list[str], width: int) -> str:
    """Run a command with a terminal as its output and return what it wrote there."""
    leader, follower = pty.openpty()
    env = {**os.environ, "COLUMNS": str(width), "TERM": "xterm-256color"}
    env.pop("NO_COLOR", None)
    process = subprocess.Popen(args, stdout=follower, stderr=follower, stdin=subprocess.DEVNULL, env=env)
    os.close(follower)
    written = b""
    while select.select([leader], [], [], 60)[0]:
        try:
            chunk = os.read(leader, 65536)
        except OSError:
            break
        if not chunk:
            break
        written += chunk
    process.wait(60)
    os.close(leader)
    return written.decode()
