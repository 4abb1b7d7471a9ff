"""Modes in plain files: mode_X_layer_N.npy, mode_X_layer_N_PART.npy, mode_X_output.npy, mode_X_stats.json."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nndiff.errors import SourceError
from nndiff.files import RegularFile, Window
from nndiff.names import natural_key
from nndiff.sources.arrays import read_npy
from nndiff.sources.json_text import read_json
from nndiff.sources.source import Source
from nndiff.tensors import TensorRef

PREFIX = "mode_"
STATS_SUFFIX = "_stats.json"
_LAYER_FILE = r"_(?P<layer>layer_\d+(?:_.+)?)\.npy"
_OUTPUT_FILE = r"_(?P<layer>output(?:_.+)?)\.npy"
_ENDINGS = (re.compile(_LAYER_FILE, re.DOTALL), re.compile(_OUTPUT_FILE, re.DOTALL))
# layers first: a mode may be called my_output
_FILES = tuple(re.compile(f"{PREFIX}(?P<mode>.+?){ending.pattern}", re.DOTALL) for ending in _ENDINGS)
_LAYER = re.compile(r"layer_(?P<number>\d+)(?:_(?P<part>.+))?", re.DOTALL)
_MOST_FILES = 1_000_000


@dataclass(frozen=True)
class ModeFiles:
    """Name the files of one mode."""

    mode: str
    arrays: Mapping[str, str] = field(default_factory=dict)  # path by layer: layer_0, layer_23_mlp, output
    stats: str = ""  # path of its statistics


@dataclass(frozen=True)
class ModeArrays:
    """Hold the arrays of one mode, and why some of its files cannot be read."""

    tensors: Mapping[str, TensorRef]  # by layer
    troubles: tuple[str, ...] = ()


def find_mode_files(folder: str) -> dict[str, ModeFiles]:
    """Return the files of every mode in a folder.

    A mode may be called anything, `a_layer_1` too: where its statistics are there, they tell its name, else the first
    `_layer_N` or `_output` ends it.
    """
    try:
        names = sorted(os.listdir(folder), key=natural_key)
    except OSError as error:
        raise SourceError(folder, (error.strerror or str(error)).lower()) from None
    if len(names) > _MOST_FILES:
        raise SourceError(folder, f"a folder of {len(names):,} files; more than {_MOST_FILES:,} are not read")
    stats = {}
    for name in names:
        if name.startswith(PREFIX) and name.endswith(STATS_SUFFIX):
            stats[name[len(PREFIX) : -len(STATS_SUFFIX)]] = os.path.join(folder, name)
    arrays: dict[str, dict[str, str]] = {mode: {} for mode in stats}
    for name in names:
        mode, layer = _split_name(name, stats)
        if mode:
            arrays.setdefault(mode, {})[layer] = os.path.join(folder, name)
    return {mode: ModeFiles(mode, layers, stats.get(mode, "")) for mode, layers in arrays.items()}


def _split_name(name: str, modes: Iterable[str]) -> tuple[str, str]:
    """Return mode and layer of a file of that name; two empty texts where it is no such file."""
    for mode in sorted(modes, key=len, reverse=True):
        for ending in _ENDINGS:
            match = ending.fullmatch(name, len(PREFIX) + len(mode)) if name.startswith(f"{PREFIX}{mode}_") else None
            if match is not None:
                return mode, match["layer"]
    for file in _FILES:
        match = file.fullmatch(name)
        if match is not None:
            return match["mode"], match["layer"]
    return "", ""


def parse_layer(layer: str) -> tuple[int, str] | None:
    """Return number and part of `layer_N` or `layer_N_PART`; None for an output of the model."""
    match = _LAYER.fullmatch(layer)
    return None if match is None else (int(match["number"]), match["part"] or "")


def read_arrays(files: ModeFiles) -> ModeArrays:
    """Return the arrays of one mode; a damaged or pickled file is told and the others are read."""
    tensors, troubles = {}, []
    for layer, path in files.arrays.items():
        try:
            tensors[layer] = read_npy(Window(RegularFile(path)), layer)
        except SourceError as error:
            troubles.append(str(error))
    return ModeArrays(tensors, tuple(troubles))


def read_stats(files: ModeFiles) -> dict[str, Any]:
    """Return what the statistics of a mode say; nothing where there are none."""
    return read_json(Window(RegularFile(files.stats)), "statistics") if files.stats else {}


def is_mode_prefix(path: str) -> bool:
    """Return True for `DIR/mode_X` where that is no file, but mode_X_layer_N.npy is there."""
    folder, name = os.path.split(path)
    if not name.startswith(PREFIX) or not os.path.isdir(folder or "."):
        return False
    files = find_mode_files(folder or ".").get(name.removeprefix(PREFIX))
    return files is not None and bool(files.arrays)


def open_mode_prefix(path: str) -> Source:
    """Open the arrays of one mode, `DIR/mode_X`; all of them must be readable."""
    folder, name = os.path.split(path)
    files = find_mode_files(folder or ".")[name.removeprefix(PREFIX)]
    tensors = {layer: read_npy(Window(RegularFile(file)), layer) for layer, file in files.arrays.items()}
    return Source(path, "mode", tensors)
