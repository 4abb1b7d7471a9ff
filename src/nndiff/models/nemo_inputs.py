"""What a NeMo model is fed: a waveform and what it asks for beside, and more keywords than its forward pass has."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from nndiff.errors import ModelError
from nndiff.models.nemo_loss import LABEL_KEYS, TRANSCRIPT, classes_of, counting, kind_of, speaker_keys

_SIGNALS = ("input_signal", "audio_signal", "audio")
_TICK = 160  # samples: who speaks is told for every hundredth of a second


def inputs_for(model: torch.nn.Module, batch_size: int, samples: int, seed: int) -> dict[str, Any]:
    """Return what to call an audio model with: a waveform with lengths, and what NEST asks for beside."""
    asked = inspect.signature(model.forward).parameters
    signal = signal_of(model)
    if signal is None:
        raise ModelError(_no_waveform(model, asked))
    made = _signals(signal, asked, (batch_size, *(1,) * (_axes(model, signal) - 2), samples), seed)
    if "apply_mask" in asked:
        made["apply_mask"] = True  # where nothing is masked there is no loss
    made |= _labels(model, asked, batch_size) | _speakers(model, batch_size, samples)
    missing = [name for name, each in asked.items() if each.default is each.empty and name not in made]
    if missing:
        raise ModelError(f"{type(model).__name__} also needs {', '.join(missing)}: give all its inputs with --input")
    return made


def _no_waveform(model: torch.nn.Module, asked: Mapping[str, Any]) -> str:
    """Return what to say of a model that takes no waveform: what it takes, and how to give it."""
    declared = _declared(model)
    needed = [name for name, each in declared.items() if name in asked and not getattr(each, "optional", False)]
    more = f" and may take {len(asked) - len(needed)} more" if needed and len(needed) < len(asked) else ""
    said = f"{type(model).__name__} takes no waveform but {', '.join(needed or asked) or 'nothing'}{more}"
    examples = " ".join(f"--input '{_example(name, declared[name])}'" for name in needed)
    drawn = f"for example {examples}" if needed else "drawn"
    return f"{said}: give its inputs with --input, {drawn} or from a file"


def _example(name: str, kind: Any) -> str:
    """Return an input that may fit a declared type, as --input takes it."""
    sizes = {"B": "2", "D": "80"}  # the usual number of mel bands
    shape = ",".join(sizes.get(_letter(axis), "8") for axis in getattr(kind, "axes", None) or ())
    whole = kind_of(kind) in ("Index", "LabelsType", "LengthsType", "TokenDurationType", "TokenIndex")
    return f"{name}=int64[{shape}]:1..8" if whole else f"{name}=float32[{shape}]"


def _letter(axis: Any) -> str:
    """Return B, T or D of a declared axis: of batch, time or dimension."""
    return str(getattr(getattr(axis, "kind", axis), "name", axis))[:1]


def _declared(model: torch.nn.Module) -> Mapping[str, Any]:
    """Return the types NeMo declares for a model's inputs: at its forward pass, else for the class; {} where none."""
    check = getattr(getattr(type(model).forward, "_self_wrapper", None), "__self__", None)
    # a check without types of its own keeps those of the first model that it saw
    holder = check if getattr(check, "input_override", False) else model
    return getattr(holder, "input_types", None) or {}


def signal_of(model: torch.nn.Module) -> str | None:
    """Return what the model calls its waveform, or None where it takes none."""
    asked = inspect.signature(model.forward).parameters
    return next((name for name in _SIGNALS if name in asked), None)


def _signals(signal: str, asked: Mapping[str, Any], shape: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Return noise of a tenth of full scale and its noisier twin, drawn from the seed alone, of full length."""
    generator = torch.Generator().manual_seed(seed)
    clean = 0.1 * torch.randn(shape, generator=generator)
    noisy = clean + 0.01 * torch.randn(shape, generator=generator)
    made: dict[str, Any] = {}
    for name, values in ((signal, clean), (f"noisy_{signal}", noisy)):
        if name in asked:
            made[name] = values
            lengths = (each for each in (f"{name}_length", f"{name}_len", "input_length") if each in asked)
            made |= {each: torch.full(shape[:1], shape[-1]) for each in list(lengths)[:1]}
    return made


def _labels(model: torch.nn.Module, asked: Mapping[str, Any], batch_size: int) -> dict[str, Any]:
    """Return the labels a forward pass takes: what its decoder is fed, and what must be chosen, which is the first."""
    made: dict[str, Any] = {}
    if "transcript" in asked:
        made["transcript"] = counting(batch_size, TRANSCRIPT, classes=classes_of(model) or 1)
        made["transcript_length"] = torch.full((batch_size,), TRANSCRIPT)
    for name, kind in _declared(model).items():
        axes = len(getattr(kind, "axes", None) or ())
        # one for a row is a choice; NeMo calls it optional where it may be made in another way
        wanted = axes == 1 or not getattr(kind, "optional", False)
        if name in asked and kind_of(kind) == "LabelsType" and wanted:
            made.setdefault(name, torch.zeros((batch_size,) * axes, dtype=torch.int64))
    return made


def _speakers(model: torch.nn.Module, batch_size: int, samples: int) -> dict[str, torch.Tensor]:
    """Return who speaks when, for a model of many talkers: the one and the others take turns."""
    turns = counting(batch_size, samples // _TICK, classes=2).float()
    return {name: turns if place == 0 else 1 - turns for place, name in enumerate(speaker_keys(model))}


def _axes(model: torch.nn.Module, signal: str) -> int:
    """Return how many axes the model says its signal has: models of many channels have three."""
    kind = _declared(model).get(signal)
    return len(getattr(kind, "axes", None) or ("B", "T"))


def accept_masks(model: torch.nn.Module) -> None:
    """Let the model take `masks` as one more keyword, so that NeMo and a port can be given the same mask.

    By hooks, not by a wrapper: the module tree that is recorded stays NeMo's own, and without `masks`
    nothing changes. The module still draws its own mask first, so the random numbers after it stay in step.
    """
    masking = getattr(model, "mask_processor", None)
    if not isinstance(masking, torch.nn.Module) or not hasattr(masking, "mask_embedding"):
        return
    pinned: list[torch.Tensor] = []

    def before(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        kwargs = dict(kwargs)
        masks = kwargs.pop("masks", None)
        pinned[:] = [] if masks is None else [masks]
        if pinned or "apply_mask" in kwargs:
            kwargs["apply_mask"] = bool(pinned) or bool(kwargs["apply_mask"])  # a saved one is a tensor
        return args, kwargs

    def after(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        return _masked(module, kwargs["input_feats"], pinned[0]) if pinned else output

    model.register_forward_pre_hook(before, with_kwargs=True)
    masking.register_forward_hook(after, with_kwargs=True)


def accept_labels(model: torch.nn.Module) -> None:
    """Let the model take labels as more keywords, for its loss; its forward pass does not see them."""
    extra = [name for name in LABEL_KEYS if name not in inspect.signature(model.forward).parameters]

    def before(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {name: value for name, value in kwargs.items() if name not in extra}

    model.register_forward_pre_hook(before, with_kwargs=True)


def accept_speakers(model: torch.nn.Module) -> None:
    """Let a model that is told apart from its inputs who speaks be told by more keywords."""
    names = speaker_keys(model)

    def before(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if any(name in kwargs for name in names):
            module.set_speaker_targets(*(kwargs.get(name) for name in names))
        return args, {name: value for name, value in kwargs.items() if name not in names}

    if names:
        model.register_forward_pre_hook(before, with_kwargs=True)


def _masked(module: Any, features: torch.Tensor, masks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    whole = masks if masks.ndim == features.ndim else masks.unsqueeze(1)
    if whole.shape[0] != features.shape[0] or whole.shape[-1] != features.shape[-1]:
        raise ModelError(
            f"masks of the shape {tuple(masks.shape)} do not fit features of {tuple(features.shape)}: "
            "they must be (batch, frames) or (batch, features, frames)"
        )
    hidden = whole.to(torch.bool).expand_as(features)
    return torch.where(hidden, module.mask_embedding.view(1, -1, 1), features), hidden.to(features.dtype)
