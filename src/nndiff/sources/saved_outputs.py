"""Saved outputs as older scripts leave them: input_data.pt, forward_output.pt, parameter_gradients.pt, hook_data.pkl.

Their tensors are given the sites of a recording, so that they are compared like one. The hooks of such scripts
overwrite what they saw before: of a module that is called more than once only the last call is left, and the gradient
of its first.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nndiff.dtypes import DTYPES
from nndiff.errors import SourceError, UnsafeFileError
from nndiff.files import RegularFile, Window
from nndiff.recording.format.digests import RawTensor, measure_tensor
from nndiff.sources.hook_data import Hooked, names_modules, read_hook_data
from nndiff.sources.pickle_nodes import Loaded
from nndiff.sources.pickled_source import build_source
from nndiff.sources.saved_sites import SavedTensors, link_tensors, place_tensors
from nndiff.sources.source import Source, index_by_name
from nndiff.sources.torch_file import load_any
from nndiff.tensors import MemoryData, Slot, TensorRef, Trace
from nndiff.text import plural, printable

HOOKS = ("hook_data.pkl", "layer_outputs.pkl")
INPUTS = ("input_data.pt", "batch.pt")
_OUTPUT, _LOSS, _GRADIENTS, _METADATA = "forward_output.pt", "loss.pt", "parameter_gradients.pt", "metadata.pkl"
_MOST_VALUES = 100_000
_DEEPEST, _MOST_EMPTY = 4, 64  # how far a value is searched for something
_ROOM = 256 << 20  # bytes that a tensor may claim beyond those of its file and still be measured

_Settings = dict[str, bool | int | float | str]


def is_saved_outputs(path: str) -> bool:
    """Return True if a folder has the files those scripts write."""
    has_hooks = any(_has_file(path, name) for name in HOOKS)
    has_inputs = any(_has_file(path, name) for name in INPUTS)
    return has_hooks or (has_inputs and _has_file(path, _OUTPUT))


def file_of_inputs(path: str) -> str:
    """Return the file of such a folder that holds the inputs of the model."""
    for name in INPUTS:
        if _has_file(path, name):
            return os.path.join(path, name)
    raise SourceError(path, f"holds no inputs to run a model with: it has neither {' nor '.join(INPUTS)}")


def saved_settings(path: str) -> list[str]:
    """Return the files of such a folder that tell how its script was run, the most telling first."""
    names = (_METADATA, *INPUTS) if is_saved_outputs(path) else ()
    return [os.path.join(path, name) for name in names if _has_file(path, name)]


def _has_file(path: str, name: str) -> bool:
    return os.path.isfile(os.path.join(path, name))


def open_saved_outputs(path: str) -> Source:
    """Open such a folder as a recording; every tensor is read once, for its digest and statistics."""
    folder = _SavedFolder(path)
    for name in INPUTS:
        folder.read_file(name, Hooked("", Slot.MODEL_INPUT))
    for name in HOOKS:
        folder.read_file(name)
    folder.read_file(_OUTPUT, Hooked("", Slot.OUTPUT, from_file=True))
    folder.read_file(_LOSS, Hooked("", Slot.LOSS))
    settings = _read_settings(path)
    loss = settings.get("loss")
    if not folder.has_slot(Slot.LOSS) and type(loss) is float:
        folder.tensors[Hooked("", Slot.LOSS)] = [_build_loss(loss)]
    folder.read_file(_GRADIENTS, Hooked("", Slot.PARAM_GRAD))
    tensors = index_by_name(path, link_tensors(place_tensors(folder.tensors)))
    notes, meta = tuple(_list_notes(folder)), _describe_run(folder, settings)
    return Source(path, "recording", tensors, foreign=tuple(folder.foreign), notes=notes, meta=meta)


@dataclass
class _SavedFolder:
    """Hold what was read of a folder so far."""

    path: str
    tensors: SavedTensors = field(default_factory=dict)
    foreign: dict[str, None] = field(default_factory=dict)
    unknown: Counter[str] = field(default_factory=Counter)  # tensors of hook data by keys that say nothing
    unread: dict[str, str] = field(default_factory=dict)  # what holds no tensors, and what it is instead

    def has_slot(self, slot: Slot) -> bool:
        """Return True if something was taken at a slot."""
        return any(place.slot is slot for place in self.tensors)

    def read_file(self, name: str, place: Hooked | None = None) -> None:
        """Read a file, if there is one: all of it was taken at one place, or it is hook data and says where."""
        file = os.path.join(self.path, name)
        if not os.path.lexists(file):
            return
        window = Window(RegularFile(file))
        loaded = load_any(window)
        values = list(_list_values(file, loaded.root, place))
        numbered = {str(number): value for number, (_, value) in enumerate(values)}
        opened = build_source(file, "pickle", Loaded(numbered, loaded.foreign))
        self.foreign.update(dict.fromkeys(opened.foreign))
        with_tensors = set()
        for title, tensor in opened.tensors.items():
            digits, _, path_inside = title.partition(".")
            with_tensors.add(int(digits))
            taken_at, _ = values[int(digits)]
            if taken_at.slot is None:
                self.unknown[taken_at.word] += 1
            else:
                measured = _measure_tensor(tensor.renamed(path_inside), window.size + _ROOM)
                self.tensors.setdefault(taken_at, []).append(measured)
        for number, (taken_at, value) in enumerate(values):
            kind = _describe_kind(value)
            if number in with_tensors or not kind or taken_at.slot in (None, Slot.MODEL_INPUT):
                continue
            title = f"{taken_at.module} in {name}" if taken_at.module else name
            self.unread.setdefault(title, f"{kind}, not tensors")


def _list_values(file: str, root: Any, place: Hooked | None) -> Iterator[tuple[Hooked, Any]]:
    if place is None:
        if not names_modules(root):
            raise SourceError(file, f"does not name the modules; it holds {_describe_kind(root) or 'nothing'}")
        for count, hooked in enumerate(read_hook_data(root)):
            if count >= _MOST_VALUES:
                raise UnsafeFileError(file, "holds more values than any model has modules; not read")
            yield hooked
    elif place.slot is Slot.MODEL_INPUT and isinstance(root, dict):
        # a number or a text beside the inputs says how the script was run
        yield place, {key: value for key, value in root.items() if not _is_setting(value)}
    else:
        yield place, root


def _describe_kind(value: Any) -> str:
    """Return what a value is, in a word or two; nothing for an empty one."""
    if _is_empty(value):
        return ""
    innermost = value
    for _ in range(_DEEPEST):  # a list may hold itself
        innermost = innermost[0] if isinstance(innermost, (list, tuple)) and innermost else innermost
    if isinstance(innermost, (int, float)):
        return "lists of numbers" if isinstance(value, (list, tuple)) else "a number"
    return f"a {type(value).__name__}" if isinstance(value, (dict, list, tuple, str, bytes)) else "an object"


def _is_empty(value: Any, depth: int = 0) -> bool:
    """Return True if there is nothing in a value: hooks get tuples of None where no gradient flows."""
    if isinstance(value, (dict, list, tuple)) and depth < _DEEPEST and len(value) < _MOST_EMPTY:
        items = value.values() if isinstance(value, dict) else value
        return all(_is_empty(item, depth + 1) for item in items)
    return value is None or value in ("", b"")


def _read_settings(path: str) -> _Settings:
    """Return the plain values that tell how the script was run."""
    settings: _Settings = {}
    for file in reversed(saved_settings(path)):
        root = load_any(Window(RegularFile(file))).root
        for key, value in root.items() if isinstance(root, dict) else ():
            if isinstance(key, str) and _is_setting(value):
                settings[key] = value
    return settings


def _is_setting(value: Any) -> bool:
    return type(value) in (bool, int, float, str)


def _build_loss(value: float) -> TensorRef:
    """Return a loss that was noted as a plain number, as the float32 it most likely was."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    is_exact = float(single) == value or math.isnan(value)
    array = np.array(single if is_exact else value)
    return _measure_tensor(TensorRef("", (), DTYPES[array.dtype.name], MemoryData(array)), array.nbytes)


def _measure_tensor(tensor: TensorRef, room: int) -> TensorRef:
    """Return a tensor with its digest and statistics, by which recordings are paired and gradients judged."""
    if tensor.missing or tensor.nbytes > room:
        return tensor
    measured = measure_tensor(RawTensor(tensor.read(0, tensor.count).reshape(-1), tensor.dtype, tensor.shape))
    return replace(tensor, trace=Trace(digest=measured.digest, stats=measured.stats))


def _describe_run(folder: _SavedFolder, settings: _Settings) -> dict[str, Any]:
    """Return the metadata that a recording of the run would have."""
    holds = [Slot.OUTPUT]
    for slot, names in ((Slot.MODEL_INPUT, INPUTS), (Slot.LOSS, (_LOSS,)), (Slot.PARAM_GRAD, (_GRADIENTS,))):
        if folder.has_slot(slot) or any(_has_file(folder.path, name) for name in names):
            holds.append(slot)
    for slot in (Slot.INPUT, Slot.GRAD_OUTPUT, Slot.GRAD_INPUT):
        if folder.has_slot(slot):
            holds.append(slot)
    meta: dict[str, Any] = {
        "settings": {key: value for key, value in settings.items() if len(str(value)) < 200},
        "holds": [slot.value for slot in holds],
        "inputs_kept": folder.has_slot(Slot.INPUT),
    }
    if type(settings.get("seed")) is int:
        meta["seed"] = settings["seed"]
    if settings.get("mode") in ("train", "eval"):
        meta["mode"] = settings["mode"]
    if folder.unread:
        meta["not_recorded"] = folder.unread
    if Slot.PARAM_GRAD in holds or Slot.GRAD_OUTPUT in holds:
        meta["loss"] = "script"
    return meta


def _list_notes(folder: _SavedFolder) -> Iterator[str]:
    input_gradients = unmeasured = 0
    for place, tensors in folder.tensors.items():
        if place.slot is Slot.GRAD_INPUT:
            input_gradients += len(tensors)
        unmeasured += sum(tensor.trace.digest is None for tensor in tensors)
    if input_gradients:
        yield (
            f"{plural(input_gradients, 'gradient')} at module inputs (grad_input) can only be compared with another "
            "folder like this one: nndiff record takes gradients at outputs"
        )
    for word, count in folder.unknown.items():
        key = printable(repr(word), 80)
        yield f"not compared: {plural(count, 'tensor')} under {key}; the hook data does not say what they are"
    if unmeasured:
        yield f"{plural(unmeasured, 'tensor')} without statistics: too large for the file, or not stored in it"
