"""Run a model on samples and send the outputs of its layers to a sink: one sample, one layer at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nndiff.modes.layers import plan_layers
from nndiff.modes.layouts import OutputSink
from nndiff.recording.capture.hooks import CallHooks
from nndiff.recording.capture.inputs import as_inputs
from nndiff.recording.capture.tensors import is_tensor, raw_tensor
from nndiff.recording.environment.randomness import seed_everything
from nndiff.recording.format.values import flatten

LOGITS = "logits"
_IGNORED_LABEL = -100  # as torch.nn.functional.cross_entropy has it
_ROWS_AT_ONCE = 256  # rows of logits in float64
_LARGEST_EXPONENT = 700  # math.exp overflows a little above

Progress = Callable[[int, int], None]  # samples done, samples in all


@dataclass(frozen=True)
class OutputFacts:
    """Hold what a run tells of the model's own output."""

    path: str | None = None  # place of the main tensor in what the model returns; None where it returns none
    is_logits: bool = False
    perplexity: float | None = None  # where labels were given
    label_trouble: str = ""  # why the labels do not fit the output


class _Likelihood:
    """Sum the log-likelihood of labels over all samples."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0
        self.trouble = ""  # why the labels do not fit

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Add one sample; labels of -100 do not count."""
        targets = labels.reshape(-1).to(logits.device)
        if labels.shape != logits.shape[:-1]:
            self.trouble = f"labels of shape {tuple(labels.shape)} do not fit logits of shape {tuple(logits.shape)}"
        elif targets.numel() and int(targets.max()) >= logits.shape[-1]:
            self.trouble = f"there is a label {int(targets.max())}, and the logits have {logits.shape[-1]} classes"
        if self.trouble:
            return
        rows = logits.reshape(-1, logits.shape[-1])
        for start in range(0, len(targets), _ROWS_AT_ONCE):
            block = rows[start : start + _ROWS_AT_ONCE].double()
            chosen = targets[start : start + _ROWS_AT_ONCE]
            loss = torch.nn.functional.cross_entropy(block, chosen, ignore_index=_IGNORED_LABEL, reduction="sum")
            self._sum += float(loss)
            self._count += int((chosen != _IGNORED_LABEL).sum())

    @property
    def perplexity(self) -> float | None:
        """Return the perplexity; None without labels that fit."""
        if not self._count or self.trouble:
            return None
        mean = self._sum / self._count
        return math.exp(mean) if mean < _LARGEST_EXPONENT else math.inf


def find_tensors(output: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the float tensors of an output with their places in it, the main one first: logits, else the first array.

    Caches and other objects are not looked into.
    """
    tensors = []
    for path, leaf in flatten(output, is_tensor):
        if is_tensor(leaf) and leaf.is_floating_point():
            tensors.append((path, leaf))
    # a loss, a single number, may come before what the model is for
    return sorted(tensors, key=lambda item: (item[0].rpartition(".")[2] != LOGITS, item[1].ndim == 0))


def run_samples(
    model: torch.nn.Module,
    samples: Sequence[Any],
    layers: Sequence[str],
    sink: OutputSink,
    *,
    seed: int,
    labels: Sequence[torch.Tensor] | None = None,
    has_logits: bool | None = None,
    progress: Progress | None = None,
) -> OutputFacts:
    """Run a model on copies of the samples, its layers' outputs sent to the sink as they come."""
    plan, known_as = plan_layers(model, layers)
    likelihood = _Likelihood()

    def send_outputs(module: torch.nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        name = known_as.get(id(module))
        if name is None:
            return  # a copy of a module took the hook along
        for number, (path, tensor) in enumerate(find_tensors(output)):
            sink.add_output(name, type(module).__name__, path, number == 0, raw_tensor(tensor))

    facts = OutputFacts()
    hooks = CallHooks(plan, lambda *_: None, send_outputs)
    hooks.install()
    try:
        for number, sample in enumerate(samples):
            inputs = as_inputs(sample).fresh()
            seed_everything(seed)
            with torch.no_grad():
                tensors = find_tensors(model(*inputs.args, **inputs.kwargs))
                if tensors:
                    path, main = tensors[0]
                    facts = OutputFacts(path, _are_logits(path, main, labels is not None, has_logits))
                if tensors and labels is not None:
                    likelihood.add(tensors[0][1], torch.as_tensor(labels[number]))
            del inputs, tensors
            if progress is not None:
                progress(number + 1, len(samples))
    finally:
        hooks.remove()
    return OutputFacts(facts.path, facts.is_logits, likelihood.perplexity, likelihood.trouble)


def _are_logits(path: str, output: torch.Tensor, has_labels: bool, told: bool | None) -> bool:
    """Return True if an output is logits: the file says so, the model calls it so, or it is one row per input.

    A plain (batch, sequence, width) array may as well be hidden states: the file has to say it.
    """
    if told is not None:
        return told
    return has_labels or path.rpartition(".")[2] == LOGITS or (output.ndim == 2 and output.shape[1] > 1)
