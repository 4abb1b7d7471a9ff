"""The loss of a NeMo model: that of its own training step, on labels that need no data."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from nndiff.errors import ModelError, NndiffError

LABEL_KEYS = ("targets", "target_lengths")
TRANSCRIPT = 8  # labels of a row, where the model does not say how many there are
_LOSS_KEYS = ("masks", "decoder_outputs", "targets", "decoder_lengths")
_NEVER = 10**9


class MaskedTokenLoss:
    """Be the loss NEST and its like are trained with."""

    origin = "the model's own"
    if_not_finite = "NEST has no loss where its masking hides no frame: take another --seed or a longer --seq-len"

    def __call__(self, model: Any, inputs: Any, output: Any) -> Any:
        """Return the loss of an output."""
        log_probs, lengths, masks, tokens = output
        return model.loss(masks=masks, decoder_outputs=log_probs, targets=tokens, decoder_lengths=lengths)


class TrainingLoss:
    """Be the loss a model's training step gives; what its forward pass gave already is not computed again."""

    origin = "the model's own, of its training step"

    def __call__(self, model: Any, inputs: Any, output: Any) -> Any:
        """Return the loss of an output."""
        given = dict(inputs) if isinstance(inputs, Mapping) else dict(enumerate(inputs))
        batch = _batch(model, given, *_labels(model, given, output))
        try:
            with _training(model, given, output):
                made = model.training_step(batch, 0)
        except NndiffError:
            raise
        except Exception as error:
            raise ModelError(_trouble(model, error)) from error
        return made["loss"] if isinstance(made, Mapping) else made


def loss_for(model: torch.nn.Module) -> Callable[..., Any] | None:
    """Return the model's own loss, or None where there is none to be had: any loss will do for comparing."""
    forward = getattr(getattr(model, "loss", None), "forward", None)
    if forward is not None and set(_LOSS_KEYS) <= set(inspect.signature(forward).parameters):
        return MaskedTokenLoss()
    step = getattr(type(model), "training_step", None)
    # Lightning has an empty step of its own; a model that runs its optimisers itself returns no loss.
    own = step is not None and not step.__module__.startswith(("lightning.", "pytorch_lightning."))
    return TrainingLoss() if own and getattr(model, "automatic_optimization", False) else None


def counting(*shape: int, classes: int) -> torch.Tensor:
    """Return labels that count up along every axis, (row + column + ...) % classes, so that a port has the same."""
    total = torch.zeros(shape, dtype=torch.int64)
    for axis, size in enumerate(shape):
        total = total + torch.arange(size).reshape(-1, *(1,) * (len(shape) - axis - 1))
    return total % max(classes, 1)


def classes_of(model: Any) -> int | None:
    """Return how many labels a model of text knows, without the blank."""
    size = getattr(getattr(model, "tokenizer", None), "vocab_size", None)
    tables = (getattr(getattr(model, part, None), "vocabulary", None) for part in ("joint", "decoder"))
    return size or next((len(each) for each in tables if each), None)


def speaker_keys(model: Any) -> list[str]:
    """Return the names by which a model of many talkers is told who speaks; of others, none."""
    told = getattr(model, "set_speaker_targets", None)
    return list(inspect.signature(told).parameters) if callable(told) else []


def kind_of(declared: Any) -> str:
    """Return the name of a declared type's elements: AudioSignal, LabelsType, ..."""
    return type(getattr(declared, "elements_type", None)).__name__


def _labels(model: Any, given: dict[Any, Any], output: Any) -> tuple[Any, Any]:
    """Return targets and their lengths: those that were given, else such as the model's loss declares."""
    targets, lengths = _made_labels(model, given, output) if "targets" not in given else (given["targets"], None)
    if "target_lengths" in given:
        lengths = given["target_lengths"]
    elif lengths is None and targets is not None:
        lengths = torch.full(targets.shape[:1], targets.shape[-1] if targets.ndim > 1 else 1, device=targets.device)
    return targets, lengths


def _made_labels(model: Any, given: dict[Any, Any], output: Any) -> tuple[Any, Any]:
    if "transcript" in given:  # the decoder was fed all but the last label
        fed = given["transcript"]
        targets = torch.cat([fed, (fed[:, -1:] + 1) % (classes_of(model) or 1)], dim=1)
        return targets, given["transcript_length"] + 1
    first = output[0] if isinstance(output, (tuple, list)) else output
    types = getattr(getattr(model, "loss", None), "input_types", None) or {}
    axes = next((len(each.axes) for each in types.values() if kind_of(each) == "LabelsType"), 0)
    if not axes:
        return (_target_signal(given), None) if _gives_audio(model) else (None, None)
    if axes == 3:  # speakers that talk at the same time: yes or no for each
        return counting(*first.shape, classes=2).to(first.device), torch.full(first.shape[:1], first.shape[1])
    columns = () if axes == 1 else (_columns(types, output, first),)
    return counting(first.shape[0], *columns, classes=classes_of(model) or first.shape[-1]).to(first.device), None


def _columns(types: Mapping[str, Any], output: Any, first: torch.Tensor) -> int:
    """Return how many labels a row has: one for each frame, or some where labels have lengths of their own."""
    if "target_lengths" not in types:
        return first.shape[1]
    return min(TRANSCRIPT, int(output[1].min()))  # there is no path through fewer frames than labels


def _gives_audio(model: Any) -> bool:
    declared = list((getattr(model, "output_types", None) or {}).values())
    return bool(declared) and kind_of(declared[0]) == "AudioSignal"


def _target_signal(given: dict[Any, Any]) -> Any:
    return next(iter(given.values())).flip(-1)


def _batch(model: Any, given: dict[Any, Any], targets: Any, lengths: Any) -> Any:
    """Return a batch as the model's training step takes it: signal, targets and their lengths."""
    signal, *rest = (value for name, value in given.items() if name not in LABEL_KEYS)
    first = (signal, rest[0] if rest else _whole_length(signal), targets, lengths)
    named = _named_batch(model)
    if named is not None:
        made, fields = named
        # the fields come in the order of the tuple that other models take; what follows is left out
        return made(**(dict.fromkeys(fields) | dict(zip(fields, first, strict=False))))
    declared = getattr(model, "input_types", None) or {}
    more = [
        value
        for name, value in given.items()
        if name not in (*LABEL_KEYS, "transcript") and kind_of(declared.get(name)) == "LabelsType"
    ]
    return (*first, *more, *(given.get(name) for name in speaker_keys(model)))


def _whole_length(signal: torch.Tensor) -> torch.Tensor:
    return torch.full(signal.shape[:1], signal.shape[-1], device=signal.device)


def _named_batch(model: Any) -> tuple[Any, list[str]] | None:
    """Return the class of the model's batches and its fields where it declares one, or None where it is a tuple."""
    try:
        schema = model.oomptimizer_schema
    except AttributeError:  # models of characters inherit one that asks for a tokenizer
        schema = {"cls": tuple}
    if schema["cls"] is not tuple:
        return schema["cls"], [each["name"] for each in schema["inputs"]]
    annotated = _annotated_batch(type(model).training_step)
    if not dataclasses.is_dataclass(annotated):
        return None
    return annotated, [each.name for each in dataclasses.fields(annotated) if "Tensor" in str(each.type)]


def _annotated_batch(step: Callable[..., Any]) -> Any:
    """Return what a training step says its batch is."""
    try:
        asked = inspect.signature(step, eval_str=True)
    except NameError:  # imported for the type checker alone
        asked = inspect.signature(step)
    return next((each.annotation for each in list(asked.parameters.values())[1:]), None)  # after self


@contextlib.contextmanager
def _training(model: Any, given: dict[Any, Any], output: Any) -> Iterator[None]:
    """Let a training step run without a trainer, and its forward pass give what it gave already."""
    forward, apart = model.forward, (*LABEL_KEYS, *speaker_keys(model))
    fed = {name: value for name, value in given.items() if name not in apart}
    listens = _listens(model)
    instead = {
        "forward": lambda *args, **kwargs: forward(**fed) if listens else output,
        "log": lambda *args, **kwargs: None,
        "log_dict": lambda *args, **kwargs: None,
        "_trainer": SimpleNamespace(global_step=0, current_epoch=0, log_every_n_steps=_NEVER, world_size=1),
        "_optimizer": SimpleNamespace(param_groups=[{"lr": 0.0}]),
    }
    own = vars(model)
    before = {name: own[name] for name in instead if name in own}
    own.update(instead)
    try:
        yield
    finally:
        for name in instead:
            del own[name]
        own.update(before)


def _listens(model: Any) -> bool:
    """Tell whether the training step takes what inner layers gave while it ran: then they must run once more."""
    enabled = getattr(model, "is_interctc_enabled", None)
    return bool(enabled and enabled())


def _trouble(model: Any, error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    said = f"the training step of {type(model).__name__} fails ({type(error).__name__}: {text})"
    own = "record a Python file with model(), inputs() and loss(model, inputs, output)"
    if "CUDA" in text:  # the losses of some transducers exist for nothing else
        return f"{said}: its loss needs CUDA: give --device cuda, leave --backward out, or {own}"
    if isinstance(error, NotImplementedError):  # of torch, for an element type: halves on the CPU
        return f"{said}: leave --dtype or --backward out, or {own}"
    return f"{said}: give labels that fit, `targets` and `target_lengths` in --input FILE.npz, or {own}"
