"""A second run, kept nowhere, to see whether the model agrees with itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nndiff.recording.format.arrays import raw_value
from nndiff.recording.format.digests import Raw, measure
from nndiff.recording.format.events import TensorEvent
from nndiff.recording.format.keep_levels import Keep
from nndiff.tensors import Link, Phase, Site


class Digests:
    """Take events as a Writer does and keep their digests alone."""

    def __init__(self, keep: Keep) -> None:
        self.keep = keep
        self.digests: dict[str, str] = {}
        self._order = 0
        self._first: dict[str, int] = {}

    def reserve(self) -> int:
        """Take a number in the order of execution."""
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
        """Note the digest of a tensor."""
        if like is not None:
            shape, dtype, digest = like.shape, like.dtype, like.digest
        else:
            raw = load()
            shape, dtype, digest = raw.shape, raw.dtype.name, measure(raw, with_stats=False).digest
        self.digests[site.name] = digest
        order = self.reserve()
        same = self._first.get(digest)
        self._first.setdefault(digest, order)
        return TensorEvent(order, site, shape, dtype, "digest", digest, same=same, forward=forward, phase=phase)

    def value(self, site: Site, value: Any, note: str = "", phase: Phase = "forward") -> int:
        """Note a plain value, or an array as what it is."""
        raw = None if note else raw_value(value)
        if raw is not None:
            return self.tensor(site, lambda: raw, phase=phase).order
        self.digests[site.name] = repr(value)[:200]
        return self.reserve()

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
        """Note nothing: calls are where their tensors are."""
        return self.reserve()


def disagreeing(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """Return the sites at which two runs are not the same, in the order of the first."""
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]
