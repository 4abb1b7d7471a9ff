"""A Lightning callback that records a training."""

from __future__ import annotations

import os
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from nndiff.runs.capture import list_optimizers, read_hyper_parameters
from nndiff.runs.recorder import TrainingRecorder


class RecorderCallback(Callback):
    """Record every optimizer step of a `Trainer.fit`; the settings are those of `nndiff.TrainingRecorder`.

    A step is recorded at the end of the batch that made it, when the gradients are still there. Batches that were
    accumulated for one step are recorded with it. With manual optimization, gradients are recorded only if
    `training_step` does not clear them after the step.
    """

    def __init__(self, path: str | os.PathLike[str], **settings: Any) -> None:
        self._path = path
        self._settings = settings
        self._recorder: TrainingRecorder | None = None
        self._batches: list[Any] = []  # since the last optimizer step
        self._losses: list[torch.Tensor] = []
        self._hyper_parameters: dict[str, float] = {}  # before schedulers change them
        self._validation_names: set[str] = set()
        self._known_names: set[str] = set()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the state before the first step."""
        if trainer.is_global_zero:
            self._close()
            self._recorder = TrainingRecorder(self._path, pl_module, list(trainer.optimizers), **self._settings)
            self._last_step = trainer.global_step

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Note the learning rate: at the end of the batch it is already that of the next step."""
        self._hyper_parameters = read_hyper_parameters(list_optimizers(list(trainer.optimizers)))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record a step, if this batch was the one that made it."""
        if self._recorder is None:
            return
        self._batches.append(batch)
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, torch.Tensor):
            self._losses.append(loss.detach())
        if trainer.global_step == self._last_step:  # accumulated for a later step
            return
        data = self._batches[0] if len(self._batches) == 1 else self._batches
        scalars = self._hyper_parameters | self.collect_scalars(trainer, outputs)
        self._recorder.step(epoch=trainer.current_epoch, batch=batch_idx, data=data, scalars=scalars)
        self._last_step = trainer.global_step
        self._batches, self._losses = [], []

    def collect_scalars(self, trainer: Trainer, outputs: Any) -> dict[str, Any]:
        """Return the scalars of a step: the loss, what else `training_step` returned, and what it logged."""
        scalars: dict[str, Any] = {}
        for name, value in trainer.callback_metrics.items():
            if name not in self._validation_names:
                scalars[name] = value
        if isinstance(outputs, dict):
            for name, value in outputs.items():
                if isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1):
                    scalars[name] = value
        if self._losses:
            # Lightning has divided each loss by the number of batches it accumulates
            scalars["loss"] = torch.stack(self._losses).mean() * trainer.accumulate_grad_batches
        return scalars

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note what training logs, to tell it from what validation logs."""
        self._known_names = set(trainer.callback_metrics)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note what validation logs: it is not about a step of the training."""
        self._validation_names |= set(trainer.callback_metrics) - self._known_names

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Finish the recording."""
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Finish the recording of a training that failed."""
        self._close()

    def _close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
        self._recorder = None
        self._batches, self._losses = [], []
