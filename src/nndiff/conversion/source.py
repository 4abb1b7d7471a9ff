"""A checkpoint in another's names and layout: each tensor is made when it is read, and let go soon after."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.conversion.map import ConversionMap, Entry
from nndiff.dtypes import DTYPES, DType
from nndiff.errors import ConversionError
from nndiff.relations import Operation, cut_part
from nndiff.relations.operations import Expand
from nndiff.relations.relation import Array
from nndiff.sources import Source
from nndiff.sources.source import quote_name
from nndiff.tensors import Data, NoData, TensorRef, take

HELD_ELEMENTS = 1 << 26  # of a tensor that is held whole while it is rearranged; larger ones are read in pieces
MOST_HELD = 1 << 30  # elements of a tensor that can only be made whole
MOST_GROWTH = 1 << 10  # elements made of one: no layer repeats a tensor more often
KEPT = 2  # made tensors that are held at once

# By their names in stored relations: operations that move elements, and those for which each element is on its own.
_MOVING = frozenset(("reshape", "flatten", "permute", "slice", "take", "arrange", "concatenate", "stack", "expand"))
_IN_PLACE = frozenset(("reshape", "flatten"))  # the elements stay where they are
_ELEMENTWISE = frozenset(("multiply", "round", "shift"))


def convert_source(source: Source, conversion: ConversionMap) -> Source:
    """Return a source in the names and layout that a map leads to; nothing is read before it is asked for."""
    if source.kind == "recording":
        raise ConversionError(f"{source.label}: a map is about checkpoints, and this is a recording")
    tensors = {entry.target: convert_tensor(entry, source.tensors, source.label) for entry in conversion.entries}
    return replace(source, tensors=tensors)


def list_unmentioned(source: Source, conversion: ConversionMap) -> list[str]:
    """Return the tensors of a source that its map knows nothing of."""
    mentioned = set(conversion.unused)
    for entry in conversion.entries:
        mentioned.update(entry.sources)
    return [name for name in source.tensors if name not in mentioned]


def convert_tensor(entry: Entry, tensors: Mapping[str, TensorRef], label: str) -> TensorRef:
    """Return the target of one entry, made of its sources in the cheapest way that is exact."""
    sources = []
    for name in entry.sources:
        if name not in tensors:
            raise ConversionError(_explain_absence(name, entry, tensors, label))
        sources.append(tensors[name])
    dtype = DTYPES[entry.dtype]
    first = sources[0]
    for tensor in sources:
        if tensor.missing:
            data: Data = NoData(tensor.missing)
            return TensorRef(entry.target, entry.shape, dtype, data)
        if tensor.dtype.kind == "opaque":
            raise ConversionError(
                f"{label}: {quote_name(tensor.name)} has elements of {tensor.dtype.name}, which cannot be converted"
            )
    _check_sizes(entry, sources, label)
    ops = {operation.op for operation in entry.operations}
    is_alone = len(sources) == 1
    if not ops and (not is_alone or first.shape != entry.shape):
        raise ConversionError(
            f"{label}: the map copies {quote_name(first.name)} of shape {list(first.shape)} to "
            f"{quote_name(entry.target)} of shape {list(entry.shape)}"
        )
    if is_alone and ops <= _IN_PLACE and first.count == math.prod(entry.shape):
        moved = replace(first, name=entry.target, shape=entry.shape)
        return moved if moved.dtype == dtype else replace(moved, dtype=dtype, data=CastData(first, dtype))
    if is_alone and ops <= _ELEMENTWISE and first.shape == entry.shape:
        return TensorRef(entry.target, entry.shape, dtype, CastData(first, dtype, entry.operations))
    held = max(math.prod(entry.shape), sum(tensor.count for tensor in sources))
    if held > HELD_ELEMENTS and is_alone and first.dtype == dtype:
        strided = _cut_strided(entry, first)
        if strided is not None:
            return strided
    if held > MOST_HELD:
        raise ConversionError(
            f"{label}: {quote_name(entry.target)} of {held:,} elements is too large to be made in memory; at most "
            f"{MOST_HELD:,} are"
        )
    return TensorRef(entry.target, entry.shape, dtype, MadeData(entry, sources, dtype, label))


def _explain_absence(name: str, entry: Entry, tensors: Mapping[str, TensorRef], label: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, list(tensors)[:10_000], 1)
    hint = f"; did you mean {quote_name(close[0])}?" if close else ""
    if entry.target in tensors:
        hint = "; it has the target already: is it converted, or are the sides of the map exchanged?"
    return f"{label}: the map makes {quote_name(entry.target)} of {quote_name(name)}, which is not there{hint}"


def _check_sizes(entry: Entry, sources: Sequence[TensorRef], label: str) -> None:
    """Refuse operations that would need far more memory than their two ends."""
    count, given = math.prod(entry.shape), sum(tensor.count for tensor in sources)
    largest = max(count, given)
    grown = [math.prod(operation.shape) for operation in entry.operations if isinstance(operation, Expand)]
    if count > MOST_GROWTH * max(given, 1) or any(size > largest for size in grown):
        raise ConversionError(
            f"{label}: the map makes {max(count, *grown, 0):,} elements of {given:,} for {quote_name(entry.target)}"
        )


def _cut_strided(entry: Entry, tensor: TensorRef) -> TensorRef | None:
    """Return a view that is read from the file in pieces; None where the operations are not that simple."""
    try:
        view = cut_part(tensor, entry.operations, entry.target)
    except (ValueError, IndexError):
        return None
    return view if view.shape == entry.shape else None


class CastData:
    """Hold elements that are each made of one: another dtype, a factor. Read in pieces, of any size."""

    def __init__(self, tensor: TensorRef, dtype: DType, operations: Sequence[Operation] = ()) -> None:
        self._tensor = tensor
        self._dtype = dtype
        self._operations = operations

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the raw elements from start to stop as a flat array."""
        arrays: Sequence[Array] = [self._tensor.dtype.decode(self._tensor.read(start, stop))]
        for operation in self._operations:
            with np.errstate(all="ignore"):
                arrays = operation.apply(arrays)
        return self._dtype.encode(arrays[0])


_made: OrderedDict[int, NDArray[Any]] = OrderedDict()
_lock = threading.RLock()


class MadeData:
    """Hold elements that are made whole, when the first of them is read; only the last few tensors are kept."""

    def __init__(self, entry: Entry, sources: Sequence[TensorRef], dtype: DType, label: str) -> None:
        self._entry = entry
        self._sources = sources
        self._dtype = dtype
        self._label = label

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the raw elements from start to stop as a flat array."""
        with _lock:
            array = _made.pop(id(self), None)
            if array is None:
                while len(_made) >= KEPT:  # before memory is taken for the next
                    _made.popitem(last=False)
                array = self._make()
            _made[id(self)] = array
        return take(array, start, stop)

    def _make(self) -> NDArray[Any]:
        """Return the target; raw elements are moved as they are, others become numbers first."""
        entry = self._entry
        is_moved = all(operation.op in _MOVING for operation in entry.operations)
        is_moved = is_moved and all(tensor.dtype == self._dtype for tensor in self._sources)
        arrays: Sequence[Array] = []
        for tensor in self._sources:
            raw = tensor.read(0, tensor.count)
            arrays = [*arrays, (raw if is_moved else tensor.dtype.decode(raw)).reshape(tensor.shape)]
        try:
            with np.errstate(all="ignore"):
                for operation in entry.operations:
                    arrays = operation.apply(arrays)
        except (ValueError, IndexError) as error:
            raise self._fail(f"does not fit: {error}") from None
        if len(arrays) != 1 or arrays[0].shape != entry.shape:
            shapes = ", ".join(str(list(array.shape)) for array in arrays)
            raise self._fail(f"makes {shapes}, expected {list(entry.shape)}")
        return arrays[0] if is_moved else self._dtype.encode(arrays[0])

    def _fail(self, trouble: str) -> ConversionError:
        return ConversionError(f"{self._label}: the map's entry of {quote_name(self._entry.target)} {trouble}")

    def __del__(self) -> None:
        if _made is not None:  # None while the interpreter shuts down
            _made.pop(id(self), None)
