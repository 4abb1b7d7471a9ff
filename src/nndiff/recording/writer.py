"""Write a recording while the run goes on: memory flat, readable up to the last finished shard."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Any

from nndiff.errors import SourceError, UsageError
from nndiff.recording.format import folder as folders
from nndiff.recording.format.arrays import is_array, is_array_or_numbers, raw_array, raw_numbers, raw_value
from nndiff.recording.format.digests import Raw, measure
from nndiff.recording.format.events import SLOTS, CallEvent, Event, TensorEvent, ValueEvent
from nndiff.recording.format.keep_levels import Keep, parse_keep
from nndiff.recording.format.lines import (
    EVENTS,
    FORMAT,
    MANIFEST,
    NAME_LIMIT,
    VERSION,
    plain,
    to_line,
)
from nndiff.recording.format.pace import Pace
from nndiff.recording.format.shard_store import Store
from nndiff.recording.format.shards import append_whole, write_whole
from nndiff.recording.format.values import describe, flatten
from nndiff.tensors import Link, Phase, Site, Slot, Stats

SHARD_BYTES = 64 << 20  # the most; the first ones are smaller
_PENDING = 512  # events held back at most where no shard is open


class Writer:
    """Make a recording from any program: a context manager that takes arrays in the order they arise.

    Leave the `with` block normally and the recording is complete; leave it by an exception, a kill or a
    full disk and it stays readable up to the last finished shard, and says that it is incomplete. Where
    nothing was added before an exception, nothing is left behind.
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
        self._pace = Pace(shard_bytes)
        self._store = Store(self.path, self._pace, self._flush)
        # One growing block: many small ones would settle in the holes that freed activations leave, and the
        # next activation would no longer fit there.
        self._waiting = bytearray()
        self._held = 0
        self._order = 0
        self.digests: dict[str, str] = {}  # of every site, by name
        self._calls: dict[str, int] = {}
        self._first: dict[str, int] = {}  # digest -> the first event with it
        self._lock = RLock()
        self._open = True
        self._flushed = False
        self._place = folders.prepare(self.path, overwrite)
        try:
            with self._disk():
                self._write_manifest(complete=False)
                (self.path / EVENTS).touch()
        except SourceError:
            self.discard()
            raise

    @property
    def before(self) -> Path | None:
        """Return where the recording is that this one overwrites, until this one is complete."""
        return self._place.before

    @property
    def data_bytes(self) -> int:
        """Return how many bytes of elements were written."""
        return self._store.bytes

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

        A list of numbers is an array. Slots are those of `docs/recording-format.md`; a `model_input` of the model
        itself (an empty `module`) is fed again by its path: a position (0, 1, ...) or the name of an argument.
        Without `call` the calls are counted: the second output of a module is its call 1. `dtype` names what
        NumPy cannot (`bfloat16` in an array of uint16).
        """
        if not isinstance(module, str):
            raise UsageError(f"a module is named by a text, not by {module!r}; the model itself by an empty one")
        if slot not in SLOTS:
            raise UsageError(_no_slot(slot))
        if call is None:
            counter = Site(module, Slot(slot), 0, path, tensor).name
            call = self._calls.get(counter, 0)
            self._calls[counter] = call + 1
        orders = []
        for step, leaf in flatten(value, is_array_or_numbers):
            at = ".".join(part for part in (path, step) if part)
            site = Site(module, Slot(slot), call, at, tensor, cls)
            if is_array_or_numbers(leaf):
                raw = raw_array(leaf, dtype) if is_array(leaf) else raw_numbers(site.name, leaf, dtype)
                orders.append(self.tensor(site, lambda raw=raw: raw, phase=phase).order)  # type: ignore[misc]
            else:
                orders.append(self.value(site, leaf, phase=phase))
        return orders

    def reserve(self) -> int:
        """Take a number in the order of execution without writing an event: the start of a call."""
        with self._lock:
            self._order += 1
            return self._order - 1

    def tensor(
        self,
        site: Site,
        load: Callable[[], Raw],
        *,
        keep: str | None = None,
        like: TensorEvent | None = None,
        forward: int | None = None,
        over: int | None = None,
        phase: Phase = "forward",
    ) -> TensorEvent:
        """Add one tensor; its bytes are asked for only where they are not known or kept already.

        `like` is an earlier event known to be of the very same tensor, `over` one that was written over in place.
        """
        level = keep or self.keep.level(site.module, site.name)
        load = lru_cache(maxsize=1)(load)
        with self._lock, self._disk():
            self._check(site)
            seen = _look(load, like, level)
            placed = self._store.place(site.name, level, seen.digest, load)
            event = TensorEvent(
                order=self.reserve(),
                site=site,
                shape=seen.shape,
                dtype=seen.dtype,
                keep=level,
                digest=seen.digest,
                stats=seen.stats,
                shard=placed.shard,
                key=placed.key,
                sketch=placed.sketch,
                sketch_digest=placed.sketch_digest,
                same=self._first.get(seen.digest),
                forward=forward,
                over=over,
                phase=phase,
            )
            self._first.setdefault(seen.digest, event.order)
            self.digests[site.name] = seen.digest
            self._emit(event)
        return event

    def value(self, site: Site, value: Any, note: str = "", phase: Phase = "forward") -> int:
        """Add something that is no tensor; arrays and the like become one."""
        raw = None if note else raw_value(value)
        if raw is not None:
            return self.tensor(site, lambda: raw, phase=phase).order
        kind, plain_value, said = describe(value)
        with self._lock, self._disk():
            self._check(site)
            event = ValueEvent(self.reserve(), site, kind, plain(plain_value), note or said, phase)
            self.digests[site.name] = repr(value)[:200]
            self._emit(event)
        return event.order

    def call(
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
        with self._lock, self._disk():
            event = CallEvent(self.reserve(), entered, module, call, cls, parent, inputs, outputs, phase)
            self._emit(event)
        return event.order

    def finish(self) -> None:
        """Make the recording complete."""
        with self._lock, self._disk():
            if not self._open:
                return
            self._store.finish()
            self._flush()
            self._write_manifest(complete=True)
            self._place.keep()
            self._open = False

    def abandon(self) -> None:
        """Stop without completing: what came so far stays readable, as far as the disk allows."""
        with self._lock:
            if not self._open:
                return
            self._save()
        if not self.events:
            self.discard()

    def discard(self) -> None:
        """Stop and take everything away, the folder too if it is new."""
        with self._lock:
            self._drop()
            self._place.undo()

    def _save(self) -> None:
        """Stop, and keep all that is whole, as far as the disk allows."""
        self._open = False
        try:
            self._store.finish()
            self._flush()
        except OSError:
            self._drop()

    def _drop(self) -> None:
        self._open = False
        self._store.drop()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.abandon()

    def _check(self, site: Site) -> None:
        name = site.name
        if not self._open:
            raise UsageError(f"{name!r} comes after the recording was finished")
        if len(name) > NAME_LIMIT - 16:
            raise UsageError(f"the name {name[:60]!r}... is longer than {NAME_LIMIT - 16} characters")
        if name in self.digests:
            raise UsageError(f"{name!r} was recorded already; give another call, path or slot")

    def _emit(self, event: Event) -> None:
        self._waiting += to_line(event).encode()
        self._held += 1
        self.events += 1
        overdue = self._pace.overdue()
        if overdue:
            self._store.finish()
        else:
            self._store.finish_full()
        if not self._store.is_open and (overdue or self._held >= _PENDING):
            self._flush()

    def _flush(self) -> None:
        self._pace.made_safe(self._store.bytes)
        if not self._waiting:
            return
        append_whole(self.path / EVENTS, self._waiting)
        self._flushed = True
        self._waiting = bytearray()
        self._held = 0

    def _write_manifest(self, complete: bool) -> None:
        body: dict[str, object] = {"format": FORMAT, "version": VERSION, "complete": complete}
        if complete:
            body |= {"events": self.events, "shards": self._store.shards}
        text = folders.dump_manifest(body, plain(self.meta))
        write_whole(self.path / MANIFEST, text)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Turn the disk's refusal into one sentence, and keep what was finished."""
        try:
            yield
        except OSError as error:
            self._save()
            trouble = _REFUSALS.get(error.errno or 0) or (error.strerror or str(error)).lower()
            kept = f"; {folders.FINISHED}" if self._flushed else ""
            raise SourceError(self.path, f"cannot be written: {trouble}{kept}") from None


def _no_slot(slot: object) -> str:
    near = get_close_matches(str(slot)[:100], SLOTS, 1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return f"{str(slot)[:100]!r} is no slot{meant}; the slots are {', '.join(SLOTS)}"


_REFUSALS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
    errno.EFBIG: "a file grew larger than the limit here allows (ulimit -f, or what the disk can hold)",
}


@dataclass(frozen=True)
class _Seen:
    """Hold what is known of a tensor that is being added."""

    shape: tuple[int, ...]
    dtype: str
    digest: str
    stats: Stats | None


def _look(load: Callable[[], Raw], like: TensorEvent | None, level: str) -> _Seen:
    with_stats = level != "digest"
    if like is not None and (like.stats is not None or not with_stats):
        return _Seen(like.shape, like.dtype, like.digest, like.stats if with_stats else None)
    raw = load()
    measured = measure(raw, with_stats)
    return _Seen(raw.shape, raw.dtype.name, measured.digest, measured.stats)
