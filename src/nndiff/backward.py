"""Where a wrong gradient comes from: what was handed a good one and handed on a bad one, or none at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nndiff.names import plural
from nndiff.recorded import is_gradient
from nndiff.sites import SitePair
from nndiff.tensors import TensorRef


@dataclass(frozen=True)
class Lost:
    """Hold a gradient that one side has and the other lacks, at a module both have."""

    tensor: TensorRef
    missing_in: str  # reference or candidate
    output: SitePair  # what its module returned

    @property
    def order(self) -> int:
        """Return when its module ran: who ran last is first in the backward pass."""
        return int(self.output.reference.meta["order"])


def first_gradient(sites: Iterable[SitePair]) -> SitePair | None:
    """Return the first gradient that is out, in the order the backward pass made them; those at outputs first."""
    failing = [site for site in sites if is_gradient(site.reference) and not site.passed]
    at_outputs = [site for site in failing if site.slot == "grad_output"]
    return min(at_outputs or failing, key=lambda site: site.reference.meta["order"], default=None)


def first_lost(sites: Sequence[SitePair], left: tuple[Sequence[TensorRef], Sequence[TensorRef]]) -> Lost | None:
    """Return the first gradient that one side lacks: of parameters that count, and at the output of their module."""
    outputs = (
        {site.module: site for site in sites if site.slot == "output"},
        {site.candidate.meta["module"]: site for site in sites if site.slot == "output"},
    )
    found = [
        Lost(tensor, missing_in, known[tensor.meta["module"]])
        for known, tensors, missing_in in zip(outputs, left, ("candidate", "reference"), strict=True)
        for tensor in tensors
        if tensor.meta["slot"] == "param_grad" and tensor.meta["module"] in known
    ]
    latest = max(found, key=lambda lost: lost.order, default=None)
    return None if latest is None else _at_its_output(latest, left[latest.missing_in == "reference"])


def _at_its_output(lost: Lost, left: Iterable[TensorRef]) -> Lost:
    """Return the gradient at the module's output where that is missing too: nothing reaches the module at all."""
    side = lost.output.reference if lost.missing_in == "candidate" else lost.output.candidate
    at_output = [
        each for each in left if each.meta["slot"] == "grad_output" and each.meta["forward"] == side.meta["order"]
    ]
    return Lost(at_output[0], lost.missing_in, lost.output) if at_output else lost


def comes_before(lost: Lost, site: SitePair | None) -> bool:
    """Tell whether a lost gradient comes before one that is out: its module ran later."""
    made = None if site is None else site.reference.meta.get("forward")
    return made is None or lost.order >= made


def lost_why(lost: Lost) -> str:
    """Return what a gradient that one side lacks says."""
    side = lost.missing_in
    if lost.tensor.meta["slot"] == "grad_output":
        return f"no gradient reaches it in the {side}: its output is detached there, or nothing is done with it"
    return f"the {side} has no gradient of it: frozen, detached or not used there"


@dataclass(frozen=True)
class Blame:
    """Say which module a wrong gradient is the work of, and why."""

    module: str  # by the reference's name
    why: str
    part: bool = False  # it is but a stretch of a larger layer


def blamed(sites: Sequence[SitePair], site: SitePair) -> Blame | None:
    """Return who made a gradient that is out: the gradient at an output is made by what took this output."""
    if site.slot == "param_grad":
        return _own_parameter(sites, site)
    if site.slot != "grad_output":
        return None
    good = {each.reference.meta.get("forward") for each in sites if each.slot == "grad_output" and each.passed}
    later = [each for each in sites if each.slot == "output" and each.reference.meta["order"] in good]
    return _taker(later, site) or _next(later, site)


def _own_parameter(sites: Sequence[SitePair], site: SitePair) -> Blame | None:
    module = site.module
    there = [each for each in sites if each.slot == "grad_output" and each.module == module]
    if not there or not all(each.passed for each in there):
        return None
    why = "the gradient at its output is in tolerance, that of its parameter is out: its backward"
    return Blame(module, why, site.part)


def _taker(later: Sequence[SitePair], site: SitePair) -> Blame | None:
    made = site.reference.meta.get("forward")
    takers = list(_innermost([each for each in later if any(link.event == made for link in _inputs(each))]))
    if not takers:
        return None
    names = [each.pair.name.partition(":")[0] for each in takers]
    if len(takers) == 1:
        why = f"the gradient at the output of {names[0]} is in tolerance, the one it hands on is out: its backward"
        return Blame(takers[0].module, why, takers[0].part)
    module = _around([each.module for each in takers])
    told = ", ".join(names[:3]) + (f" and {plural(len(names) - 3, 'other')}" if len(names) > 3 else "")
    why = f"the gradients at the outputs of {told}, which took it, are in tolerance, what they hand on together is out"
    return Blame(module, why)


def _inputs(site: SitePair) -> Any:
    return site.reference.meta.get("inputs", ())


def _innermost(takers: Sequence[SitePair]) -> Iterator[SitePair]:
    """Yield those that have no other inside: of a composite and the module in it that took the same, the inner one."""
    modules = {each.module for each in takers}
    for each in takers:
        prefix = each.module + "."
        if each.module and not any(module.startswith(prefix) for module in modules):
            yield each


def _next(later: Sequence[SitePair], site: SitePair) -> Blame | None:
    """Return what the first good gradient after this one says, in order of execution.

    It is at a composite that holds this module, or at a call whose input nobody knows the origin of: that may
    come from here.
    """
    made = site.reference.meta.get("forward", -1)
    after = (each for each in later if each.reference.meta["order"] > made and each.module)
    found = next((each for each in after if _holds(each, site) or _of_unknown_origin(each)), None)
    if found is None:
        return None
    here, there = (each.pair.name.partition(":")[0] for each in (site, found))
    why = f"the gradient at the output of {there} is in tolerance, that at {here}, which ran before it, is out: "
    if _holds(found, site):
        return Blame(found.module, f"{why}the backward of what {there} does after {here}")
    return Blame(_around([site.module, found.module]), f"{why}the backward of {there} or of what is done in between")


def _holds(outer: SitePair, site: SitePair) -> bool:
    return site.module.startswith(f"{outer.module}.")


def _of_unknown_origin(site: SitePair) -> bool:
    return any(link.how in ("own", "none") for link in _inputs(site))


def _around(modules: Sequence[str]) -> str:
    """Return the innermost path that is around all of them."""
    parts = [module.split(".")[:-1] for module in modules]
    shared: list[str] = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)
