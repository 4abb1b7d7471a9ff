"""Recording every module of a 12-layer model of width 512, against a bare forward pass and other recorders."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from nndiff.recording.record import record
from timing import Row, in_turns, took

BATCH, LENGTH = 8, 256
NEEDED = 8 << 30  # bytes: the recording, the same once more, and room to breathe


def model() -> torch.nn.Module:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8, "intermediate_size": 2048}
    return BertModel(BertConfig(**sizes)).eval()


def bare(net: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return net(**inputs)

    return run


def recorded(net: torch.nn.Module, inputs: dict[str, torch.Tensor], path: Path, keep: str) -> Callable[[], object]:
    return lambda: record(net, inputs, path=path, keep=keep, overwrite=True)


def debugger(net: torch.nn.Module, inputs: dict[str, torch.Tensor], folder: Path) -> Callable[[], object]:
    """Return transformers' own debugger; it saves a tensor of every module, or with use_repr its text."""
    from transformers.model_debugging_utils import model_addition_debugger_context

    def run() -> None:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            torch.no_grad(),
            model_addition_debugger_context(net, debug_path=str(folder), do_prune_layers=False, use_repr=False),
        ):
            net(**inputs)

    return run


def torchlens() -> Row:
    """Return the row of TorchLens, which wraps every function of torch for good: in a process of its own."""
    what, against = "TorchLens, in memory", "a bare forward pass"
    command = [sys.executable, str(Path(__file__).with_name("torchlens_way.py"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return Row(f"{what}: could not run ({why[:60]})", math.nan, against, math.nan)
    theirs, forward = (took([wall], [cpu]) for wall, cpu in json.loads(done.stdout.splitlines()[-1]))
    return Row(what, theirs, against, forward)


def written(folder: Path, sizes: list[int]) -> Callable[[], object]:
    """Return what the place itself takes for such files: the old ones gone, the new ones written and synced.

    From a block that stays in cache, in writes as large as a typical tensor: the least it can take.
    """
    block = os.urandom(4 << 20)

    def run() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for number, size in enumerate(sizes):
            with open(folder / str(number), "wb", buffering=0) as file:
                for start in range(0, size, len(block)):
                    file.write(block[: size - start])
                os.fsync(file.fileno())

    return run


def places(stack: contextlib.ExitStack) -> Iterator[tuple[str, Path, str]]:
    """Yield where to write, and the target there: in memory nothing but the writing itself takes time."""
    if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > NEEDED:
        yield "to memory", Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))), "<= 1x"
    yield "to disk", Path(stack.enter_context(tempfile.TemporaryDirectory())), ""


def full_rows(net: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Iterator[Row]:
    """Yield recording in full against what it may take: twice the forward pass, and the writing of its bytes."""
    with contextlib.ExitStack() as stack:
        for where, folder, target in places(stack):
            full = recorded(net, inputs, folder / "full.nnrec", "full")
            full()  # once, to know what it writes
            sizes = [entry.stat().st_size for entry in os.scandir(folder / "full.nnrec")]
            forward, writing, ours = in_turns(bare(net, inputs), written(folder / "plain", sizes), full, rounds=5)
            allowed = took([2 * forward + writing], [2 * forward.cpu + writing.cpu])
            allowed.best = 2 * forward.best + writing.best
            yield Row(f"recording, full, {where}", ours, "2x forward + its bytes", allowed, target)
            yield Row(f"the bytes alone, {where}", writing, "a bare forward pass", forward)


def rows() -> Iterator[Row]:
    net = model()
    inputs = {"input_ids": torch.randint(0, 1000, (BATCH, LENGTH))}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone, stats = bare(net, inputs), recorded(net, inputs, folder / "stats.nnrec", "stats")
        forward, with_stats = in_turns(alone, stats, rounds=5)
        yield Row("recording, statistics", with_stats, "a bare forward pass", forward, "<= 1.3x")
        yield from full_rows(net, inputs)
        theirs, forward = in_turns(debugger(net, inputs, folder), alone, rounds=1)
        yield Row("transformers' debugger, to disk", theirs, "a bare forward pass", forward)
    yield torchlens()
