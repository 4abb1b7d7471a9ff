"""The calls of a recording: which module, which time, what it returned, what it was given."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from nndiff.align.plan import Tensors
from nndiff.names import ancestors
from nndiff.tensors import TensorRef

Key = tuple[str, int]  # module and number of a call
Paired = dict[Key, Key]  # calls of the reference and their partners


@dataclass(frozen=True)
class Call:
    """Hold one call of a module with its recorded outputs."""

    module: str
    number: int
    cls: str
    order: int
    outputs: tuple[TensorRef, ...]
    leaf: bool

    @property
    def key(self) -> Key:
        """Return what tells it from other calls."""
        return self.module, self.number

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of its outputs."""
        return tuple(output.shape for output in self.outputs)

    @property
    def held(self) -> tuple[str, ...]:
        """Return the digests of what its module holds itself, where they are known."""
        return self.outputs[0].trace.weights

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """Return the events of the tensors it was called with, as far as they were recorded."""
        return tuple(link.event for link in self.outputs[0].trace.inputs if link.event is not None)


def calls_of(tensors: Tensors) -> list[Call]:
    """Return the calls of a recording in the order in which they finished."""
    grouped: dict[Key, list[TensorRef]] = {}
    for tensor in tensors.values():
        if tensor.site.slot == "output":
            grouped.setdefault((tensor.site.module, tensor.site.call), []).append(tensor)
    inner = {module.rpartition(".")[0] for module, _ in grouped}
    found = [
        Call(
            module,
            number,
            str(outputs[0].site.cls),
            outputs[0].trace.order,
            tuple(outputs),
            module not in inner,
        )
        for (module, number), outputs in grouped.items()
    ]
    return sorted(found, key=lambda call: call.order)


class Regions:
    """Know the innermost module around a path that has a partner, by the reference's name for it."""

    def __init__(self, same: Paired) -> None:
        self._reference = {left: left for left, _ in same}
        self._candidate = {right: left for (left, _), (right, _) in same.items()}

    def partner(self, module: str, candidate: bool) -> str:
        """Return the reference's name for a module of a side; its own name where it has no partner."""
        return self._candidate.get(module, module) if candidate else module

    def of(self, module: str, candidate: bool) -> str:
        """Return the region a module of a side is in; the model itself where there is no other."""
        known = self._candidate if candidate else self._reference
        return next((known[each] for each in ancestors(module) if each in known), "")
