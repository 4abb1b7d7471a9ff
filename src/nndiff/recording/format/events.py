"""Events of a recording: one per tensor, per plain value and per call of a module."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from nndiff.tensors import Link, Phase, Shape, Site, Slot, Stats

SLOTS: dict[Slot, str] = {
    Slot.MODEL_INPUT: "an input of the model, always kept in full",
    Slot.INPUT: "an input of a module, taken before the module ran",
    Slot.OUTPUT: "an output of a module",
    Slot.GRAD_OUTPUT: "the gradient of the loss at an output of a module",
    Slot.GRAD_INPUT: "the gradient of the loss at an input of a module; nndiff record does not record it",
    Slot.LOSS: "the loss",
    Slot.PARAM: "a parameter before the run",
    Slot.PARAM_GRAD: "the gradient of a parameter after the backward pass",
    Slot.MODEL_INPUT_GRAD: "the gradient of an input of the model that requires one",
    Slot.BUFFER: "a buffer after the run, if the run changed it",
    Slot.BUFFER_BEFORE: "the same buffer before the run",
    Slot.RECOMPUTE: "an output computed again during the backward pass (activation checkpointing)",
}

# How a call got an input. same: the very tensor of an earlier event; view: another view of its memory, unchanged
# since; equal: other memory, the same bytes; own: recorded as an event of slot input; value: not a tensor;
# none: not recorded.
LINKS = ("same", "view", "equal", "own", "value", "none")


class Content(str, Enum):
    """Tell what a value event holds."""

    PLAIN = "plain"  # all of it is in the event: None, a number, a short text
    EMPTY = "empty"  # a container without items
    ABSENT = "absent"  # the run left nothing at this site; the note says why
    UNREAD = "unread"  # something that the recording does not hold; the note says why


@dataclass(frozen=True, slots=True)
class TensorEvent:
    """Hold one tensor at one site: where it was taken, what is known of it, where its bytes are."""

    order: int
    site: Site
    shape: Shape
    dtype: str
    keep: str
    digest: str
    stats: Stats | None = None
    shard: str | None = None
    key: str | None = None  # in the shard, if the tensor is kept in full
    sketch: str | None = None  # key of the sketch in the shard
    sketch_digest: str | None = None  # of the sketch's values, unless they are all of the tensor
    same: int | None = None  # the first event with these very bytes
    forward: int | None = None  # for gradients and recomputed outputs: the event of the forward pass
    over: int | None = None  # the earlier event whose memory was overwritten in place by this one
    phase: Phase = "forward"


@dataclass(frozen=True, slots=True)
class ValueEvent:
    """Hold something that is not a tensor (None, a number, text), or say what could not be kept."""

    order: int
    site: Site
    type: str
    value: Any = None
    note: str = ""
    content: Content = Content.PLAIN
    phase: Phase = "forward"

    @property
    def is_plain(self) -> bool:
        """Return True if the event holds all of the value."""
        return self.content is Content.PLAIN


@dataclass(frozen=True, slots=True)
class CallEvent:
    """Hold one call of a module; whatever ran inside it lies between `entered` and `order`."""

    order: int
    entered: int
    module: str
    call: int
    cls: str
    parent: int | None  # `entered` of the enclosing call
    inputs: tuple[Link, ...] = ()
    outputs: tuple[int, ...] = ()
    phase: Phase = "forward"


Event = TensorEvent | ValueEvent | CallEvent
