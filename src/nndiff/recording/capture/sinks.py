"""Where a recorder sends events: a writer, or a second run of which only digests are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from nndiff.recording.format.arrays import raw_value
from nndiff.recording.format.digests import RawTensor, measure_tensor
from nndiff.recording.format.events import TensorEvent
from nndiff.recording.format.keep_levels import Keep
from nndiff.tensors import Link, Phase, Site


class Sink(Protocol):
    """Take events; `Writer` has the same methods and documents them."""

    keep: Keep

    def reserve_order(self) -> int: ...  # noqa: D102

    def add_tensor(  # noqa: D102
        self,
        site: Site,
        load: Callable[[], RawTensor],
        *,
        keep: str | None = None,
        same_as: TensorEvent | None = None,
        forward: int | None = None,
        over: int | None = None,
        phase: Phase = "forward",
    ) -> TensorEvent: ...

    def add_value(self, site: Site, value: Any, phase: Phase = "forward") -> int: ...  # noqa: D102

    def add_call(  # noqa: D102
        self,
        entered: int,
        module: str,
        call: int,
        cls: str,
        parent: int | None,
        inputs: tuple[Link, ...],
        outputs: tuple[int, ...],
        phase: Phase = "forward",
    ) -> int: ...


class DigestSink:
    """Keep only the digests of a run, to compare it with the recorded one."""

    def __init__(self, keep: Keep) -> None:
        self.keep = keep
        self.digests: dict[str, str] = {}
        self._next_order = 0
        self._first_orders: dict[str, int] = {}

    def reserve_order(self) -> int:
        """Take a number in the order of execution."""
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
        """Keep the digest of a tensor."""
        if same_as is not None:
            shape, dtype, digest = same_as.shape, same_as.dtype, same_as.digest
        else:
            raw = load()
            shape, dtype, digest = raw.shape, raw.dtype.name, measure_tensor(raw, with_stats=False).digest
        self.digests[site.name] = digest
        order = self.reserve_order()
        same = self._first_orders.get(digest)
        self._first_orders.setdefault(digest, order)
        return TensorEvent(order, site, shape, dtype, "digest", digest, same=same, forward=forward, phase=phase)

    def add_value(self, site: Site, value: Any, phase: Phase = "forward") -> int:
        """Keep a plain value, or the digest of an array."""
        raw = raw_value(value)
        if raw is not None:
            return self.add_tensor(site, lambda: raw, phase=phase).order
        self.digests[site.name] = repr(value)[:200]
        return self.reserve_order()

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
        """Take a number only: a call is known by its tensors."""
        return self.reserve_order()


def list_disagreeing_sites(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """Return the sites at which two runs differ, in the order of the first."""
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]
