"""Small trainings, made for real and recorded, with a place for every fault that tests plant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import nndiff


def build_model(width: int = 16, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


def draw_batches(count: int, seed: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(count):
        inputs = torch.randn(12, 8, generator=generator)
        batches.append((inputs, torch.randint(0, 3, (12,), generator=generator)))
    return batches


def train(
    path: Path,
    *,
    model: nn.Module | None = None,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    batches: list[Any] | None = None,
    epochs: int = 2,
    before_step: Callable[[int, nn.Module, torch.optim.Optimizer], None] | None = None,
    dump: bool = False,
    **recorder: Any,
) -> Path:
    """Train and record, five batches an epoch; with `dump`, write checkpoints as older scripts do instead."""
    model = build_model() if model is None else model
    made = (optimizer or (lambda model: torch.optim.Adam(model.parameters(), lr=0.01)))(model)
    batches = draw_batches(5) if batches is None else batches
    record = None if dump else nndiff.TrainingRecorder(path, model=model, optimizer=made, **recorder)
    for epoch in range(epochs):
        for batch, (inputs, labels) in enumerate(batches):
            made.zero_grad()
            output = model(inputs)
            loss = functional.cross_entropy(output, labels)
            loss.backward()
            if before_step is not None:
                before_step(epoch * len(batches) + batch, model, made)
            made.step()
            accuracy = (output.argmax(1) == labels).float().mean()
            if record is not None:
                scalars = {"loss": loss, "acc": accuracy}
                record.step(epoch=epoch, batch=batch, data=(inputs, labels), scalars=scalars)
            else:
                folder = path / f"epoch_{epoch:03d}"
                folder.mkdir(parents=True, exist_ok=True)
                state = {"model_state_dict": model.state_dict(), "optimizer_state_dict": made.state_dict()}
                state |= {"loss": loss.item(), "acc": accuracy.item()}
                torch.save(state, folder / f"batch_{batch:04d}.pt")
    if record is not None:
        record.close()
    return path
