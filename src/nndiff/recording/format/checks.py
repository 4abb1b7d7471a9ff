"""Checks of what a recording claims: its events fit together, and its elements have their digests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from nndiff.dtypes import DTYPES, DType
from nndiff.errors import DamagedError, SourceError
from nndiff.files import Window
from nndiff.recording.format.digests import compute_hashes, digest_header
from nndiff.recording.format.events import CallEvent, Event, TensorEvent
from nndiff.recording.format.hashes import PART
from nndiff.tensors import Data, FileData, LateData, Shape
from nndiff.text import printable

_READ_SIZE = 16 * PART  # bytes read at once, whatever the tensor's size


def check_events(recording: str, events: Iterable[Event]) -> None:
    """Raise SourceError if the order goes back, a name occurs twice, or an event refers to one that is missing."""
    earlier: dict[int, Event] = {}
    names: set[str] = set()
    last_order = -1
    for event in events:
        if event.order <= last_order:
            raise SourceError(recording, f"the order of events goes back at {event.order}")
        last_order = event.order
        if isinstance(event, CallEvent):
            references = [link.event for link in event.inputs if link.event is not None]
            references += event.outputs
            if event.entered > event.order or not earlier.keys() >= set(references):
                raise SourceError(recording, f"the call of order {event.order} refers to events that are missing")
        else:
            name = event.site.name
            if name in names:
                raise SourceError(recording, f"holds two events of the name {printable(name, 80)!r}")
            names.add(name)
            contradiction = _find_contradiction(event, earlier) if isinstance(event, TensorEvent) else None
            if contradiction:
                raise SourceError(recording, f"{printable(name, 80)!r} {contradiction}")
        earlier[event.order] = event


def _find_contradiction(event: TensorEvent, earlier: dict[int, Event]) -> str | None:
    """Return what is wrong with a tensor event, or None."""
    if event.dtype not in DTYPES:
        return f"has the unknown dtype {printable(event.dtype, 40)!r}"
    for order in (event.same, event.forward, event.over):
        if order is not None and not isinstance(earlier.get(order), TensorEvent):
            return f"refers to event {order}, which is missing"
    twin = earlier[event.same] if event.same is not None else event
    assert isinstance(twin, TensorEvent)  # checked above
    if (twin.digest, twin.shape, twin.dtype) != (event.digest, event.shape, event.dtype):
        return "claims to equal an earlier tensor, but does not"
    if event.keep == "full" and (event.shard is None or event.key is None):
        return "is kept in full, but the event does not say where"
    if event.keep == "sketch" and (event.shard is None or event.sketch is None):
        return "is kept as a sketch, but the event does not say where"
    return None


@dataclass(frozen=True)
class ElementClaim:
    """Hold what an event says of elements in a shard."""

    name: str  # of the site
    shard: str
    shape: Shape  # of the tensor that the digest is of
    dtype: DType
    digest: str | None  # as much of it as was kept; None: a sketch from before sketches had digests


@dataclass(frozen=True)
class ElementChecker:
    """Check elements against their digest before they are first used, once however many events point at them.

    Damage is trouble with the file; without the check it would look like a difference between models.
    """

    recording: str
    _intact: set[tuple[str, int, str]] = field(default_factory=set)

    def make_data(self, window: Window, claim: ElementClaim) -> Data:
        """Return elements that are checked when they are first read."""
        data = FileData(window, claim.dtype.storage)
        if claim.digest is None:
            return data

        def check_first() -> Data:
            self._check(window, claim)
            return data

        return LateData(check_first)

    def _check(self, window: Window, claim: ElementClaim) -> None:
        place = (claim.shard, window.start, claim.digest or "")
        if place in self._intact:
            return
        digest = compute_file_digest(window, claim.dtype.name, claim.shape)
        if claim.digest is None or digest[: len(claim.digest)] != claim.digest:
            raise DamagedError(
                self.recording,
                f"{printable(claim.name, 80)!r} is damaged: its elements in {claim.shard} do not match the recorded "
                "digest; copy or record it again, or leave it out with --exclude",
            )
        self._intact.add(place)


def compute_file_digest(window: Window, dtype: str, shape: Shape) -> str:
    """Return the digest of elements in a file."""
    digest = hashlib.sha256(digest_header(dtype, shape))
    buffer = np.empty(min(window.size, _READ_SIZE), np.uint8)
    for start in range(0, window.size, _READ_SIZE):
        piece = buffer[: min(_READ_SIZE, window.size - start)]
        window.read_into(start, piece.data)
        digest.update(compute_hashes(piece))
    return digest.hexdigest()
