"""Elements of a recording, held against their digest before they are first used: damage is trouble, no difference."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from nndiff.dtypes import DType
from nndiff.errors import DamagedError
from nndiff.files import Window
from nndiff.recording.format.digests import hashes_of, head
from nndiff.recording.format.hashes import PART
from nndiff.tensors import Data, FileData, LateData, Shape
from nndiff.text import printable

_STEP = 16 * PART  # bytes that are read at once: some memory, whatever the tensor's size


@dataclass(frozen=True)
class Claim:
    """Hold what the events say of elements in a shard."""

    name: str  # of the site
    shard: str
    shape: Shape  # of the tensor that the digest is of
    dtype: DType
    digest: str | None  # None: from before sketches had digests, nothing to hold them against


@dataclass(frozen=True)
class Checker:
    """Check elements once, however many events point at them."""

    recording: str
    _sound: set[tuple[str, int, str]] = field(default_factory=set)

    def data(self, window: Window, claim: Claim) -> Data:
        """Return elements that are checked when they are first asked for."""
        plain = FileData(window, claim.dtype.storage)
        if claim.digest is None:
            return plain

        def make() -> Data:
            self._check(window, claim)
            return plain

        return LateData(make)

    def _check(self, window: Window, claim: Claim) -> None:
        where = (claim.shard, window.start, claim.digest or "")
        if where in self._sound:
            return
        if digest_in(window, claim.dtype.name, claim.shape) != claim.digest:
            raise DamagedError(
                self.recording,
                f"{printable(claim.name, 80)!r} is damaged: its elements in {claim.shard} do not have the digest that "
                "was recorded with them; copy or record it again, or leave it out with --exclude",
            )
        self._sound.add(where)


def digest_in(window: Window, dtype: str, shape: Shape) -> str:
    """Return the digest of elements in a file."""
    digest = hashlib.sha256(head(dtype, shape))
    buffer = np.empty(min(window.size, _STEP), np.uint8)
    for start in range(0, window.size, _STEP):
        piece = buffer[: min(_STEP, window.size - start)]
        window.read_into(start, piece.data)
        digest.update(hashes_of(piece))
    return digest.hexdigest()
