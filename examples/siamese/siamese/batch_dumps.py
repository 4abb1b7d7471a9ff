"""What a training leaves behind: the recording of nndiff, and checkpoints in batch_dumps/epoch_XXX/batch_XXXX.pt."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import nndiff

FIRST_STEPS = 3  # always dumped: here a cause shows itself, before everything else follows from it


class BatchDumps:
    """Record every step of a training; keep the tensors of the first ones and of every `interval`-th."""

    def __init__(
        self,
        folder: Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        steps: int,
        interval: int,
        checkpoints: bool,
    ) -> None:
        self._folder, self._model, self._optimizer, self._checkpoints = folder, model, optimizer, checkpoints
        self._dumped = {*range(FIRST_STEPS), *range(0, steps, interval)}
        self._recorder = nndiff.TrainingRecorder(folder, model, optimizer, steps=self._dumped)

    def step(self, epoch: int, batch: int, data: tuple[Tensor, ...], loss: Tensor, acc: Tensor) -> None:
        """Record a step; call it after optimizer.step() and before zero_grad()."""
        number = self._recorder.step(epoch=epoch, batch=batch, data=data, scalars={"loss": loss, "acc": acc})
        if number in self._dumped and self._checkpoints:
            path = self._folder / "batch_dumps" / f"epoch_{epoch:03d}" / f"batch_{batch:04d}.pt"
            path.parent.mkdir(parents=True, exist_ok=True)
            checkpoint = {
                "model_state_dict": self._model.state_dict(),
                "optimizer_state_dict": self._optimizer.state_dict(),
                "loss": loss.item(),
                "acc": acc.item(),
            }
            torch.save(checkpoint, path)

    def close(self) -> None:
        """Finish the recording."""
        self._recorder.close()
