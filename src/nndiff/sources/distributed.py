"""Torch distributed checkpoints: a folder with .metadata and .distcp files of chunks."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DType
from nndiff.errors import SourceError, UnsafeFileError
from nndiff.files import RegularFile, TemporaryFile, Window
from nndiff.sources.pickle_nodes import KEY, NotKnownError, Object
from nndiff.sources.source import Source, by_name, shown
from nndiff.sources.torch_file import load_any, load_plain
from nndiff.sources.torch_objects import Tensor, dtype_of, tensor_ref
from nndiff.tensors import MOST_AXES, Data, FileData, LateData, MemoryData, TensorRef

_SLAB = 1 << 22  # elements put in place at once
_MOST_CHUNKS = 20_000  # of one tensor: ranks of the largest runs


def is_distributed(path: str) -> bool:
    """Tell whether a folder is a distributed checkpoint."""
    return os.path.isfile(os.path.join(path, ".metadata"))


def open_distributed(path: str, part: str = "") -> Source:
    """Open a distributed checkpoint; chunks are put together when a tensor is read."""
    loaded = load_plain(Window(RegularFile(os.path.join(path, ".metadata"))))
    metadata = _state(path, loaded.root)
    places = _places(path, metadata.get("storage_data"))
    tensors, others = [], {}
    entries = metadata.get("state_dict_metadata")
    if not isinstance(entries, dict):
        raise SourceError(path, "a distributed checkpoint whose .metadata is damaged")
    for name, entry in entries.items():
        if not isinstance(name, str):
            raise SourceError(path, "a distributed checkpoint whose .metadata is damaged")
        described = _state(path, entry) if not isinstance(entry, Object) or entry.state else {}
        if "chunks" in described:
            tensors.append(_tensor(path, name, described, places.get(name, {})))
        else:
            others[name] = "bytes"
    return _chosen(path, tensors, part, others)


def _chosen(path: str, tensors: list[TensorRef], part: str, others: dict[str, str]) -> Source:
    """Return the tensors below a key; without one those of the model where optimiser states are beside it."""
    label = f"{path}::{part}" if part else path
    key = part or _model_key(tensors)
    found = [each.renamed(each.name[len(key) + 1 :]) for each in tensors if each.name.startswith(key + ".")]
    if part:
        found += [each.renamed(part.rsplit(".", 1)[-1]) for each in tensors if each.name == part]
    if part and not found:
        raise SourceError(path, f"has no tensors below {shown(part)}")
    if not key:
        return Source(label, "distributed", by_name(path, tensors), others=others)
    beside = sorted({each.name.split(".")[0] for each in tensors if not each.name.startswith(key + ".")})
    for name in beside if not part else ():
        count = sum(each.name.split(".")[0] == name for each in tensors)
        others[name] = f"{count} tensor{'s' if count > 1 else ''}"
    return Source(label, "distributed", by_name(path, found), key, others)


def _model_key(tensors: list[TensorRef]) -> str:
    """Return the key the model is under, where nothing but optimiser states is beside it."""
    for key in ("state_dict", "model_state_dict", "model"):
        beside = [each for each in tensors if not each.name.startswith(key + ".")]
        if len(beside) < len(tensors) and all("optim" in each.name.split(".")[0].lower() for each in beside):
            return key
    return ""


def _state(path: str, node: Any) -> dict[str, Any]:
    """Return the fields of a pickled dataclass."""
    state = node.state[-1] if isinstance(node, Object) and node.state else None
    if isinstance(state, tuple):  # a class with slots: (dict, slots)
        state = next((each for each in state if isinstance(each, dict)), None)
    if not isinstance(state, dict):
        raise SourceError(path, "a distributed checkpoint whose .metadata is damaged")
    return state


Place = tuple[str, int, int]  # file, start, length
Chunk = tuple[tuple[int, ...], tuple[int, ...], Place]  # offsets, sizes, place


def _places(path: str, storage_data: Any) -> dict[str, dict[tuple[int, ...], Place]]:
    """Return {tensor: {chunk offset: (file, start, length)}}."""
    if not isinstance(storage_data, dict):
        raise SourceError(path, "a distributed checkpoint whose .metadata names no storage")
    found: dict[str, dict[tuple[int, ...], Place]] = {}
    for key, value in storage_data.items():
        index = _state(path, key.args if isinstance(key, Object) and key.made_by == KEY else key)
        info = _state(path, value)
        file, start, length = info.get("relative_path"), info.get("offset"), info.get("length")
        name, offset = index.get("fqn"), index.get("offset")
        if not (isinstance(file, str) and isinstance(name, str)):
            raise SourceError(path, "a distributed checkpoint whose .metadata is damaged")
        if not (isinstance(start, int) and isinstance(length, int)):
            raise SourceError(path, f"a distributed checkpoint whose .metadata gives {shown(name)} no place")
        if info.get("transform_descriptors"):
            raise SourceError(path, f"tensor {shown(name)} is compressed or encrypted, which nndiff does not read")
        if "/" in file or "\\" in file or "\0" in file or file in ("", ".", ".."):
            raise SourceError(path, f"names a file outside its own folder: {shown(file)}")
        found.setdefault(name, {})[_sizes(path, name, offset or ())] = (file, start, length)
    return found


def _tensor(path: str, name: str, entry: dict[str, Any], places: dict[tuple[int, ...], Place]) -> TensorRef:
    shape = _sizes(path, name, entry.get("size"))
    try:
        dtype = dtype_of(_dtype(path, entry.get("properties")))
    except NotKnownError as error:
        raise SourceError(path, str(error)) from None
    except TypeError:
        raise SourceError(path, f"tensor {shown(name)} has no dtype") from None
    chunks = []
    for chunk in entry["chunks"] if isinstance(entry["chunks"], list) else ():
        fields = _state(path, chunk)
        offsets, sizes = (_sizes(path, name, fields.get(key)) for key in ("offsets", "sizes"))
        place = places.get(offsets) or (places.get(()) if not any(offsets) else None)
        inside = all(low + size <= whole for low, size, whole in zip(offsets, sizes, shape, strict=False))
        if place is None or not inside or len(offsets) != len(shape) or len(sizes) != len(shape):
            raise SourceError(path, f"tensor {shown(name)} has a chunk that is missing or does not fit")
        chunks.append((offsets, sizes, place))
    _check_cover(path, name, shape, dtype, chunks)
    whole = TensorRef(name, shape, dtype, LateData(lambda: _assembled(path, whole, chunks)))
    return whole


def _dtype(path: str, properties: Any) -> Any:
    """Return the dtype of pickled TensorProperties, whose state is a tuple that begins with it."""
    state = properties.state[-1] if isinstance(properties, Object) and properties.state else None
    if isinstance(state, tuple) and state and not isinstance(state[0], dict):
        return state[0]
    return _state(path, properties).get("dtype")


def _check_cover(path: str, name: str, shape: tuple[int, ...], dtype: DType, chunks: list[Chunk]) -> None:
    """See that the chunks make up the tensor: as many elements, none twice, and bytes for them."""
    count = math.prod(shape)
    if sum(math.prod(sizes) for _, sizes, _ in chunks) != count:
        raise SourceError(path, f"the chunks of tensor {shown(name)} do not make up its {count} elements")
    if sum(length for _, _, (_, _, length) in chunks) < count * dtype.itemsize:
        raise SourceError(path, f"the chunks of tensor {shown(name)} are too short for its {count} elements")
    filled = [(offsets, sizes) for offsets, sizes, _ in chunks if math.prod(sizes)]
    if len(filled) > _MOST_CHUNKS:
        raise UnsafeFileError(path, f"tensor {shown(name)} is in {len(filled)} chunks; not read")
    if len(filled) < 2 or not shape:
        return
    low = np.array([offsets for offsets, _ in filled])
    high = low + np.array([sizes for _, sizes in filled])
    for row in range(len(filled) - 1):
        if ((low[row + 1 :] < high[row]) & (low[row] < high[row + 1 :])).all(axis=1).any():
            raise SourceError(path, f"the chunks of tensor {shown(name)} overlap")


def _sizes(path: str, name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple) or len(value) > MOST_AXES:
        raise SourceError(path, f"tensor {shown(name)} has a senseless shape")
    if not all(type(size) is int and 0 <= size < 1 << 60 for size in value):
        raise SourceError(path, f"tensor {shown(name)} has a senseless shape")
    return value


def _chunk(path: str, whole: TensorRef, sizes: tuple[int, ...], place: Place) -> TensorRef:
    file, start, length = place
    root = load_any(Window(RegularFile(os.path.join(path, file))).sub(start, length)).root
    if not isinstance(root, Tensor):
        raise SourceError(path, f"a chunk of tensor {shown(whole.name)} is not a tensor")
    chunk = tensor_ref(path, whole.name, root)
    if chunk.shape != sizes or chunk.dtype != whole.dtype:
        raise SourceError(path, f"a chunk of tensor {shown(whole.name)} has another shape or dtype than .metadata says")
    return chunk


def _assembled(path: str, whole: TensorRef, chunks: list[Chunk]) -> Data:
    """Return the elements of a chunked tensor: of one chunk where they lie, of several in a temporary file."""
    if len(chunks) == 1:
        return _chunk(path, whole, chunks[0][1], chunks[0][2]).data
    if not whole.count:
        return MemoryData(np.empty(0, whole.dtype.storage))
    file = TemporaryFile(path)
    file.reserve(whole.nbytes)
    with file.mapped() as pages:
        target = np.frombuffer(pages, whole.dtype.storage).reshape(whole.shape)
        for offsets, sizes, place in chunks:
            region = target[tuple(slice(low, low + size) for low, size in zip(offsets, sizes, strict=True))]
            _copy(_chunk(path, whole, sizes, place), region)
        del target, region
    return FileData(Window(file), whole.dtype.storage)


def _copy(chunk: TensorRef, region: NDArray[Any]) -> None:
    """Copy a chunk into its place, some rows at a time."""
    if chunk.count <= _SLAB or region.ndim == 0:
        region[...] = chunk.read(0, chunk.count).reshape(region.shape)
        return
    inner = chunk.count // region.shape[0]
    rows = max(1, _SLAB // inner)
    for first in range(0, region.shape[0], rows):
        last = min(first + rows, region.shape[0])
        region[first:last] = chunk.read(first * inner, last * inner).reshape(region[first:last].shape)
