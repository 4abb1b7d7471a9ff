"""Configs of NeMo: read from YAML, and turned into modules section by section."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

Config = dict[str, Any]
ModuleT = TypeVar("ModuleT", bound=nn.Module)
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


class ConfigError(ValueError):
    """A config that this port cannot build."""


def read_config(path: str | Path) -> Config:
    """Return the config of a model from a file: the whole of it, or its `model` section."""
    return parse_config(Path(path).read_text())


def parse_config(text: str) -> Config:
    """Return the config of a model from YAML, with references like ${model.encoder.d_model} resolved."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ConfigError("reading a config needs PyYAML: pip install pyyaml") from error
    root = yaml.safe_load(text)
    if not isinstance(root, dict):
        raise ConfigError(f"a config has sections, and this one is a {type(root).__name__}")
    config = resolve(root.get("model", root), root)
    return {name: section for name, section in config.items() if name not in ("train_ds", "validation_ds", "test_ds")}


def resolve(value: Any, root: Config) -> Any:
    """Return a value of a config with its references replaced by what they refer to."""
    if isinstance(value, dict):
        return {name: resolve(inner, root) for name, inner in value.items()}
    if isinstance(value, list):
        return [resolve(inner, root) for inner in value]
    reference = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if reference is None:
        return value
    target: Any = root
    for name in reference.group(1).split("."):
        if not isinstance(target, dict) or name not in target:
            raise ConfigError(f"{value} refers to {name!r}, which the config does not have")
        target = target[name]
    return resolve(target, root)


def build_module(module_class: type[ModuleT], section: Mapping[str, Any]) -> ModuleT:
    """Return a module built from its section of a config.

    The options of NeMo are the arguments of the class, or stand in its `ONLY` with the values that the port has.
    """
    target = section.get("_target_", module_class.__name__)
    if target.rpartition(".")[2] != module_class.__name__:
        raise ConfigError(f"the config asks for {target}; the port has {module_class.__name__}")
    arguments = inspect.signature(module_class).parameters
    only: Mapping[str, tuple[Any, ...]] = getattr(module_class, "ONLY", {})
    options = {}
    for name, value in section.items():
        if name in arguments:
            options[name] = value
        elif name != "_target_" and (name not in only or value not in only[name]):
            choices = f"it must be {' or '.join(map(repr, only[name]))}" if name in only else "it is not known"
            raise ConfigError(f"{module_class.__name__}: {name} is {value!r}, and in the port {choices}")
    return module_class(**options)
