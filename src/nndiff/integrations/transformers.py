"""A callback for transformers' Trainer that records a training."""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from nndiff.runs.recorder import TrainingRecorder


class RecorderCallback(TrainerCallback):
    """Record every optimizer step of a `Trainer.train()`; the settings are those of `nndiff.TrainingRecorder`.

    The batch is what the model is called with, and the loss is the one it returns: the Trainer tells callbacks neither.
    A loss that the Trainer computes itself (`label_smoothing_factor`, `compute_loss_func`) is not recorded.
    """

    def __init__(self, path: str | os.PathLike[str], **settings: Any) -> None:
        self._path = path
        self._settings = settings
        self._recorder: TrainingRecorder | None = None
        self._hook: Any = None
        self._batches: list[dict[str, Any]] = []  # since the last optimizer step
        self._losses: list[torch.Tensor] = []
        self._first_of_epoch = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep the state before the first step, and listen to what the model is called with."""
        self._close()
        if state.is_world_process_zero:
            model = kwargs["model"]
            self._recorder = TrainingRecorder(self._path, model, kwargs["optimizer"], **self._settings)
            self._hook = model.register_forward_hook(self._note_call, with_kwargs=True)

    def _note_call(self, model: torch.nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        """Keep the batch and the loss of one call until the step is made."""
        if not model.training:
            return
        self._batches.append({**{str(place): value for place, value in enumerate(args)}, **kwargs})
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self._losses.append(loss.detach())

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Note the number of the epoch's first step; a training that is resumed begins in the middle of an epoch."""
        self._first_of_epoch = state.global_step
        share = (state.epoch or 0.0) % 1.0
        if share:
            batches = len(kwargs["train_dataloader"])
            self._first_of_epoch -= round(share * math.ceil(batches / args.gradient_accumulation_steps))

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Record the step that was just made: gradients and learning rate are still those it was made with."""
        if self._recorder is None:
            return
        scalars = {}
        if self._losses:
            total = torch.stack(self._losses).sum()
            # given the number of items in all batches of the step, the model divides each loss by that already
            is_share = self._batches[-1].get("num_items_in_batch") is not None
            scalars["loss"] = total if is_share else total / len(self._losses)
        self._recorder.step(
            epoch=int(state.epoch or 0),
            batch=state.global_step - self._first_of_epoch,
            data=self._batches[0] if len(self._batches) == 1 else self._batches or None,
            scalars=scalars,
            step=state.global_step,
        )
        self._batches, self._losses = [], []

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Finish the recording."""
        self._close()

    def _close(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        if self._recorder is not None:
            self._recorder.close()
        self._hook = self._recorder = None
        self._batches, self._losses = [], []
