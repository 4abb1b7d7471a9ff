"""Where a wrong gradient comes from: the call that was handed a good one and handed on a bad one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.diagnosis.call_graph import (
    Origin,
    OriginMap,
    OutputUse,
    Tensors,
    find_common_holder,
    get_forward_order,
    have_same_bytes,
    is_inside,
    select_innermost,
    surrounds,
)
from nndiff.diagnosis.common_factor import Reach, find_common_factor
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.diagnosis.tensor_values import read_wide
from nndiff.names import ancestors
from nndiff.tensors import Slot, TensorRef
from nndiff.text import plural

# What is left of a wrong gradient once a multiple of another is taken away, as a share: rounding of float32, no more.
BYPASS_REST = 1e-4
_LARGEST_READ = 1 << 22  # elements of one tensor
_MOST_READ = 1 << 26  # elements in all


@dataclass(frozen=True)
class Blame:
    """Name the module that made a wrong gradient, and why."""

    module: str  # by the reference's name
    why: str
    is_part: bool = False  # it is a stretch of a larger layer


def find_first_gradient(pairs: Iterable[SitePair]) -> SitePair | None:
    """Return the first gradient that is out, in the order of the backward pass; those at outputs first."""
    failing = [site for site in pairs if site.is_gradient and not site.passed]
    at_outputs = [site for site in failing if site.slot is Slot.GRAD_OUTPUT]
    return min(at_outputs or failing, key=lambda site: site.order, default=None)


def blame_gradient(pairs: Sequence[SitePair], site: SitePair, tensors: tuple[Tensors, Tensors]) -> Blame | None:
    """Return the module that made a wrong gradient: the gradient at an output comes from its consumers."""
    factor = find_common_factor(pairs) if site.is_gradient else None
    if factor is not None and factor.reach is not Reach.SOME:
        return Blame("", factor.meaning)
    if site.slot is Slot.PARAM_GRAD:
        at_outputs = [
            gradient for gradient in pairs if gradient.slot is Slot.GRAD_OUTPUT and gradient.module == site.module
        ]
        if not at_outputs or not all(gradient.passed for gradient in at_outputs):
            return None
        why = "the gradient at its output agrees, that of its parameter differs: its backward, or another use of it"
        return Blame(site.module, why, site.is_part)
    if site.slot is not Slot.GRAD_OUTPUT:
        return None
    search = _BlameSearch(pairs, site, OutputUse(site, *tensors))
    return (
        search.blame_returning_composite()
        or search.blame_takers()
        or search.blame_inside_of_call()
        or search.blame_next_good_gradient()
    )


class _BlameSearch:
    """Find the call that turned a good gradient into a wrong one."""

    def __init__(self, pairs: Sequence[SitePair], site: SitePair, use: OutputUse) -> None:
        self._site, self._use = site, use
        self._calls = [call for call in pairs if call.slot is Slot.OUTPUT]
        self._good_gradients: list[SitePair] = []
        self._bad_calls: set[tuple[str, int]] = set()
        for gradient in pairs:
            if gradient.slot is Slot.GRAD_OUTPUT and gradient.passed:
                self._good_gradients.append(gradient)
            elif gradient.slot is Slot.GRAD_OUTPUT:
                self._bad_calls.add(gradient.call)
        reached = {get_forward_order(gradient.reference) for gradient in self._good_gradients}
        self._good_calls = [call for call in self._calls if call.order in reached]
        self._made = get_forward_order(site.reference)  # when the output was made

    def blame_returning_composite(self) -> Blame | None:
        """Return the composite that returned the very output: the gradient it was handed is good."""
        for call in self._good_calls:
            if surrounds(call, self._site) and self._use.is_returned_by(call):
                return self._blame_end_of(call)
        return None

    def blame_takers(self) -> Blame | None:
        """Return the consumer of the output, or the module around it if that may be to blame as well."""
        all_takers = self._use.select_takers(self._good_calls)
        takers = select_innermost(all_takers)
        if not takers:
            return None
        bypass = find_bypass(self._site, takers, self._good_gradients)
        if bypass is not None:
            why = f"the error is the gradient at {bypass.gradient.owner}, {bypass.text} on a path past {_list(takers)}"
            # a composite that takes the output and adds something to it, else what is around all of them
            module = find_common_holder([bypass.gradient], all_takers)
            module = module or find_common_holder([*takers, bypass.gradient], self._calls)
            return Blame(module, f"{self._say_takers_agree(takers)}; {why}")
        with_detour = [call for call in takers if self._use.name_detour(call)]
        if with_detour:
            straight = [call for call in all_takers if not self._use.name_detour(call)]
            return self._blame_detour(with_detour, straight)
        if len(takers) == 1:
            why = f"{self._say_takers_agree(takers)}: its backward, or other code that takes the output of "
            return Blame(takers[0].module, why + self._site.owner, takers[0].is_part)
        why = f"{self._say_takers_agree(takers)}: what they hand on together, or what is done to it on the way"
        return Blame(find_common_holder(takers, self._calls), why)

    def _blame_detour(self, takers: Sequence[SitePair], straight: Sequence[SitePair]) -> Blame:
        """Return the module around the output and its takers; a composite that takes it as it is, is enough."""
        holders = [call.module for call in straight if all(surrounds(call, taker) for taker in takers)]
        module = max(holders, key=len) if holders else find_common_holder([self._site, *takers], self._calls)
        names, sides = _list(takers), self._use.name_detour(takers[0])
        between = f"the backward of the code between {self._site.owner} and {names} in the {sides}, or of {names}"
        return Blame(module, f"{self._say_takers_agree(takers)}: {between}")

    def blame_inside_of_call(self) -> Blame | None:
        """Return the composite that returned the output beside another, and may have used it itself before that.

        An attention that returns its weights does. The last good gradient in it that was reached before tells.
        """
        if not any(gradient.call == self._site.call for gradient in self._good_gradients):
            return None
        reached = {get_forward_order(gradient.reference): gradient.order for gradient in self._good_gradients}
        module, number = self._site.call
        earlier = [call.order for call in self._calls if call.module == module and call.call[1] < number]
        begin = max(earlier, default=-1)
        last: SitePair | None = None
        for call in self._good_calls:
            is_in_call = surrounds(self._site, call) and begin < call.order < self._made
            is_good = call.call not in self._bad_calls and reached[call.order] < self._site.order
            if is_in_call and is_good and _has_unknown_input(call):
                last = call if last is None or reached[call.order] > reached[last.order] else last
        if last is None:
            return None
        output = replace(self._site.reference.site, slot=Slot.OUTPUT).name
        why = f"the gradient at the output of {last.owner} agrees, that at {output}, reached after it, differs"
        cause = f"the backward of {last.owner}, of what {self._site.owner} does before it, or other use of {output}"
        return Blame(self._site.module, f"{why}: {cause}")

    def blame_next_good_gradient(self) -> Blame | None:
        """Return what the first good gradient after this one says, in order of execution.

        It is at a composite that holds this module, or at a call whose input may come from here; one that is known
        to come from here is first.
        """
        later = [call for call in self._good_calls if call.call not in self._bad_calls and call.order > self._made]
        composite = next((call for call in later if surrounds(call, self._site)), None)
        before = [call for call in later if composite is None or call.order < composite.order]
        taker = max(before, key=self._get_origin, default=None)  # the first of those that are equally likely
        if taker is None or self._get_origin(taker) is Origin.ELSEWHERE:
            return None if composite is None else self._blame_end_of(composite)
        why = self._say_later_agrees(taker)
        if self._may_be_used_beside(taker):
            cause = f"{taker.owner}, of the code in between, or of anything later that takes the output of "
            return Blame(self._scope.module if self._scope else "", f"{why}: the backward of {cause}{self._site.owner}")
        module = find_common_holder([self._site, taker], self._calls)
        return Blame(module, f"{why}: the backward of {taker.owner} or of the code in between")

    @cached_property
    def _origins(self) -> tuple[OriginMap, OriginMap] | None:
        return self._use.trace_origins()

    def _get_origin(self, call: SitePair) -> Origin:
        """Return whether what a call was given comes from the output; if either side knows better, it does not."""
        if self._origins is None:
            return Origin.UNKNOWN if _has_unknown_input(call) else Origin.ELSEWHERE
        reference = self._origins[0].get_origin_of_inputs(call.reference)
        candidate = self._origins[1].get_origin_of_inputs(call.candidate)
        return Origin.ELSEWHERE if Origin.ELSEWHERE in (reference, candidate) else max(reference, candidate)

    @cached_property
    def _scope(self) -> SitePair | None:
        """Return the innermost composite that does not hand out the output: nothing outside it takes it."""
        holders = [call for call in self._calls if surrounds(call, self._site) and call.order > self._made]
        returning = {call.call for call in holders if self._use.is_returned_by(call)}
        return next((call for call in holders if call.call not in returning), None)

    def _may_be_used_beside(self, taker: SitePair) -> bool:
        """Return True if code that is no module may use the output elsewhere than on the way to a call."""
        scope, origins = self._scope, self._origins
        if scope is None or origins is None:
            return True
        inner = [call for call in self._calls if surrounds(scope, call) and self._made < call.order < scope.order]
        if not any(have_same_bytes(call.reference, scope.reference) for call in inner):
            return True  # what the scope returns is made by its own code
        on_the_way: set[int | None] = set()
        for call in inner:
            if call is taker or surrounds(call, taker):
                on_the_way |= origins[0].list_unknown_inputs(call.reference)
        for call in inner:
            is_separate = not surrounds(call, self._site) and not self._is_inside_another(call)
            may_use_output = is_separate and self._get_origin(call) is not Origin.ELSEWHERE
            if may_use_output and not origins[0].list_unknown_inputs(call.reference) <= on_the_way:
                return True
        return False

    def _is_inside_another(self, call: SitePair) -> bool:
        """Return True if a call is inside a module that does not hold the gradient's: it takes from that module."""
        modules = {called.module for called in self._calls}
        holders = [outer for outer in ancestors(call.module) if outer in modules]
        return any(not is_inside(self._site.module, outer) for outer in holders)

    def _blame_end_of(self, composite: SitePair) -> Blame:
        cause = f"the backward of what {composite.owner} does after {self._site.owner}"
        return Blame(composite.module, f"{self._say_later_agrees(composite)}: {cause}")

    def _say_later_agrees(self, later: SitePair) -> str:
        here = self._site.owner
        return f"the gradient at the output of {later.owner} agrees, that at {here}, which ran before it, differs"

    def _say_takers_agree(self, takers: Sequence[SitePair]) -> str:
        here = self._site.owner
        if len(takers) == 1:
            return f"the gradient at the output of {_list(takers)} agrees, that at {here}, its input, differs"
        return f"the gradients at the outputs of {_list(takers)} agree, that at {here}, their input, differs"


def _list(calls: Sequence[SitePair]) -> str:
    names = [call.owner for call in calls]
    return ", ".join(names[:3]) + (f" and {plural(len(names) - 3, 'other')}" if len(names) > 3 else "")


def _has_unknown_input(call: SitePair) -> bool:
    return any(link.how in ("own", "none") for link in call.reference.trace.inputs)


@dataclass(frozen=True)
class Bypass:
    """Say that the error of a gradient is a multiple of another: a residual that is detached or scaled."""

    gradient: SitePair
    factor: float

    @property
    def text(self) -> str:
        """Return what was done to the gradient on its way past a module."""
        return "cut off" if abs(self.factor + 1) < BYPASS_REST else f"multiplied by {1 + self.factor:.4g}"


def find_bypass(site: SitePair, takers: Sequence[SitePair], good_gradients: Iterable[SitePair]) -> Bypass | None:
    """Return the good gradient, at none of the takers, of which the error at a site is a multiple.

    Where a residual goes past a module, what is too much or too little is a multiple of the gradient it was added to.
    """
    readable = _get_readable(site)
    if readable is None:
        return None
    error = (read_wide(readable[1]) - read_wide(readable[0])).ravel()
    similar = []
    for gradient in good_gradients:
        if gradient.reference.shape == site.reference.shape and _get_readable(gradient) is not None:
            similar.append(gradient)
    similar.sort(key=lambda gradient: abs(gradient.order - site.order))
    del similar[max(1, _MOST_READ // max(1, site.reference.count)) :]
    taken = {call.order for call in takers}
    bypass: Bypass | None = None
    for gradient in similar:
        factor = _find_factor(error, gradient)
        if factor is None:
            continue
        if gradient.reference.trace.forward in taken:
            return None  # those that took the output may hand on too much of their own
        bypass = bypass or Bypass(gradient, factor)
    return bypass


def _get_readable(site: SitePair) -> tuple[TensorRef, TensorRef] | None:
    """Return what can be read of both sides: all, or sketches, which are of the same places for one shape."""
    readable = []
    for tensor in site.tensors:
        kept = tensor.trace.sketch if tensor.missing and tensor.trace.sketch is not None else tensor
        if kept.missing or kept.count > _LARGEST_READ:
            return None
        readable.append(kept)
    return (readable[0], readable[1]) if site.reference.shape == site.candidate.shape else None


def _find_factor(error: NDArray[Any], gradient: SitePair) -> float | None:
    """Return what a gradient must be multiplied with to be the error; None where it cannot be."""
    readable = _get_readable(gradient)
    if readable is None or readable[0].count != error.size:
        return None
    numbers = read_wide(readable[0]).ravel()
    size = float(np.vdot(numbers, numbers).real)
    if not (np.isfinite(size) and size > 0 and np.isfinite(error).all()):
        return None
    factor = float(np.vdot(numbers, error).real) / size
    rest = np.linalg.norm(error - factor * numbers)
    return factor if factor and rest < BYPASS_REST * np.linalg.norm(error) else None
