"""Write a recording while the run goes on: flat memory, readable up to the last finished shard."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Any

from nndiff.errors import SourceError, UsageError
from nndiff.recording.format.arrays import is_array, is_array_or_numbers, raw_array, raw_numbers, raw_value
from nndiff.recording.format.digests import RawTensor, measure_tensor
from nndiff.recording.format.events import SLOTS, CallEvent, Event, TensorEvent, ValueEvent
from nndiff.recording.format.folder import FINISHED, LeftoverNote, add_note, prepare_folder
from nndiff.recording.format.keep_levels import Keep, parse_keep
from nndiff.recording.format.layout import EVENTS, FORMAT, MANIFEST, NAME_LIMIT, VERSION
from nndiff.recording.format.lines import event_to_line, to_plain_json
from nndiff.recording.format.manifest import dump_manifest
from nndiff.recording.format.shard_store import FlushSchedule, ShardStore
from nndiff.recording.format.shards import append_atomically, describe_disk_error, write_atomically
from nndiff.recording.format.values import describe_value, flatten
from nndiff.tensors import Link, Phase, Site, Slot

SHARD_BYTES = 64 << 20  # the most; the first shards are smaller
_MOST_PENDING = 512  # events that wait in memory while no shard is open


class Writer:
    """Make a recording from any program: a context manager that takes arrays in the order they arise.

    If the `with` block ends normally, the recording is complete. If it ends by an exception, a kill or a full disk,
    the recording is readable up to the last finished shard and says that it is incomplete. If an exception comes
    before anything was added, nothing is left behind.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        meta: Mapping[str, Any] | None = None,
        *,
        keep: str | list[str] | Keep = "full",
        overwrite: bool = False,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self.path = Path(path)
        self.keep = parse_keep(keep)
        self.meta: dict[str, Any] = dict(meta or {})
        self.events = 0
        self.digests: dict[str, str] = {}  # of every site, by name
        self._schedule = FlushSchedule(shard_bytes)
        self._store = ShardStore(self.path, self._schedule, self._flush_events)
        # One growing block: many small ones would settle in the holes that freed activations leave, and the
        # next activation would no longer fit there.
        self._pending = bytearray()
        self._pending_events = 0
        self._next_order = 0
        self._call_counts: dict[str, int] = {}
        self._first_orders: dict[str, int] = {}  # by digest
        self._lock = RLock()
        self._is_open = True
        self._has_flushed = False
        self._folder = prepare_folder(self.path, overwrite)
        try:
            with self._report_disk_errors():
                self._write_manifest(complete=False)
                (self.path / EVENTS).touch()
        except SourceError:
            self.discard()
            raise

    @property
    def before(self) -> Path | None:
        """Return where the overwritten recording waits until this one is complete."""
        return self._folder.before

    @property
    def data_bytes(self) -> int:
        """Return how many bytes of elements were written."""
        return self._store.bytes_written

    def add(
        self,
        module: str,
        slot: str,
        value: Any,
        *,
        call: int | None = None,
        path: str = "",
        tensor: str = "",
        cls: str = "",
        dtype: str | None = None,
        phase: Phase = "forward",
    ) -> list[int]:
        """Add a value at a site: an array, a plain value, or a tuple, list or dict of them; return the orders.

        A list of numbers is an array. `docs/recording-format.md` lists the slots. A `model_input` of the model
        itself (an empty `module`) is fed again by its path: a position (0, 1, ...) or the name of an argument.
        Without `call` the calls are counted: the second output of a module belongs to its call 1. `dtype` names a
        type that NumPy lacks (`bfloat16` in an array of uint16).
        """
        if not isinstance(module, str):
            raise UsageError(f"module must be a str, not {module!r}; the model itself is an empty one")
        if slot not in SLOTS:
            close = get_close_matches(str(slot)[:100], SLOTS, 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise UsageError(f"{str(slot)[:100]!r} is not a slot{hint}; the slots are {', '.join(SLOTS)}")
        if call is None:
            counter = Site(module, Slot(slot), 0, path, tensor).name
            call = self._call_counts.get(counter, 0)
            self._call_counts[counter] = call + 1
        orders = []
        for step, leaf in flatten(value, is_array_or_numbers):
            leaf_path = f"{path}.{step}" if path and step else path or step
            site = Site(module, Slot(slot), call, leaf_path, tensor, cls)
            if is_array_or_numbers(leaf):
                raw = raw_array(leaf, dtype) if is_array(leaf) else raw_numbers(site.name, leaf, dtype)
                orders.append(self.add_tensor(site, lambda raw=raw: raw, phase=phase).order)  # type: ignore[misc]
            else:
                orders.append(self.add_value(site, leaf, phase=phase))
        return orders

    def reserve_order(self) -> int:
        """Take a number in the order of execution without writing an event: the start of a call."""
        with self._lock:
            self._next_order += 1
            return self._next_order - 1

    def add_tensor(
        self,
        site: Site,
        load: Callable[[], RawTensor],
        *,
        keep: str | None = None,
        same_as: TensorEvent | None = None,
        forward: int | None = None,
        over: int | None = None,
        phase: Phase = "forward",
    ) -> TensorEvent:
        """Add one tensor; `load` is called only if its bytes are not known or not stored yet.

        `same_as` is an earlier event of the very same tensor; `over` one that this tensor overwrote in place.
        """
        level = keep or self.keep.level(site.module, site.name)
        with_stats = level != "digest"
        load = lru_cache(maxsize=1)(load)
        with self._lock, self._report_disk_errors():
            self._check_site(site)
            if same_as is not None and (same_as.stats is not None or not with_stats):
                shape, dtype, digest = same_as.shape, same_as.dtype, same_as.digest
                stats = same_as.stats if with_stats else None
            else:
                raw = load()
                measurement = measure_tensor(raw, with_stats)
                shape, dtype, digest, stats = raw.shape, raw.dtype.name, measurement.digest, measurement.stats
            stored = self._store.store_elements(site.name, level, digest, load)
            event = TensorEvent(
                order=self.reserve_order(),
                site=site,
                shape=shape,
                dtype=dtype,
                keep=level,
                digest=digest,
                stats=stats,
                shard=stored.shard,
                key=stored.key,
                sketch=stored.sketch,
                sketch_digest=stored.sketch_digest,
                same=self._first_orders.get(digest),
                forward=forward,
                over=over,
                phase=phase,
            )
            self._first_orders.setdefault(digest, event.order)
            self.digests[site.name] = digest
            self._write_event(event)
        return event

    def add_value(self, site: Site, value: Any, phase: Phase = "forward") -> int:
        """Add something that is not a tensor; arrays and long texts become one."""
        raw = raw_value(value)
        if raw is not None:
            return self.add_tensor(site, lambda: raw, phase=phase).order
        plain = describe_value(value)
        with self._lock, self._report_disk_errors():
            self._check_site(site)
            json_value = to_plain_json(plain.value)
            event = ValueEvent(self.reserve_order(), site, plain.type, json_value, plain.note, plain.content, phase)
            self.digests[site.name] = repr(value)[:200]
            self._write_event(event)
        return event.order

    def add_call(
        self,
        entered: int,
        module: str,
        call: int,
        cls: str,
        parent: int | None,
        inputs: tuple[Link, ...],
        outputs: tuple[int, ...],
        phase: Phase = "forward",
    ) -> int:
        """Add a finished call of a module."""
        with self._lock, self._report_disk_errors():
            event = CallEvent(self.reserve_order(), entered, module, call, cls, parent, inputs, outputs, phase)
            self._write_event(event)
        return event.order

    def flush(self) -> None:
        """Bring everything added so far to disk, so that it can be read while the recording goes on."""
        with self._lock, self._report_disk_errors():
            self._store.finish_shard()
            self._flush_events()

    def finish(self) -> None:
        """Make the recording complete."""
        with self._lock, self._report_disk_errors():
            if not self._is_open:
                return
            self._store.finish_shard()
            self._flush_events()
            self._write_manifest(complete=True)
            self._folder.accept()
            self._is_open = False

    def abandon(self) -> None:
        """Stop without completing: what was added so far stays readable, as far as the disk allows."""
        with self._lock:
            if not self._is_open:
                return
            self._save_finished()
        if not self.events:
            self.discard()

    def discard(self) -> None:
        """Stop and delete the recording, and its folder if that is new."""
        with self._lock:
            self._is_open = False
            self._store.drop_shard()
            self._folder.undo()

    def _save_finished(self) -> None:
        """Close the writer and keep what is complete, as far as the disk allows."""
        self._is_open = False
        try:
            self._store.finish_shard()
            self._flush_events()
        except OSError:
            self._store.drop_shard()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.abandon()

    def _check_site(self, site: Site) -> None:
        name = site.name
        longest = NAME_LIMIT - 16  # room for what a shard adds to it
        if not self._is_open:
            raise UsageError(f"{name!r} was added after the recording was finished")
        if len(name) > longest:
            raise UsageError(f"the name {name[:60]!r}... has more than {longest} characters")
        if name in self.digests:
            raise UsageError(f"{name!r} was recorded already; give another call, path or slot")

    def _write_event(self, event: Event) -> None:
        """Queue an event; it goes to disk once the shard it points into is there."""
        self._pending += event_to_line(event).encode()
        self._pending_events += 1
        self.events += 1
        overdue = self._schedule.is_overdue()
        if overdue:
            self._store.finish_shard()
        else:
            self._store.finish_full_shard()
        if not self._store.has_open_shard and (overdue or self._pending_events >= _MOST_PENDING):
            self._flush_events()

    def _flush_events(self) -> None:
        self._schedule.note_flush(self._store.bytes_written)
        if not self._pending:
            return
        append_atomically(self.path / EVENTS, self._pending)
        self._has_flushed = True
        self._pending = bytearray()
        self._pending_events = 0

    def _write_manifest(self, complete: bool) -> None:
        body: dict[str, object] = {"format": FORMAT, "version": VERSION, "complete": complete}
        if complete:
            body |= {"events": self.events, "shards": self._store.finished_shards}
        write_atomically(self.path / MANIFEST, dump_manifest(body, to_plain_json(self.meta)))

    @contextmanager
    def _report_disk_errors(self) -> Iterator[None]:
        """Turn an error of the disk into a SourceError, and keep what was finished."""
        try:
            yield
        except OSError as error:
            self._save_finished()
            raised = SourceError(self.path, f"cannot be written: {describe_disk_error(error)}")
            if self._has_flushed:
                add_note(raised, LeftoverNote(FINISHED))
            raise raised from None
