"""Small trainings that are really run."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from nndiff.runs.recorder import TrainingRecorder
from nndiff.runs.run import Run, StepTensors, TensorKey, TensorKind

BATCHES = 4  # of an epoch


def make_model(seed: int = 0, width: int = 48) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 3))


def make_batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(16, 8, generator=generator), torch.randint(0, 3, (16,), generator=generator)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> tuple[Any, torch.Tensor]:
    """Make one step; the gradients stay."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(number)  # so that a training that was cut off can go on as if it had not been
    x, y = make_batch(number)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return (x, y), loss


def train(
    path: Path,
    numbers: range = range(8),
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    after_step: Callable[[int, nn.Module, torch.optim.Optimizer], None] | None = None,
    **settings: Any,
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Train and record."""
    model = make_model() if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01) if optimizer is None else optimizer
    with TrainingRecorder(path, model, optimizer, **settings) as recorder:
        for number in numbers:
            data, loss = train_step(model, optimizer, number)
            epoch, batch = divmod(number, BATCHES)
            recorder.step(epoch=epoch, batch=batch, data=data, scalars={"loss": loss})
            if after_step is not None:
                after_step(number, model, optimizer)
    return model, optimizer


def digest_of(tensors: StepTensors, kind: TensorKind, name: str, state: str = "") -> bytes:
    return tensors.digests[tensors.rows[TensorKey(kind, name, state)]].tobytes()


def assert_same_runs(first: Run, second: Run) -> None:
    """Check that two runs are the same to the last bit."""
    assert first.steps == second.steps
    assert first.has_initial == second.has_initial
    places: list[int | None] = [place for place, step in enumerate(first.steps) if step.has_tensors]
    for place in [None, *places] if first.has_initial else places:
        one, two = first.read_tensors(place), second.read_tensors(place)
        assert one.keys == two.keys
        assert one.shapes == two.shapes
        assert np.array_equal(one.digests, two.digests)
        assert np.array_equal(one.statistics, two.statistics)
        assert np.array_equal(one.sketches, two.sketches)
