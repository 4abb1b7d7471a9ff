"""Several files that together are one checkpoint, named by a pattern such as `rank*.safetensors`."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence

from nndiff.errors import SourceError, UnsafeFileError
from nndiff.names import natural_key
from nndiff.sources.source import OtherEntry, Source
from nndiff.tensors import TensorRef
from nndiff.text import plural

_MOST_FILES = 10_000
_COMPARED_AT_ONCE = 1 << 20  # elements

OpenFile = Callable[[str, str], Source]


def is_pattern(path: str) -> bool:
    """Return True for a path with wildcards that is not itself a file."""
    return glob.has_magic(path) and not os.path.lexists(path)


def open_pattern(pattern: str, part_key: str, open_file: OpenFile) -> Source:
    """Open all files that match a pattern as one.

    A tensor that is the same in all files that hold it is kept once. Other tensors of one name are shards: `name[0]`,
    `name[1]`, numbered by their files, in natural order.
    """
    paths = sorted(glob.glob(pattern), key=natural_key)
    if not paths:
        raise SourceError(pattern, "no file matches this pattern")
    if len(paths) > _MOST_FILES:
        raise UnsafeFileError(pattern, f"{len(paths)} files match this pattern; more than {_MOST_FILES} are not read")
    for path in paths:
        if os.path.isdir(path):
            raise SourceError(pattern, f"matches the folder {path}; a pattern names files that together are one")
    holders: dict[str, dict[int, TensorRef]] = {}  # {name: {number of the file: tensor}}
    others: dict[str, OtherEntry] = {}
    foreign: dict[str, None] = {}
    for number, path in enumerate(paths):
        opened = open_file(path, part_key)
        for name, tensor in opened.tensors.items():
            holders.setdefault(name, {})[number] = tensor
        for key, entry in opened.others.items():
            others[f"{os.path.basename(path)}::{key}"] = entry
        foreign.update(dict.fromkeys(opened.foreign))
    tensors: dict[str, TensorRef] = {}
    split = 0
    for name, shards in holders.items():
        if are_replicas(list(shards.values())):
            tensors[name] = next(iter(shards.values()))
            continue
        split += 1
        for number, tensor in shards.items():
            shard_name = f"{name}[{number}]"
            if shard_name in holders:
                raise SourceError(pattern, f"holds both {shard_name!r} and shards of {name!r}")
            tensors[shard_name] = tensor.renamed(shard_name)
    note = f"{plural(len(paths), 'file')} read as one"
    if split:
        note += f"; {plural(split, 'tensor')} split among them"
    return Source(pattern, "shards", tensors, others=others, foreign=tuple(foreign), notes=(note,))


def are_replicas(tensors: Sequence[TensorRef]) -> bool:
    """Return True if all tensors are the same, bit by bit."""
    first = tensors[0]
    for tensor in tensors[1:]:
        if (tensor.shape, tensor.dtype) != (first.shape, first.dtype) or tensor.missing or first.missing:
            return False
        for start in range(0, first.count, _COMPARED_AT_ONCE):
            stop = min(start + _COMPARED_AT_ONCE, first.count)
            if first.read(start, stop).tobytes() != tensor.read(start, stop).tobytes():
                return False
    return True
