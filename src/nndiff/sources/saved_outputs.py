"""Saved outputs as older scripts leave them: input_data.pt, forward_output.pt, parameter_gradients.pt, hook_data.pkl.

Their tensors are given the sites of a recording, so that they are compared as one. The hooks of such scripts write over
what they saw before: of a module that is called more than once there is its last call, and the gradient of its first.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DTYPES
from nndiff.errors import SourceError, UnsafeFileError
from nndiff.files import RegularFile
from nndiff.names import ancestors
from nndiff.recording.format.digests import RawTensor, measure_tensor
from nndiff.sources.hook_data import Hooked, hooked, is_named
from nndiff.sources.source import Source, by_name
from nndiff.sources.torch_file import open_arranged
from nndiff.tensors import Link, MemoryData, Phase, Site, Slot, TensorRef, Trace
from nndiff.text import plural, printable

HOOKS = ("hook_data.pkl", "layer_outputs.pkl")
INPUTS = ("input_data.pt", "batch.pt")
_OUTPUT, _LOSS, _GRADIENTS, _METADATA = "forward_output.pt", "loss.pt", "parameter_gradients.pt", "metadata.pkl"
_MOST_VALUES = 100_000
_DEEPEST, _MOST_EMPTY = 4, 64  # how far a value is looked through for something
_ROOM = 256 << 20  # bytes that a tensor may claim beyond those of its file and still be measured

_Settings = dict[str, bool | int | float | str]


def is_saved_outputs(path: str) -> bool:
    """Tell whether a folder has the files those scripts write."""
    has_inputs = any(_has(path, name) for name in INPUTS)
    return any(_has(path, name) for name in HOOKS) or (has_inputs and _has(path, _OUTPUT))


def file_of_inputs(path: str) -> str:
    """Return the file of such a folder that holds what its model was fed."""
    found = next((os.path.join(path, name) for name in INPUTS if _has(path, name)), "")
    if not found:
        raise SourceError(path, f"holds no inputs that could be fed again: it has no {' and no '.join(INPUTS)}")
    return found


def _has(path: str, name: str) -> bool:
    return os.path.isfile(os.path.join(path, name))


@dataclass
class _Folder:
    """Hold what was read of a folder so far."""

    path: str
    tensors: dict[Hooked, list[TensorRef]] = field(default_factory=dict)  # each named by its place inside the value
    foreign: dict[str, None] = field(default_factory=dict)
    unknown: Counter[str] = field(default_factory=Counter)  # what hook data has under words that say nothing
    unread: dict[str, str] = field(default_factory=dict)  # what holds no tensors, and what it is instead

    def read(self, name: str, sites: Callable[[Any], Iterable[tuple[Hooked, Any]]]) -> None:
        """Read a file; `sites` tells where the values in it were taken."""
        file = os.path.join(self.path, name)
        if not os.path.lexists(file):
            return
        places: list[Hooked] = []
        kinds: list[str] = []

        def arrange(root: Any) -> dict[str, Any]:
            values: dict[str, Any] = {}
            if name in HOOKS and not is_named(root):
                raise SourceError(file, f"holds no modules by their names but {_kind(root) or 'nothing'}")
            for place, value in sites(root):
                if len(places) >= _MOST_VALUES:
                    raise UnsafeFileError(file, "holds more values than any model has modules; not read")
                values[str(len(places))] = value
                places.append(place)
                kinds.append(_kind(value))
            return values

        opened = open_arranged(file, arrange)
        self.foreign.update(dict.fromkeys(opened.foreign))
        room = RegularFile(file).size + _ROOM
        read: set[int] = set()
        for title, tensor in opened.tensors.items():
            number, _, inside = title.partition(".")
            place = places[int(number)]
            read.add(int(number))
            if place.slot:
                self.tensors.setdefault(place, []).append(_measured(tensor.renamed(inside), room))
            else:
                self.unknown[place.word] += 1
        self._note_unread(name, [(places[k], kinds[k]) for k in range(len(places)) if kinds[k] and k not in read])

    def _note_unread(self, file: str, found: Sequence[tuple[Hooked, str]]) -> None:
        """Note what a file holds in place of tensors: nobody knows what it would have told."""
        for place, kind in found:
            if place.slot and place.slot != "model_input":
                title = f"{place.module} in {file}" if place.module else file
                self.unread.setdefault(title, f"{kind}, not tensors")

    def has(self, slot: str, word: str = "") -> bool:
        """Tell whether something was taken at the model itself, by a file of that word."""
        return any((place.module, place.slot, place.word) == ("", slot, word) for place in self.tensors)

    def of(self, slot: str) -> dict[Hooked, list[TensorRef]]:
        """Return what was taken at a slot."""
        return {place: tensors for place, tensors in self.tensors.items() if place.slot == slot}


def _kind(value: Any) -> str:
    """Return what a value is, in a word or two; nothing for one that is empty."""
    if _is_empty(value):
        return ""
    if _is_number(value):
        return "lists of numbers" if isinstance(value, (list, tuple)) else "a number"
    known = (dict, list, tuple, str, bytes)
    return f"a {type(value).__name__}" if isinstance(value, known) else "an object"


def _is_empty(value: Any, depth: int = 0) -> bool:
    """Tell whether there is nothing in a value: hooks are handed tuples of None where no gradient flows."""
    if isinstance(value, (dict, list, tuple)) and depth < _DEEPEST and len(value) < _MOST_EMPTY:
        inside = value.values() if isinstance(value, dict) else value
        return all(_is_empty(each, depth + 1) for each in inside)
    return value is None or value in ("", b"")


def _is_number(value: Any) -> bool:
    for _ in range(_DEEPEST):  # a list may hold itself
        value = value[0] if isinstance(value, (list, tuple)) and value else value
    return isinstance(value, (int, float))


def open_saved_outputs(path: str) -> Source:
    """Open such a folder as a recording; its tensors are read once, for what a recording tells of each."""
    folder = _Folder(path)
    for name in INPUTS:
        folder.read(name, lambda root: [(Hooked("", "model_input"), _without_plain(root))])
    for name in HOOKS:
        folder.read(name, hooked)
    folder.read(_OUTPUT, lambda root: [(Hooked("", "output", 0, _OUTPUT), root)])
    folder.read(_LOSS, lambda root: [(Hooked("", "loss"), root)])
    settings = _settings(path)
    if not folder.of("loss"):
        folder.tensors.update(_loss_in(settings))
    folder.read(_GRADIENTS, lambda root: [(Hooked("", "param_grad"), root)])
    tensors = by_name(path, _linked(_ordered(folder)))
    foreign, notes = tuple(folder.foreign), tuple(_notes(folder))
    return Source(path, "recording", tensors, foreign=foreign, notes=notes, meta=_facts(folder, settings))


def _loss_in(settings: _Settings) -> dict[Hooked, list[TensorRef]]:
    """Return the loss that is noted as a mere number, as the float32 it most likely was."""
    noted = settings.get("loss")
    if type(noted) is not float:
        return {}
    with np.errstate(over="ignore"):
        single = np.float32(noted)
    exact = float(single) == noted or math.isnan(noted)
    return {Hooked("", "loss"): [_of_array(np.array(single if exact else noted))]}


def _of_array(array: NDArray[Any]) -> TensorRef:
    dtype = DTYPES[array.dtype.name]
    return _measured(TensorRef("", array.shape, dtype, MemoryData(array)), array.nbytes)


def saved_settings(path: str) -> list[str]:
    """Return the files of such a folder that tell how its script was run, the most telling first."""
    names = (_METADATA, *INPUTS) if is_saved_outputs(path) else ()
    return [os.path.join(path, name) for name in names if _has(path, name)]


def _settings(path: str) -> _Settings:
    return {key: value for file in reversed(saved_settings(path)) for key, value in _plain_in(file).items()}


def _plain_in(file: str) -> _Settings:
    found: _Settings = {}

    def arrange(root: Any) -> dict[str, Any]:
        held = root.items() if isinstance(root, dict) else ()
        found.update((key, value) for key, value in held if isinstance(key, str) and _is_plain(value))
        return {}

    open_arranged(file, arrange)
    return found


def _without_plain(root: Any) -> Any:
    """Return the inputs alone: a number or a text beside them says how the script was run."""
    return {key: value for key, value in root.items() if not _is_plain(value)} if isinstance(root, dict) else root


def _is_plain(value: Any) -> bool:
    return type(value) in (bool, int, float, str)


def _measured(tensor: TensorRef, room: int) -> TensorRef:
    """Return a tensor with its digest and statistics, by which recordings are paired and gradients judged."""
    if tensor.missing or tensor.nbytes > room:
        return tensor
    raw = RawTensor(tensor.read(0, tensor.count).reshape(-1), tensor.dtype, tensor.shape)
    found = measure_tensor(raw)
    return replace(tensor, trace=Trace(digest=found.digest, stats=found.stats))


def _facts(folder: _Folder, settings: _Settings) -> dict[str, Any]:
    """Return what is known of the run, as a recording tells it."""
    seed, mode = settings.get("seed"), settings.get("mode")
    files = {"model_input": INPUTS, "loss": (_LOSS,), "param_grad": (_GRADIENTS,)}
    filed = [slot for slot, names in files.items() if folder.of(slot) or any(_has(folder.path, name) for name in names)]
    hooks = [slot for slot in ("input", "grad_output", "grad_input") if folder.of(slot)]
    return {
        **({"seed": seed} if type(seed) is int else {}),
        **({"mode": mode} if mode in ("train", "eval") else {}),
        "settings": {key: value for key, value in settings.items() if len(str(value)) < 200},
        "holds": ["output", *filed, *hooks],
        **({"not_recorded": folder.unread} if folder.unread else {}),
        "inputs_kept": bool(folder.of("input")),
        **({"loss": "script"} if {"param_grad", "grad_output"} & {*filed, *hooks} else {}),
    }


def _notes(folder: _Folder) -> Iterator[str]:
    at_inputs = sum(len(tensors) for tensors in folder.of("grad_input").values())
    if at_inputs:
        yield (
            f"{plural(at_inputs, 'gradient')} at the inputs of modules (grad_input): compared with those of another "
            "folder of its kind alone, for nndiff record takes gradients at outputs"
        )
    for word, many in folder.unknown.items():
        told = f"{plural(many, 'tensor')} under {printable(repr(word), 80)}"
        yield f"not compared: {told} in its hook data, which does not say what they are"
    unmeasured = [place for place, tensors in folder.tensors.items() for each in tensors if each.trace.digest is None]
    if unmeasured:
        yield f"{plural(len(unmeasured), 'tensor')} without statistics: too large for the file, or not kept in it"


_Taken = tuple[Site, TensorRef]


def _ordered(folder: _Folder) -> Iterator[TensorRef]:
    """Yield all tensors at their sites in the order of a run: inputs, forward, final output, backward, parameters."""
    numbers = count()
    for site, tensor in (*_fed(folder), *_forward(folder), *_final(folder), *_backward(folder), *_owned(folder)):
        yield _at_site(tensor, next(numbers), site)


def _fed(folder: _Folder) -> Iterator[_Taken]:
    for each in _all(folder.of("model_input")):
        yield Site("", Slot.MODEL_INPUT, 0, each.name), each


def _final(folder: _Folder) -> Iterator[_Taken]:
    """Yield what the model returned, and its loss; the file of the output says so even where a hook did too."""
    told = {place: tensors for place, tensors in folder.of("output").items() if place.word == _OUTPUT}
    for each in _all(told):
        yield Site("", Slot.OUTPUT, 0, each.name), each
    for each in _all(folder.of("loss")):
        yield Site("", Slot.LOSS, 0, each.name), each


def _owned(folder: _Folder) -> Iterator[_Taken]:
    for each in _all(folder.of("param_grad")):
        module, _, name = each.name.rpartition(".")
        yield Site(module, Slot.PARAM_GRAD, 0, "", name), each


def _all(places: Mapping[Hooked, Sequence[TensorRef]]) -> Iterator[TensorRef]:
    return (tensor for tensors in places.values() for tensor in tensors)


def _forward(folder: _Folder) -> Iterator[_Taken]:
    """Yield inputs and outputs of modules as they run: a composite begins before what is in it and ends after it."""
    found = [(place, tensors) for place, tensors in folder.tensors.items() if place.slot in ("input", "output")]
    yield from _sites(folder, [each for each in found if each[0].word != _OUTPUT])


def _backward(folder: _Folder) -> Iterator[_Taken]:
    """Yield gradients at outputs and inputs the other way round."""
    found = [each for each in folder.tensors.items() if each[0].slot in ("grad_output", "grad_input")]
    yield from _sites(folder, found, backward=True)


_Found = tuple[Hooked, list[TensorRef]]


def _sites(folder: _Folder, found: Sequence[_Found], backward: bool = False) -> Iterator[_Taken]:
    spans = _spans(folder)

    def when(each: _Found) -> tuple[int, int, int, int]:
        place = each[0]
        depth, at_input = len([*ancestors(place.module)]), place.slot.endswith("input")
        return (spans[place.module][not at_input], not at_input, depth if at_input else -depth, place.call)

    for place, tensors in sorted(found, key=when, reverse=backward):
        if place.module or not _is_told(folder, place.slot):
            yield from _placed(folder, place, tensors)


def _is_told(folder: _Folder, slot: str) -> bool:
    """Tell whether a file of its own holds what a hook of the model itself saw."""
    return folder.has("output", _OUTPUT) if slot == "output" else slot == "input" and folder.has("model_input")


def _placed(folder: _Folder, place: Hooked, tensors: Sequence[TensorRef]) -> Iterator[_Taken]:
    slot = Slot.MODEL_INPUT if place.slot == "input" and not place.module else Slot(place.slot)
    for tensor in tensors:
        yield Site(place.module, slot, place.call, _path(folder, place, tensor.name, len(tensors))), tensor


def _spans(folder: _Folder) -> dict[str, tuple[int, int]]:
    """Return by module the places of the first and the last in it, in the order of the file."""
    places: dict[str, tuple[int, int]] = {}
    hooks = (place.module for place in folder.tensors if place.word != _OUTPUT and place.slot in _HOOKED)
    for number, module in enumerate(dict.fromkeys(hooks)):
        for around in (module, *ancestors(module)):
            first, last = places.get(around, (number, number))
            places[around] = min(first, number), max(last, number)
    return places


_HOOKED = ("input", "output", "grad_output", "grad_input")


def _path(folder: _Folder, place: Hooked, path: str, many: int) -> str:
    """Return the place inside what a module took or returned, as a recording would have it.

    A backward hook is handed a tuple even where the module returned one tensor; and inputs are always by position.
    """
    if place.slot in ("input", "grad_input"):
        return path or "0"
    if place.slot != "grad_output" or many > 1:
        return path
    outputs = [each.name for each in folder.tensors.get(Hooked(place.module, "output", place.call), ())]
    if path == "0" and outputs in ([], [""]):
        return ""
    return "0" if not path and outputs == ["0"] else path


def _at_site(tensor: TensorRef, order: int, site: Site) -> TensorRef:
    phase: Phase = "backward" if site.slot.is_gradient else "forward"
    trace = replace(tensor.trace, order=order, phase=phase, keep="full")
    return replace(tensor, name=site.name, site=site, trace=trace)


def _linked(found: Iterable[TensorRef]) -> Iterator[TensorRef]:
    """Tell each output what its module was given, and each gradient which output it belongs to."""
    made: dict[str, int] = {}  # the last event of each content
    given: dict[tuple[str, int], list[Link]] = {}
    outputs: dict[tuple[str, int, str], int] = {}
    for tensor in found:
        site, trace = tensor.site, tensor.trace
        call = site.module, site.call
        if site.slot is Slot.INPUT:
            given.setdefault(call, []).append(_link(tensor, made))
        elif site.slot is Slot.OUTPUT:
            trace = replace(trace, inputs=tuple(given.get(call, ())))
            outputs[site.module, site.call, site.path] = trace.order
        elif site.slot is Slot.GRAD_OUTPUT:
            trace = replace(trace, forward=outputs.get((site.module, site.call, site.path)))
        if site.slot in (Slot.OUTPUT, Slot.MODEL_INPUT) and trace.digest and tensor.count > 1:
            made[trace.digest] = trace.order
        yield replace(tensor, trace=trace)


def _link(tensor: TensorRef, made: Mapping[str, int]) -> Link:
    path, trace = tensor.site.path, tensor.trace
    earlier = made.get(trace.digest) if trace.digest else None
    return Link(path, "own", trace.order) if earlier is None else Link(path, "equal", earlier)
