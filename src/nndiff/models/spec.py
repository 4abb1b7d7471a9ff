"""What a MODEL name stands for: a built model, with the inputs and the loss that come with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class BuildOptions:
    """What the user asks of a model that is about to be built."""

    seed: int = 42
    config: str | None = None  # a file that overrides the model's own config
    batch_size: int | None = None
    seq_len: int | None = None
    variant: str | None = None  # one of the `variants` of a Python file


@dataclass(frozen=True)
class ModelSpec:
    """A model that is built, with the inputs and the loss that come with it."""

    model: torch.nn.Module
    label: str
    inputs: Any = None  # as nndiff.record takes them; None if the model has none
    loss: Callable[..., Any] | None = None
    variants: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    checkpoint: str = ""  # the file its weights were loaded from, if not its own
