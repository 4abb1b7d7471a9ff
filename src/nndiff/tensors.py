"""Named tensors that are known before they are read: TensorRef and where its bytes are."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DType
from nndiff.files import Window

Shape = tuple[int, ...]

MOST_AXES = 64 if int(np.__version__.split(".")[0]) >= 2 else 32  # what NumPy can hold
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
    """Hold a strided view of a storage in a file: mapped, gathered in pieces, pages let go."""

    window: Window  # the whole storage
    storage: np.dtype[Any]
    offset: int  # in elements
    shape: Shape
    strides: tuple[int, ...]  # in elements
    swapped: bool = False

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the raw elements from start to stop as a flat array."""
        pages = self.window.pages(self.offset * self.storage.itemsize)
        flat = np.frombuffer(pages, np.uint8)
        view = np.ndarray(self.shape, self.storage, buffer=flat.data, strides=self._byte_strides())
        out: NDArray[Any] = take(view, start, stop).copy()
        self.window.check_pages(pages)
        return out.byteswap(inplace=True) if self.swapped else out

    def _byte_strides(self) -> tuple[int, ...]:
        # an axis of one element may claim any stride, even one that no machine word holds
        pairs = zip(self.shape, self.strides, strict=True)
        return tuple(stride * self.storage.itemsize if size > 1 else 0 for size, stride in pairs)


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


@dataclass(frozen=True)
class TensorRef:
    """Know a tensor's name, shape and dtype; read its elements on demand."""

    name: str
    shape: Shape
    dtype: DType
    data: Data = field(repr=False, compare=False)
    storage_id: object = field(default=None, repr=False, compare=False)  # equal for views of one storage
    meta: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

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
    pieces = list(_pieces(view, start, stop))
    return np.concatenate(pieces) if pieces else np.empty(0, view.dtype)


def _pieces(view: NDArray[Any], start: int, stop: int) -> Iterator[NDArray[Any]]:
    if start >= stop:
        return
    if view.ndim == 1:
        yield view[start:stop]
        return
    inner = view.size // view.shape[0]
    first, last = -(-start // inner), stop // inner
    if first > last:  # the range lies inside one row
        yield from _pieces(view[last], start - last * inner, stop - last * inner)
        return
    if start < first * inner:
        yield from _pieces(view[first - 1], start - (first - 1) * inner, inner)
    if first < last:
        yield view[first:last].reshape(-1)
    if stop > last * inner:
        yield from _pieces(view[last], 0, stop - last * inner)
