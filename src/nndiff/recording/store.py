"""Where the elements of a recording go: each tensor's once, one after another, in shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nndiff.recording.format import shard_name
from nndiff.recording.keep import sketch_positions
from nndiff.recording.measure import Raw
from nndiff.recording.shards import Shard


class Store:
    """Write elements to the open shard, and begin another where it is full.

    `finished` is called whenever a shard is whole and on disk: only then may events that point into it be seen.
    """

    def __init__(self, folder: Path, shard_bytes: int, finished: Callable[[], None]) -> None:
        self.bytes = 0
        self.shards: list[dict[str, object]] = []  # file and bytes of those that are finished
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._finished = finished
        self._shard: Shard | None = None
        self._stored: dict[str, tuple[str, str]] = {}  # digest -> shard and key

    @property
    def is_open(self) -> bool:
        """Tell whether there is a shard that is not finished."""
        return self._shard is not None

    def place(self, name: str, level: str, digest: str, load: Callable[[], Raw]) -> tuple[str | None, str | None]:
        """Return shard and key of the elements to keep, writing them unless the same ones are there already."""
        if level not in ("sketch", "full"):
            return None, None
        known = f"{digest}#sketch" if level == "sketch" else digest
        if known not in self._stored:
            raw = load()
            if level == "sketch":
                positions = sketch_positions(raw.flat.size)
                raw, name = Raw(raw.flat[positions], raw.dtype, (positions.size,)), name + "#sketch"
            self._stored[known] = self._write(name, raw)
        return self._stored[known]

    def _write(self, key: str, raw: Raw) -> tuple[str, str]:
        shard = self._shard
        if shard and (shard.size + raw.bytes.nbytes > self._shard_bytes or not shard.fits(key, raw)):
            self.finish()
        if self._shard is None:
            self._shard = Shard(self._folder / shard_name(len(self.shards)))
        self._shard.add(key, raw)
        self.bytes += raw.bytes.nbytes
        return self._shard.path.name, key

    def finish_full(self) -> None:
        """Finish the open shard if it is full."""
        if self._shard is not None and self._shard.size >= self._shard_bytes:
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
