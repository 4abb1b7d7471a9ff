"""What a recording holds: one event per tensor, per plain value and per call of a module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nndiff.tensors import Link, Phase, Shape, Site, Slot, Stats

# What slots stand for.
SLOTS = {
    Slot.MODEL_INPUT: "what the model was fed, always kept in full",
    Slot.INPUT: "what a module was called with, taken before it ran",
    Slot.OUTPUT: "what a module returned",
    Slot.GRAD_OUTPUT: "the gradient of the loss at a module's output",
    Slot.GRAD_INPUT: "the gradient of the loss at what a module was given; other writers than nndiff record have it",
    Slot.LOSS: "the loss",
    Slot.PARAM: "a parameter before the run",
    Slot.PARAM_GRAD: "the gradient of a parameter after the backward pass",
    Slot.MODEL_INPUT_GRAD: "the gradient of an input that asks for one",
    Slot.BUFFER: "a buffer after the run, where the run changed it",
    Slot.BUFFER_BEFORE: "the same buffer before the run",
    Slot.RECOMPUTE: "an output made again during the backward pass (activation checkpointing)",
}


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
