"""Recording every module of a 12-layer model of width 512, against a bare forward pass and other recorders."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from nndiff.recording.record import record
from timing import Row, best

BATCH, LENGTH = 8, 256


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


def torchlens(net: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Callable[[], object] | None:
    try:
        import torchlens as lens
    except ImportError:
        return None
    return lambda: lens.trace(net, inputs["input_ids"])  # of version 2; input_ids is the first argument


def write_time(folder: Path, size: int) -> float:
    """Return how long the disk itself takes for so many bytes, written in shards and synced."""
    block = os.urandom(1 << 20) * 64
    start = time.perf_counter()
    for number in range(max(1, round(size / len(block)))):
        with open(folder / f"plain-{number}", "wb") as file:
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
    return time.perf_counter() - start


def rows() -> Iterator[Row]:
    net = model()
    inputs = {"input_ids": torch.randint(0, 1000, (BATCH, LENGTH))}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone = bare(net, inputs)
        stats = recorded(net, inputs, folder / "stats.nnrec", "stats")
        full = recorded(net, inputs, folder / "full.nnrec", "full")
        forward, with_stats, with_full = best(alone, stats, full, rounds=5)
        yield Row("recording, statistics", with_stats, "a bare forward pass", forward, "<= 1.3x")
        size = sum(entry.stat().st_size for entry in os.scandir(folder / "full.nnrec"))
        disk = write_time(folder, size)
        yield Row("recording, full, without disk", max(with_full - disk, 1e-9), "a bare forward pass", forward, "<= 2x")
        yield Row("recording, full", with_full, "writing its bytes", disk)
        yield Row(
            "transformers' debugger", best(debugger(net, inputs, folder), rounds=1)[0], "a bare forward pass", forward
        )
        lens = torchlens(net, inputs)
        if lens is not None:
            yield Row("TorchLens", best(lens, rounds=1)[0], "a bare forward pass", forward)
