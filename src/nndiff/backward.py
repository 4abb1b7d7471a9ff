"""Where a wrong gradient comes from: what was handed a good one and handed on a bad one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nndiff.names import plural
from nndiff.recorded import is_gradient
from nndiff.recording.events import Link
from nndiff.scaled import Reach, common_factor
from nndiff.sites import SitePair
from nndiff.tensors import TensorRef

Tensors = Mapping[int, TensorRef]  # every recorded tensor of a side by its order


def first_gradient(sites: Iterable[SitePair]) -> SitePair | None:
    """Return the first gradient that is out, in the order the backward pass made them; those at outputs first."""
    failing = [site for site in sites if is_gradient(site.reference) and not site.passed]
    at_outputs = [site for site in failing if site.slot == "grad_output"]
    return min(at_outputs or failing, key=lambda site: site.reference.meta["order"], default=None)


@dataclass(frozen=True)
class Blame:
    """Say which module a wrong gradient is the work of, and why."""

    module: str  # by the reference's name
    why: str
    part: bool = False  # it is but a stretch of a larger layer


def blamed(sites: Sequence[SitePair], site: SitePair, tensors: tuple[Tensors, Tensors]) -> Blame | None:
    """Return who made a gradient that is out: the gradient at an output is made by what took this output."""
    factor = common_factor(sites) if is_gradient(site.reference) else None
    if factor is not None and factor.reach is not Reach.SOME:
        return Blame("", factor.meaning)
    if site.slot == "param_grad":
        return _own_parameter(sites, site)
    if site.slot != "grad_output":
        return None
    good = {each.reference.meta.get("forward") for each in sites if each.slot == "grad_output" and each.passed}
    later = [each for each in sites if each.slot == "output" and each.reference.meta["order"] in good]
    return _taker(later, _Handed(site, *tensors)) or _next(later, site)


def _own_parameter(sites: Sequence[SitePair], site: SitePair) -> Blame | None:
    module = site.module
    there = [each for each in sites if each.slot == "grad_output" and each.module == module]
    if not there or not all(each.passed for each in there):
        return None
    why = "the gradient at its output is in tolerance, that of its parameter is out: its backward, or another use of it"
    return Blame(module, why, site.part)


@dataclass(frozen=True)
class _Handed:
    """Know who was handed the output at which a gradient is out, and how."""

    site: SitePair
    reference: Tensors
    candidate: Tensors

    def taken(self, each: SitePair) -> bool:
        """Tell whether a call of the reference took it, as it is or as a copy."""
        return self._straight(each.reference, self.site.reference) or any(
            self._copied(link) for link in _links(each.reference) if link.how == "equal"
        )

    def detour(self, each: SitePair) -> str:
        """Return the sides on which code stands between the output and the call that takes it."""
        sides = {
            "reference": self._straight(each.reference, self.site.reference),
            "candidate": self._straight(each.candidate, self.site.candidate),
        }
        return " and ".join(side for side, straight in sides.items() if not straight)

    @staticmethod
    def _straight(taker: TensorRef, gradient: TensorRef) -> bool:
        made = gradient.meta.get("forward")
        return made is not None and any(link.event == made for link in _links(taker))

    def _copied(self, link: Link) -> bool:
        made = self.reference.get(self.site.reference.meta.get("forward", -1))
        copy = None if link.event is None else self.reference.get(link.event)
        digest = None if made is None else made.meta.get("digest")
        return digest is not None and copy is not None and copy.meta.get("digest") == digest


def _taker(later: Sequence[SitePair], handed: _Handed) -> Blame | None:
    takers = list(_innermost([each for each in later if handed.taken(each)]))
    if not takers:
        return None
    here, names = _owner(handed.site), [_owner(each) for each in takers]
    if len(takers) > 1:
        told = ", ".join(names[:3]) + (f" and {plural(len(names) - 3, 'other')}" if len(names) > 3 else "")
        why = f"the gradients at the outputs of {told}, which took it, are in tolerance, what they hand on is out"
        return Blame(_around([each.module for each in takers]), why)
    (taker,) = takers
    sides = handed.detour(taker)
    why = f"the gradient at the output of {names[0]} is in tolerance, that at {here}, whose output it takes, is out: "
    if not sides:
        return Blame(
            taker.module, f"{why}its backward, or that of other code that takes the output of {here}", taker.part
        )
    between = f"the backward of what the {sides} does between {here} and {names[0]}, or of {names[0]}"
    return Blame(_around([handed.site.module, taker.module]), why + between)


def _owner(site: SitePair) -> str:
    return site.pair.name.partition(":")[0]


def _links(tensor: TensorRef) -> Sequence[Link]:
    found: Sequence[Link] = tensor.meta.get("inputs", ())
    return found


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
    after = (each for each in later if each.reference.meta["order"] > made)
    found = next((each for each in after if _holds(each, site) or _of_unknown_origin(each)), None)
    if found is None:
        return None
    here, there = _owner(site), _owner(found)
    why = f"the gradient at the output of {there} is in tolerance, that at {here}, which ran before it, is out: "
    if _holds(found, site):
        return Blame(found.module, f"{why}the backward of what {there} does after {here}")
    return Blame(_around([site.module, found.module]), f"{why}the backward of {there} or of what is done in between")


def _holds(outer: SitePair, site: SitePair) -> bool:
    return bool(site.module) and site.module.startswith(f"{outer.module}." if outer.module else "")


def _of_unknown_origin(site: SitePair) -> bool:
    return any(link.how in ("own", "none") for link in _links(site.reference))


def _around(modules: Sequence[str]) -> str:
    """Return the innermost path that is around all of them."""
    parts = [module.split(".")[:-1] for module in modules]
    shared: list[str] = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)
