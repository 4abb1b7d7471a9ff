"""What a model is: its tree, classes, plain attributes and where its code stands."""

from __future__ import annotations

import linecache
import os
import platform
import re
import sys
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import torch

import nndiff
from nndiff.recording.capture.state import is_training

_OWN = frozenset(("training", "dump_patches", "call_super_init"))
_LONGEST = 32  # items of a tuple, and characters times ten of a text


def module_tree(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Return every module: path, class, where the class stands, its plain attributes."""
    return [_module(name, module) for name, module in model.named_modules()]


def _module(name: str, module: torch.nn.Module) -> dict[str, Any]:
    cls = type(module)
    found: dict[str, Any] = {"name": name, "class": cls.__name__, "type": f"{_home(cls)}.{cls.__qualname__}"}
    file, line = class_place(cls)  # type: ignore[arg-type]  # classes are hashable
    if file:
        found |= {"file": file, "line": line}
    found["training"] = is_training(module)
    lists = {"parameters": _own_parameters(module), "attributes": attributes(module)}
    return {**found, **{key: held for key, held in lists.items() if held}}


def _own_parameters(module: torch.nn.Module) -> list[str]:
    """Return the names of the parameters a module holds itself, not in a module inside it."""
    return [name for name, _ in module.named_parameters(recurse=False)]


def _home(cls: type) -> str:
    """Return the module of a class; a model's file goes by its own name, not by the one it was loaded under."""
    return str(getattr(sys.modules.get(cls.__module__), "__nndiff_name__", cls.__module__))


def attributes(module: Any) -> dict[str, Any]:
    """Return the plain attributes of an object: numbers, texts, tuples of them, names of functions."""
    found: dict[str, Any] = {}
    for name, value in vars(module).items():
        if name.startswith("_") or name in _OWN:
            continue
        if _is_plain(value):
            found[name] = value
        elif isinstance(value, (tuple, list)) and len(value) <= _LONGEST and all(_is_plain(each) for each in value):
            found[name] = list(value)
        elif isinstance(value, torch.dtype):
            found[name] = str(value).removeprefix("torch.")
        elif callable(value) and hasattr(value, "__qualname__") and not isinstance(value, (type, torch.nn.Module)):
            found[name] = f"{getattr(value, '__module__', '') or ''}.{value.__qualname__}".lstrip(".")
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= 10 * _LONGEST and not os.path.isabs(value)  # a recording knows nothing of its machine
    return value is None or type(value) in (bool, int, float)


@cache
def class_place(cls: type) -> tuple[str, int]:
    """Return the file of a class, from its package's root on, and the line it begins at."""
    source = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if not source:
        return "", 0
    parts = source.replace(os.sep, "/").split("/")
    depth = cls.__module__.count(".") + (2 if parts[-1] == "__init__.py" else 1)
    pattern = re.compile(rf"\s*class\s+{re.escape(cls.__name__)}\b")
    lines = linecache.getlines(source)
    line = next((number for number, text in enumerate(lines, 1) if pattern.match(text)), 0)
    return "/".join(parts[-depth:]), line


def shared_modules(model: torch.nn.Module) -> dict[str, list[str]]:
    """Return the modules that go by several names: {first name: the others}."""
    first: dict[int, str] = {}
    shared: dict[str, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if id(module) in first:
            shared.setdefault(first[id(module)], []).append(name)
        else:
            first[id(module)] = name
    return shared


def environment() -> dict[str, Any]:
    """Return the versions that decide how numbers come out; no paths, no host names."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    for package in ("transformers", "lightning", "nemo"):
        version = getattr(sys.modules.get(package), "__version__", None)
        if isinstance(version, str):
            versions[package] = version
    return {
        "versions": {"nndiff": nndiff.__version__, **versions},
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability() if hasattr(torch.backends, "cpu") else "",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
    }


def summary(model: torch.nn.Module) -> dict[str, Any]:
    """Return the size of a model, its element types and its devices."""
    parameters = list(model.parameters())
    config = getattr(model, "config", None)
    return {
        "class": type(model).__name__,
        "parameters": sum(each.numel() for each in parameters if not torch.nn.parameter.is_lazy(each)),
        "dtypes": dict(Counter(str(each.dtype).removeprefix("torch.") for each in parameters)),
        "devices": dict(Counter(each.device.type for each in parameters)),
        "config": attributes(config) if hasattr(config, "__dict__") else {},
    }
