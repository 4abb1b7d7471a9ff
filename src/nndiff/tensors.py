"""Named tensors, known before they are read: where each was taken, what is known of it, where its bytes are."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DType
from nndiff.files import Window

Shape = tuple[int, ...]

MOST_AXES = 64 if int(np.__version__.split(".")[0]) >= 2 else 32  # what NumPy can hold
_GAP = 1 << 14  # bytes: reading so many more costs less than another call
_SCRATCH = 1 << 20  # bytes: what is read at once of a view stays in the cache until it is sorted
_KEPT = 16  # unpacked tensors at once: both sides of a pair and then some


class Data(Protocol):
    """Reach the elements of one tensor, in C order whatever their order in the file."""

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the raw elements from start to stop as a flat array."""


@dataclass(frozen=True)
class FileData:
    """Hold elements that lie in C order in a file: read piece by piece, or mapped so, never whole."""

    window: Window
    storage: np.dtype[Any]
    swapped: bool = False  # stored in the other byte order

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the raw elements from start to stop as a flat array."""
        out = np.empty(stop - start, self.storage)
        if out.nbytes:
            self.window.read_into(start * self.storage.itemsize, out.view(np.uint8).data)
        return out.byteswap(inplace=True) if self.swapped else out


@dataclass(frozen=True)
class StridedFileData:
    """Hold a strided view of a storage in a file: read in runs, never whole."""

    window: Window  # the whole storage
    storage: np.dtype[Any]
    offset: int  # in elements
    shape: Shape
    strides: tuple[int, ...]  # in elements
    swapped: bool = False

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the raw elements from start to stop as a flat array."""
        out = np.empty(stop - start, self.storage)
        view_shape, view_strides = self.shape or (1,), self.strides or (1,)
        done = 0
        for index, first, last in _split_range(view_shape, start, stop):
            offset = self.offset
            for place, stride in zip((*index, first), view_strides, strict=False):
                offset += place * stride
            shape = (last - first, *view_shape[len(index) + 1 :])
            strides = list(view_strides[len(index) :])
            for axis, size in enumerate(shape):
                if size == 1:  # it may claim any stride, even one that no machine word holds
                    strides[axis] = 0
            farthest_first = sorted(range(len(shape)), key=strides.__getitem__, reverse=True)
            part = out[done : done + math.prod(shape)].reshape(shape)
            self._fill_box(part.transpose(farthest_first), offset, sorted(strides, reverse=True))
            done += part.size
        return out.byteswap(inplace=True) if self.swapped else out

    def _fill_box(self, out: NDArray[Any], offset: int, strides: list[int]) -> None:
        """Read a part of the view whose axes are in the order of the file."""
        item = self.storage.itemsize
        run, outer = 1, out.ndim  # the inner axes lie close together: one run of the file holds them
        while outer and (strides[outer - 1] - run) * item <= _GAP:
            outer -= 1
            run += (out.shape[outer] - 1) * strides[outer]
        count = math.prod(out.shape[:outer])
        if count * run * item > _SCRATCH and out.size > 1:
            axis = next(axis for axis, size in enumerate(out.shape) if size > 1)
            halves = np.array_split(out, 2, axis)
            self._fill_box(halves[0], offset, strides)
            self._fill_box(halves[1], offset + halves[0].shape[axis] * strides[axis], strides)
            return
        starts = np.array([offset])
        for size, stride in zip(out.shape[:outer], strides, strict=False):
            starts = np.add.outer(starts, stride * np.arange(size)).reshape(-1)
        runs = np.empty((count, run * item), np.uint8)
        self.window.read_runs((starts * item).tolist(), [row.data for row in runs])
        packed = [run * stride for stride in contiguous_strides(out.shape[:outer])]
        byte_strides = [stride * item for stride in (*packed, *strides[outer:])]
        out[...] = np.ndarray(out.shape, self.storage, runs.data, strides=byte_strides)


@dataclass(frozen=True)
class MemoryData:
    """Hold elements that are in memory already, raw, of any strides."""

    array: NDArray[Any]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the raw elements from start to stop as a flat array."""
        return take(self.array, start, stop)


_made: OrderedDict[int, Data] = OrderedDict()
_lock = threading.RLock()


class LateData:
    """Hold elements that must first be made (unpacked, put together), when they are first read.

    Only the last few are kept: each may hold an open file and disk, and an archive may have
    thousands. What was let go is made again.
    """

    def __init__(self, make: Callable[[], Data]) -> None:
        self._make = make

    def settle(self) -> Data:
        """Return the data behind."""
        with _lock:
            found = _made.get(id(self))
        if found is None:
            found = self._make()
        with _lock:
            _made[id(self)] = found
            _made.move_to_end(id(self))
            while len(_made) > _KEPT:
                _made.popitem(last=False)
        return found

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the raw elements from start to stop as a flat array."""
        return self.settle().read(start, stop)

    def __del__(self) -> None:
        if _made is not None:  # None while the interpreter shuts down
            _made.pop(id(self), None)


def settled(data: Data) -> Data:
    """Return what is behind elements that must first be made."""
    while isinstance(data, LateData):
        data = data.settle()
    return data


class NoData:
    """Stand for elements that were never kept: a tensor of the meta device, a recording of digests."""

    def __init__(self, why: str) -> None:
        self.why = why

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Refuse: callers ask `TensorRef.missing` first."""
        raise LookupError(self.why)


class Slot(str, Enum):
    """Say what a tensor is at the place where it was taken."""

    STORED = "stored"  # a tensor of a file: nothing was run
    MODEL_INPUT = "model_input"
    INPUT = "input"
    OUTPUT = "output"
    GRAD_OUTPUT = "grad_output"
    GRAD_INPUT = "grad_input"
    LOSS = "loss"
    PARAM = "param"
    PARAM_GRAD = "param_grad"
    MODEL_INPUT_GRAD = "model_input_grad"
    BUFFER = "buffer"
    BUFFER_BEFORE = "buffer_before"
    RECOMPUTE = "recompute"

    def __str__(self) -> str:
        return str(self.value)

    @property
    def is_gradient(self) -> bool:
        """Return True for gradients, whatever they are the gradient of."""
        return self in (Slot.GRAD_OUTPUT, Slot.GRAD_INPUT, Slot.PARAM_GRAD, Slot.MODEL_INPUT_GRAD)

    @property
    def is_parameter(self) -> bool:
        """Return True for parameters and their gradients."""
        return self in (Slot.PARAM, Slot.PARAM_GRAD)

    @property
    def is_buffer(self) -> bool:
        """Return True for buffers, before or after the run."""
        return self in (Slot.BUFFER, Slot.BUFFER_BEFORE)

    @property
    def is_activation(self) -> bool:
        """Return True for what flows through a call: its inputs and outputs, and the gradients there."""
        return self in (Slot.INPUT, Slot.OUTPUT, Slot.GRAD_OUTPUT, Slot.GRAD_INPUT, Slot.RECOMPUTE)


MODEL = "(model)"  # the name of the model itself, where a module would have its path
_RESERVED = str.maketrans({"%": "%25", ":": "%3A", "@": "%40"})


def _escape_owner(owner: str) -> str:
    """Return a path without the characters that have a meaning in names: a module may be called `relu@2`."""
    if owner.isidentifier() or not ("%" in owner or ":" in owner or "@" in owner or owner == MODEL):
        return owner
    return owner.translate(_RESERVED) if owner != MODEL else MODEL.replace("(", "%28")


@dataclass(frozen=True, slots=True)
class Site:
    """Say where a tensor was taken."""

    module: str  # path of the module, "" for the model itself
    slot: Slot
    call: int = 0
    path: str = ""  # place inside a tuple, list, dict or dataclass, joined by dots
    tensor: str = ""  # name of the parameter or buffer in its module
    cls: str = ""  # class of the module
    nth: int = 0  # which time, where one site is reached more than once

    @property
    def name(self) -> str:
        """Return the name its tensor goes by: `encoder.layers.0.ffn@2:output.0`."""
        owner = f"{self.module}.{self.tensor}" if self.module and self.tensor else self.module or self.tensor
        owner = _escape_owner(owner) if owner else MODEL
        call = f"@{self.call}" if self.call else ""
        path = f".{self.path}" if self.path else ""
        return f"{owner}{call}:{self.slot.value}{path}" + (f"#{self.nth}" if self.nth else "")

    @property
    def is_inside(self) -> bool:
        """Return True for what flows through a module inside the model, which a port may cut differently."""
        return bool(self.module) and self.slot.is_activation

    @property
    def belongs_inside(self) -> bool:
        """Return True for everything inside the model: what flows through its modules and what they hold."""
        return self.is_inside or self.slot.is_parameter or self.slot.is_buffer

    @property
    def is_final_output(self) -> bool:
        """Return True for an output of the model itself."""
        return not self.module and self.slot is Slot.OUTPUT


Phase = Literal["forward", "backward", "recompute"]


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


@dataclass(frozen=True, slots=True)
class Trace:
    """Hold what a recording knows of a tensor beside its elements; numbers of events are their order."""

    order: int = -1
    phase: Phase = "forward"
    keep: str = ""
    digest: str | None = None
    stats: Stats | None = None
    sketch: TensorRef | None = None
    same: int | None = None  # the first event with these very bytes
    forward: int | None = None  # of gradients and recomputed outputs: the event of the forward pass
    over: int | None = None  # the earlier event whose memory was overwritten in place and is this one's now
    inputs: tuple[Link, ...] = ()  # what the call that made it was given
    parent: int | None = None
    weights: tuple[str, ...] = ()  # digests of what its module holds itself, sorted
    requires_grad: bool = False
    whole: Shape | None = None  # of a part cut out of a larger tensor: the shape of that
    noise: float | None = None  # noise floor: how far rounding alone moves it (max abs); None if not measured


_STORED = Site("", Slot.STORED)
_UNTRACED = Trace()


@dataclass(frozen=True)
class TensorRef:
    """Know a tensor's name, shape and dtype; read its elements on demand."""

    name: str
    shape: Shape
    dtype: DType
    data: Data = field(repr=False, compare=False)
    storage_id: object = field(default=None, repr=False, compare=False)  # equal for views of one storage
    site: Site = field(default=_STORED, repr=False, compare=False)
    trace: Trace = field(default=_UNTRACED, repr=False, compare=False)
    scalar: bool = False  # a plain number of a file, not an array

    @property
    def recorded(self) -> bool:
        """Return True for a tensor of a run, False for one of a file."""
        return self.site.slot is not Slot.STORED

    @property
    def count(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the number of bytes its elements take."""
        return self.count * self.dtype.itemsize

    @property
    def missing(self) -> str | None:
        """Say why there are no elements to read, or None where there are."""
        return self.data.why if isinstance(self.data, NoData) else None

    def renamed(self, name: str) -> TensorRef:
        """Return the same tensor under another name."""
        return replace(self, name=name)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return raw elements from start to stop, flat, in C order."""
        return self.data.read(start, stop)

    def take(self, places: Iterable[int]) -> NDArray[Any]:
        """Return raw elements at some places, flat."""
        return np.concatenate([self.read(place, place + 1) for place in places])

    def blocks(self, size: int) -> Iterator[NDArray[Any]]:
        """Yield the raw elements in flat blocks."""
        for start in range(0, self.count, size):
            yield self.read(start, min(start + size, self.count))

    def numpy(self) -> NDArray[Any]:
        """Return the whole tensor as numbers (bfloat16 and float8 as float32)."""
        numbers = self.dtype.decode(self.read(0, self.count)).reshape(self.shape)
        return numbers.astype(bool) if self.dtype.kind == "bool" else numbers


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return C-order strides in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Tell whether strides are C order; an axis of one element may have any stride."""
    if math.prod(shape) == 0:
        return True
    wanted = contiguous_strides(shape)
    return all(size == 1 or have == want for size, have, want in zip(shape, strides, wanted, strict=True))


def take(view: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
    """Return elements start to stop of a view in C order, copying no more than those."""
    if view.flags.c_contiguous:
        return view.reshape(-1)[start:stop]
    pieces = []
    for index, first, last in _split_range(view.shape, start, stop):
        pieces.append(view[index][first:last].reshape(-1))
    return np.concatenate(pieces) if pieces else np.empty(0, view.dtype)


def _split_range(shape: Shape, start: int, stop: int) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Yield boxes that hold elements start to stop in C order: an index, and the range of the axis behind it."""
    if start >= stop:
        return
    inner = math.prod(shape[1:])
    first, last = -(-start // inner), stop // inner
    if first > last:  # the range lies inside one row
        yield from _split_row(shape, last, start - last * inner, stop - last * inner)
        return
    if start < first * inner:
        yield from _split_row(shape, first - 1, start - (first - 1) * inner, inner)
    if first < last:
        yield (), first, last
    if stop > last * inner:
        yield from _split_row(shape, last, 0, stop - last * inner)


def _split_row(shape: Shape, row: int, start: int, stop: int) -> Iterator[tuple[tuple[int, ...], int, int]]:
    for index, first, last in _split_range(shape[1:], start, stop):
        yield (row, *index), first, last
