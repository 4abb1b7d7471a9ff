"""The calls of a recorded run as a tree: which call was made inside which."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from nndiff.recording.format.events import CallEvent

Key = tuple[str, int]  # module and number of a call


@dataclass
class CallNode:
    """Hold one call with the call around it and those inside."""

    event: CallEvent
    parent: CallNode | None = None
    children: list[CallNode] = field(default_factory=list)

    @property
    def key(self) -> Key:
        """Return the module and the number of the call."""
        return self.event.module, self.event.call

    @property
    def module(self) -> str:
        """Return the path of the module."""
        return self.event.module

    @property
    def call(self) -> int:
        """Return the number of the call."""
        return self.event.call

    @property
    def cls(self) -> str:
        """Return the class of the module."""
        return self.event.cls

    @property
    def entered(self) -> int:
        """Return when it began."""
        return self.event.entered

    @property
    def order(self) -> int:
        """Return when it was over."""
        return self.event.order


class CallTree:
    """Hold the calls of the forward pass."""

    def __init__(self, calls: Iterable[CallEvent]) -> None:
        self.all = sorted(
            (CallNode(event) for event in calls if event.phase == "forward"), key=lambda call: call.entered
        )
        self._by_key = {call.key: call for call in self.all}
        by_entry = {call.entered: call for call in self.all}
        for call in self.all:
            if call.event.parent is not None and call.event.parent in by_entry:
                call.parent = by_entry[call.event.parent]
                call.parent.children.append(call)

    def find(self, key: Key) -> CallNode | None:
        """Return the call of a module with a number."""
        return self._by_key.get(key)

    def list_inside(self, call: CallNode | None) -> list[CallNode]:
        """Return all calls inside one, in the order in which they were over; None is around all of them."""
        inside = self.all
        if call is not None:
            inside = [node for node in self.all if call.entered < node.entered and node.order < call.order]
        return sorted(inside, key=lambda node: node.order)
