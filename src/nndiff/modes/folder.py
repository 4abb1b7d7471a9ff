"""Read a folder of modes: recordings and .npy files, nndiff's own or those of other scripts. Needs no torch."""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.errors import SourceError
from nndiff.modes.layouts import OUTPUT, STATS_FORMAT, get_recording_path, pool_shapes
from nndiff.names import natural_key
from nndiff.recording.format.folder import is_recording
from nndiff.recording.reader import open_recording
from nndiff.sources.mode_files import PREFIX, ModeFiles, find_mode_files, parse_layer, read_arrays, read_stats
from nndiff.tensors import Shape, Slot, TensorRef


@dataclass(frozen=True)
class PooledData:
    """Hold tensors of one dtype, one after the other."""

    parts: tuple[TensorRef, ...]
    ends: tuple[int, ...]  # in elements, of each part

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the raw elements from start to stop as a flat array."""
        pieces = []
        index = bisect_right(self.ends, start)
        while start < stop:
            end = self.ends[index]
            begin = end - self.parts[index].count
            pieces.append(self.parts[index].read(start - begin, min(stop, end) - begin))
            start = min(stop, end)
            index += 1
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty(0, self.parts[0].dtype.storage)


@dataclass(frozen=True)
class LayerOutput:
    """Hold the outputs of one layer: a tensor for each sample, or one of all samples."""

    name: str
    parts: tuple[TensorRef, ...]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Return the shapes of all parts."""
        return tuple(part.shape for part in self.parts)

    def pool(self) -> TensorRef:
        """Return one tensor of all elements."""
        if len(self.parts) == 1:
            return replace(self.parts[0], name=self.name)
        ends = tuple(accumulate(part.count for part in self.parts))
        data = PooledData(tuple(part for part in self.parts), ends)
        first = self.parts[0]
        return TensorRef(self.name, pool_shapes(self.shapes), first.dtype, data, site=first.site)


@dataclass(frozen=True)
class StoredMode:
    """Hold what a folder knows of one mode."""

    mode: str
    path: str
    kind: str = "mode"
    layers: Mapping[str, LayerOutput] = field(default_factory=dict)
    first: str = ""  # name of the first layer, where it is known
    last: str = ""
    output: str = ""  # name of the model's own output
    has_logits: bool = False
    perplexity: float | None = None
    failed: str | None = None  # why it did not run
    troubles: tuple[str, ...] = ()  # files that cannot be read


def list_modes(folder: str) -> list[str]:
    """Return the modes in a folder, in natural order."""
    if not os.path.isdir(folder):
        raise SourceError(folder, "no such folder" if not os.path.exists(folder) else "not a folder")
    modes = set(find_mode_files(folder))
    for name in os.listdir(folder):
        if name.startswith(PREFIX) and is_recording(Path(folder, name)):
            modes.add(name.removeprefix(PREFIX))
    return sorted(modes, key=natural_key)


def open_mode(folder: str, mode: str) -> StoredMode:
    """Return what a folder knows of a mode; files that cannot be read are among its troubles."""
    files = find_mode_files(folder).get(mode, ModeFiles(mode))
    path = get_recording_path(folder, mode)
    troubles: list[str] = []
    stats: dict[str, Any] = {}
    try:
        stats = read_stats(files)
    except SourceError as error:
        troubles.append(str(error))
    if stats.get("format") != STATS_FORMAT:  # of another program: who knows what it means
        stats = {}
    layers: dict[str, LayerOutput] = {}
    kind = "mode"
    if is_recording(Path(path)):
        kind = "recording"
        try:
            layers = _read_recording(path)
        except SourceError as error:
            troubles.append(str(error))
    else:
        arrays = read_arrays(files)
        layers = {name: LayerOutput(name, (tensor,)) for name, tensor in arrays.tensors.items()}
        troubles += arrays.troubles
    first, last = _find_ends(list(layers))
    perplexity = math.inf if stats.get("perplexity") == "inf" else stats.get("perplexity")
    return StoredMode(
        mode,
        path,
        kind,
        layers,
        first=_read_text(stats, "first") or first,
        last=_read_text(stats, "last") or last,
        output=_read_text(stats, "output") or (OUTPUT if OUTPUT in layers else ""),
        has_logits=stats.get("logits") is True,
        perplexity=float(perplexity) if isinstance(perplexity, (int, float)) else None,
        failed=_read_text(stats, "failed") or None,
        troubles=tuple(troubles),
    )


def _read_text(stats: Mapping[str, Any], key: str) -> str:
    value = stats.get(key)
    return value if isinstance(value, str) else ""


def _read_recording(path: str) -> dict[str, LayerOutput]:
    """Return the outputs of all layers of a recording; its calls are the samples."""
    recording = open_recording(path)
    if not recording.complete:
        raise SourceError(path, "is incomplete: the run was cut off; record the mode again")
    parts: dict[str, list[TensorRef]] = {}
    for tensor in recording.source().tensors.values():
        if tensor.site.slot is Slot.OUTPUT:
            parts.setdefault(replace(tensor.site, call=0).name, []).append(tensor)
    layers = {}
    for name, tensors in parts.items():
        ordered = sorted(tensors, key=lambda tensor: tensor.site.call)
        if len({tensor.dtype for tensor in ordered}) > 1:
            raise SourceError(path, f"{name} has another dtype in some samples")
        layers[name] = LayerOutput(name, tuple(ordered))
    return layers


def _find_ends(names: Sequence[str]) -> tuple[str, str]:
    """Return the layers of the lowest and highest number, whole layers before parts; else the ends of the list."""
    numbered = []
    for name in names:
        parsed = parse_layer(name)
        if parsed is not None:
            numbered.append((parsed[0], bool(parsed[1]), natural_key(name), name))
    if not numbered:
        inner = [name for name in names if name != OUTPUT]
        return (inner[0], inner[-1]) if inner else ("", "")
    lowest, highest = min(numbered)[0], max(numbered)[0]
    first = min(entry for entry in numbered if entry[0] == lowest)
    last = min(entry for entry in numbered if entry[0] == highest)
    return first[-1], last[-1]
