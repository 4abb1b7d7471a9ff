"""NeMo models: restored by the class that their config names, fed with a waveform, trained by their own loss."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from nndiff.errors import (
    CheckpointError,
    MissingExtraError,
    ModelError,
    NndiffError,
    SourceError,
    UsageError,
    UserCodeError,
)
from nndiff.models.checkpoint import load_checkpoint
from nndiff.models.inputs import DEFAULT_BATCH_SIZE
from nndiff.models.nemo_config import get_target, is_checkpoint, is_from_nemo, read_own_config
from nndiff.models.nemo_inputs import accept_labels, accept_masks, accept_speakers, find_signal_name, make_inputs
from nndiff.models.nemo_loss import find_loss
from nndiff.models.spec import BuildOptions, ModelSpec
from nndiff.models.user_code import describe_exception

_DATA_KEYS = ("train_ds", "validation_ds", "test_ds", "optim")  # training needs them, a forward pass does not
_EXTRAS = ("asr", "audio", "speechlm2", "tts")  # collections that are also extras of the package
_DEFAULT_SAMPLES = 16000
_WEIGHTS_HINT = "to compare only its weights, `nndiff diff` needs no NeMo"


class MissingNemoError(MissingExtraError):
    """Say that NeMo or a part of it is missing, and how to install it."""

    def __init__(self, path: str, module: str, extra: str = "asr") -> None:
        self.package = "nemo_toolkit"
        NndiffError.__init__(
            self,
            f"{path}: NeMo is needed to run it and {module!r} is not installed: "
            f'pip install "nemo_toolkit[{extra}]"; {_WEIGHTS_HINT}',
        )


def build_nemo_model(path: str, options: BuildOptions) -> ModelSpec:
    """Build the model of a .nemo file, or of a Lightning checkpoint of NeMo, on the CPU and in eval mode.

    The pickle of a checkpoint is never executed; class and layout come from --config, or else from the
    hyper-parameters in the checkpoint.
    """
    if not os.path.isfile(path):
        raise SourceError(path, "no such file")
    notes: list[str] = []
    with redirect_stdout(), explain_errors(path):
        config = read_config(options.config) if options.config else None
        if is_checkpoint(path):
            model, notes = _build_from_checkpoint(path, config)
        else:
            model = restore_archive(path, config)
    return make_runnable(model, os.path.basename(path), options, notes)  # recordings hold no path of this machine


def make_runnable(model: Any, label: str, options: BuildOptions, notes: Sequence[str] = ()) -> ModelSpec:
    """Return a model of NeMo in eval mode, with the inputs that it is fed and its loss."""
    accept_masks(model)
    accept_labels(model)
    accept_speakers(model)
    batch_size, samples = options.batch_size or DEFAULT_BATCH_SIZE, options.seq_len or _DEFAULT_SAMPLES
    return ModelSpec(
        model=model.eval(),  # NeMo restores in train mode, in which dither and dropout draw random numbers
        label=label,
        inputs=partial(make_inputs, model, batch_size, samples, options.seed),
        loss=find_loss(model) if find_signal_name(model) else None,  # a batch is made from a waveform
        notes=tuple(notes),
    )


def restore_archive(path: str, config: Any) -> Any:
    """Return the model of a .nemo archive, restored by NeMo in train mode; `config` replaces the one in it."""
    base_class = import_module("nemo.core.classes").ModelPT
    target = get_target(config) or get_target(base_class.restore_from(path, return_config=True))
    # If the class in the config fails, NeMo tries the class that restore_from is called on and reports only that
    # one's error. So call it on the right class; whether a class outside of NeMo is safe is up to NeMo.
    model_class = import_class(path, target) if target.startswith("nemo.") else base_class
    return model_class.restore_from(path, override_config_path=config, map_location="cpu", strict=True)


def _build_from_checkpoint(path: str, config: Any) -> tuple[Any, list[str]]:
    """Return the model of a Lightning checkpoint, and notes about its weights."""
    model = build_without_weights(path, config)
    try:
        return model, load_checkpoint(model, path)
    except CheckpointError as error:
        error.partial_loads = False  # --partial is for --ckpt
        raise


def build_without_weights(path: str, config: Any = None) -> Any:
    """Return the model of a config, or else of the one in a checkpoint or archive, with weights from the seed."""
    own_config = None
    if is_checkpoint(path):
        own_config = read_own_config(path)
        if own_config:
            own_config = import_module("omegaconf").OmegaConf.create(own_config)
    elif is_from_nemo(path):
        own_config = import_module("nemo.core.classes").ModelPT.restore_from(path, return_config=True)
    target = get_target(config) or get_target(own_config)
    if config is None and own_config:
        config = _resolve_config(own_config)
    if not config:
        raise UsageError(f"{path}: holds no config of NeMo; give one with --config MODEL.yaml")
    if not target.startswith("nemo."):
        trouble = f"is for the class {target!r}, which is not NeMo's" if target else "names no class"
        raise UsageError(f"{path}: its config {trouble}: add `target: nemo.collections...` to --config MODEL.yaml")
    return import_class(path, target).from_config_dict(config, trainer=None)


def read_config(path: str) -> Any:
    """Return the config of a model: a whole file, or the part under `model` in a training config."""
    if not os.path.isfile(path):
        raise SourceError(path, "no such file")
    config = import_module("omegaconf").OmegaConf.load(path)
    if not hasattr(config, "items"):
        raise SourceError(path, "is not a config: it holds no keys")
    return _resolve_config(config.model if "model" in config else config)


def _resolve_config(config: Any) -> Any:
    """Return the config without its datasets, which need files and may refer to keys that are missing."""
    omegaconf = import_module("omegaconf")
    with omegaconf.open_dict(config):
        for key in _DATA_KEYS:
            config.pop(key, None)
    return omegaconf.OmegaConf.create(omegaconf.OmegaConf.to_container(config, resolve=True))


def import_class(path: str, target: str) -> Any:
    """Return a class of NeMo by its dotted name; `path` is the file that asks for it."""
    module, _, name = target.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except AttributeError:
        missing = f"class {target}"
    except ModuleNotFoundError as error:
        missing = error.name or module
        if not missing.startswith("nemo."):  # the collection is there, but a package that it needs is not
            collection = target.removeprefix("nemo.collections.").partition(".")[0]
            raise MissingNemoError(path, missing, collection if collection in _EXTRAS else "asr") from error
    raise ModelError(f"{path}: this version of NeMo has no {missing}: install another version")


@contextlib.contextmanager
def redirect_stdout() -> Iterator[None]:
    """Send what NeMo prints to stderr, because reports go to stdout.

    NeMo's log handlers take whatever is stdout when NeMo is first imported, so the effect lasts.
    """
    with contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def explain_errors(path: str) -> Iterator[None]:
    """Turn whatever NeMo raises into one sentence."""
    try:
        yield
    except NndiffError:
        raise
    except ModuleNotFoundError as error:
        raise MissingNemoError(path, error.name or "nemo") from error
    except Exception as error:
        reason = describe_exception(error).rstrip(".")
        raise UserCodeError(f"{path}: NeMo cannot restore it: {reason}; {_WEIGHTS_HINT}") from error
