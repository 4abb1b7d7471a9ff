"""What a recorder sends events to."""

from __future__ import annotations

from typing import Any, Protocol

from nndiff.recording.format.events import TensorEvent
from nndiff.recording.format.keep_levels import Keep
from nndiff.tensors import Link, Phase, Site


class Sink(Protocol):
    """Take events: the Writer, or a second run that is only checked against the first."""

    keep: Keep

    def reserve(self) -> int: ...  # noqa: D102

    def tensor(  # noqa: D102
        self,
        site: Site,
        load: Any,
        *,
        keep: str | None = None,
        like: TensorEvent | None = None,
        forward: int | None = None,
        over: int | None = None,
        phase: Phase = "forward",
    ) -> TensorEvent: ...

    def value(self, site: Site, value: Any, note: str = "", phase: Phase = "forward") -> int: ...  # noqa: D102

    def call(  # noqa: D102
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
