"""Read a recording: without torch, lazily, and without trusting what it says."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DTYPES
from nndiff.errors import DamagedError, SourceError, UnsafeFileError
from nndiff.files import RegularFile, Window
from nndiff.recording.format.checks import ElementChecker, ElementClaim, check_events
from nndiff.recording.format.events import CallEvent, Content, Event, TensorEvent, ValueEvent
from nndiff.recording.format.folder import BEFORE, is_recording, put_aside
from nndiff.recording.format.input_structure import arrange_inputs, list_input_events, rebuild_inputs
from nndiff.recording.format.keep_levels import sketch_positions
from nndiff.recording.format.layout import EVENT_LIMIT, EVENTS, FORMAT, LINE_LIMIT, MANIFEST, SHARD_NAME
from nndiff.recording.format.lines import line_to_event
from nndiff.recording.format.manifest import read_manifest
from nndiff.recording.format.noise import read_noise_floors
from nndiff.recording.format.shards import get_stored_dtype, make_header_entry
from nndiff.recording.format.weights import collect_module_digests
from nndiff.sources.safetensors_file import read_header
from nndiff.sources.source import OtherEntry, Source
from nndiff.tensors import Data, FileData, MemoryData, NoData, Slot, TensorRef, Trace, settled
from nndiff.text import counted, plural, printable


@dataclass(frozen=True)
class Recording:
    """Hold a recorded run: its metadata, its events in order, its tensors on demand."""

    path: str
    complete: bool
    meta: Mapping[str, Any]
    events: tuple[Event, ...] = field(repr=False)
    notes: tuple[str, ...] = ()
    damaged: bool = False  # it was complete once, and lost events since

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
        """Return the warnings of the run."""
        warnings = self.meta.get("warnings", [])
        return tuple(str(warning) for warning in warnings) if isinstance(warnings, list) else ()

    def inputs(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments and keyword arguments of the model, tensors as TensorRef."""
        tensors = {}
        for tensor in self.source().tensors.values():
            if tensor.site.slot is Slot.MODEL_INPUT:
                tensors[tensor.trace.order] = tensor
        structure = self.meta.get("inputs")
        if not self.complete and (structure is None or not tensors.keys() >= set(list_input_events(structure))):
            raise SourceError(
                self.path,
                "is incomplete: the run was cut off before its inputs were on disk, so they cannot be fed again; "
                "record it again",
            )
        if structure is None:
            return arrange_inputs(self.path, self._collect_inputs())
        return rebuild_inputs(self.path, structure, tensors)

    def _collect_inputs(self) -> dict[str, Any]:
        """Return the inputs of the model by path; plain values as they are."""
        tensors = self.source().tensors
        inputs: dict[str, Any] = {}
        for event in self.events:
            if isinstance(event, CallEvent) or event.site.slot is not Slot.MODEL_INPUT:
                continue
            site = event.site
            is_whole = isinstance(event, TensorEvent) or event.is_plain
            if site.module or site.call or site.nth or not is_whole:
                reason = (
                    f"{printable(site.name, 80)!r} is not from the first call of the model, or was not kept in full"
                )
                raise SourceError(self.path, f"holds inputs that cannot be fed again: {reason}")
            inputs[site.path] = event.value if isinstance(event, ValueEvent) else tensors[site.name]
        return inputs

    def source(self) -> Source:
        """Return the tensors as a source: named, lazy, in the order of execution, each with its site."""
        return self._source

    def check(self) -> None:
        """Read all elements; raise DamagedError if elements or events are not what was recorded."""
        if self.damaged:
            raise DamagedError(self.path, f"is {'; '.join(self.notes)}; copy or record it again")
        damaged = []
        for name, tensor in self.source().tensors.items():
            try:
                settled((tensor.trace.sketch or tensor).data)
            except DamagedError:
                damaged.append(printable(name, 80))
        if damaged:
            raise DamagedError(
                self.path,
                f"is damaged: the elements of {counted(damaged, 'tensor')} do not match their recorded digests; copy "
                "or record it again",
            )

    @cached_property
    def _source(self) -> Source:
        builder = _TensorBuilder(self)
        tensors = {}
        for event in self.tensors:
            tensors[event.site.name] = builder.make_tensor(event)
        other_values = {}
        for value in self.values:
            tensor = builder.make_value_tensor(value)
            if tensor is None:
                other_values[value.site.name] = OtherEntry.of_value(value.type)
            else:
                tensors[value.site.name] = tensor
        # writers other than nndiff record may not say whether there was a backward pass
        has_backward = any(event.site.slot.is_gradient or event.site.slot is Slot.LOSS for event in self.tensors)
        meta = {"backward": has_backward, **self.meta}
        not_recorded = _describe_unread_outputs(value for value in self.values if value.site.name in other_values)
        if not_recorded:
            meta["not_recorded"] = not_recorded
        return Source(
            label=self.path,
            kind="recording",
            tensors=dict(sorted(tensors.items(), key=lambda item: item[1].trace.order)),
            others=other_values,
            notes=(*self.notes, *self.warnings),
            meta=meta,
        )


def open_recording(path: str | os.PathLike[str]) -> Recording:
    """Open a recording, complete or not."""
    folder = Path(path)
    name = os.fspath(path)
    if not folder.is_dir():
        raise SourceError(name, "not a folder" if folder.exists() else "no such file or directory")
    if not is_recording(folder):
        if os.path.lexists(folder / MANIFEST):
            RegularFile(os.fspath(folder / MANIFEST))  # refuses a pipe, a folder or a device, and names it
        raise SourceError(name, f"not a recording: it has no {MANIFEST} of the format {FORMAT}")
    manifest = read_manifest(folder)
    events, is_torn = _read_events(folder)
    check_events(name, events)
    was_completed = manifest.get("complete") is True
    claimed = manifest.get("events", len(events))
    if was_completed and claimed < len(events):
        raise SourceError(
            folder / MANIFEST,
            f"claims {plural(claimed, 'event')} but there are {len(events):,}: damaged, or of another recording",
        )
    has_all_events = not is_torn and claimed == len(events)
    return Recording(
        path=name,
        complete=was_completed and has_all_events,
        meta=manifest.get("meta", {}),
        events=tuple(events),
        notes=tuple(_describe_loss(folder, was_completed, is_torn, len(events), claimed)),
        damaged=was_completed and not has_all_events,
    )


def _read_events(folder: Path) -> tuple[list[Event], bool]:
    """Return the events, and whether the last line was torn off."""
    path = os.fspath(folder / EVENTS)
    if not os.path.lexists(path):
        return [], True
    events: list[Event] = []
    for line in _read_lines(Window(RegularFile(path))):
        if not line.endswith(b"\n"):
            return events, True
        if len(events) >= EVENT_LIMIT:
            raise UnsafeFileError(path, f"holds more than {EVENT_LIMIT} events")
        events.append(line_to_event(f"{path} line {len(events) + 1}", line))
    return events, False


def _read_lines(window: Window) -> Iterator[bytes]:
    unfinished = b""
    for chunk in window.chunks():
        *lines, unfinished = (unfinished + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"
        if len(unfinished) > LINE_LIMIT:
            raise UnsafeFileError(window.path, f"has a line of more than {LINE_LIMIT} bytes")
    if unfinished:
        yield unfinished


def _describe_loss(folder: Path, was_completed: bool, is_torn: bool, count: int, claimed: int) -> Iterator[str]:
    """Yield notes on events that are missing."""
    if not was_completed:
        yield f"incomplete: the run was cut off, {plural(count, 'event')} can be read"
    elif is_torn or claimed != count:
        yield f"damaged: {count:,} of {plural(claimed, 'event') if claimed != count else 'its events'} can be read"
    if is_torn:
        yield "the last line of the events was cut off and is left out"
    before = None if was_completed else put_aside(folder)
    if before:
        yield f"it was to overwrite another: {BEFORE} {before.name}, beside it"


def _describe_unread_outputs(values: Iterable[ValueEvent]) -> dict[str, str]:
    """Return the outputs of the model that the recording does not hold, {name: what it is}: nobody can compare them."""
    unread = {}
    for event in values:
        is_nothing = event.content is Content.EMPTY or (event.type == "NoneType" and event.is_plain)
        if event.site.is_final_output and not is_nothing:
            unread[event.site.name] = f"a {event.type}, {event.note}" if event.note else f"a {event.type}"
    return unread


class _TensorBuilder:
    """Turn events into tensors whose elements are read from the shards on demand."""

    def __init__(self, recording: Recording) -> None:
        self._path = recording.path
        self._checker = ElementChecker(recording.path)
        self._noise_floors = read_noise_floors(recording.path, recording.meta)
        self._module_digests = collect_module_digests(recording.meta)
        self._calls: dict[int, CallEvent] = {}  # by the order of an output
        for call in recording.calls:
            for order in call.outputs:
                self._calls[order] = call
        self._shards: dict[str, dict[str, TensorRef]] = {}
        for name in sorted({event.shard for event in recording.tensors if event.shard}):
            assert SHARD_NAME.match(name)  # checked when the events were read: no path leads out of the folder
            refs, _ = read_header(Window(RegularFile(os.path.join(recording.path, name))))
            self._shards[name] = {ref.name: ref for ref in refs}

    def make_tensor(self, event: TensorEvent) -> TensorRef:
        """Return the tensor of an event."""
        name, dtype = event.site.name, DTYPES[event.dtype]
        data: Data = NoData(f"the recording keeps only its {event.keep}")
        call = self._calls.get(event.order)
        trace = Trace(
            event.order,
            event.phase,
            keep=event.keep,
            digest=event.digest,
            stats=event.stats,
            sketch=self._make_sketch(event) if event.keep == "sketch" else None,
            same=event.same,
            forward=event.forward,
            over=event.over,
            inputs=call.inputs if call else (),
            parent=call.parent if call else None,
            weights=self._module_digests.get(event.site.module, ()) if event.site.slot is Slot.OUTPUT else (),
            noise=self._noise_floors.get(name) if event.keep == "full" else None,
        )
        if event.keep == "full":
            window = self._find_window(event, event.key, event.shape)
            claim = ElementClaim(name, event.shard or "", event.shape, dtype, event.digest)
            data = self._checker.make_data(window, claim)
        return TensorRef(name, event.shape, dtype, data, None, event.site, trace)

    def _make_sketch(self, event: TensorEvent) -> TensorRef:
        name, dtype = f"{event.site.name}#sketch", DTYPES[event.dtype]
        count = math.prod(event.shape)
        shape: tuple[int, ...] = (sketch_positions(count).size,)
        digest = event.sketch_digest
        window = self._find_window(event, event.sketch, shape)
        if shape == (count,):  # all elements: the sketch is the tensor itself, positions in it are those of the tensor
            shape, digest = event.shape, event.digest
        claim = ElementClaim(name, event.shard or "", shape, dtype, digest)
        return TensorRef(name, shape, dtype, self._checker.make_data(window, claim))

    def make_value_tensor(self, event: ValueEvent) -> TensorRef | None:
        """Return a number or a text among the outputs as a tensor, so that it is compared; None for anything else."""
        value = event.value
        if not event.is_plain or not isinstance(value, (bool, int, float, str)):
            return None
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            return None
        array: NDArray[Any] = np.asarray(value)
        if isinstance(value, str):
            array = np.frombuffer(value.encode("utf-8", "surrogatepass"), np.uint8)
        dtype = DTYPES[{bool: "bool", int: "int64", float: "float64", str: "uint8"}[type(value)]]
        data = MemoryData(array.astype(dtype.storage).reshape(array.shape))
        call = self._calls.get(event.order)
        inputs, parent = (call.inputs, call.parent) if call else ((), None)
        noise = self._noise_floors.get(event.site.name)
        trace = Trace(event.order, event.phase, keep="full", inputs=inputs, parent=parent, noise=noise)
        return TensorRef(event.site.name, array.shape, dtype, data, None, event.site, trace)

    def _find_window(self, event: TensorEvent, key: str | None, shape: tuple[int, ...]) -> Window:
        """Return where the bytes are; raise SourceError if the shard contradicts the event."""
        stored = self._shards[event.shard or ""].get(key or "")
        title = printable(event.site.name, 80)
        if stored is None or not isinstance(stored.data, FileData):
            raise SourceError(self._path, f"{title!r} is not in {event.shard}, where the events say it is")
        _, stored_shape = make_header_entry(event.dtype, shape, math.prod(shape) * DTYPES[event.dtype].itemsize)
        if stored.dtype.name != get_stored_dtype(event.dtype) or stored.shape != tuple(stored_shape):
            raise SourceError(self._path, f"{title!r} has another shape or dtype in {event.shard} than in the events")
        return stored.data.window
