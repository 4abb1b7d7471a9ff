"""Torch distributed checkpoints: a folder with .metadata and .distcp files of chunks."""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DType
from nndiff.errors import SourceError, UnsafeFileError
from nndiff.files import RegularFile, TemporaryFile, Window
from nndiff.sources.pickle_nodes import KEY, NotKnownError, Object
from nndiff.sources.source import OtherEntry, Source, index_by_name, quote_name
from nndiff.sources.torch_file import load_any, load_plain
from nndiff.sources.torch_objects import Tensor, build_tensor_ref, parse_dtype
from nndiff.tensors import MOST_AXES, Data, FileData, LateData, MemoryData, Shape, TensorRef

_SLAB = 1 << 22  # elements put in place at once
_MOST_CHUNKS = 20_000  # of one tensor: ranks of the largest runs
_MODEL_KEYS = ("state_dict", "model_state_dict", "model")
_DAMAGED = "a distributed checkpoint whose .metadata is damaged"


class Place(NamedTuple):
    """Name the bytes of a chunk."""

    file: str
    start: int
    length: int


class Chunk(NamedTuple):
    """Say which region of a tensor a chunk is, and where its bytes are."""

    offsets: Shape
    sizes: Shape
    place: Place


_Places = dict[str, dict[Shape, Place]]  # by tensor and by the offsets of the chunk


def is_distributed(path: str) -> bool:
    """Return True if a folder is a distributed checkpoint."""
    return os.path.isfile(os.path.join(path, ".metadata"))


def open_distributed(path: str, part_key: str = "") -> Source:
    """Open a distributed checkpoint; chunks are put together when a tensor is read."""
    loaded = load_plain(Window(RegularFile(os.path.join(path, ".metadata"))))
    metadata = _read_fields(path, loaded.root)
    places = _read_places(path, metadata.get("storage_data"))
    entries = metadata.get("state_dict_metadata")
    if not isinstance(entries, dict):
        raise SourceError(path, _DAMAGED)
    tensors, other_entries = [], {}
    for name, entry in entries.items():
        if not isinstance(name, str):
            raise SourceError(path, _DAMAGED)
        has_no_fields = isinstance(entry, Object) and not entry.state
        fields = {} if has_no_fields else _read_fields(path, entry)
        if "chunks" in fields:
            tensors.append(_read_tensor(path, name, fields, places.get(name, {})))
        else:
            other_entries[name] = OtherEntry.of_value("bytes")
    if part_key:
        return _select_part(path, tensors, part_key, other_entries)
    return _select_model(path, tensors, other_entries)


def _select_part(path: str, tensors: list[TensorRef], part_key: str, other_entries: dict[str, OtherEntry]) -> Source:
    prefix = f"{part_key}."
    selected = []
    for tensor in tensors:
        if tensor.name.startswith(prefix):
            selected.append(tensor.renamed(tensor.name[len(prefix) :]))
    for tensor in tensors:
        if tensor.name == part_key:
            selected.append(tensor.renamed(part_key.rsplit(".", 1)[-1]))
    if not selected:
        raise SourceError(path, f"has no tensors below {quote_name(part_key)}")
    return Source(f"{path}::{part_key}", "distributed", index_by_name(path, selected), part_key, other_entries)


def _select_model(path: str, tensors: list[TensorRef], other_entries: dict[str, OtherEntry]) -> Source:
    """Return the tensors of the model where only optimiser states are beside it, else all of them."""
    for key in _MODEL_KEYS:
        prefix = f"{key}."
        selected = []
        beside: dict[str, int] = {}  # how many tensors are under each other key
        for tensor in tensors:
            if tensor.name.startswith(prefix):
                selected.append(tensor.renamed(tensor.name[len(prefix) :]))
            else:
                top_key = tensor.name.split(".")[0]
                beside[top_key] = beside.get(top_key, 0) + 1
        if selected and all("optim" in top_key.lower() for top_key in beside):
            for top_key in sorted(beside):
                other_entries[top_key] = OtherEntry.of_tensors(beside[top_key])
            return Source(path, "distributed", index_by_name(path, selected), key, other_entries)
    return Source(path, "distributed", index_by_name(path, tensors), others=other_entries)


def _read_fields(path: str, node: Any) -> dict[str, Any]:
    """Return the fields of a pickled dataclass."""
    state = node.state[-1] if isinstance(node, Object) and node.state else None
    if isinstance(state, tuple):  # a class with slots: (dict, slots)
        state = next((item for item in state if isinstance(item, dict)), None)
    if not isinstance(state, dict):
        raise SourceError(path, _DAMAGED)
    return state


def _read_places(path: str, storage_data: Any) -> _Places:
    if not isinstance(storage_data, dict):
        raise SourceError(path, "a distributed checkpoint whose .metadata names no storage")
    places: _Places = {}
    for key, value in storage_data.items():
        index = _read_fields(path, key.args if isinstance(key, Object) and key.made_by == KEY else key)
        info = _read_fields(path, value)
        file, start, length = info.get("relative_path"), info.get("offset"), info.get("length")
        name = index.get("fqn")
        if not (isinstance(file, str) and isinstance(name, str)):
            raise SourceError(path, _DAMAGED)
        if not (isinstance(start, int) and isinstance(length, int)):
            raise SourceError(path, f"a distributed checkpoint whose .metadata gives {quote_name(name)} no place")
        if info.get("transform_descriptors"):
            raise SourceError(path, f"tensor {quote_name(name)} is compressed or encrypted, which nndiff does not read")
        if "/" in file or "\\" in file or "\0" in file or file in ("", ".", ".."):
            raise SourceError(path, f"names a file outside its own folder: {quote_name(file)}")
        offsets = _read_sizes(path, name, index.get("offset") or ())
        places.setdefault(name, {})[offsets] = Place(file, start, length)
    return places


def _read_tensor(path: str, name: str, fields: dict[str, Any], places: dict[Shape, Place]) -> TensorRef:
    shape = _read_sizes(path, name, fields.get("size"))
    dtype = _read_dtype(path, name, fields.get("properties"))
    chunks = []
    for node in fields["chunks"] if isinstance(fields["chunks"], list) else ():
        chunk_fields = _read_fields(path, node)
        offsets = _read_sizes(path, name, chunk_fields.get("offsets"))
        sizes = _read_sizes(path, name, chunk_fields.get("sizes"))
        place = places.get(offsets)
        if place is None and not any(offsets):
            place = places.get(())
        fits = len(offsets) == len(sizes) == len(shape)
        for offset, size, limit in zip(offsets, sizes, shape, strict=False):
            fits = fits and offset + size <= limit
        if place is None or not fits:
            raise SourceError(path, f"tensor {quote_name(name)} has a chunk that is missing or does not fit")
        chunks.append(Chunk(offsets, sizes, place))
    _check_cover(path, name, shape, dtype, chunks)
    tensor = TensorRef(name, shape, dtype, LateData(lambda: _assemble_data(path, tensor, chunks)))
    return tensor


def _read_dtype(path: str, name: str, properties: Any) -> DType:
    """Return the dtype of pickled TensorProperties, whose state is mostly a tuple that begins with it."""
    state = properties.state[-1] if isinstance(properties, Object) and properties.state else None
    if isinstance(state, tuple) and state and not isinstance(state[0], dict):
        dtype = state[0]
    else:
        dtype = _read_fields(path, properties).get("dtype")
    try:
        return parse_dtype(dtype)
    except NotKnownError as error:
        raise SourceError(path, str(error)) from None
    except TypeError:
        raise SourceError(path, f"tensor {quote_name(name)} has no dtype") from None


def _read_sizes(path: str, name: str, sizes: Any) -> Shape:
    is_shape = isinstance(sizes, tuple) and len(sizes) <= MOST_AXES
    if not is_shape or not all(type(size) is int and 0 <= size < 1 << 60 for size in sizes):
        raise SourceError(path, f"tensor {quote_name(name)} has an impossible shape")
    checked: Shape = sizes
    return checked


def _check_cover(path: str, name: str, shape: Shape, dtype: DType, chunks: list[Chunk]) -> None:
    """Refuse chunks that do not make up the tensor: every element once, and bytes for all of them."""
    count = math.prod(shape)
    if sum(math.prod(chunk.sizes) for chunk in chunks) != count:
        raise SourceError(path, f"the chunks of tensor {quote_name(name)} do not make up its {count} elements")
    if sum(chunk.place.length for chunk in chunks) < count * dtype.itemsize:
        raise SourceError(path, f"the chunks of tensor {quote_name(name)} are too short for its {count} elements")
    filled = [chunk for chunk in chunks if math.prod(chunk.sizes)]
    if len(filled) > _MOST_CHUNKS:
        raise UnsafeFileError(path, f"tensor {quote_name(name)} is in {len(filled)} chunks; not read")
    if len(filled) < 2 or not shape:
        return
    low = np.array([chunk.offsets for chunk in filled])
    high = low + np.array([chunk.sizes for chunk in filled])
    for row in range(len(filled) - 1):
        overlaps = (low[row + 1 :] < high[row]) & (low[row] < high[row + 1 :])
        if overlaps.all(axis=1).any():
            raise SourceError(path, f"the chunks of tensor {quote_name(name)} overlap")


def _assemble_data(path: str, tensor: TensorRef, chunks: list[Chunk]) -> Data:
    """Return the elements of a chunked tensor: a single chunk in place, several in a temporary file."""
    if len(chunks) == 1:
        return _open_chunk(path, tensor, chunks[0]).data
    if not tensor.count:
        return MemoryData(np.empty(0, tensor.dtype.storage))
    file = TemporaryFile(path)
    file.reserve(tensor.nbytes)
    with file.mapped() as pages:
        target = np.frombuffer(pages, tensor.dtype.storage).reshape(tensor.shape)
        for chunk in chunks:
            slices = [slice(offset, offset + size) for offset, size in zip(chunk.offsets, chunk.sizes, strict=True)]
            region = target[tuple(slices)]
            _copy_chunk(_open_chunk(path, tensor, chunk), region)
        del target, region
    return FileData(Window(file), tensor.dtype.storage)


def _open_chunk(path: str, tensor: TensorRef, chunk: Chunk) -> TensorRef:
    name, place = quote_name(tensor.name), chunk.place
    root = load_any(Window(RegularFile(os.path.join(path, place.file))).sub(place.start, place.length)).root
    if not isinstance(root, Tensor):
        raise SourceError(path, f"a chunk of tensor {name} is not a tensor")
    opened = build_tensor_ref(path, tensor.name, root)
    if opened.shape != chunk.sizes or opened.dtype != tensor.dtype:
        raise SourceError(path, f"a chunk of tensor {name} has another shape or dtype than .metadata says")
    return opened


def _copy_chunk(chunk: TensorRef, region: NDArray[Any]) -> None:
    """Copy a chunk into its place, some rows at a time."""
    if chunk.count <= _SLAB or region.ndim == 0:
        region[...] = chunk.read(0, chunk.count).reshape(region.shape)
        return
    row_size = chunk.count // region.shape[0]
    rows = max(1, _SLAB // row_size)
    for first in range(0, region.shape[0], rows):
        last = min(first + rows, region.shape[0])
        region[first:last] = chunk.read(first * row_size, last * row_size).reshape(region[first:last].shape)
