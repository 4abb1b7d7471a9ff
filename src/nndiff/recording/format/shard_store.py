"""Where the elements of a recording go: each tensor's once, one after another, in shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nndiff.recording.format.digests import Raw, measure
from nndiff.recording.format.keep_levels import sketch_positions
from nndiff.recording.format.lines import shard_name
from nndiff.recording.format.pace import Pace
from nndiff.recording.format.shards import Shard


@dataclass(frozen=True, slots=True)
class Placed:
    """Say where elements are, as the event tells it."""

    shard: str | None = None
    key: str | None = None
    sketch: str | None = None
    sketch_digest: str | None = None


class Store:
    """Write elements to the open shard, and begin another where it is full.

    `finished` is called whenever a shard is whole and on disk: only then may events that point into it be seen.
    """

    def __init__(self, folder: Path, pace: Pace, finished: Callable[[], None]) -> None:
        self.bytes = 0
        self.shards: list[dict[str, object]] = []  # file and bytes of those that are finished
        self._folder = folder
        self._pace = pace
        self._finished = finished
        self._shard: Shard | None = None
        self._stored: dict[str, Placed] = {}  # by digest

    @property
    def is_open(self) -> bool:
        """Tell whether there is a shard that is not finished."""
        return self._shard is not None

    def place(self, name: str, level: str, digest: str, load: Callable[[], Raw]) -> Placed:
        """Return where the elements to keep are, writing them unless the same ones are there already."""
        if level not in ("sketch", "full"):
            return Placed()
        known = f"{digest}#sketch" if level == "sketch" else digest
        if known not in self._stored:
            self._stored[known] = self._sketch(name, load()) if level == "sketch" else self._whole(name, load())
        return self._stored[known]

    def _whole(self, name: str, raw: Raw) -> Placed:
        return Placed(self._write(name, raw), key=name)

    def _sketch(self, name: str, raw: Raw) -> Placed:
        positions = sketch_positions(raw.flat.size)
        part, key = Raw(raw.flat[positions], raw.dtype, (positions.size,)), name + "#sketch"
        # one that holds all elements has the digest of the tensor itself
        digest = measure(part, with_stats=False).digest if positions.size < raw.flat.size else None
        return Placed(self._write(key, part), sketch=key, sketch_digest=digest)

    def _write(self, key: str, raw: Raw) -> str:
        shard = self._shard
        if shard and (shard.size + raw.bytes.nbytes > self._pace.shard_bytes or not shard.fits(key, raw)):
            self.finish()
        if self._shard is None:
            self._shard = Shard(self._folder / shard_name(len(self.shards)))
        self._shard.add(key, raw)
        self.bytes += raw.bytes.nbytes
        return self._shard.path.name

    def finish_full(self) -> None:
        """Finish the open shard if it is full."""
        if self._shard is not None and self._shard.size >= self._pace.shard_bytes:
            self.finish()

    def finish(self) -> None:
        """Finish the open shard, if there is one."""
        if self._shard is None:
            return
        self._shard.finish()
        self.shards.append({"file": self._shard.path.name, "bytes": self._shard.size})
        self._shard = None
        self._finished()

    def drop(self) -> None:
        """Give up the open shard."""
        if self._shard is not None:
            self._shard.drop()
            self._shard = None
