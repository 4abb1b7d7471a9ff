"""Record a training: scalars and batch fingerprints of every step, tensors of those that are asked for."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from nndiff.errors import UsageError
from nndiff.recording.environment.settings import read_environment, read_flags
from nndiff.runs.batch import fingerprint_batch
from nndiff.runs.capture import (
    Parameters,
    StateSampler,
    collect_families,
    compute_gradient_norm,
    fingerprint_generators,
    list_optimizers,
    list_parameters,
    list_trainable,
    name_groups,
    read_hyper_parameters,
)
from nndiff.runs.run import RunDescription, Step, StepTensors
from nndiff.runs.writer import RunWriter
from nndiff.text import counted, plural

_MOST_NOTES = 50  # a training that changes at every step needs no note of each


class TrainingRecorder:
    """Record a training into a folder; the folder of an earlier run with the same settings is resumed.

    Call `step` after `optimizer.step()` and before `zero_grad()` and the scheduler's `step()`. Every step leaves its
    scalars, hyper-parameters, batch fingerprint and the state of the random generators. Tensors (parameters, buffers,
    gradients, optimizer state) are kept at the first step, and at those whose number is a multiple of `every`, or
    which are in `steps`; with `first_epochs` only in so many epochs. With `model`, the state before the first step is
    kept too. `optimizer` may be a list; the groups of all are numbered in order.

    `keep="sketch"` keeps statistics, digests and a sketch of each tensor, from which distances between two runs are
    estimated; "stats" leaves the sketches out; "full" adds the tensors, the same bits never twice. Runs can be
    compared by their sketches if they have the same `seed`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        model: torch.nn.Module | None = None,
        optimizer: Any = None,
        *,
        every: int = 1,
        steps: Collection[int] | None = None,
        first_epochs: int | None = None,
        keep: str = "sketch",
        seed: int = 0,
    ) -> None:
        if type(every) is not int or every < 1:
            raise UsageError(f"every must be a whole number of 1 or more, not {every!r}")
        self._every = every
        self._chosen_steps = None if steps is None else frozenset(steps)
        self._first_epochs = first_epochs
        self._model = model
        self._optimizer = optimizer
        self._sampler = StateSampler(keep, seed)
        self._writer = RunWriter(path, keep, seed)
        self._previous: int | None = None  # number of the last step that was made here
        self._last_change: RunDescription | None = None  # that a note was made of
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        """Keep the state before the first step, and describe the run as far as it is known."""
        if self._writer.first_number is not None or self._writer.has_initial:
            return  # resumed: the state of the model is no longer the initial one
        environment = {**read_environment(), "flags": read_flags()}
        self._writer.describe(replace(self._writer.description, environment=environment))
        if self._model is None:
            self._add_note("the initial state was not recorded: no model was given when the recorder was made")
        elif any(is_lazy(parameter) for parameter in self._model.parameters()):
            self._add_note("the initial state was not recorded: parameters of the model are made by its first call")
        else:
            self._writer.write_initial(self._sample(self._model, list_optimizers(self._optimizer), None))

    def step(
        self,
        *,
        epoch: int | None = None,
        batch: int | None = None,
        data: Any = None,
        scalars: Mapping[str, Any] | None = None,
        model: torch.nn.Module | None = None,
        optimizer: Any = None,
        step: int | None = None,
    ) -> int:
        """Record one step of the training and return its number, counted from 0 over all epochs.

        Call it after `optimizer.step()`, before `zero_grad()`. When it returns, everything was copied and written. A
        step with the same `epoch` and `batch`, or the same `step`, replaces the earlier one. `data` is the batch: a
        tensor, or any nesting of tuples, lists and dicts. Values of `scalars` are numbers or tensors of one element.
        """
        model = self._model if model is None else model
        optimizers = list_optimizers(self._optimizer if optimizer is None else optimizer)
        number = self._choose_number(epoch, batch, step)
        numbers = read_hyper_parameters(optimizers)
        tensors: StepTensors | None = None
        if model is not None and self._is_chosen(number, epoch):
            tensors = self._sample(model, optimizers, number)
            gradient_norm = compute_gradient_norm(tensors)
            if gradient_norm is not None:
                numbers["grad_norm"] = gradient_norm
        for name, value in (scalars or {}).items():
            numbers[name] = _convert_scalar(name, value)
        record = Step(
            number=number,
            epoch=epoch,
            batch=batch,
            scalars=numbers,
            data=None if data is None else fingerprint_batch(data),
            random_states=fingerprint_generators(),
        )
        self._writer.write_step(record, tensors)
        self._previous = number
        return number

    def _choose_number(self, epoch: int | None, batch: int | None, step: int | None) -> int:
        """Return the global number of a step: as given, that of the step it repeats, or the next one."""
        for name, value in (("epoch", epoch), ("batch", batch), ("step", step)):
            if value is not None and (type(value) is not int or value < 0):
                raise UsageError(f"{name} must be a whole number of 0 or more, not {value!r}")
        if step is not None:
            return step
        known = self._writer.find_number(epoch, batch)
        if known is not None:
            return known
        return 1 + (self._writer.last_number if self._previous is None else self._previous)

    def _is_chosen(self, number: int, epoch: int | None) -> bool:
        """Return True if the tensors of this step are kept."""
        first = self._writer.first_number
        if first is None or number == first:
            return True
        if self._first_epochs is not None:
            if epoch is None or self._writer.first_epoch is None:
                raise UsageError("first_epochs needs to know the epoch of every step; give rec.step(epoch=...)")
            if epoch >= self._writer.first_epoch + self._first_epochs:
                return False
        return number in self._chosen_steps if self._chosen_steps is not None else number % self._every == 0

    def _sample(self, model: torch.nn.Module, optimizers: Sequence[Any], number: int | None) -> StepTensors:
        """Return what is kept of the tensors after a step, or of those before the first (None)."""
        parameters = list_parameters(model)
        self._describe(type(model).__name__, parameters, optimizers, number)
        with torch.no_grad():
            families = collect_families(model, parameters, optimizers, with_gradients=number is not None)
            tensors = self._sampler.sample(families)
        if self._sampler.has_parts:
            self._add_note("the model is sharded: of its tensors, only the parts in this process were recorded")
        if self._sampler.unreadable:
            names = list(self._sampler.unreadable)
            self._sampler.unreadable = {}
            self._add_note(f"not recorded, because they have no elements in this process: {counted(names, 'tensor')}")
        return tensors

    def _describe(self, model: str, parameters: Parameters, optimizers: Sequence[Any], number: int | None) -> None:
        """Write what is known of model and optimizer at the first step, and later a note of what has changed."""
        before = self._writer.description
        groups, unknown = name_groups(parameters, optimizers)
        now = replace(
            before,
            model=model,
            optimizer=", ".join(type(optimizer).__name__ for optimizer in optimizers),
            param_groups=groups,
            trainable=list_trainable(parameters),
        )
        if before.trainable is None or self._writer.first_number is None:
            self._writer.describe(now)
            if unknown:
                self._add_note(
                    f"the state of {plural(unknown, 'parameter')} of the optimizer was not recorded: they are not "
                    "parameters of the model"
                )
            return
        changes = []
        if now.trainable != before.trainable:
            changes.append("which parameters require a gradient")
        if (now.optimizer, now.param_groups) != (before.optimizer, before.param_groups):
            changes.append("the optimizer or its parameter groups")
        if now.model != before.model:
            changes.append("the class of the model")
        if changes and replace(now, notes=()) != self._last_change:
            self._last_change = replace(now, notes=())
            self._add_note(f"{' and '.join(changes)} changed by step {number}; what is listed is as it was at first")

    def _add_note(self, note: str) -> None:
        description = self._writer.description
        if note not in description.notes and len(description.notes) < _MOST_NOTES:
            self._writer.describe(replace(description, notes=(*description.notes, note)))

    def close(self) -> None:
        """Finish the recording; the same constructor resumes it later."""
        self._writer.close()

    def __enter__(self) -> TrainingRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _convert_scalar(name: str, value: Any) -> float:
    """Return a scalar as a float."""
    if not isinstance(name, str):
        raise UsageError(f"the name of a scalar must be text, not {name!r}")
    try:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        kind = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)[:80]
        raise UsageError(f"the scalar {name!r} must be one number, not {kind}") from None
