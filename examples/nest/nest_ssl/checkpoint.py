"""Checkpoints: NeMo's archives and Lightning's files, read without executing what they hold."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from collections import OrderedDict
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from nest_ssl.config import Config, ConfigError, parse_config, read_config
from nest_ssl.model import Nest

CONFIG, WEIGHTS = "model_config.yaml", "model_weights.ckpt"
TARGET = "nemo.collections.asr.models.ssl_models.EncDecDenoiseMaskedTokenPredModel"
LIGHTNING_VERSION = "2.4.0"  # whose layout of checkpoints is written
_DEEPEST = 32  # levels in a config


class CheckpointError(ValueError):
    """A file that is no checkpoint of NEST."""


def load(path: str | Path, config: str | Path | None = None) -> Nest:
    """Return the model of a .nemo archive or a Lightning checkpoint; `config` is a file that replaces its own."""
    if tarfile.is_tarfile(path):
        own_config, state = read_archive(path)
    else:
        own_config, state = read_lightning(path)
    if config is None and not own_config:
        raise ConfigError(f"{path} holds no config of a model: give one")
    model = Nest(read_config(config) if config is not None else own_config)
    check_fit(path, state, model.state_dict())
    model.load_state_dict(state)
    return model


def check_fit(path: str | Path, state: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Raise CheckpointError unless a checkpoint holds what the model of the config has, in the same shapes."""
    missing = [name for name in expected if name not in state]
    unexpected = [name for name in state if name not in expected]
    shapes = []
    for name, tensor in expected.items():
        if name in state and state[name].shape != tensor.shape:
            shapes.append(f"{name} {list(state[name].shape)} for {list(tensor.shape)}")
    troubles = []
    for what, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes)):
        if names:
            troubles.append(f"{len(names)} {what} ({names[0]}{', ...' if len(names) > 1 else ''})")
    if troubles:
        raise CheckpointError(f"{path} does not fit the config; tensors: {'; '.join(troubles)}")


def read_archive(path: str | Path) -> tuple[Config, dict[str, Tensor]]:
    """Return the config and the weights of a .nemo archive: a tar, plain or compressed."""
    contents = {}
    with tarfile.open(path, "r:*") as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            name = os.path.basename(member.name)
            if file is not None and name in (CONFIG, WEIGHTS):
                contents[name] = file.read()
    for name in (CONFIG, WEIGHTS):
        if name not in contents:
            raise CheckpointError(f"{path} is not a .nemo archive: there is no {name} in it")
    state = torch.load(io.BytesIO(contents[WEIGHTS]), map_location="cpu", weights_only=True)
    return parse_config(contents[CONFIG].decode()), state


def read_lightning(path: str | Path) -> tuple[Config, dict[str, Tensor]]:
    """Return the config and the weights of a Lightning checkpoint; the config is empty if there is none."""
    checkpoint = torch.load(path, map_location="cpu", weights_only=False, pickle_module=_InertPickle)
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise CheckpointError(f"{path} is not a Lightning checkpoint: there is no state_dict in it")
    hyper_parameters = _to_plain(checkpoint.get("hyper_parameters"))
    config = hyper_parameters.get("cfg", hyper_parameters) if isinstance(hyper_parameters, dict) else {}
    return config if "encoder" in config else {}, checkpoint["state_dict"]


class _Inert:
    """Stand for an object of a class that is not needed; keeps its state, runs nothing."""

    state: Any = None

    def __new__(cls, *args: object, **kwargs: object) -> _Inert:
        return super().__new__(cls)

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def append(self, item: object) -> None:
        """Take an item of a list and drop it."""

    extend = append


class _InertPickle:
    """What torch.load needs of the module pickle, with an unpickler that knows tensors and plain containers."""

    class Unpickler(pickle.Unpickler):
        """Read tensors as they are and any other object as an inert one."""

        def find_class(self, module: str, name: str) -> Any:
            """Return a class that a checkpoint names, if it is harmless."""
            if (module, name) == ("collections", "OrderedDict"):
                return OrderedDict
            if module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_parameter"):
                return getattr(torch._utils, name)
            if module == "torch" and name.endswith("Storage"):
                return getattr(torch, name)
            return _Inert

    @staticmethod
    def load(file: IO[bytes], **options: Any) -> Any:
        """Return what a plain pickle holds."""
        return _InertPickle.Unpickler(file, **options).load()


def _to_plain(value: Any, depth: int = 0) -> Any:
    """Return the values that omegaconf's containers and nodes hold."""
    if depth > _DEEPEST:
        raise ConfigError("the config is nested too deeply")
    if isinstance(value, _Inert):
        state = value.state if isinstance(value.state, dict) else {}
        return _to_plain(state.get("_content", state.get("_val")), depth + 1)
    if isinstance(value, dict):
        return {name: _to_plain(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list):
        return [_to_plain(inner, depth + 1) for inner in value]
    return value


def save(model: Nest, path: str | Path) -> None:
    """Write a .nemo archive that NeMo restores, or for the suffix .ckpt a file laid out as Lightning's."""
    config = {**model.config, "target": TARGET}
    state = model.state_dict()
    whole = io.BytesIO()
    if str(path).endswith(".ckpt"):
        lightning = {"pytorch-lightning_version": LIGHTNING_VERSION, "epoch": 0, "global_step": 0}
        torch.save({**lightning, "state_dict": state, "hyper_parameters": {"cfg": config}}, whole)
    else:
        import yaml

        weights = io.BytesIO()
        torch.save(state, weights)
        with tarfile.open(fileobj=whole, mode="w") as archive:
            for name, content in (
                (CONFIG, yaml.safe_dump(config, sort_keys=False).encode()),
                (WEIGHTS, weights.getvalue()),
            ):
                member = tarfile.TarInfo(f"./{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    unfinished = Path(f"{path}.unfinished")  # a file that is complete or absent
    unfinished.write_bytes(whole.getvalue())
    unfinished.replace(path)
