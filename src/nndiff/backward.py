"""Where a wrong gradient comes from: what was handed a good one and handed on a bad one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from nndiff.bypass import bypassed
from nndiff.handed import Handed, Tensors, around, forward_of, holds, innermost, is_inside, links, same
from nndiff.names import ancestors
from nndiff.origins import Origin, Origins
from nndiff.recorded import is_gradient
from nndiff.scaled import Reach, common_factor
from nndiff.sites import SitePair
from nndiff.text import plural


def first_gradient(sites: Iterable[SitePair]) -> SitePair | None:
    """Return the first gradient that is out, in the order the backward pass made them; those at outputs first."""
    failing = [site for site in sites if is_gradient(site.reference) and not site.passed]
    at_outputs = [site for site in failing if site.slot == "grad_output"]
    return min(at_outputs or failing, key=lambda site: site.order, default=None)


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
    search = _Search(sites, site, Handed(site, *tensors))
    return search.returned() or search.taker() or search.inside() or search.next()


def _own_parameter(sites: Sequence[SitePair], site: SitePair) -> Blame | None:
    module = site.module
    there = [each for each in sites if each.slot == "grad_output" and each.module == module]
    if not there or not all(each.passed for each in there):
        return None
    why = "the gradient at its output is in tolerance, that of its parameter is out: its backward, or another use of it"
    return Blame(module, why, site.part)


class _Search:
    """Look for who handed on a wrong gradient, among the calls that were handed a good one."""

    def __init__(self, sites: Sequence[SitePair], site: SitePair, handed: Handed) -> None:
        self._site, self._handed = site, handed
        self._good = [each for each in sites if each.slot == "grad_output" and each.passed]
        self._called = [each for each in sites if each.slot == "output"]
        self._modules = {each.module for each in self._called}
        self._bad = {each.call for each in sites if each.slot == "grad_output" and not each.passed}
        reached = {each.reference.trace.forward for each in self._good}
        self._later = [each for each in self._called if each.order in reached]

    def returned(self) -> Blame | None:
        """Return the composite that returned the very output: the gradient it was handed is good."""
        found = [each for each in self._later if holds(each, self._site) and self._handed.same(each)]
        return self._after(found[0]) if found else None

    def taker(self) -> Blame | None:
        """Return what took the output, or what is around it where that may be to blame as well."""
        all_takers = self._handed.takers(self._later)
        takers = list(innermost(all_takers))
        if not takers:
            return None
        past = bypassed(self._site, takers, self._good)
        if past is not None:
            what = f"what is out is the gradient at {_owner(past.gradient)}, {past.done} on a way past {_told(takers)}"
            inside = around([past.gradient], all_takers)  # a composite that takes it, and adds something to it
            return Blame(inside or around([*takers, past.gradient], self._called), f"{self._agree(takers)}; {what}")
        winding = [each for each in takers if self._handed.detour(each)]
        if winding:
            return self._between(winding, [each for each in all_takers if not self._handed.detour(each)])
        if len(takers) == 1:
            why = f"{self._agree(takers)}: its backward, or that of other code that takes the output of {self._here}"
            return Blame(takers[0].module, why, takers[0].part)
        return Blame(
            around(takers, self._called),
            f"{self._agree(takers)}: what they hand on together, or what is done to it on the way",
        )

    def _between(self, takers: Sequence[SitePair], straight: Sequence[SitePair]) -> Blame:
        """Return what is around the output and those that take it; a composite that takes it as it is, is enough."""
        sides = self._handed.detour(takers[0])
        enough = [each for each in straight if all(holds(each, taker) for taker in takers)]
        module = max((each.module for each in enough), key=len) if enough else self._around(takers)
        told = _told(takers)
        between = f"the backward of what is done between {self._here} and {told} in the {sides}, or of {told}"
        return Blame(module, f"{self._agree(takers)}: {between}")

    def _around(self, takers: Sequence[SitePair]) -> str:
        return around([self._site, *takers], self._called)

    def inside(self) -> Blame | None:
        """Return the composite that returned the output beside another, and may have used it itself before that.

        So does an attention that returns its weights. The last good gradient in it that was reached before tells.
        """
        if not any(each.call == self._site.call for each in self._good):
            return None
        reached = {each.reference.trace.forward: each.order for each in self._good}
        inner = [each for each in self._later if self._is_in_the_call(each) and _of_unknown_origin(each)]
        before = [each for each in inner if each.call not in self._bad and reached[each.order] < self._site.order]
        if not before:
            return None
        there = _owner(max(before, key=lambda each: reached[each.order]))
        output = self._site.pair.name.replace(":grad_output", ":output")
        why = f"the gradient at the output of {there} is in tolerance, that at {output}, reached after it, is out"
        what = f"the backward of {there}, of what {self._here} does before it, or of other code that takes {output}"
        return Blame(self._site.module, f"{why}: {what}")

    def _is_in_the_call(self, each: SitePair) -> bool:
        """Tell whether a call is part of the one that returned the output, not of an earlier one of that module."""
        module, call = self._site.call
        earlier = (other.order for other in self._called if other.module == module and other.call[1] < call)
        return holds(self._site, each) and max(earlier, default=-1) < each.order < self._made

    def next(self) -> Blame | None:
        """Return what the first good gradient after this one says, in order of execution.

        It is at a composite that holds this module, or at a call whose input may come from here; one that is known
        to come from here is first.
        """
        good = (each for each in self._later if each.call not in self._bad)  # all that it returns
        after = [each for each in good if each.order > self._made]
        composite = next((each for each in after if holds(each, self._site)), None)
        before = [each for each in after if composite is None or each.order < composite.order]
        found = max(before, key=self._origin, default=None)  # the first of those that are told alike
        if found is None or self._origin(found) is Origin.ELSEWHERE:
            return None if composite is None else self._after(composite)
        there, more = _owner(found), self._may_be_taken_beside(found)
        what = f"{there} or of what is done in between"
        if more:
            what = f"{there}, of what is done in between, or of anything later that takes the output of {self._here}"
        module = self._around([found]) if not more else self._scope.module if self._scope else ""
        return Blame(module, f"{self._ran_before(there)}: the backward of {what}")

    @cached_property
    def _origins(self) -> Sequence[Origins]:
        """Return what is known of the reference, and of the candidate; nothing where the output was not kept."""
        return [Origins(tensors, made) for tensors, made in self._handed.made()]

    def _origin(self, call: SitePair) -> Origin:
        """Return whether what a call was given comes from the output; what either side knows to be another does not."""
        if not self._origins:
            return Origin.UNKNOWN if _of_unknown_origin(call) else Origin.ELSEWHERE
        both = (call.reference, call.candidate)
        told = [origins.of_inputs(each) for origins, each in zip(self._origins, both, strict=True)]
        return Origin.ELSEWHERE if Origin.ELSEWHERE in told else max(told)

    @cached_property
    def _scope(self) -> SitePair | None:
        """Return the innermost composite that does not hand out the output: nothing outside it takes it."""
        outer = [each for each in self._called if holds(each, self._site) and each.order > self._made]
        handing = {each.call for each in outer if self._handed.same(each)}
        return next((each for each in outer if each.call not in handing), None)

    def _may_be_taken_beside(self, found: SitePair) -> bool:
        """Tell whether code that is no module may take the output elsewhere than on the way to a call."""
        scope = self._scope
        if scope is None or not self._origins:
            return True
        inner = [each for each in self._called if holds(scope, each) and self._made < each.order < scope.order]
        if not any(same(each.reference, scope.reference) for each in inner):
            return True  # what it returns is made by its own code
        whole = [each for each in inner if not holds(each, self._site) and not self._is_in_another(each)]
        unknown = self._origins[0].unknown
        own = {event for each in inner if each is found or holds(each, found) for event in unknown(each.reference)}
        others = (each for each in whole if self._origin(each) is not Origin.ELSEWHERE)
        return any(not unknown(each.reference) <= own for each in others)

    def _is_in_another(self, call: SitePair) -> bool:
        """Tell whether a call is inside a module that does not hold the one the gradient is at: it takes from that."""
        outer = (each for each in ancestors(call.module) if each in self._modules)
        return any(not is_inside(self._site.module, each) for each in outer)

    def _after(self, composite: SitePair) -> Blame:
        there = _owner(composite)
        why = f"{self._ran_before(there)}: the backward of what {there} does after {self._here}"
        return Blame(composite.module, why)

    @property
    def _made(self) -> int:
        return forward_of(self._site.reference)

    @property
    def _here(self) -> str:
        return _owner(self._site)

    def _ran_before(self, there: str) -> str:
        return (
            f"the gradient at the output of {there} is in tolerance, that at {self._here}, which ran before it, is out"
        )

    def _agree(self, takers: Sequence[SitePair]) -> str:
        one = len(takers) == 1
        what = "gradient at the output" if one else "gradients at the outputs"
        verb, took = ("is", "it takes") if one else ("are", "they take")
        told = f"the {what} of {_told(takers)} {verb} in tolerance"
        return f"{told}, that at {self._here}, whose output {took}, is out"


def _told(takers: Sequence[SitePair]) -> str:
    names = [_owner(each) for each in takers]
    return ", ".join(names[:3]) + (f" and {plural(len(names) - 3, 'other')}" if len(names) > 3 else "")


def _owner(site: SitePair) -> str:
    return site.pair.name.partition(":")[0]


def _of_unknown_origin(site: SitePair) -> bool:
    return any(link.how in ("own", "none") for link in links(site.reference))
