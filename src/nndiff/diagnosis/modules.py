"""What recordings say about the modules of their models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Meta = Mapping[str, Any]
Module = Mapping[str, Any]
Trees = tuple[Mapping[str, Module], Mapping[str, Module]]  # of reference and candidate, modules by path

# Attributes by which modules with weights give their sizes; some recordings list no parameters.
_SIZES = ("in_features", "in_channels", "num_embeddings", "normalized_shape", "num_features", "input_size", "embed_dim")
# torch's own modules that behave differently in train mode
_MODE_DEPENDENT = ("dropout", "batchnorm", "instancenorm", "attention", "transformer", "rnn", "lstm", "gru", "rrelu")


def read_module_tree(meta: Meta) -> dict[str, Module]:
    """Return the modules of a recording by their path."""
    modules = meta.get("modules")
    if not isinstance(modules, list):
        return {}
    return {str(module.get("name")): module for module in modules if isinstance(module, Mapping)}


def has_weights(module: Module) -> bool:
    """Return True if a module holds parameters itself."""
    attributes = module.get("attributes")
    sized = isinstance(attributes, Mapping) and any(size in attributes for size in _SIZES)
    return bool(module.get("parameters")) or sized


def get_class(module: Module) -> str:
    """Return the class of a module, without the package it is in."""
    return str(module.get("class", ""))


def get_source_line(module: Module) -> str:
    """Return file:line of the class of a module, "" where nobody knows."""
    return f"{module['file']}:{module.get('line', 0)}" if module.get("file") else ""


def is_from_torch(module: Module) -> bool:
    """Return True for the modules of torch.nn."""
    return str(module.get("type", "")).startswith("torch.nn.")


def depends_on_mode(module: Module) -> bool:
    """Return True if a module behaves differently in train mode, by the name of its class."""
    name = get_class(module).lower()
    return any(word in name for word in _MODE_DEPENDENT)


def read_never_called(meta: Meta) -> frozenset[str]:
    """Return the modules that a run never called."""
    named = meta.get("never_called")
    return frozenset(map(str, named)) if isinstance(named, list) else frozenset()


def was_run_by_nndiff(meta: Meta) -> bool:
    """Return True if nndiff ran the model itself, so that it can run it again with other options."""
    return meta.get("producer") == "nndiff.record"


def get_settings(module: Module) -> Mapping[str, Any]:
    """Return the plain attributes of a module."""
    attributes = module.get("attributes")
    return attributes if isinstance(attributes, Mapping) else {}
