"""Description of a model: its modules, their classes, plain attributes and source lines."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections import Counter
from functools import cache
from typing import Any

import torch

from nndiff.recording.environment.modes import is_training

_IGNORED_ATTRIBUTES = frozenset(("training", "dump_patches", "call_super_init"))
_MOST_ITEMS = 32  # of a tuple
_MOST_CHARACTERS = 320  # of a text


def describe_modules(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Return path, class, source line, mode, parameters and plain attributes of every module."""
    descriptions = []
    for name, module in model.named_modules():
        cls = type(module)
        # a model's file goes by its own name, not by the one it was loaded under
        home = getattr(sys.modules.get(cls.__module__), "__nndiff_name__", cls.__module__)
        description: dict[str, Any] = {"name": name, "class": cls.__name__, "type": f"{home}.{cls.__qualname__}"}
        file, line = find_class_source(cls)  # type: ignore[arg-type]  # classes are hashable
        if file:
            description |= {"file": file, "line": line}
        description["training"] = is_training(module)
        parameters = [parameter_name for parameter_name, _ in module.named_parameters(recurse=False)]
        if parameters:
            description["parameters"] = parameters
        attributes = collect_plain_attributes(module)
        if attributes:
            description["attributes"] = attributes
        descriptions.append(description)
    return descriptions


def collect_plain_attributes(holder: Any) -> dict[str, Any]:
    """Return the plain public attributes of an object: numbers, texts, tuples of them, names of functions."""
    attributes: dict[str, Any] = {}
    for name, value in vars(holder).items():
        if name.startswith("_") or name in _IGNORED_ATTRIBUTES:
            continue
        if _is_plain(value):
            attributes[name] = value
        elif isinstance(value, (tuple, list)):
            if len(value) <= _MOST_ITEMS and all(_is_plain(item) for item in value):
                attributes[name] = list(value)
        elif isinstance(value, torch.dtype):
            attributes[name] = str(value).removeprefix("torch.")
        elif callable(value) and hasattr(value, "__qualname__") and not isinstance(value, (type, torch.nn.Module)):
            attributes[name] = f"{getattr(value, '__module__', '') or ''}.{value.__qualname__}".lstrip(".")
    return attributes


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _MOST_CHARACTERS and not os.path.isabs(value)  # a recording can be moved
    return value is None or type(value) in (bool, int, float)


@cache
def find_class_source(cls: type) -> tuple[str, int]:
    """Return the file of a class, relative to the root of its package, and its first line."""
    source = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if not source:
        return "", 0
    parts = source.replace(os.sep, "/").split("/")
    depth = cls.__module__.count(".") + (2 if parts[-1] == "__init__.py" else 1)
    pattern = re.compile(rf"\s*class\s+{re.escape(cls.__name__)}\b")
    first_line = 0
    for number, text in enumerate(linecache.getlines(source), 1):
        if pattern.match(text):
            first_line = number
            break
    return "/".join(parts[-depth:]), first_line


def find_shared_modules(model: torch.nn.Module) -> dict[str, list[str]]:
    """Return the modules with several names: {first name: the other names}."""
    first_names: dict[int, str] = {}
    shared: dict[str, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if id(module) in first_names:
            shared.setdefault(first_names[id(module)], []).append(name)
        else:
            first_names[id(module)] = name
    return shared


def summarize_model(model: torch.nn.Module) -> dict[str, Any]:
    """Return the size of a model, its dtypes, devices and config."""
    parameters = list(model.parameters())
    config = getattr(model, "config", None)
    return {
        "class": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in parameters if not torch.nn.parameter.is_lazy(parameter)),
        "dtypes": dict(Counter(str(parameter.dtype).removeprefix("torch.") for parameter in parameters)),
        "devices": dict(Counter(parameter.device.type for parameter in parameters)),
        "config": collect_plain_attributes(config) if hasattr(config, "__dict__") else {},
    }
