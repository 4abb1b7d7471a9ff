"""Tensors without elements: they hold nothing that could differ, and disturb nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from trainings import BATCHES, make_model, train

import nndiff


def train_with_buffer(folder: Path, buffer: torch.Tensor, rate: float = 0.01, **settings: Any) -> None:
    """Record a training of a model with one more buffer, and dump its checkpoints beside the recording."""
    model = make_model()
    model.register_buffer("empty", buffer)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)

    def dump(number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        epoch, batch = divmod(number, BATCHES)
        path = folder / f"dumps/epoch_{epoch:03d}/batch_{batch:04d}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}, path)

    train(folder / "run", model=model, optimizer=optimizer, after_step=dump, **settings)


@pytest.mark.parametrize("keep", ["sketch", "full", "stats"])
def test_a_recording_equals_the_checkpoints_of_the_same_training(tmp_path: Path, keep: str) -> None:
    train_with_buffer(tmp_path / "a", torch.empty(0), keep=keep)
    train_with_buffer(tmp_path / "b", torch.empty(0), keep=keep)
    train_with_buffer(tmp_path / "faster", torch.empty(0), rate=0.02, keep=keep)
    for reference, candidate in (("run", "run"), ("run", "dumps"), ("dumps", "run"), ("dumps", "dumps")):
        comparison = nndiff.compare(tmp_path / "a" / reference, tmp_path / "b" / candidate)
        assert comparison.first_divergence is None
        assert comparison.verdict == "identical"
        comparison = nndiff.compare(tmp_path / "a" / reference, tmp_path / "faster" / candidate)
        assert comparison.verdict == "different"


def test_another_dtype_of_nothing_is_no_difference_of_values(tmp_path: Path) -> None:
    train_with_buffer(tmp_path / "a", torch.empty(0))
    train_with_buffer(tmp_path / "b", torch.empty(0, dtype=torch.float64))
    comparison = nndiff.compare(tmp_path / "a/run", tmp_path / "b/run")
    assert comparison.verdict != "different"
    assert comparison.findings == ()


def test_another_shape_of_nothing_is_a_difference(tmp_path: Path) -> None:
    train_with_buffer(tmp_path / "a", torch.empty(0))
    train_with_buffer(tmp_path / "b", torch.empty(0, 5))
    comparison = nndiff.compare(tmp_path / "a/run", tmp_path / "b/run")
    assert comparison.verdict == "different"
    assert comparison.first_divergence is not None
