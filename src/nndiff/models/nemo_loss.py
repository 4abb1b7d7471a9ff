"""The loss of a NeMo model: the one of its own training step, on labels that need no data."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from nndiff.errors import NndiffError, UserCodeError
from nndiff.models.user_code import describe_exception

LABEL_KEYS = ("targets", "target_lengths")
TRANSCRIPT_LENGTH = 8  # labels in a row, if the model does not say how many there are
_MASKED_LOSS_PARAMETERS = ("masks", "decoder_outputs", "targets", "decoder_lengths")
_NEVER = 10**9


class MaskedTokenLoss:
    """The loss that NEST and similar models are trained with."""

    origin = "the model's own"
    if_not_finite = "NEST has no loss if its masking hides no frame: try another --seed or a longer --seq-len"

    def __call__(self, model: Any, inputs: Any, output: Any) -> Any:
        """Return the loss of an output."""
        log_probs, lengths, masks, tokens = output
        return model.loss(masks=masks, decoder_outputs=log_probs, targets=tokens, decoder_lengths=lengths)


class TrainingLoss:
    """The loss that a model's training step returns; the forward pass is not computed a second time."""

    origin = "the model's own, from its training step"

    def __call__(self, model: Any, inputs: Any, output: Any) -> Any:
        """Return the loss of an output."""
        named_inputs = dict(inputs) if isinstance(inputs, Mapping) else dict(enumerate(inputs))
        targets, lengths = _get_labels(model, named_inputs, output)
        batch = _make_batch(model, named_inputs, targets, lengths)
        try:
            with _replace_trainer(model, named_inputs, output):
                result = model.training_step(batch, 0)
        except NndiffError:
            raise
        except Exception as error:
            raise UserCodeError(_explain_failed_step(model, error)) from error
        return result["loss"] if isinstance(result, Mapping) else result


def find_loss(model: torch.nn.Module) -> Callable[..., Any] | None:
    """Return the model's own loss, or None if there is none to be had: then any loss will do for comparing."""
    forward = getattr(getattr(model, "loss", None), "forward", None)
    if forward is not None and set(_MASKED_LOSS_PARAMETERS) <= set(inspect.signature(forward).parameters):
        return MaskedTokenLoss()
    step = getattr(type(model), "training_step", None)
    # Lightning defines an empty step, and a model that runs its optimizers itself returns no loss
    if step is None or step.__module__.startswith(("lightning.", "pytorch_lightning.")):
        return None
    return TrainingLoss() if getattr(model, "automatic_optimization", False) else None


def count_up(*shape: int, classes: int) -> torch.Tensor:
    """Return labels that count up along every axis, (row + column + ...) % classes, so that a port can do the same."""
    total = torch.zeros(shape, dtype=torch.int64)
    for axis, size in enumerate(shape):
        later_axes = len(shape) - axis - 1
        total = total + torch.arange(size).reshape(-1, *[1] * later_axes)
    return total % max(classes, 1)


def count_classes(model: Any) -> int | None:
    """Return how many labels a model of text has, without the blank."""
    size = getattr(getattr(model, "tokenizer", None), "vocab_size", None)
    if size:
        return int(size)
    for module_name in ("joint", "decoder"):
        vocabulary = getattr(getattr(model, module_name, None), "vocabulary", None)
        if vocabulary:
            return len(vocabulary)
    return None


def get_speaker_keys(model: Any) -> list[str]:
    """Return the names under which a model of several speakers takes who speaks; [] for other models."""
    set_speakers = getattr(model, "set_speaker_targets", None)
    return list(inspect.signature(set_speakers).parameters) if callable(set_speakers) else []


def get_kind(declared_type: Any) -> str:
    """Return the kind of elements that a declared type has: AudioSignal, LabelsType, ..."""
    return type(getattr(declared_type, "elements_type", None)).__name__


def _get_labels(model: Any, inputs: dict[Any, Any], output: Any) -> tuple[Any, Any]:
    """Return targets and their lengths: from the inputs, or else such as the model's loss declares."""
    if "targets" in inputs:
        targets, lengths = inputs["targets"], None
    else:
        targets, lengths = _make_labels(model, inputs, output)
    if "target_lengths" in inputs:
        lengths = inputs["target_lengths"]
    elif lengths is None and targets is not None:
        length = targets.shape[-1] if targets.ndim > 1 else 1
        lengths = torch.full(targets.shape[:1], length, device=targets.device)
    return targets, lengths


def _make_labels(model: Any, inputs: dict[Any, Any], output: Any) -> tuple[Any, Any]:
    """Return targets as the model's loss declares them, with their lengths if these are not simply all of them."""
    if "transcript" in inputs:  # the decoder was fed all labels but the last
        fed = inputs["transcript"]
        last = (fed[:, -1:] + 1) % (count_classes(model) or 1)
        return torch.cat([fed, last], dim=1), inputs["transcript_length"] + 1
    logits = output[0] if isinstance(output, (tuple, list)) else output
    declared = getattr(getattr(model, "loss", None), "input_types", None) or {}
    axes = 0
    for declared_type in declared.values():
        if get_kind(declared_type) == "LabelsType":
            axes = len(declared_type.axes)
            break
    if axes == 0:
        outputs = list((getattr(model, "output_types", None) or {}).values())
        makes_audio = bool(outputs) and get_kind(outputs[0]) == "AudioSignal"
        return (next(iter(inputs.values())).flip(-1) if makes_audio else None), None
    if axes == 3:  # several speakers at a time: yes or no for each
        return count_up(*logits.shape, classes=2).to(logits.device), torch.full(logits.shape[:1], logits.shape[1])
    shape = [logits.shape[0]]
    if axes == 2:
        frames = logits.shape[1]  # one label for each frame, unless labels have lengths of their own
        if "target_lengths" in declared:
            frames = min(TRANSCRIPT_LENGTH, int(output[1].min()))  # there is no path with more labels than frames
        shape.append(frames)
    return count_up(*shape, classes=count_classes(model) or logits.shape[-1]).to(logits.device), None


def _make_batch(model: Any, inputs: dict[Any, Any], targets: Any, lengths: Any) -> Any:
    """Return a batch as the model's training step takes it: signal, its length, targets and their lengths."""
    signal, *further_inputs = [value for name, value in inputs.items() if name not in LABEL_KEYS]
    if further_inputs:
        signal_lengths = further_inputs[0]
    else:
        signal_lengths = torch.full(signal.shape[:1], signal.shape[-1], device=signal.device)
    values = [signal, signal_lengths, targets, lengths]
    named_batch = _find_batch_class(model)
    if named_batch is not None:
        batch_class, field_names = named_batch
        # the fields are in the order of the tuple that other models take; further fields stay empty
        fields = dict.fromkeys(field_names)
        fields.update(zip(field_names, values, strict=False))
        return batch_class(**fields)
    declared = getattr(model, "input_types", None) or {}
    for name, value in inputs.items():
        if name not in (*LABEL_KEYS, "transcript") and get_kind(declared.get(name)) == "LabelsType":
            values.append(value)
    for name in get_speaker_keys(model):
        values.append(inputs.get(name))
    return tuple(values)


def _find_batch_class(model: Any) -> tuple[Any, list[str]] | None:
    """Return the class of the model's batches and its fields, or None if a batch is a tuple."""
    try:
        schema = model.oomptimizer_schema
    except AttributeError:  # models of characters inherit a schema that needs a tokenizer
        schema = {"cls": tuple}
    if schema["cls"] is not tuple:
        return schema["cls"], [entry["name"] for entry in schema["inputs"]]
    step = type(model).training_step
    try:
        signature = inspect.signature(step, eval_str=True)
    except NameError:  # the annotation is imported for the type checker alone
        signature = inspect.signature(step)
    parameters = list(signature.parameters.values())[1:]  # without self
    batch_class = parameters[0].annotation if parameters else None
    if not dataclasses.is_dataclass(batch_class):
        return None
    return batch_class, [field.name for field in dataclasses.fields(batch_class) if "Tensor" in str(field.type)]


@contextlib.contextmanager
def _replace_trainer(model: Any, inputs: dict[Any, Any], output: Any) -> Iterator[None]:
    """Let a training step run without a trainer, on the output that the forward pass has already given."""
    forward = model.forward
    not_for_forward = (*LABEL_KEYS, *get_speaker_keys(model))
    forward_inputs = {name: value for name, value in inputs.items() if name not in not_for_forward}
    uses_inner_layers = getattr(model, "is_interctc_enabled", None)
    # the step reads what inner layers gave during the forward pass, so they must run again
    runs_again = bool(uses_inner_layers and uses_inner_layers())
    replacements = {
        "forward": lambda *args, **kwargs: forward(**forward_inputs) if runs_again else output,
        "log": lambda *args, **kwargs: None,
        "log_dict": lambda *args, **kwargs: None,
        "_trainer": SimpleNamespace(global_step=0, current_epoch=0, log_every_n_steps=_NEVER, world_size=1),
        "_optimizer": SimpleNamespace(param_groups=[{"lr": 0.0}]),
    }
    attributes = vars(model)
    originals = {name: attributes[name] for name in replacements if name in attributes}
    attributes.update(replacements)
    try:
        yield
    finally:
        for name in replacements:
            del attributes[name]
        attributes.update(originals)


def _explain_failed_step(model: Any, error: Exception) -> str:
    """Return what to say about a training step that failed, with what the user can do."""
    sentence = f"the training step of {type(model).__name__} failed ({describe_exception(error)})"
    own_file = "record a Python file with model(), inputs() and loss(model, inputs, output)"
    if "CUDA" in str(error):  # some transducer losses exist only for CUDA; torch has no type for this error
        return f"{sentence}: its loss needs CUDA: give --device cuda, drop --backward, or {own_file}"
    if isinstance(error, NotImplementedError):  # from torch, for a dtype: float16 on the CPU
        return f"{sentence}: drop --dtype or --backward, or {own_file}"
    return f"{sentence}: give labels that fit, `targets` and `target_lengths` in --input FILE.npz, or {own_file}"
