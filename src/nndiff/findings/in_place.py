"""Tensors that one side writes to in place after they were recorded: whoever uses them later gets other values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nndiff.divergence import Run
from nndiff.handed import holds, links
from nndiff.lost import SIDES
from nndiff.result import Finding
from nndiff.sites import SitePair
from nndiff.tensors import TensorRef

_REPAIR = "keep it: use what is not in place there (relu, inplace=False), or clone() it first"


@dataclass(frozen=True)
class _Write:
    """Hold a tensor that was written over, and what became of it."""

    site: SitePair  # of the tensor as it was
    after: TensorRef
    number: int  # of the side that does it

    @property
    def before(self) -> TensorRef:
        """Return the tensor of the other side, which is kept there."""
        return self.site.candidate if self.number == 0 else self.site.reference

    @property
    def text(self) -> str:
        """Return what was written over, by whom and where."""
        module = str(self.after.meta["module"])
        by = f"by {module}" if self.after.meta["slot"] == "output" else f"before {module} takes it"
        return f"{self.site.pair.name} is written over in place {by}, in the {SIDES[self.number]} alone"


def in_place_findings(run: Run, first: SitePair | None) -> Iterator[Finding]:
    """Yield what one side writes over in the module where the runs part, where that may be why they do."""
    if first is None or first.slot != "output":
        return
    for write in _writes(run):
        here = (first.reference, first.candidate)[write.number]
        taker = _taker(run, write)
        if taker is None and not _may_matter(run, first):
            continue
        user = taker.pair.name.partition(":")[0] if taker is not None else "what uses it"
        told = f"; {user} after that is given other values"
        if _is_inside(write.after, here) or write.after.meta["order"] in {link.event for link in links(here)}:
            yield Finding("in-place", (write.site.pair.name,), write.text + told, _REPAIR, 0.9 if taker else 0.6)


def _writes(run: Run) -> Iterator[_Write]:
    """Yield what one side writes over and the other does not."""
    sides = _written(run.reference), _written(run.candidate)
    for site in run.sites:
        orders = site.reference.meta["order"], site.candidate.meta["order"]
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
        before = tensors.get(tensor.meta.get("over", -1))
        if before is not None and before.shape == tensor.shape and before.meta["digest"] != tensor.meta["digest"]:
            found[before.meta["order"]] = tensor
    return found


def _is_inside(tensor: TensorRef, output: TensorRef) -> bool:
    """Tell whether a tensor was taken while the module ran that returned an output."""
    module, around = str(tensor.meta["module"]), str(output.meta["module"])
    inside = module == around or module.startswith(f"{around}." if around else "")
    return bool(inside and tensor.meta["order"] < output.meta["order"])


def _taker(run: Run, write: _Write) -> SitePair | None:
    """Return a call that takes what was written over, where the other side's takes the tensor itself."""
    for site in run.sites:
        both = (site.reference, site.candidate)[:: -1 if write.number else 1]
        if site.slot == "output" and not site.passed:
            mine, other = ({link.event for link in links(each)} for each in both)
            if write.after.meta["order"] in mine and write.before.meta["order"] in other:
                return site
    return None


def _may_matter(run: Run, first: SitePair) -> bool:
    """Tell whether the runs part in what a module does after its last call: nobody sees what that uses."""
    inner = [site for site in run.telling if site.slot == "output" and holds(first, site)]
    order = first.reference.meta["order"]
    return bool(inner) and all(site.passed for site in inner if site.reference.meta["order"] < order)
