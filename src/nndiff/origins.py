"""Whether what a call was given may come from an output: by the links between calls, as far as they tell."""

from __future__ import annotations

from enum import IntEnum

from nndiff.handed import Tensors, is_inside, links, same
from nndiff.tensors import TensorRef


class Origin(IntEnum):
    """Say whether a tensor comes from an output."""

    ELSEWHERE = 0
    UNKNOWN = 1
    HERE = 2


class Origins:
    """Know of all that the calls of a side were given whether it comes from an output."""

    def __init__(self, tensors: Tensors, made: TensorRef) -> None:
        self._tensors, self._made = tensors, made
        self._found: dict[int, Origin] = {}
        for order in sorted(tensors):  # what a call is given was made before it
            self._found[order] = self._origin(order)

    def of_inputs(self, call: TensorRef) -> Origin:
        """Return whether what a call was given comes from the output."""
        given = (-1 if link.event is None else link.event for link in links(call) if link.how != "value")
        return max((self._found.get(event, Origin.UNKNOWN) for event in given), default=Origin.ELSEWHERE)

    def unknown(self, call: TensorRef) -> set[int | None]:
        """Return the events of what a call was given that no module returned and that may be made of the output."""
        events = {link.event for link in links(call) if link.how != "value"}
        return {each for each in events if each is None or (self._is_own(each) and self._found[each] is Origin.UNKNOWN)}

    def _origin(self, order: int) -> Origin:
        tensor = self._tensors[order]
        if same(tensor, self._made):
            return Origin.HERE
        if order < self._made.trace.order:
            return Origin.ELSEWHERE
        if self._is_own(order):
            return Origin.UNKNOWN if _may_carry_gradients(tensor) else Origin.ELSEWHERE
        around = is_inside(str(self._made.site.module), str(tensor.site.module))
        return Origin.UNKNOWN if around else self.of_inputs(tensor)

    def _is_own(self, event: int) -> bool:
        """Tell whether a tensor was first seen as what a call was given."""
        return event in self._tensors and self._tensors[event].site.slot == "input"


def _may_carry_gradients(tensor: TensorRef) -> bool:
    """Tell whether a tensor may be made of an output: not of positions, nor of one number all over that is not zero."""
    stats = tensor.trace.stats
    constant = stats is not None and tensor.count > 1 and stats.min == stats.max != 0
    return not (tensor.dtype.exact or constant)
