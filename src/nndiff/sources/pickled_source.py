"""From the object of a torch file or pickle to a source: its model chosen, its tensors named and checked."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from nndiff.dtypes import DTYPES
from nndiff.errors import SourceError, UnsafeFileError
from nndiff.sources.arrays import NOT_NUMBERS, Array, build_array_ref
from nndiff.sources.model_part import choose_part, describe_node, is_training_key, shorten_entries, walk_part
from nndiff.sources.pickle_nodes import Loaded, Span
from nndiff.sources.source import EntryKind, OtherEntry, Source, index_by_name
from nndiff.sources.torch_objects import Scale, Tensor, build_tensor_ref
from nndiff.sources.tree import Tree, is_number, is_tensor
from nndiff.tensors import FileData, MemoryData, TensorRef

_MOST_CLAIMED = 1 << 30  # bytes
_NUMBER_DTYPES = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}


def build_source(path: str, kind: str, loaded: Loaded, part_key: str = "") -> Source:
    """Choose the model in a loaded object, or the part of it that the user named, and name its tensors."""
    tree = Tree(path, loaded.root)
    if loaded.root is None or isinstance(loaded.root, str) or is_number(loaded.root):
        raise SourceError(path, f"holds no tensors, only {describe_node(tree, loaded.root).description}")
    chosen = choose_part(tree, part_key)
    other_entries = dict(chosen.others)
    for name in tree.find_tensors_not_saved(chosen.node):
        other_entries[name] = OtherEntry(EntryKind.ATTRIBUTE)
    if isinstance(chosen.node, dict):  # texts, None and the counters of training are not compared
        for key, value in chosen.node.items():
            is_counter = is_number(value) and not isinstance(value, (Span, bytes)) and is_training_key(key)
            if isinstance(key, str) and (value is None or isinstance(value, str) or is_counter):
                other_entries[key] = describe_node(tree, value)

    tensors: list[TensorRef] = []
    storage_bytes: dict[object, int] = {}
    for name, node in walk_part(tree, chosen, "all" if part_key else "in dicts"):
        if name in other_entries and not is_tensor(node):
            continue
        if isinstance(node, dict):  # a table of numbers, too large to be a state
            other_entries[name] = describe_node(tree, node)
            continue
        tensor = _build_ref(path, name, node)
        if tensor is None:
            other_entries[name] = NOT_NUMBERS
            continue
        tensors.append(tensor)
        storage = node.storage if isinstance(node, Tensor) else None
        storage_bytes[tensor.storage_id] = storage.count * storage.dtype.itemsize if storage else tensor.nbytes

    # tensors may repeat their storages until comparing them would take days
    stored = sum(storage_bytes.values())
    claimed = sum(tensor.nbytes for tensor in tensors if not tensor.missing)
    if claimed > max(64 * stored, _MOST_CLAIMED):
        raise UnsafeFileError(path, f"its tensors claim {claimed} bytes by repeating storages of {stored}; not read")
    label = f"{path}::{part_key}" if part_key else path
    entries = shorten_entries(other_entries)
    return Source(label, kind, index_by_name(path, tensors), chosen.key, entries, tuple(loaded.foreign))


def _build_ref(path: str, name: str, node: Any) -> TensorRef | None:
    """Return a tensor, an array or a plain number as a TensorRef, or None for an array without numbers."""
    byte = DTYPES["uint8"]
    if isinstance(node, Tensor):
        return build_tensor_ref(path, name, node)
    if isinstance(node, Span):
        return TensorRef(name, (node.window.size,), byte, FileData(node.window, byte.storage))
    if isinstance(node, bytes):
        return TensorRef(name, (len(node),), byte, MemoryData(np.frombuffer(node, np.uint8)))
    if isinstance(node, Array):
        array = build_array_ref(path, name, node)
        return replace(array, scalar=True) if array and node.scalar else array
    value = node.value if isinstance(node, Scale) else node
    dtype = DTYPES[_NUMBER_DTYPES[type(value)]]
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        dtype = DTYPES["float64"]
        try:
            value = float(value)
        except OverflowError:
            value = math.inf if value > 0 else -math.inf
    number = np.array(value).astype(dtype.storage).reshape(())
    return TensorRef(name, (), dtype, MemoryData(number), scalar=True)
