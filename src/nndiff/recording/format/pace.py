"""When what was recorded so far is made safe: soon at first, then whenever a good part of it is at stake."""

from __future__ import annotations

from time import monotonic

FIRST_BYTES = 1 << 20  # a shard's size to begin with
_GROWTH = 3  # a shard may hold so many times what all before it hold together
_SOON = 0.5  # seconds
_SHARE = 0.1  # of the time the run has taken: so a long run has not too many shards, and loses little


class Pace:
    """Say when a shard is to be finished, by its size and by the time since the last one.

    A large shard is quicker to write, but a kill takes it away, and a small recording may never fill one.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._safe = 0
        self._began = self._last = monotonic()

    @property
    def shard_bytes(self) -> int:
        """Return how many bytes the next shard may hold."""
        return min(self._most, max(FIRST_BYTES, _GROWTH * self._safe))

    def overdue(self) -> bool:
        """Tell whether much time has gone since anything was made safe."""
        now = monotonic()
        return now - self._last > max(_SOON, _SHARE * (now - self._began))

    def made_safe(self, size: int) -> None:
        """Take note that so many bytes in all are on disk now."""
        self._safe, self._last = size, monotonic()
