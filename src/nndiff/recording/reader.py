"""Read a recording back: without torch, lazily, trusting nothing it says."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DTYPES
from nndiff.errors import DamagedError, SourceError, UnsafeFileError
from nndiff.files import RegularFile, Window
from nndiff.recorded import GRADIENTS
from nndiff.recording.format.checks import Checker, Claim
from nndiff.recording.format.events import CallEvent, Event, TensorEvent, ValueEvent
from nndiff.recording.format.folder import BEFORE, is_recording, put_aside
from nndiff.recording.format.input_structure import by_names, events_of, rebuild
from nndiff.recording.format.keep_levels import sketch_positions
from nndiff.recording.format.lines import EVENTS, FORMAT, LINE_LIMIT, MANIFEST, SHARD, VERSION, from_line, parse
from nndiff.recording.format.manifest import check_manifest
from nndiff.recording.format.shards import entry, stored_as
from nndiff.recording.format.values import EMPTY
from nndiff.recording.format.weights import fingerprints
from nndiff.sources.safetensors_file import read_header
from nndiff.sources.source import Source
from nndiff.tensors import Data, FileData, MemoryData, NoData, Slot, TensorRef, Trace, settled
from nndiff.text import counted, plural, printable

_MANIFEST_LIMIT = 64 << 20
_MOST_EVENTS = 5_000_000


@dataclass(frozen=True)
class Recording:
    """Hold what a run left behind: its metadata, its events in order, its tensors on demand."""

    path: str
    complete: bool
    meta: Mapping[str, Any]
    events: tuple[Event, ...] = field(repr=False)
    notes: tuple[str, ...] = ()
    damaged: bool = False  # it was complete once, and events are gone

    @cached_property
    def tensors(self) -> tuple[TensorEvent, ...]:
        """Return the events that are tensors."""
        return tuple(event for event in self.events if isinstance(event, TensorEvent))

    @cached_property
    def values(self) -> tuple[ValueEvent, ...]:
        """Return the events that are plain values."""
        return tuple(event for event in self.events if isinstance(event, ValueEvent))

    @cached_property
    def calls(self) -> tuple[CallEvent, ...]:
        """Return the calls of modules in the order in which they finished."""
        return tuple(event for event in self.events if isinstance(event, CallEvent))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what the recording itself warns of."""
        found = self.meta.get("warnings", [])
        return tuple(str(each) for each in found) if isinstance(found, list) else ()

    def inputs(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments and keyword arguments the model was called with, tensors as TensorRef."""
        refs = {ref.trace.order: ref for ref in self.source().tensors.values() if ref.site.slot == "model_input"}
        spec = self.meta.get("inputs")
        if not self.complete and (spec is None or not refs.keys() >= set(events_of(spec))):
            raise SourceError(
                self.path,
                "is incomplete: the run was cut off before its inputs were on disk, so they cannot be fed again; "
                "record it again",
            )
        return by_names(self.path, self._fed()) if spec is None else rebuild(self.path, spec, refs)

    def _fed(self) -> dict[str, Any]:
        """Return what the model was fed by its path; plain values as they are."""
        tensors = self.source().tensors
        found: dict[str, Any] = {}
        for event in self.events:
            if isinstance(event, CallEvent) or event.site.slot != "model_input":
                continue
            if event.site.module or event.site.call or event.site.nth or (isinstance(event, ValueEvent) and event.note):
                trouble = f"{printable(event.site.name, 80)!r} is no first call of the model, or not all of it was kept"
                raise SourceError(self.path, f"holds inputs that cannot be fed again: {trouble}")
            found[event.site.path] = event.value if isinstance(event, ValueEvent) else tensors[event.site.name]
        return found

    def source(self) -> Source:
        """Return the tensors as a source: named, lazy, in order of execution, each with what is known of its site."""
        return self._source

    def check(self) -> None:
        """Read all elements; raise where some, or events, are no longer what was recorded."""
        if self.damaged:
            raise DamagedError(self.path, f"is {'; '.join(self.notes)}; copy or record it again")
        held = [(name, ref.trace.sketch or ref) for name, ref in self.source().tensors.items()]
        damaged = [name for name, ref in held if not _is_sound(ref)]
        if damaged:
            raise DamagedError(
                self.path,
                f"is damaged: the elements of {counted([printable(name, 80) for name in damaged], 'tensor')} do not "
                "have the digests that were recorded with them; copy or record it again",
            )

    @property
    def _went_backward(self) -> bool:
        """Tell whether something of a backward pass is there: whoever wrote the recording may not say."""
        return any(event.site.slot in (*GRADIENTS, "loss") for event in self.tensors)

    @cached_property
    def _source(self) -> Source:
        shards = _open_shards(Path(self.path), {event.shard for event in self.tensors if event.shard})
        calls = {order: call for call in self.calls for order in call.outputs}
        checker = Checker(self.path)
        weights = fingerprints(self.meta)
        refs = [_ref(checker, event, shards, calls.get(event.order), weights) for event in self.tensors]
        plain = {event.site.name: ref for event in self.values if (ref := _value_ref(event, calls.get(event.order)))}
        tensors = {**{ref.name: ref for ref in refs}, **plain}
        return Source(
            label=self.path,
            kind="recording",
            tensors=dict(sorted(tensors.items(), key=lambda item: item[1].trace.order)),
            others={event.site.name: event.type for event in self.values if event.site.name not in plain},
            notes=(*self.notes, *self.warnings),
            meta={"backward": self._went_backward, **self.meta, **_not_recorded(self.values, plain)},
        )


def open_recording(path: str | os.PathLike[str]) -> Recording:
    """Open a recording, finished or not."""
    folder = Path(path)
    name = os.fspath(path)
    if not folder.is_dir():
        raise SourceError(name, "not a folder" if folder.exists() else "no such file or directory")
    if not is_recording(folder):
        raise SourceError(name, f"not a recording: it has no {MANIFEST} of the format {FORMAT}")
    manifest = _manifest(folder)
    check_manifest(folder, manifest)
    events, torn = _events(folder)
    complete = manifest.get("complete") is True
    claimed = manifest.get("events", len(events))
    if complete and claimed < len(events):
        raise SourceError(
            folder / MANIFEST,
            f"tells of {plural(claimed, 'event')} where there are {len(events):,}: damaged, or of another recording",
        )
    notes = [*_notes(complete, torn, len(events), claimed), *([] if complete else _about_what_was_there(folder))]
    meta = manifest.get("meta", {})
    _check(name, events)
    whole = not torn and claimed == len(events)
    return Recording(name, complete and whole, meta, tuple(events), tuple(notes), damaged=complete and not whole)


def _manifest(folder: Path) -> dict[str, Any]:
    path = os.fspath(folder / MANIFEST)
    window = Window(RegularFile(path))
    if window.size > _MANIFEST_LIMIT:
        raise UnsafeFileError(path, f"is {window.size} bytes; more than {_MANIFEST_LIMIT} are not read")
    manifest = parse(path, window.read(0, window.size))
    if manifest.get("format") != FORMAT:
        raise SourceError(path, f"the format is {printable(repr(manifest.get('format')), 80)}, not {FORMAT!r}")
    version = manifest.get("version")
    if type(version) is not int or version < 1:
        raise SourceError(path, "the version is not a whole number of one or more")
    if version > VERSION:
        raise SourceError(path, f"is of version {version}, this nndiff reads up to {VERSION}: update nndiff")
    if version < VERSION:
        raise SourceError(path, f"is of version {version}, from before the digests were changed: record it again")
    return manifest


def _events(folder: Path) -> tuple[list[Event], bool]:
    """Return the events, and whether the last line was torn off."""
    path = os.fspath(folder / EVENTS)
    if not os.path.lexists(path):
        return [], True
    events: list[Event] = []
    for line in _lines(Window(RegularFile(path))):
        if not line.endswith(b"\n"):
            return events, True
        if len(events) >= _MOST_EVENTS:
            raise UnsafeFileError(path, f"holds more than {_MOST_EVENTS} events")
        events.append(from_line(f"{path} line {len(events) + 1}", line))
    return events, False


def _lines(window: Window) -> Iterator[bytes]:
    rest = b""
    for chunk in window.chunks():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line + b"\n"
        if len(rest) > LINE_LIMIT:
            raise UnsafeFileError(window.path, f"has a line of more than {LINE_LIMIT} bytes")
    if rest:
        yield rest


def _notes(complete: bool, torn: bool, count: int, claimed: int) -> Iterator[str]:
    if not complete:
        yield f"incomplete: the run was cut off, {plural(count, 'event')} can be read"
    elif torn or claimed != count:
        yield f"damaged: {count:,} of {plural(claimed, 'event') if claimed != count else 'its events'} can be read"
    if torn:
        yield "the last line of the events was torn off and is left out"


def _about_what_was_there(folder: Path) -> Iterator[str]:
    before = put_aside(folder)
    if before:
        yield f"it was to overwrite another: {BEFORE} {before.name}, beside it"


def _check(name: str, events: list[Event]) -> None:
    """Refuse what would mislead: orders that go back, names that stand twice, references to nothing."""
    known: dict[int, Event] = {}
    names: set[str] = set()
    last = -1
    for event in events:
        if event.order <= last:
            raise SourceError(name, f"the order of events goes back at {event.order}")
        last = event.order
        if isinstance(event, CallEvent):
            _check_call(name, event, known)
        else:
            title = event.site.name
            if title in names:
                raise SourceError(name, f"holds two events of the name {printable(title, 80)!r}")
            names.add(title)
            if isinstance(event, TensorEvent):
                _check_tensor(name, event, known)
        known[event.order] = event


def _check_call(name: str, event: CallEvent, known: dict[int, Event]) -> None:
    links = [link.event for link in event.inputs if link.event is not None]
    if event.entered > event.order or any(order not in known for order in (*event.outputs, *links)):
        raise SourceError(name, f"the call of order {event.order} refers to events that are not there")


def _check_tensor(name: str, event: TensorEvent, known: dict[int, Event]) -> None:
    if event.dtype not in DTYPES:
        raise SourceError(
            name, f"{printable(event.site.name, 80)!r} has the unknown dtype {printable(event.dtype, 40)!r}"
        )
    for order in (event.same, event.forward, event.over):
        if order is not None and not isinstance(known.get(order), TensorEvent):
            raise SourceError(name, f"{printable(event.site.name, 80)!r} refers to an event {order} that is not there")
    twin = known.get(event.same) if event.same is not None else None
    if isinstance(twin, TensorEvent) and (twin.digest, twin.shape, twin.dtype) != (
        event.digest,
        event.shape,
        event.dtype,
    ):
        raise SourceError(
            name, f"{printable(event.site.name, 80)!r} claims to be the same as another tensor and is not"
        )
    if event.keep == "full" and (event.shard is None or event.key is None):
        raise SourceError(name, f"{printable(event.site.name, 80)!r} is kept in full but says not where")
    if event.keep == "sketch" and (event.shard is None or event.sketch is None):
        raise SourceError(name, f"{printable(event.site.name, 80)!r} is kept as a sketch but says not where")


_Shards = dict[str, dict[str, TensorRef]]


def _open_shards(folder: Path, names: set[str]) -> _Shards:
    shards: _Shards = {}
    for name in sorted(names):
        assert SHARD.match(name)  # bare names only: checked when the events were read
        refs, _ = read_header(Window(RegularFile(os.fspath(folder / name))))
        shards[name] = {ref.name: ref for ref in refs}
    return shards


_Weights = Mapping[str, tuple[str, ...]]  # digests of what each module holds itself


def _ref(checker: Checker, event: TensorEvent, shards: _Shards, call: CallEvent | None, weights: _Weights) -> TensorRef:
    path, name, dtype = checker.recording, event.site.name, DTYPES[event.dtype]
    data: Data = NoData(f"the recording keeps its {event.keep} alone")
    trace = _trace(event, call)
    if event.site.slot is Slot.OUTPUT:
        trace = replace(trace, weights=weights.get(event.site.module, ()))
    if event.keep == "full":
        window = _stored(path, event, event.key, event.shape, shards)
        data = checker.data(window, Claim(name, event.shard or "", event.shape, dtype, event.digest))
    elif event.keep == "sketch":
        trace = replace(trace, sketch=_sketch(checker, event, shards))
    return TensorRef(name, event.shape, dtype, data, (path, event.digest), event.site, trace)


def _sketch(checker: Checker, event: TensorEvent, shards: _Shards) -> TensorRef:
    count = math.prod(event.shape)
    shape: tuple[int, ...] = (sketch_positions(count).size,)
    window = _stored(checker.recording, event, event.sketch, shape, shards)
    name, dtype = f"{event.site.name}#sketch", DTYPES[event.dtype]
    whole = shape == (count,)  # then it is the tensor itself, and places in it are places in the tensor
    shape, digest = (event.shape, event.digest) if whole else (shape, event.sketch_digest)
    return TensorRef(name, shape, dtype, checker.data(window, Claim(name, event.shard or "", shape, dtype, digest)))


def _not_recorded(values: Iterable[ValueEvent], plain: Mapping[str, TensorRef]) -> dict[str, dict[str, str]]:
    """Return the outputs of the model itself that nobody could read, {name: what it is}: others may not be the same."""
    found = {}
    for event in values:
        known = event.site.name in plain or event.note == EMPTY or (event.type == "NoneType" and not event.note)
        if event.site.slot == "output" and not event.site.module and not known:
            told = event.note.startswith(("a ", "an "))
            found[event.site.name] = event.note if told else ", ".join(filter(None, (f"a {event.type}", event.note)))
    return {"not_recorded": found} if found else {}


def _is_sound(tensor: TensorRef) -> bool:
    try:
        settled(tensor.data)
    except DamagedError:
        return False
    return True


def _value_ref(event: ValueEvent, call: CallEvent | None) -> TensorRef | None:
    """Return a number or a text among the outputs as a tensor, so that it is compared as one."""
    value = event.value
    if event.note or not isinstance(value, (bool, int, float, str)):
        return None
    raw: NDArray[Any] = (
        np.frombuffer(value.encode("utf-8", "surrogatepass"), np.uint8) if isinstance(value, str) else np.asarray(value)
    )
    kind = {bool: "bool", int: "int64", float: "float64", str: "uint8"}[type(value)]
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return None
    dtype = DTYPES[kind]
    data = MemoryData(raw.astype(dtype.storage).reshape(raw.shape))
    return TensorRef(event.site.name, raw.shape, dtype, data, None, event.site, _trace(event, call))


def _stored(path: str, event: TensorEvent, key: str | None, shape: tuple[int, ...], shards: _Shards) -> Window:
    """Return where the bytes lie, if the shard agrees with the event about them."""
    nbytes = math.prod(shape) * DTYPES[event.dtype].itemsize
    found = shards[event.shard or ""].get(key or "")
    title = printable(event.site.name, 80)
    if found is None or not isinstance(found.data, FileData):
        raise SourceError(path, f"{title!r} is not in {event.shard}, where the events say it is")
    _, stored_shape = entry(event.dtype, shape, nbytes)
    if found.dtype.name != stored_as(event.dtype) or found.shape != tuple(stored_shape):
        raise SourceError(path, f"{title!r} has another shape or type in {event.shard} than in the events")
    return found.data.window


def _trace(event: TensorEvent | ValueEvent, call: CallEvent | None) -> Trace:
    """Return what the events know of a tensor beside its elements."""
    inputs, parent = (call.inputs, call.parent) if call else ((), None)
    if isinstance(event, ValueEvent):
        return Trace(event.order, event.phase, keep="full", inputs=inputs, parent=parent)
    return Trace(
        event.order,
        event.phase,
        keep=event.keep,
        digest=event.digest,
        stats=event.stats,
        same=event.same,
        forward=event.forward,
        over=event.over,
        inputs=inputs,
        parent=parent,
    )
