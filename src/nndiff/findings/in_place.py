"""Tensors that one side writes to in place after they were recorded: whoever uses them later gets other values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.divergence import Run
from nndiff.handed import holds, is_inside, links
from nndiff.lost import SIDES
from nndiff.result import Finding
from nndiff.shortcuts import sketch_of
from nndiff.sites import SitePair
from nndiff.tensors import TensorRef
from nndiff.text import first_few

_REPAIR = "keep it: use what is not in place there (relu, inplace=False), or clone() it first"
_MOST_READ = 16  # places that are looked at for what was written
_ALIKE = 1e-3


@dataclass(frozen=True)
class _Write:
    """Hold a tensor that was written over, and what became of it."""

    site: SitePair  # of the tensor as it was
    after: TensorRef
    number: int  # of the side that does it

    @property
    def before(self) -> TensorRef:
        """Return the tensor as it was, on the side that writes to it."""
        return self.site.candidate if self.number else self.site.reference

    @property
    def kept(self) -> TensorRef:
        """Return the tensor of the other side."""
        return self.site.reference if self.number else self.site.candidate

    @property
    def text(self) -> str:
        """Return what was written over, by whom and where."""
        module = str(self.after.site.module)
        by = f"by {module}" if self.after.site.slot == "output" else f"before {module} takes it"
        return f"{self.site.pair.name} is written over in place {by}, in the {SIDES[self.number]} alone"


def in_place_findings(run: Run, first: SitePair | None) -> Iterator[Finding]:
    """Yield what one side writes over in the module where the runs part, where that is or may be why they do."""
    if first is None or first.slot != "output":
        return
    writes = [
        write for write in _writes(run) if _is_taken_in(write.after, (first.reference, first.candidate)[write.number])
    ]
    proven = [(write, proof) for write in writes if (proof := _taken(run, write) or _passed_on(run, write, first))]
    for write, proof in proven:
        yield Finding("in-place", (write.site.pair.name,), f"{write.text}; {proof}", _REPAIR, 0.9)
    if writes and not proven and _is_unseen(run, first):
        yield _possible(writes)


def _possible(writes: Sequence[_Write]) -> Finding:
    told = first_few([write.text for write in writes], between="; ")
    what = "it" if len(writes) == 1 else "them"
    where = tuple(write.site.pair.name for write in writes)
    return Finding("in-place", where, f"{told}: code that uses {what} again is given other values", _REPAIR, 0.4)


def _writes(run: Run) -> Iterator[_Write]:
    """Yield what one side writes over and the other does not."""
    sides = _written(run.reference), _written(run.candidate)
    for site in run.sites:
        orders = site.reference.trace.order, site.candidate.trace.order
        for number in (0, 1):
            after = sides[number].get(orders[number])
            if after is not None and orders[1 - number] not in sides[1 - number]:
                yield _Write(site, after, number)


def _written(tensors: Mapping[int, TensorRef]) -> dict[int, TensorRef]:
    """Return what became of tensors that were written over, by their order.

    What lies beside a tensor may have been written to and not the tensor: its digest tells, that of a part does not.
    """
    found: dict[int, TensorRef] = {}
    for tensor in tensors.values():
        before = None if tensor.trace.over is None else tensors.get(tensor.trace.over)
        if before is not None and before.shape == tensor.shape and before.trace.digest != tensor.trace.digest:
            found[before.trace.order] = tensor
    return found


def _is_taken_in(tensor: TensorRef, output: TensorRef) -> bool:
    """Tell whether a tensor was taken while the module ran that returned an output."""
    module, around = str(tensor.site.module), str(output.site.module)
    inside = module == around or is_inside(module, around)
    return bool(inside and tensor.trace.order < output.trace.order)


def _taken(run: Run, write: _Write) -> str:
    """Say which call takes what was written over, where the other side's takes the tensor itself."""
    for site in run.sites:
        both = (site.reference, site.candidate)[:: -1 if write.number else 1]
        if site.slot == "output" and not site.passed:
            mine, other = ({link.event for link in links(each)} for each in both)
            if write.after.trace.order in mine and write.kept.trace.order in other:
                return f"{site.pair.name.partition(':')[0]} takes it after that"
    return ""


def _passed_on(run: Run, write: _Write, first: SitePair) -> str:
    """Say where the very difference that was written comes out again: a residual adds it to what it is added to."""
    inside = (site for site in run.sites if site is first or (holds(first, site) and site.slot in ("input", "output")))
    failing = (site for site in inside if not site.passed and site.reference.shape == write.before.shape)
    written = _difference(write.before, write.after)
    for site in islice(failing, _MOST_READ):
        both = (site.reference, site.candidate)[:: 1 if write.number else -1]
        wrong = _difference(*both)
        if written is not None and wrong is not None and written.shape == wrong.shape and _same(written, wrong):
            return f"{site.pair.name} is off by just that"
    return ""


def _difference(one: TensorRef, other: TensorRef) -> NDArray[Any] | None:
    """Return what was kept of a difference, at places that are the same for all tensors of a shape."""
    kept = sketch_of(one), sketch_of(other)
    if kept[0] is None or kept[1] is None or one.dtype.exact or other.dtype.exact:
        return None
    here, there = (each.numpy().ravel().astype(np.complex128) for each in kept if each is not None)
    return there - here if here.shape == there.shape else None


def _same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    size = float(np.linalg.norm(one))
    return bool(np.isfinite(size) and size > 0 and np.linalg.norm(one - other) <= _ALIKE * size)


def _is_unseen(run: Run, first: SitePair) -> bool:
    """Tell whether the runs part in what a module does after its last call: nobody sees what that uses."""
    inner = [site for site in run.telling if site.slot == "output" and holds(first, site)]
    order = first.reference.trace.order
    return bool(inner) and all(site.passed for site in inner if site.reference.trace.order < order)
