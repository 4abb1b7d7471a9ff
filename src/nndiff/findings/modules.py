"""What recordings say of the modules of their models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Meta = Mapping[str, Any]
Module = Mapping[str, Any]

# What modules with weights say of their sizes; recordings of other makers, and older ones, tell no more.
_SIZES = ("in_features", "in_channels", "num_embeddings", "normalized_shape", "num_features", "input_size", "embed_dim")


def module_tree(meta: Meta) -> dict[str, Module]:
    """Return the modules of a recording by their path."""
    modules = meta.get("modules")
    if not isinstance(modules, list):
        return {}
    return {str(each.get("name")): each for each in modules if isinstance(each, Mapping)}


def has_weights(module: Module) -> bool:
    """Tell whether a module holds parameters itself."""
    held = module.get("attributes")
    sized = isinstance(held, Mapping) and any(size in held for size in _SIZES)
    return bool(module.get("parameters")) or sized
