"""Tensors that one side overwrites in place after they were recorded: whoever uses them later gets other values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.diagnosis.call_graph import Tensors, is_inside, surrounds
from nndiff.diagnosis.first_divergence import Run
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.findings.case import Case
from nndiff.findings.causes import Cause
from nndiff.result import SIDES, Finding
from nndiff.stats.shortcuts import take_sketch
from nndiff.tensors import Slot, TensorRef
from nndiff.text import first_few

# How far two differences may be apart, as a share, to be the same one: rounding of float32 in a residual.
SAME_DIFFERENCE = 1e-3
_MOST_READ = 16  # places that are searched for the difference that was written
_REPAIR = "keep it: use the variant that is not in place (relu, inplace=False), or clone() it first"


@dataclass(frozen=True)
class Overwrite:
    """Hold a tensor that one side overwrites and the other does not, and what became of it."""

    site: SitePair  # of the tensor as it was
    after: TensorRef
    side: int  # 0 the reference, 1 the candidate

    @property
    def before(self) -> TensorRef:
        """Return the tensor as it was, on the side that overwrites it."""
        return self.site.tensors[self.side]

    @property
    def partner(self) -> TensorRef:
        """Return the tensor of the side that keeps it."""
        return self.site.tensors[1 - self.side]

    @property
    def text(self) -> str:
        """Return what is overwritten, where, and by which side."""
        module = self.after.site.module
        place = f"by {module}" if self.after.site.slot is Slot.OUTPUT else f"before {module} takes it"
        return f"{self.site.pair.name} is overwritten in place {place}, in the {SIDES[self.side]} only"


def find_overwrites(case: Case) -> Iterator[Finding]:
    """Yield what one side overwrites in the module where the runs part, where that is or may be why they do."""
    run, first = case.run, case.first
    if first is None or first.slot is not Slot.OUTPUT:
        return
    overwrites = [overwrite for overwrite in _list_overwrites(run) if _happens_in(overwrite, first)]
    is_proven = False
    for overwrite in overwrites:
        proof = _prove_later_use(run, overwrite) or _prove_passed_on(run, overwrite, first)
        if proof:
            is_proven = True
            yield Finding(Cause.IN_PLACE, (overwrite.site.pair.name,), f"{overwrite.text}; {proof}", _REPAIR, 0.9)
    if overwrites and not is_proven and _differs_after_last_call(run, first):
        texts = [overwrite.text for overwrite in overwrites]
        names = tuple(overwrite.site.pair.name for overwrite in overwrites)
        pronoun = "it" if len(overwrites) == 1 else "them"
        evidence = f"{first_few(texts, between='; ')}: code that uses {pronoun} again gets other values"
        yield Finding(Cause.IN_PLACE, names, evidence, _REPAIR, 0.4)


def _list_overwrites(run: Run) -> Iterator[Overwrite]:
    """Yield what one side overwrites and the other does not."""
    overwritten = _map_overwritten(run.reference), _map_overwritten(run.candidate)
    for site in run.pairs:
        for side in (0, 1):
            after = overwritten[side].get(site.orders[side])
            if after is not None and site.orders[1 - side] not in overwritten[1 - side]:
                yield Overwrite(site, after, side)


def _map_overwritten(tensors: Tensors) -> dict[int, TensorRef]:
    """Return what became of tensors that were overwritten, by their order.

    Memory beside a tensor may have been written to and not the tensor itself: its digest tells.
    """
    overwritten: dict[int, TensorRef] = {}
    for tensor in tensors.values():
        before = None if tensor.trace.over is None else tensors.get(tensor.trace.over)
        if before is not None and before.shape == tensor.shape and before.trace.digest != tensor.trace.digest:
            overwritten[before.trace.order] = tensor
    return overwritten


def _happens_in(overwrite: Overwrite, first: SitePair) -> bool:
    """Return True if the tensor was overwritten while the module ran that returned the first divergence."""
    output, after = first.tensors[overwrite.side], overwrite.after
    inside = after.site.module == output.site.module or is_inside(after.site.module, output.site.module)
    return inside and after.trace.order < output.trace.order


def _prove_later_use(run: Run, overwrite: Overwrite) -> str:
    """Return which call takes the overwritten tensor where the other side's takes the tensor itself, "" for none."""
    side = overwrite.side
    for site in run.pairs:
        if site.slot is not Slot.OUTPUT or site.passed:
            continue
        events = {link.event for link in site.tensors[side].trace.inputs}
        partner_events = {link.event for link in site.tensors[1 - side].trace.inputs}
        if overwrite.after.trace.order in events and overwrite.partner.trace.order in partner_events:
            return f"{site.owner} takes it after that"
    return ""


def _prove_passed_on(run: Run, overwrite: Overwrite, first: SitePair) -> str:
    """Return where the very difference that was written comes out again: a residual adds it to something else."""
    written = _read_difference(overwrite.before, overwrite.after)
    if written is None:
        return ""
    read = 0
    for site in run.pairs:
        is_inner = surrounds(first, site) and site.slot in (Slot.INPUT, Slot.OUTPUT)
        has_shape = site.reference.shape == overwrite.before.shape
        if site.passed or not has_shape or not (site is first or is_inner) or read == _MOST_READ:
            continue
        read += 1
        difference = _read_difference(site.tensors[1 - overwrite.side], site.tensors[overwrite.side])
        if difference is not None and is_same_difference(written, difference):
            return f"{site.pair.name} is off by exactly that"
    return ""


def _read_difference(before: TensorRef, after: TensorRef) -> NDArray[Any] | None:
    """Return what was kept of a difference, at places that are the same for all tensors of a shape."""
    sketches = take_sketch(before), take_sketch(after)
    if sketches[0] is None or sketches[1] is None or before.dtype.exact or after.dtype.exact:
        return None
    values: Sequence[NDArray[Any]] = [sketch.numpy().ravel().astype(np.complex128) for sketch in sketches if sketch]
    return values[1] - values[0] if values[0].shape == values[1].shape else None


def is_same_difference(first: NDArray[Any], second: NDArray[Any]) -> bool:
    """Return True if two differences are one, but for rounding."""
    size = float(np.linalg.norm(first)) if first.shape == second.shape else 0.0
    return bool(np.isfinite(size) and size > 0 and np.linalg.norm(first - second) <= SAME_DIFFERENCE * size)


def _differs_after_last_call(run: Run, first: SitePair) -> bool:
    """Return True if the runs part in what a module does after its last call: nobody sees what that uses."""
    inner = [site for site in run.outputs if surrounds(first, site)]
    return bool(inner) and all(site.passed for site in inner if site.order < first.order)
