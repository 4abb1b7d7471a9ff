"""What a recording holds: one event per tensor, per plain value and per call of a module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from nndiff.tensors import Shape

Phase = Literal["forward", "backward", "recompute"]

ROOT = "(model)"

# What slots stand for.
SLOTS = {
    "model_input": "what the model was fed, always kept in full",
    "input": "what a module was called with, taken before it ran",
    "output": "what a module returned",
    "grad_output": "the gradient of the loss at a module's output",
    "grad_input": "the gradient of the loss at what a module was given; other writers than nndiff record have it",
    "loss": "the loss",
    "param": "a parameter before the run",
    "param_grad": "the gradient of a parameter after the backward pass",
    "model_input_grad": "the gradient of an input that asks for one",
    "buffer": "a buffer after the run, where the run changed it",
    "buffer_before": "the same buffer before the run",
    "recompute": "an output made again during the backward pass (activation checkpointing)",
}


_MEANT_OTHERWISE = str.maketrans({"%": "%25", ":": "%3A", "@": "%40"})


def _readable_in_one_way(owner: str) -> str:
    """Return a path without what has a meaning in names: a module may be called `relu@2`, or as the model is."""
    if owner.isidentifier() or not ("%" in owner or ":" in owner or "@" in owner or owner == ROOT):
        return owner
    return owner.translate(_MEANT_OTHERWISE) if owner != ROOT else ROOT.replace("(", "%28")


@dataclass(frozen=True, slots=True)
class Site:
    """Say where a tensor was taken."""

    module: str  # path of the module, "" for the model itself
    slot: str
    call: int = 0
    path: str = ""  # place inside a tuple, list, dict or dataclass, joined by dots
    tensor: str = ""  # name of the parameter or buffer in its module
    cls: str = ""  # class of the module
    nth: int = 0  # which time, where one site is reached more than once

    @property
    def name(self) -> str:
        """Return the name its tensor goes by: `encoder.layers.0.ffn@2:output.0`."""
        owner = f"{self.module}.{self.tensor}" if self.module and self.tensor else self.module or self.tensor
        owner = _readable_in_one_way(owner) if owner else ROOT
        call = f"@{self.call}" if self.call else ""
        path = f".{self.path}" if self.path else ""
        return f"{owner}{call}:{self.slot}{path}" + (f"#{self.nth}" if self.nth else "")


@dataclass(frozen=True, slots=True)
class Stats:
    """Describe one tensor in float64; mean to l2 over the finite elements, complex ones by modulus."""

    count: int
    nonfinite: int
    mean: float
    std: float  # population
    min: float
    max: float
    abs_max: float
    l2: float


@dataclass(frozen=True, slots=True)
class Link:
    """Say what one input of a call is: an earlier event, a plain value, or nothing that was recorded."""

    path: str
    how: str  # same, view, equal, own, value, none
    event: int | None = None
    value: Any = None
    type: str = ""


# same: the very tensor of an earlier event; view: another view of its memory, unchanged since; equal: other
# memory, the same bytes; own: recorded as an event of slot input; value: not a tensor; none: not recorded.
LINKS = ("same", "view", "equal", "own", "value", "none")


@dataclass(frozen=True, slots=True)
class TensorEvent:
    """Hold one tensor at one site: where, what it looked like, where its bytes are."""

    order: int
    site: Site
    shape: Shape
    dtype: str
    keep: str
    digest: str
    stats: Stats | None = None
    shard: str | None = None
    key: str | None = None  # in the shard, where the tensor is kept in full
    sketch: str | None = None  # key of the sketch in the shard
    sketch_digest: str | None = None  # of its values, where they are not the whole tensor
    same: int | None = None  # the first event with these very bytes
    forward: int | None = None  # for gradients and recomputed outputs: the event of the forward pass
    over: int | None = None  # the earlier event whose memory was written to, in place, and is this one's now
    phase: Phase = "forward"


@dataclass(frozen=True, slots=True)
class ValueEvent:
    """Hold something that is no tensor (None, a number, text) or could not be kept, so that it is not lost."""

    order: int
    site: Site
    type: str
    value: Any = None
    note: str = ""
    phase: Phase = "forward"


@dataclass(frozen=True, slots=True)
class CallEvent:
    """Hold one call of a module: its inputs, its outputs and whatever ran inside, between entered and order."""

    order: int
    entered: int
    module: str
    call: int
    cls: str
    parent: int | None  # `entered` of the call it happened in
    inputs: tuple[Link, ...] = ()
    outputs: tuple[int, ...] = ()
    phase: Phase = "forward"


Event = TensorEvent | ValueEvent | CallEvent
