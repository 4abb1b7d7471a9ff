"""Outputs made again in the backward pass (activation checkpointing): which call each one repeats."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Protocol

import torch

from nndiff.recording.format.events import TensorEvent
from nndiff.tensors import Phase, Site


class _Records(Protocol):
    def tensor(
        self,
        site: Site,
        tensor: torch.Tensor,
        *,
        keep: str | None = None,
        forward: int | None = None,
        phase: Phase = "forward",
    ) -> TensorEvent | int: ...


class Recomputed:
    """Match outputs of the backward pass with those of the forward pass."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], list[TensorEvent]] = defaultdict(list)
        self._matched: Counter[int] = Counter()
        self._seen: Counter[tuple[str, str]] = Counter()

    def remember(self, event: TensorEvent) -> None:
        """Note an output of the forward pass."""
        self._first[event.site.module, event.site.path].append(event)

    def record(self, recorder: _Records, site: Site, tensor: torch.Tensor) -> TensorEvent | None:
        """Record an output made again, as a digest; return the forward event it repeats."""
        place = (site.module, site.path)
        candidates = self._first.get(place, [])
        nth = self._seen[place]
        self._seen[place] += 1
        numbered = Site(site.module, site.slot, 0, site.path, "", site.cls, nth)
        event = recorder.tensor(numbered, tensor, keep="digest", forward=self._guess(candidates), phase="recompute")
        if isinstance(event, int) or not candidates:
            return None
        alike = [each for each in candidates if each.digest == event.digest] or candidates
        found = min(alike, key=lambda each: self._matched[each.order])
        self._matched[found.order] += 1
        return found

    def _guess(self, candidates: list[TensorEvent]) -> int | None:
        """Return the forward event where there is only one; among several the digest decides, kept in `same`."""
        return candidates[0].order if len(candidates) == 1 else None
