"""Where the elements of a recording go: into one shard after another, equal tensors once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from nndiff.recording.format.digests import RawTensor, measure_tensor
from nndiff.recording.format.keep_levels import sketch_positions
from nndiff.recording.format.layout import shard_name
from nndiff.recording.format.shards import Shard

FIRST_SHARD_BYTES = 1 << 20
_SHARD_GROWTH = 3  # a shard may hold this many times what all shards before it hold
SHORTEST_WAIT = 0.5  # seconds
LONGEST_WAIT_SHARE = 0.1  # of the run so far: a long run gets few shards and still loses little


class FlushSchedule:
    """Decide when a shard is finished, by its size and by the time since the last one.

    A large shard is faster to write, but a kill loses it, and a small recording may never fill one.
    """

    def __init__(self, largest_shard: int) -> None:
        self._largest_shard = largest_shard
        self._bytes_on_disk = 0
        self._began = self._last_flush = monotonic()

    @property
    def shard_bytes(self) -> int:
        """Return how many bytes the next shard may hold."""
        return min(self._largest_shard, max(FIRST_SHARD_BYTES, _SHARD_GROWTH * self._bytes_on_disk))

    def is_overdue(self) -> bool:
        """Return True if the last flush is too long ago."""
        now = monotonic()
        return now - self._last_flush > max(SHORTEST_WAIT, LONGEST_WAIT_SHARE * (now - self._began))

    def note_flush(self, bytes_on_disk: int) -> None:
        """Note that everything up to this many bytes is on disk."""
        self._bytes_on_disk, self._last_flush = bytes_on_disk, monotonic()


@dataclass(frozen=True, slots=True)
class StoredAt:
    """Tell where elements are, in the terms of a tensor event."""

    shard: str | None = None
    key: str | None = None
    sketch: str | None = None
    sketch_digest: str | None = None


class ShardStore:
    """Write elements to the open shard, and open another when it is full.

    `on_finished` is called whenever a shard is complete and on disk: only then may events that point into it be
    written.
    """

    def __init__(self, folder: Path, schedule: FlushSchedule, on_finished: Callable[[], None]) -> None:
        self.bytes_written = 0
        self.finished_shards: list[dict[str, object]] = []  # file and bytes, for the manifest
        self._folder = folder
        self._schedule = schedule
        self._on_finished = on_finished
        self._shard: Shard | None = None
        self._stored: dict[str, StoredAt] = {}  # by digest

    @property
    def has_open_shard(self) -> bool:
        """Return True if there is a shard that is not finished."""
        return self._shard is not None

    def store_elements(self, name: str, level: str, digest: str, load: Callable[[], RawTensor]) -> StoredAt:
        """Return where the elements to keep are, after writing them unless equal ones are there already."""
        if level not in ("sketch", "full"):
            return StoredAt()
        content = f"{digest}#sketch" if level == "sketch" else digest
        if content not in self._stored:
            if level == "sketch":
                self._stored[content] = self._write_sketch(name, load())
            else:
                self._stored[content] = StoredAt(self._write_tensor(name, load()), key=name)
        return self._stored[content]

    def _write_sketch(self, name: str, raw: RawTensor) -> StoredAt:
        positions = sketch_positions(raw.flat.size)
        sketch = RawTensor(raw.flat[positions], raw.dtype, (positions.size,))
        key = name + "#sketch"
        digest = None  # a sketch of all elements has the digest of the tensor itself
        if positions.size < raw.flat.size:
            digest = measure_tensor(sketch, with_stats=False).digest
        return StoredAt(self._write_tensor(key, sketch), sketch=key, sketch_digest=digest)

    def _write_tensor(self, key: str, raw: RawTensor) -> str:
        nbytes = raw.bytes.nbytes
        shard = self._shard
        if shard and (shard.size + nbytes > self._schedule.shard_bytes or not shard.has_room(key, raw)):
            self.finish_shard()
        if self._shard is None:
            self._shard = Shard(self._folder / shard_name(len(self.finished_shards)))
        self._shard.add_tensor(key, raw)
        self.bytes_written += nbytes
        return self._shard.path.name

    def finish_full_shard(self) -> None:
        """Finish the open shard if it is full."""
        if self._shard is not None and self._shard.size >= self._schedule.shard_bytes:
            self.finish_shard()

    def finish_shard(self) -> None:
        """Finish the open shard, if there is one."""
        if self._shard is None:
            return
        self._shard.finish()
        self.finished_shards.append({"file": self._shard.path.name, "bytes": self._shard.size})
        self._shard = None
        self._on_finished()

    def drop_shard(self) -> None:
        """Delete the open shard, if there is one."""
        if self._shard is not None:
            self._shard.drop()
            self._shard = None
