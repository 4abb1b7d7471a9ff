"""What a NeMo model is fed: a waveform, what it needs beside, and keywords that its forward pass does not have."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from nndiff.errors import ModelError
from nndiff.models.nemo_loss import LABEL_KEYS, TRANSCRIPT_LENGTH, count_classes, count_up, get_kind, get_speaker_keys

_SIGNAL_NAMES = ("input_signal", "audio_signal", "audio")
_SAMPLES_PER_TURN = 160  # who speaks is given for every hundredth of a second
_WHOLE_NUMBER_KINDS = ("Index", "LabelsType", "LengthsType", "TokenDurationType", "TokenIndex")


def make_inputs(model: torch.nn.Module, batch_size: int, samples: int, seed: int) -> dict[str, Any]:
    """Return the arguments to call an audio model with: a waveform, its length, and what else it needs."""
    parameters = inspect.signature(model.forward).parameters
    signal_name = find_signal_name(model)
    if signal_name is None:
        raise ModelError(_explain_missing_signal(model, parameters))
    inputs = _make_signals(model, signal_name, (batch_size, samples), seed)
    if "apply_mask" in parameters:
        inputs["apply_mask"] = True  # the loss is only over masked frames
    inputs |= _make_labels(model, batch_size)
    turns = count_up(batch_size, samples // _SAMPLES_PER_TURN, classes=2).float()
    for position, name in enumerate(get_speaker_keys(model)):
        inputs[name] = turns if position == 0 else 1 - turns  # the target speaker and the others take turns
    missing = []
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in inputs:
            missing.append(name)
    if missing:
        raise ModelError(f"{type(model).__name__} also needs {', '.join(missing)}: give all its inputs with --input")
    return inputs


def find_signal_name(model: torch.nn.Module) -> str | None:
    """Return the name of the model's waveform argument, or None if it takes none."""
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in _SIGNAL_NAMES if name in parameters), None)


def _get_declared_types(model: torch.nn.Module) -> Mapping[str, Any]:
    """Return the types that NeMo declares for the inputs of a forward pass or of a class; {} if there are none."""
    type_check = getattr(getattr(type(model).forward, "_self_wrapper", None), "__self__", None)
    # a check without types of its own keeps those of the first model that it met
    holder = type_check if getattr(type_check, "input_override", False) else model
    return getattr(holder, "input_types", None) or {}


def _explain_missing_signal(model: torch.nn.Module, parameters: Mapping[str, Any]) -> str:
    """Return what to say about a model that takes no waveform: what it takes, and how to give it."""
    declared = _get_declared_types(model)
    needed = []
    for name, declared_type in declared.items():
        if name in parameters and not getattr(declared_type, "optional", False):
            needed.append(name)
    taken = ", ".join(needed or parameters) or "nothing"
    if needed and len(needed) < len(parameters):
        taken += f" and may take {len(parameters) - len(needed)} more"
    drawn = "drawn"
    if needed:
        examples = " ".join(f"--input '{_make_example(name, declared[name])}'" for name in needed)
        drawn = f"for example {examples}"
    return f"{type(model).__name__} takes no waveform but {taken}: give its inputs with --input, {drawn} or from a file"


def _make_example(name: str, declared_type: Any) -> str:
    """Return an input that may fit a declared type, as --input takes it."""
    sizes = []
    for axis in getattr(declared_type, "axes", None) or ():
        letter = str(getattr(getattr(axis, "kind", axis), "name", axis))[:1]
        sizes.append({"B": "2", "D": "80"}.get(letter, "8"))  # batch, mel bands, time
    shape = ",".join(sizes)
    if get_kind(declared_type) in _WHOLE_NUMBER_KINDS:
        return f"{name}=int64[{shape}]:1..8"
    return f"{name}=float32[{shape}]"


def _make_signals(model: torch.nn.Module, signal_name: str, size: tuple[int, int], seed: int) -> dict[str, Any]:
    """Return noise at a tenth of full scale and its noisier twin, drawn from the seed alone, with their lengths."""
    parameters = inspect.signature(model.forward).parameters
    batch_size, samples = size
    axes = len(getattr(_get_declared_types(model).get(signal_name), "axes", None) or ("B", "T"))
    shape = (batch_size, *[1] * (axes - 2), samples)  # models of several channels have an axis for them
    generator = torch.Generator().manual_seed(seed)
    clean = 0.1 * torch.randn(shape, generator=generator)
    noisy = clean + 0.01 * torch.randn(shape, generator=generator)
    signals: dict[str, Any] = {}
    for name, values in ((signal_name, clean), (f"noisy_{signal_name}", noisy)):
        if name not in parameters:
            continue
        signals[name] = values
        for length_name in (f"{name}_length", f"{name}_len", "input_length"):
            if length_name in parameters:
                signals[length_name] = torch.full((batch_size,), samples)
                break
    return signals


def _make_labels(model: torch.nn.Module, batch_size: int) -> dict[str, Any]:
    """Return the labels that a forward pass takes: what its decoder is fed, and class 0 where it needs a choice."""
    parameters = inspect.signature(model.forward).parameters
    labels: dict[str, Any] = {}
    if "transcript" in parameters:
        labels["transcript"] = count_up(batch_size, TRANSCRIPT_LENGTH, classes=count_classes(model) or 1)
        labels["transcript_length"] = torch.full((batch_size,), TRANSCRIPT_LENGTH)
    for name, declared_type in _get_declared_types(model).items():
        axes = len(getattr(declared_type, "axes", None) or ())
        # one label for each row is a choice; NeMo calls it optional if there is another way to make it
        is_needed = axes == 1 or not getattr(declared_type, "optional", False)
        is_label = name in parameters and get_kind(declared_type) == "LabelsType"
        if is_label and is_needed and name not in labels:
            labels[name] = torch.zeros((batch_size,) * axes, dtype=torch.int64)
    return labels


def accept_masks(model: torch.nn.Module) -> None:
    """Let the model take `masks` as one more keyword, so that NeMo and a port can get the same mask.

    This uses hooks, not a wrapper: the module tree stays NeMo's own, and without `masks` nothing changes. The
    module still draws its own mask first, so that the random numbers after it stay the same.
    """
    masking = getattr(model, "mask_processor", None)
    if not isinstance(masking, torch.nn.Module) or not hasattr(masking, "mask_embedding"):
        return
    current_masks: list[torch.Tensor] = []

    def take_masks(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        kwargs = dict(kwargs)
        masks = kwargs.pop("masks", None)
        current_masks.clear()
        if masks is not None:
            current_masks.append(masks)
            kwargs["apply_mask"] = True
        elif "apply_mask" in kwargs:
            kwargs["apply_mask"] = bool(kwargs["apply_mask"])  # saved inputs hold a tensor
        return args, kwargs

    def apply_masks(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        return _mask_features(module, kwargs["input_feats"], current_masks[0]) if current_masks else output

    model.register_forward_pre_hook(take_masks, with_kwargs=True)
    masking.register_forward_hook(apply_masks, with_kwargs=True)


def _mask_features(module: Any, features: torch.Tensor, masks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the masked features and the mask, as NeMo's masking does."""
    expanded = masks if masks.ndim == features.ndim else masks.unsqueeze(1)
    if expanded.shape[0] != features.shape[0] or expanded.shape[-1] != features.shape[-1]:
        raise ModelError(
            f"masks of shape {tuple(masks.shape)} do not fit features of shape {tuple(features.shape)}: they must be "
            "(batch, frames) or (batch, features, frames)"
        )
    is_masked = expanded.to(torch.bool).expand_as(features)
    return torch.where(is_masked, module.mask_embedding.view(1, -1, 1), features), is_masked.to(features.dtype)


def accept_labels(model: torch.nn.Module) -> None:
    """Let the model take labels as more keywords, for its loss; its forward pass does not see them."""
    parameters = inspect.signature(model.forward).parameters
    extra_keys = [name for name in LABEL_KEYS if name not in parameters]

    def drop_labels(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {name: value for name, value in kwargs.items() if name not in extra_keys}

    model.register_forward_pre_hook(drop_labels, with_kwargs=True)


def accept_speakers(model: torch.nn.Module) -> None:
    """Let a model take by keywords who speaks, if it otherwise takes that by a method."""
    speaker_keys = get_speaker_keys(model)

    def set_speakers(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if any(name in kwargs for name in speaker_keys):
            module.set_speaker_targets(*(kwargs.get(name) for name in speaker_keys))
        return args, {name: value for name, value in kwargs.items() if name not in speaker_keys}

    if speaker_keys:
        model.register_forward_pre_hook(set_speakers, with_kwargs=True)
