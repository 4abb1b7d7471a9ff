"""Implementations of a model: each loads and saves checkpoints in its own way."""

from __future__ import annotations

import inspect
import os
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch

from nndiff.errors import CheckpointError, ModelError
from nndiff.models.checkpoint import compare_first_names, pair_names
from nndiff.models.huggingface import make_input_maker, read_class
from nndiff.models.inputs import read_tensor
from nndiff.models.kinds import HUGGING_FACE, NEMO, RESTORED_SUFFIXES, split_factory
from nndiff.models.nemo import (
    build_without_weights,
    explain_errors,
    make_runnable,
    read_config,
    redirect_stdout,
    restore_archive,
)
from nndiff.models.nemo_config import is_checkpoint, is_from_nemo
from nndiff.models.python_file import call_factory, get_factory, get_inputs, import_target
from nndiff.models.spec import BuildOptions, ModelSpec
from nndiff.models.user_code import get_required_parameters, user_code
from nndiff.names import natural_key
from nndiff.sources import open_source
from nndiff.text import listed, plural

LIGHTNING_SUFFIX = ".ckpt"
_NEMO_SUFFIX = ".nemo"


class Implementation(Protocol):
    """Load and save checkpoints of one model."""

    def build(self, path: str) -> Any:
        """Return a model to load a checkpoint into; None if loading builds it."""

    def load(self, model: Any, path: str, fills_all: bool = False) -> Any:
        """Return the model with the tensors of a checkpoint, which should hold all of them if it `fills_all`."""

    def save(self, model: Any, path: str) -> str:
        """Save a checkpoint; return where. The suffix of `path` is that of the checkpoint that is verified."""

    def make_runnable(self, model: Any) -> ModelSpec:
        """Return the model with the inputs that it is fed."""


def find_implementation(name: str, checkpoint: str, options: BuildOptions) -> Implementation:
    """Return the implementation that a MODEL stands for; `checkpoint` may hold the config of NeMo's model."""
    if name == NEMO or name.endswith(RESTORED_SUFFIXES):
        return NemoImplementation(checkpoint if name == NEMO else name, options)
    if name.startswith(HUGGING_FACE):
        return HuggingFaceImplementation(name.removeprefix(HUGGING_FACE), options)
    return PythonImplementation(name, options)


class PythonImplementation:
    """A Python file or module: a factory, or `load(path)`, which loads by itself; and maybe `save(model, path)`."""

    def __init__(self, name: str, options: BuildOptions) -> None:
        target, factory = split_factory(name)
        self._name, self._options = name, options
        self._module = import_target(target)
        factory = factory or ("load" if hasattr(self._module, "load") else "model")
        self._what = f"{target}:{factory}"
        self._factory = get_factory(self._module, target, factory)
        self._save = getattr(self._module, "save", None)
        is_function = callable(self._factory) and not isinstance(self._factory, torch.nn.Module)
        self._loads_itself = is_function and len(get_required_parameters(self._factory)) == 1

    def build(self, path: str) -> Any:
        """Return what the factory makes, unless the factory takes the path of a checkpoint."""
        return None if self._loads_itself else call_factory(self._factory, self._what)

    def load(self, model: Any, path: str, fills_all: bool = False) -> Any:
        """Return the model that the factory loads, or else load the state dict."""
        if not self._loads_itself:
            return load_state(model, path, fills_all)
        arguments = {}
        if "config" in inspect.signature(self._factory).parameters:
            arguments["config"] = self._options.config
        with user_code(f"{self._what}()", self._factory):
            loaded = self._factory(path, **arguments)
        if not isinstance(loaded, torch.nn.Module):
            raise ModelError(f"{self._what}() returned a {type(loaded).__name__}, not a torch.nn.Module")
        return loaded

    def save(self, model: Any, path: str) -> str:
        """Save as the file's `save` does, or else the state dict as torch.save writes it."""
        if not callable(self._save):
            return save_state(model, path)
        with user_code("save()", self._save):
            self._save(model, path)
        if not os.path.exists(path):
            raise ModelError(f"save(model, path) did not write {os.path.basename(path)}")
        return path

    def make_runnable(self, model: Any) -> ModelSpec:
        """Return the model with the file's `inputs`."""
        return ModelSpec(model, self._name, get_inputs(self._module, self._options))


class HuggingFaceImplementation:
    """The class that the config.json of a folder names; folders are loaded by from_pretrained."""

    def __init__(self, folder: str, options: BuildOptions) -> None:
        self._folder, self._options = folder, options
        self._class, self._config = read_class(folder)

    def build(self, path: str) -> Any:
        """Return the model with weights from the seed, unless from_pretrained builds it."""
        return None if os.path.isdir(path) else self._class(self._config)

    def load(self, model: Any, path: str, fills_all: bool = False) -> Any:
        """Load a folder with from_pretrained, and anything else as a state dict."""
        if model is not None:
            return load_state(model, path, fills_all)
        with user_code(f"{self._class.__name__}.from_pretrained()"):
            return self._class.from_pretrained(path, config=self._config, local_files_only=True)

    def save(self, model: Any, path: str) -> str:
        """Save a folder."""
        folder = os.path.splitext(path)[0]
        with user_code("save_pretrained()"):
            model.save_pretrained(folder)
        return folder

    def make_runnable(self, model: Any) -> ModelSpec:
        """Return the model with tokens, pixels or a waveform."""
        maker = make_input_maker(model, self._config, self._options)
        return ModelSpec(model, f"{HUGGING_FACE}{self._folder}", maker)


class NemoImplementation:
    """NeMo: the class that a config names, which is given, in the checkpoint, or in another one."""

    def __init__(self, config_source: str, options: BuildOptions) -> None:
        self._config_source, self._options = config_source, options
        with redirect_stdout(), explain_errors(config_source):
            import_module("nemo.core.classes")
            self._config = read_config(options.config) if options.config else None

    def build(self, path: str) -> Any:
        """Return the model with weights from the seed, unless NeMo restores a .nemo archive."""
        if _is_archive(path):
            return None
        config_source = path if self._config is None and is_from_nemo(path) else self._config_source
        with redirect_stdout(), explain_errors(config_source):
            return build_without_weights(config_source, self._config)

    def load(self, model: Any, path: str, fills_all: bool = False) -> Any:
        """Restore a .nemo archive; load the state dict of anything else, whose pickle is not executed."""
        with redirect_stdout(), explain_errors(path):
            return restore_archive(path, self._config) if model is None else load_state(model, path, fills_all)

    def save(self, model: Any, path: str) -> str:
        """Save a Lightning checkpoint if one is verified, or else a .nemo archive."""
        with redirect_stdout(), explain_errors(path):
            if not path.endswith(LIGHTNING_SUFFIX):
                path = os.path.splitext(path)[0] + _NEMO_SUFFIX
                model.save_to(path)
                return path
            options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
            trainer = import_module("lightning.pytorch").Trainer(accelerator="cpu", devices=1, **options)
            trainer.strategy.connect(model)
            trainer.save_checkpoint(path, weights_only=True)
            return path

    def make_runnable(self, model: Any) -> ModelSpec:
        """Return the model with a waveform."""
        return make_runnable(model, type(model).__name__, self._options)


def _is_archive(path: str) -> bool:
    return os.path.isfile(path) and not is_checkpoint(path) and is_from_nemo(path)


def load_state(model: torch.nn.Module, path: str, fills_all: bool = False) -> torch.nn.Module:
    """Load a checkpoint with the model's own load_state_dict; nothing in the file is executed.

    Names that only one side has are not refused here: comparing the state dict shows them. Tensors are overwritten
    first, those in the checkpoint or all: one that is not loaded must not be right by luck, as a bias of zeros is.
    """
    stored = open_source(path).tensors
    own_state = {name: value for name, value in model.state_dict(keep_vars=True).items() if torch.is_tensor(value)}
    pairs, unused = pair_names(own_state, stored)
    state = {name: read_tensor(tensor).detach() for name, tensor in pairs.items()}
    state |= {name: read_tensor(stored[name]).detach() for name in unused}
    for name in own_state if fills_all else pairs:
        _overwrite(own_state[name])
    with user_code(f"{type(model).__name__}.load_state_dict()", type(model).load_state_dict):
        result = model.load_state_dict(state, strict=False)
    # a model may translate names by itself, so only what it says tells whether anything was loaded
    if not pairs and set(own_state) <= set(getattr(result, "missing_keys", ())):
        raise CheckpointError(f"{path} does not fit the model: {compare_first_names(own_state, stored)}")
    untouched = [name for name in pairs if _is_overwritten(own_state[name]) and not _is_overwritten(state[name])]
    if untouched:
        names = listed(sorted(untouched, key=natural_key))
        left_out = plural(len(untouched), "tensor")
        raise CheckpointError(
            f"{type(model).__name__}.load_state_dict() raised no error but left out {left_out} ({names})"
        )
    return model


def _overwrite(tensor: torch.Tensor) -> None:
    if tensor.is_quantized or tensor.is_meta:
        return
    with torch.no_grad():
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.fill_(float("nan"))
        else:
            tensor.bitwise_not_()


def _is_overwritten(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 0 and tensor.is_floating_point() and bool(tensor.isnan().all())


def save_state(model: torch.nn.Module, path: str) -> str:
    """Save the state dict as torch.save writes it: plain, or for Lightning's suffix as Lightning lays it out."""
    state = model.state_dict()
    if path.endswith(LIGHTNING_SUFFIX):
        torch.save({"state_dict": state}, path)
        return path
    path = str(Path(path).with_suffix(".pt"))
    torch.save(state, path)
    return path
