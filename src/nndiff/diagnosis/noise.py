"""What rounding alone may do: the noise floor of a pair, the scale of gradients, and the tolerance by both."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nndiff.sources.source import Source
from nndiff.tensors import Slot, TensorRef
from nndiff.tolerance import Tolerance

# A gradient far below the largest of its kind is noise: it is judged on this share of that largest value.
NOISE_SHARE_OF_KIND = 0.01

_GIVEN = (Slot.MODEL_INPUT, Slot.PARAM, Slot.BUFFER_BEFORE)  # not computed


class Bounds(NamedTuple):
    """Hold how a pair is judged."""

    atol: float
    rtol: float
    scale: float = 1.0  # what atol was multiplied with: gradients are judged on their own scale
    noise: float | None = None  # the noise floor of the pair


class RecordedTolerance:
    """Know how every pair of two recordings is judged."""

    def __init__(self, tolerance: Tolerance, reference: Source, candidate: Source) -> None:
        self.tolerance = tolerance
        self._scales = scale_gradients(reference.tensors.values())
        self._precision = (_Precision(reference.tensors.values()), _Precision(candidate.tensors.values()))

    def choose_bounds(
        self, references: Sequence[TensorRef], candidates: Sequence[TensorRef], names: Sequence[str] = ()
    ) -> Bounds:
        """Return how tensors are judged that belong together; `names` are those they go by, if not their own.

        Of several tensors of the reference the largest scale and floor count.
        """
        names = names or [tensor.name for tensor in (*references, *candidates)]
        scale = max(self._scales.get(tensor.name, 1.0) for tensor in references)
        floors = [self._state_floor(tensor, candidates[0]) for tensor in references]
        noise = None if None in floors else max(floor for floor in floors if floor is not None)
        is_gradient = references[0].site.slot.is_gradient
        dtypes = references[0].dtype, candidates[0].dtype
        atol, rtol = self.tolerance.for_recorded(names, *dtypes, is_gradient=is_gradient, scale=scale, noise=noise)
        return Bounds(atol, rtol, scale, noise)

    def _state_floor(self, reference: TensorRef, candidate: TensorRef) -> float | None:
        """Return the noise floor of a pair, in the precision of the candidate if that is the shorter one.

        Movement is linear in what weights and inputs were moved by. A run in a shorter type moves them by as much more
        as its unit roundoff is larger.
        """
        floor = reference.trace.noise
        if floor is None:
            return None
        roundoffs = reference.dtype.roundoff, candidate.dtype.roundoff
        if reference.site.slot not in _GIVEN:
            orders = reference.trace.order, candidate.trace.order
            roundoffs = self._precision[0].get_coarsest(orders[0]), self._precision[1].get_coarsest(orders[1])
        if roundoffs[1] > roundoffs[0] > 0:
            floor *= roundoffs[1] / roundoffs[0]
        return floor


class _Precision:
    """Know the coarsest type that a run computed in before each of its events: what follows inherits its rounding."""

    def __init__(self, tensors: Iterable[TensorRef]) -> None:
        self._orders: list[int] = []
        self._roundoffs: list[float] = []
        for tensor in sorted(tensors, key=lambda tensor: tensor.trace.order):
            is_computed = tensor.site.slot is Slot.MODEL_INPUT or tensor.site.slot.is_activation
            if is_computed and tensor.dtype.roundoff > (self._roundoffs[-1] if self._roundoffs else 0.0):
                self._orders.append(tensor.trace.order)
                self._roundoffs.append(tensor.dtype.roundoff)

    def get_coarsest(self, order: int) -> float:
        """Return the unit roundoff of the coarsest type up to an event; 0 where nothing was rounded before it."""
        position = bisect_right(self._orders, order)
        return self._roundoffs[position - 1] if position else 0.0


def scale_gradients(tensors: Iterable[TensorRef]) -> dict[str, float]:
    """Return what atol is multiplied with for each gradient, by name: its own largest value, at most 1.

    Gradients have no scale of their own: behind a mean over a large batch all are far below any atol, and all would
    pass. Those that are zero but for noise are judged on a hundredth of the largest of their kind.
    """
    largest: dict[str, float] = {}
    slots: dict[str, Slot] = {}
    of_kind: dict[Slot, float] = {}
    for tensor in tensors:
        slot, stats = tensor.site.slot, tensor.trace.stats
        if not slot.is_gradient or stats is None:
            continue
        slots[tensor.name] = slot
        largest[tensor.name] = stats.abs_max if math.isfinite(stats.abs_max) else 0.0
        is_of_loss = slot is Slot.GRAD_OUTPUT and not tensor.site.module  # what the loss hands to the model itself
        if not is_of_loss:
            of_kind[slot] = max(of_kind.get(slot, 0.0), largest[tensor.name])
    scales = {}
    for name, slot in slots.items():
        scale = max(largest[name], NOISE_SHARE_OF_KIND * of_kind.get(slot, 0.0))
        scales[name] = min(1.0, scale) if scale > 0 else 1.0
    return scales
