"""NeMo models: restored by the class their config names, fed with a waveform, judged by their own loss."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch

from nndiff.errors import MissingExtraError, ModelError, NndiffError, SourceError, UsageError
from nndiff.files import RegularFile, Window
from nndiff.models.checkpoint import load_checkpoint
from nndiff.models.nemo_loss import LABEL_KEYS, TRANSCRIPT, classes_of, counting, kind_of, loss_for
from nndiff.models.spec import ModelSpec, Wishes
from nndiff.sources.pickle_nodes import Object
from nndiff.sources.torch_file import load_any

_DATA_KEYS = ("train_ds", "validation_ds", "test_ds", "optim")  # what training needs and a forward pass does not
_SIGNALS = ("input_signal", "audio_signal", "audio")
_DEEPEST = 64


class MissingNemoError(MissingExtraError):
    """Say that NeMo is missing, or a part of it, and how to get it."""

    def __init__(self, path: str, module: str) -> None:
        self.package = "nemo_toolkit"
        NndiffError.__init__(
            self,
            f"{path}: NeMo is needed to run it and {module!r} is not installed: "
            'pip install "nemo_toolkit[asr]"; to compare its weights alone, `nndiff diff` needs no NeMo',
        )


def build(path: str, wishes: Wishes) -> ModelSpec:
    """Build the model of a .nemo file, or of a Lightning checkpoint of NeMo, on the CPU and in eval mode.

    A checkpoint is read without running its pickle; its class and layout come from --config, else from the
    hyper-parameters it carries.
    """
    if not os.path.isfile(path):
        raise SourceError(path, "no such file")
    with _off_stdout(), _explained(path):
        config = _read_config(wishes.config) if wishes.config else None
        model, notes = _from_checkpoint(path, config) if _is_checkpoint(path) else (_restored(path, config), [])
    _accept_masks(model)
    _accept_labels(model)
    return ModelSpec(
        model=model.eval(),  # NeMo restores in train mode, where dither and dropout draw random numbers
        label=os.path.basename(path),  # a recording knows nothing of the machine it was made on
        inputs=partial(inputs_for, model, wishes.batch_size or 2, wishes.seq_len or 16000, wishes.seed),
        loss=loss_for(model),
        notes=tuple(notes),
    )


def inputs_for(model: torch.nn.Module, batch_size: int, samples: int, seed: int) -> dict[str, Any]:
    """Return what to call an audio model with: a waveform with lengths, and what NEST asks for beside."""
    asked = inspect.signature(model.forward).parameters
    signal = next((name for name in _SIGNALS if name in asked), None)
    if signal is None:
        raise ModelError(
            f"{type(model).__name__} takes no waveform but {', '.join(asked) or 'nothing'}: give its inputs with "
            "--input, drawn or from a file"
        )
    made = _signals(signal, asked, (batch_size, *(1,) * (_axes(model, signal) - 2), samples), seed)
    if "apply_mask" in asked:
        made["apply_mask"] = True  # where nothing is masked there is no loss
    made |= _labels(model, asked, batch_size)
    missing = [name for name, each in asked.items() if each.default is each.empty and name not in made]
    if missing:
        raise ModelError(f"{type(model).__name__} also needs {', '.join(missing)}: give all its inputs with --input")
    return made


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
    for name, kind in (getattr(model, "input_types", None) or {}).items():
        if name in asked and kind_of(kind) == "LabelsType" and not getattr(kind, "optional", False):
            made.setdefault(name, torch.zeros((batch_size,) * len(kind.axes), dtype=torch.int64))
    return made


def _axes(model: torch.nn.Module, signal: str) -> int:
    """Return how many axes the model says its signal has: models of many channels have three."""
    kind = (getattr(model, "input_types", None) or {}).get(signal)
    return len(getattr(kind, "axes", None) or ("B", "T"))


def _accept_masks(model: torch.nn.Module) -> None:
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


def _accept_labels(model: torch.nn.Module) -> None:
    """Let the model take labels as more keywords, for its loss; its forward pass does not see them."""
    extra = [name for name in LABEL_KEYS if name not in inspect.signature(model.forward).parameters]

    def before(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {name: value for name, value in kwargs.items() if name not in extra}

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


def _restored(path: str, config: Any) -> Any:
    base = import_module("nemo.core.classes").ModelPT
    target = _target(config) or _target(base.restore_from(path, return_config=True))
    # Where the named class fails, NeMo tries the one it is called on and reports that one's trouble: called on the
    # named class it reports the right one. Which names outside of NeMo are safe, NeMo decides.
    owner = _import_class(target) if target.startswith("nemo.") else base
    return owner.restore_from(path, override_config_path=config, map_location="cpu", strict=True)


def _from_checkpoint(path: str, config: Any) -> tuple[Any, list[str]]:
    carried = _carried_config(path)
    target = _target(config) or _target(carried)
    chosen = config if config is not None else carried and _resolved(_omegaconf().create(carried))
    if not chosen:
        raise UsageError(f"{path}: carries no config of NeMo, so one is needed: --config MODEL.yaml")
    if not target.startswith("nemo."):
        said = f"is for the class {target!r}, which is not NeMo's" if target else "names no class"
        raise UsageError(f"{path}: its config {said}: add `target: nemo.collections...` to --config MODEL.yaml")
    model = _import_class(target).from_config_dict(chosen, trainer=None)
    return model, load_checkpoint(model, path)


def _is_checkpoint(path: str) -> bool:
    """Tell a checkpoint (zip or pickle) from a .nemo archive (tar, plain or gzip) by how it begins."""
    return Window(RegularFile(path)).head(4).startswith((b"PK\x03\x04", b"\x80"))


def _omegaconf() -> Any:
    return import_module("omegaconf").OmegaConf


def _read_config(path: str) -> Any:
    """Return the config of a model: the whole file, or what stands under `model` in a training config."""
    if not os.path.isfile(path):
        raise SourceError(path, "no such file")
    whole = _omegaconf().load(path)
    if not hasattr(whole, "items"):
        raise SourceError(path, "is not a config: it holds no keys")
    return _resolved(whole.model if "model" in whole else whole)


def _resolved(config: Any) -> Any:
    """Return the config without its datasets: these need files, and may refer to what is not there."""
    with import_module("omegaconf").open_dict(config):
        for key in _DATA_KEYS:
            config.pop(key, None)
    return _omegaconf().create(_omegaconf().to_container(config, resolve=True))


def _target(config: Any) -> str:
    found = config.get("target") if hasattr(config, "get") else None
    return found if isinstance(found, str) else ""


def _import_class(target: str) -> Any:
    module, _, name = target.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except AttributeError:
        raise ModelError(f"this NeMo has no class {target}: another version of NeMo is needed") from None


def _carried_config(path: str) -> dict[str, Any] | None:
    """Return the config among the hyper-parameters of a Lightning checkpoint, as plain values."""
    root = load_any(Window(RegularFile(path))).root
    held = root.get("hyper_parameters") if isinstance(root, dict) else None
    plain = _plain(path, held)
    config = plain.get("cfg", plain) if isinstance(plain, dict) else None
    return config if isinstance(config, dict) else None


def _plain(path: str, node: Any, depth: int = 0) -> Any:
    """Return what an omegaconf object stands for, from the inert pickle."""
    if depth > _DEEPEST:
        raise SourceError(path, "the config it carries is nested too deeply: give --config MODEL.yaml")
    if isinstance(node, Object):
        state = node.state[0] if node.state and isinstance(node.state[0], dict) else {}
        return _plain(path, next((state[key] for key in ("_content", "_val") if key in state), None), depth + 1)
    if isinstance(node, dict):
        return {key: _plain(path, each, depth + 1) for key, each in node.items() if isinstance(key, str)}
    if isinstance(node, (list, tuple)):
        return [_plain(path, each, depth + 1) for each in node]
    return node if isinstance(node, (bool, int, float, str)) else None


@contextlib.contextmanager
def _off_stdout() -> Iterator[None]:
    """Keep NeMo's talk off stdout, where reports go: it ends up on stderr.

    NeMo's log handlers take hold of what is stdout when NeMo is first imported, so the effect lasts.
    """
    with contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Turn whatever NeMo raises into one sentence."""
    try:
        yield
    except NndiffError:
        raise
    except ModuleNotFoundError as error:
        raise MissingNemoError(path, error.name or "nemo") from error
    except Exception as error:
        text = " ".join(str(error).split())[:400]
        raise ModelError(f"{path}: NeMo cannot restore it: {type(error).__name__}: {text}") from error
