"""NeMo models: restored by the class their config names, fed with a waveform, judged by their own loss."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nndiff.errors import MissingExtraError, ModelError, NndiffError, SourceError, UsageError
from nndiff.files import RegularFile, Window
from nndiff.sources.pickle_vm import Object
from nndiff.sources.torch_file import load_any

if TYPE_CHECKING:
    import torch

INSTALL = 'pip install "nemo_toolkit[asr]"'

_DATA_KEYS = ("train_ds", "validation_ds", "test_ds", "optim")  # what training needs and a forward pass does not
_SIGNALS = ("input_signal", "audio_signal", "audio")
_LOSS_KEYS = ("masks", "decoder_outputs", "targets", "decoder_lengths")
_DEEPEST = 64


class MissingNemoError(MissingExtraError):
    """Say that NeMo is missing, or a part of it, and how to get it."""

    def __init__(self, path: str, module: str) -> None:
        self.package = "nemo_toolkit"
        NndiffError.__init__(
            self, f"{path}: NeMo is needed to run this model and {module!r} is not installed: {INSTALL}"
        )


@dataclass(frozen=True)
class Waveform:
    """Say what audio a model is fed: noise of a tenth of full scale, drawn from the seed alone."""

    batch_size: int = 2
    seq_len: int = 16000  # samples
    seed: int = 42
    ragged: bool = False  # shorter rows, padded with zeros, as in a real batch


def load_nemo(path: str, config: str | None = None) -> torch.nn.Module:
    """Return the model of a .nemo file or of a Lightning checkpoint of NeMo, on the CPU, in eval mode.

    A checkpoint is read without running its pickle; its class and layout come from `config`, else from the
    hyper-parameters it carries.
    """
    if not os.path.exists(path):
        raise SourceError(path, "no such file or directory")
    with _quiet(), _explained(path):
        given = _read_config(config) if config else None
        model: torch.nn.Module = _from_checkpoint(path, given) if _is_checkpoint(path) else _restored(path, given)
        _accept_masks(model)
        return model.eval()


def is_checkpoint_of_nemo(path: str) -> bool:
    """Tell whether a file is a Lightning checkpoint whose hyper-parameters name a class of NeMo."""
    return _is_checkpoint(path) and _target(_carried_config(path) or {}).startswith("nemo.")


def inputs_for(model: torch.nn.Module, wave: Waveform) -> dict[str, Any]:
    """Return what to call an audio model with: a waveform with lengths, and what NEST asks for beside."""
    asked = inspect.signature(model.forward).parameters
    signal = next((name for name in _SIGNALS if name in asked), None)
    if signal is None:
        raise ModelError(
            f"{type(model).__name__} takes no waveform but {', '.join(asked) or 'nothing'}: give its inputs with "
            "--input NAME=DTYPE[SHAPE] or from a file"
        )
    made = _signals(model, signal, asked, wave)
    if "apply_mask" in asked:
        made["apply_mask"] = True  # without a masked frame there is no loss
    missing = [name for name, each in asked.items() if each.default is each.empty and name not in made]
    if missing:
        raise ModelError(f"{type(model).__name__} also needs {', '.join(missing)}: give the inputs from a file")
    return made


def loss_for(model: torch.nn.Module) -> Callable[..., Any] | None:
    """Return the loss of a masked-token model (NEST), or None for a model whose loss needs labels."""
    own = getattr(model, "loss", None)
    forward = getattr(own, "forward", None)
    if forward is None or not set(_LOSS_KEYS) <= set(inspect.signature(forward).parameters):
        return None
    return masked_token_loss


def masked_token_loss(model: Any, inputs: Any, output: Any) -> Any:
    """Return the loss NEST is trained with."""
    log_probs, lengths, masks, tokens = output
    return model.loss(masks=masks, decoder_outputs=log_probs, targets=tokens, decoder_lengths=lengths)


def _signals(model: torch.nn.Module, signal: str, asked: Mapping[str, Any], wave: Waveform) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(wave.seed)
    shape = (wave.batch_size, *(1,) * (_axes(model, signal) - 2), wave.seq_len)
    clean = 0.1 * torch.randn(shape, generator=generator)
    noisy = clean + 0.01 * torch.randn(shape, generator=generator)
    lengths = _lengths(wave)
    made: dict[str, Any] = {}
    for name, values in ((signal, clean), (f"noisy_{signal}", noisy)):
        if name not in asked:
            continue
        made[name] = _padded(values, lengths)
        for each in (f"{name}_length", f"{name}_len", "input_length"):
            if each in asked and each not in made:
                made[each] = lengths.clone()
                break
    return made


def _axes(model: torch.nn.Module, signal: str) -> int:
    """Return how many axes the model says its signal has: models of many channels have three."""
    kind = (getattr(model, "input_types", None) or {}).get(signal)
    return len(getattr(kind, "axes", None) or ("B", "T"))


def _lengths(wave: Waveform) -> torch.Tensor:
    import torch

    step = wave.seq_len // (2 * wave.batch_size) if wave.ragged else 0
    return torch.tensor([wave.seq_len - row * step for row in range(wave.batch_size)])


def _padded(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    for row, length in enumerate(lengths.tolist()):
        values[row, ..., length:] = 0
    return values


def _accept_masks(model: torch.nn.Module) -> None:
    """Let the model take `masks` as one more keyword, so that NeMo and a port can be given the same mask.

    By hooks, not by a wrapper: the module tree that is recorded stays NeMo's own, and without `masks`
    nothing changes. The module still draws its own mask first, so the random numbers after it stay in step.
    """
    masking = getattr(model, "mask_processor", None)
    if masking is None:
        return
    pinned: list[torch.Tensor] = []

    def before(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        pinned[:] = [kwargs["masks"]] if kwargs.get("masks") is not None else []
        return args, {name: value for name, value in kwargs.items() if name != "masks"}

    def after(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        return _masked(module, kwargs["input_feats"], pinned[0]) if pinned else output

    model.register_forward_pre_hook(before, with_kwargs=True)
    masking.register_forward_hook(after, with_kwargs=True)


def _masked(module: Any, features: torch.Tensor, masks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

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
    target = _target(config or {}) or _target(base.restore_from(path, return_config=True))
    # NeMo falls back to the class it is called on where the named one fails, and then reports that one's
    # trouble: called on the named class it reports the right one. Which other names are safe, NeMo decides.
    owner = _import_class(target) if target.startswith("nemo.") else base
    return owner.restore_from(path, override_config_path=config, map_location="cpu", strict=True)


def _from_checkpoint(path: str, config: Any) -> Any:
    carried = _carried_config(path)
    chosen = config if config is not None else _as_config(carried)
    if chosen is None:
        raise UsageError(f"{path}: carries no config of NeMo, so one is needed: --config MODEL.yaml")
    target = _target(chosen) or _target(carried or {})
    if not target.startswith("nemo."):
        said = f"names the class {target!r}, which is not NeMo's" if target else "names no class"
        raise UsageError(f"{path}: its config {said}: add `target: nemo.collections...` to --config MODEL.yaml")
    model = _import_class(target).from_config_dict(_without_data(chosen), trainer=None)
    model.load_state_dict(_weights(path), strict=True)
    return model


def _weights(path: str) -> dict[str, torch.Tensor]:
    """Return the weights of a checkpoint, read without running its pickle."""
    import torch

    from nndiff.sources import open_source

    source = open_source(f"{path}::state_dict")
    return {name: torch.from_numpy(ref.numpy()) for name, ref in source.tensors.items()}


def _is_checkpoint(path: str) -> bool:
    """Tell a checkpoint from a .nemo archive by what it holds: a tar begins with neither."""
    head = Window(RegularFile(path)).head(4)
    return head[:4] == b"PK\x03\x04" or head[:1] == b"\x80"


def _read_config(path: str) -> Any:
    omegaconf = import_module("omegaconf").OmegaConf
    try:
        whole = omegaconf.load(path)
    except FileNotFoundError:
        raise SourceError(path, "no such file or directory") from None
    if not hasattr(whole, "items"):
        raise SourceError(path, "is not a config: it holds no keys")
    model = whole.model if "model" in whole else whole
    return _resolved(model)


def _as_config(plain: Mapping[str, Any] | None) -> Any:
    return None if plain is None else _resolved(import_module("omegaconf").OmegaConf.create(plain))


def _resolved(config: Any) -> Any:
    """Return the config without its datasets: these need files, and may refer to what is not there."""
    omegaconf = import_module("omegaconf").OmegaConf
    return omegaconf.create(omegaconf.to_container(_without_data(config), resolve=True))


def _without_data(config: Any) -> Any:
    module = import_module("omegaconf")
    with module.open_dict(config):
        for key in _DATA_KEYS:
            config.pop(key, None)
    return config


def _target(config: Any) -> str:
    found = config.get("target") or config.get("_target_") if hasattr(config, "get") else None
    return found if isinstance(found, str) else ""


def _import_class(target: str) -> Any:
    module, _, name = target.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except AttributeError:
        raise ModelError(f"this NeMo has no class {target}: another version is needed") from None


def _carried_config(path: str) -> dict[str, Any] | None:
    """Return the config among the hyper-parameters of a Lightning checkpoint, as plain values."""
    root = load_any(Window(RegularFile(path))).root
    held = root.get("hyper_parameters") if isinstance(root, dict) else None
    plain = _plain(path, held) if held is not None else None
    config = plain.get("cfg", plain) if isinstance(plain, dict) else None
    return config if isinstance(config, dict) and config else None


def _plain(path: str, node: Any, depth: int = 0) -> Any:
    """Return what an omegaconf object stands for, from the inert pickle."""
    if depth > _DEEPEST:
        raise SourceError(path, "its config is nested too deeply")
    if isinstance(node, Object):
        state = node.state[0] if node.state and isinstance(node.state[0], dict) else {}
        inner = next((state[key] for key in ("_content", "_val") if key in state), None)
        return _plain(path, inner, depth + 1)
    if isinstance(node, dict):
        return {key: _plain(path, each, depth + 1) for key, each in node.items() if isinstance(key, str)}
    if isinstance(node, (list, tuple)):
        return [_plain(path, each, depth + 1) for each in node]
    return node if isinstance(node, (bool, int, float, str)) else None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep NeMo's talk off stdout, where reports go: it ends up on stderr.

    NeMo's log handlers take hold of stdout when NeMo is first imported, so this must last at least as long.
    """
    with contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Turn whatever NeMo raises into one sentence."""
    try:
        import torch  # noqa: F401  # first, so that its absence is not taken for NeMo's
    except ModuleNotFoundError:
        raise MissingExtraError("torch", "to run a model", "torch") from None
    try:
        yield
    except NndiffError:
        raise
    except ModuleNotFoundError as error:
        raise MissingNemoError(path, error.name or "nemo") from error
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ModelError(f"{path}: NeMo cannot restore it: {type(error).__name__}: {' '.join(lines[:3])}") from error
