"""Rewrites that cancel out: inner tensors in another form, inside modules that return what they should.

What a module returns may be in another order, repeated, or hold the work of the layer behind it. Each such form is
proven on every element. It counts only where a module around it agrees as it is: there it has cancelled out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nndiff.diagnosis.noise import RecordedTolerance
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.names import ancestors
from nndiff.plan import Plan
from nndiff.proofs import apply_relation, fits_parameter, lay_out_gradients, make_related_pair
from nndiff.recording.format.weights import read_held_tensors
from nndiff.relations import Relation, is_readable, measure_related, recorded_order, repeated
from nndiff.relations.fold_operations import TakeBehind
from nndiff.relations.proof import agree, agree_after, is_telling, read_array
from nndiff.relations.value_operations import MultiplyAlong
from nndiff.result import Rules
from nndiff.sources import Source
from nndiff.tensors import Site, Slot, TensorRef
from nndiff.tolerance import Tolerance
from nndiff.verdict import RelationKind, Verdict

MOST_READ = 1 << 26  # elements that are read to look for such forms: some seconds
MOST_HINTS = 8  # orders of other outputs that are tried first
_FOLLOWING = (Slot.PARAM, Slot.PARAM_GRAD, Slot.GRAD_OUTPUT)


def relate_cancelling(plan: Plan, pairs: Sequence[SitePair], tolerance: Tolerance, rules: Rules) -> list[SitePair]:
    """Return the pairs, inner ones that differ with the form that is proven and cancels out."""
    recorded = RecordedTolerance(tolerance, plan.reference, plan.candidate)
    search = _CancellingSearch(plan, pairs, recorded, rules)
    outputs = [search.relate_output(site) if site.slot is Slot.OUTPUT else site for site in pairs]
    related = [search.follow_output(site) if site.slot in _FOLLOWING else site for site in outputs]
    return lay_out_gradients(related, rules)


class _CancellingSearch:
    """Look for forms of one candidate's tensors, with bounded work."""

    def __init__(self, plan: Plan, pairs: Sequence[SitePair], recorded: RecordedTolerance, rules: Rules) -> None:
        self._plan, self._recorded, self._rules = plan, recorded, rules
        self._holders = _list_holders(pairs)
        agreeing = [site for site in pairs if site.slot is Slot.OUTPUT and site.agrees_as_stored]
        self._agreeing = {site.reference.name for site in agreeing}, {site.candidate.name for site in agreeing}
        self._takers = _list_takers(plan.reference), _list_takers(plan.candidate)
        self._orders: list[Relation] = []  # proven for outputs
        self._repeats: set[str] = set()  # modules whose outputs are repeated, by the reference's name
        # modules that another one is folded into, by the reference's name: the side that has both, and the other one
        self._folded: dict[str, tuple[int, str]] = {}
        self._read = 0

    def relate_output(self, site: SitePair) -> SitePair:
        """Return an output with the form that cancels out in a module around it, where one is proven."""
        if not self._is_open(site) or not site.module:
            return site
        is_cancelled = self._agrees_around(site)
        relation = self._find_form(site) if is_cancelled else None
        if relation is not None:
            return self._apply(site, relation)
        return self._relate_to_layer_behind(site, is_cancelled) or site

    def _find_form(self, site: SitePair) -> Relation | None:
        """Return how an output is repeated, or in which order it is."""
        pair, sides = site.pair, ([site.reference], [site.candidate])
        if pair.shape[0] != pair.shape[1]:
            relation = repeated.prove(*sides, pair.atol, pair.rtol)
            if relation is not None:
                self._repeats.add(site.module)
        else:
            relation = recorded_order.prove(*sides, pair.atol, pair.rtol, self._orders)
            if relation is not None and relation not in self._orders and len(self._orders) < MOST_HINTS:
                self._orders.append(relation)
        return relation

    def follow_output(self, site: SitePair) -> SitePair:
        """Return a weight or a gradient in the form that outputs are in: rows of a weight lie as what it makes."""
        if not (self._orders or self._repeats or self._folded) or not self._is_open(site):
            return site
        if site.module in self._folded:
            return self._follow_fold(site)
        pair, sides = site.pair, ([site.reference], [site.candidate])
        relation = None
        if pair.shape[0] == pair.shape[1]:
            relation = recorded_order.follow(*sides, pair.atol, pair.rtol, self._orders)
        elif site.module in self._repeats:
            relation = repeated.prove(*sides, pair.atol, pair.rtol)
        return self._apply(site, relation) if relation is not None else site

    def _follow_fold(self, site: SitePair) -> SitePair:
        """Return a gradient of a layer that another is folded into, by the chain rule.

        Its output is that of the layer behind, so that both have one gradient, and so have the biases added to them.
        The weight was multiplied by one factor for each channel: its gradient is divided by that. The factors are those
        by which the layer behind multiplies gradients on the side that has it.
        """
        side, folded = self._folded[site.module]
        alone, beside = site.tensors[1 - side], site.tensors[side]
        source = (self._plan.reference, self._plan.candidate)[side]
        for behind in source.tensors.values():
            at_same_call = behind.site.slot is site.slot and behind.site.call == beside.site.call
            if behind.site.module == folded and at_same_call and behind.shape == alone.shape:
                taken = self._take_behind(site, behind, side)
                if taken is not None:
                    return taken
        if site.slot is not Slot.PARAM_GRAD:
            return site
        gradients = []
        for module in (beside.site.module, folded):
            name = Site(module, Slot.GRAD_OUTPUT).name
            gradients += [source.tensors[name]] if name in source.tensors else []
        factors = read_factors(*gradients) if len(gradients) == 2 else ()
        for axis, size in enumerate(alone.shape):
            operations = () if size != len(factors) else (MultiplyAlong(axis, factors),)
            relation = Relation(RelationKind.FOLD, *((operations, ()) if side else ((), operations)))
            arrays = [read_array(site.reference)], [read_array(site.candidate)]
            if operations and agree_after(relation, *arrays, site.pair.atol, site.pair.rtol):
                return self._apply(site, relation)
        return site

    def _is_open(self, site: SitePair) -> bool:
        """Return True if a pair differs, nothing that counts is known of it, and its elements may still be read."""
        pair = site.pair
        if pair.verdict.passed or pair.verdict is Verdict.NOT_COMPARED or site.is_part:
            return False
        if pair.related is not None and pair.related.accepted:
            return False
        if self._read > MOST_READ or not all(is_readable(tensor) for tensor in site.tensors):
            return False
        self._read += site.reference.count + site.candidate.count
        return True

    def _agrees_around(self, site: SitePair) -> bool:
        """Return True if a module around this one, or the model, returns later what the reference does."""
        for module in ancestors(site.module):
            later = [returned for returned in self._holders.get(module, ()) if returned.order > site.order]
            if later and later[0].agrees:
                return True
        return False

    def _apply(self, site: SitePair, relation: Relation) -> SitePair:
        pair = site.pair
        metrics = measure_related(relation, [site.reference], [site.candidate], pair.atol, pair.rtol)
        fits = site.slot is not Slot.PARAM_GRAD or fits_parameter(self._plan, site, relation, self._recorded)
        return replace(site, pair=apply_relation(pair, relation, metrics, self._rules, fits))

    def _relate_to_layer_behind(self, site: SitePair, is_cancelled: bool) -> SitePair | None:
        """Return the pair of a layer that does the work of the layer behind it too: what that returns is the same.

        It has cancelled out if what stands at the place of the layer behind agrees, or a module around both. A layer
        into which another was folded holds other weights than before.
        """
        if site.reference.trace.weights == site.candidate.trace.weights:
            return None
        for is_candidate in (0, 1):
            tensors = site.tensors[is_candidate], site.tensors[1 - is_candidate]
            for behind in self._takers[is_candidate].get(tensors[0].trace.order, ()):
                if not is_cancelled and behind.name not in self._agreeing[is_candidate]:
                    continue
                taken = self._take_behind(site, behind, is_candidate)
                if taken is not None:
                    self._folded[site.module] = is_candidate, behind.site.module
                    return taken
        return None

    def _take_behind(self, site: SitePair, behind: TensorRef, side: int) -> SitePair | None:
        """Return the pair with what the layer behind has on a side, if that agrees."""
        sides: tuple[list[TensorRef], list[TensorRef]] = [site.tensors[side], behind], [site.tensors[1 - side]]
        if side:
            sides = sides[1], sides[0]
        bounds = self._recorded.choose_bounds(*sides)
        if not _are_same(behind, site.tensors[1 - side], bounds.atol, bounds.rtol):
            return None
        operation = TakeBehind(_is_batch_norm((self._plan.reference, self._plan.candidate)[side], behind.site.module))
        relation = Relation(RelationKind.FOLD, *(((), (operation,)) if side else ((operation,), ())))
        pair = make_related_pair(self._plan, *sides, bounds)
        metrics = measure_related(relation, *sides, bounds.atol, bounds.rtol)
        return replace(site, pair=apply_relation(pair, relation, metrics, self._rules))


@dataclass(frozen=True)
class _Returned:
    """Say when a call of a module returned, and whether all it returned agrees as it is."""

    order: int
    agrees: bool


def _list_holders(pairs: Iterable[SitePair]) -> dict[str, list[_Returned]]:
    """Return the calls of every module in order, by the reference's name."""
    calls: dict[tuple[str, int], list[SitePair]] = {}
    for site in pairs:
        if site.slot is Slot.OUTPUT and site.was_compared:
            calls.setdefault(site.call, []).append(site)
    holders: dict[str, list[_Returned]] = {}
    for (module, _), sites in calls.items():
        agrees = all(site.agrees_as_stored for site in sites)
        holders.setdefault(module, []).append(_Returned(max(site.order for site in sites), agrees))
    for returned in holders.values():
        returned.sort(key=lambda call: call.order)
    return holders


def _list_takers(source: Source) -> Mapping[int, list[TensorRef]]:
    """Return the outputs of calls that were given one recorded tensor and no other, by the order of that."""
    takers: dict[int, list[TensorRef]] = {}
    for tensor in source.tensors.values():
        events = [link.event for link in tensor.trace.inputs if link.event is not None]
        if tensor.site.slot is Slot.OUTPUT and tensor.site.module and len(events) == 1 and events[0] is not None:
            takers.setdefault(events[0], []).append(tensor)
    return takers


def _are_same(behind: TensorRef, other: TensorRef, atol: float, rtol: float) -> bool:
    """Return True if two tensors agree on every element, and could have disagreed."""
    if behind.shape != other.shape or not (is_readable(behind) and is_readable(other)):
        return False
    sides = read_array(behind), read_array(other)
    return is_telling(sides[0], atol, rtol) and agree(*sides, atol, rtol)


def read_factors(gradient: TensorRef, behind: TensorRef) -> tuple[float, ...]:
    """Return what the gradient behind a layer was multiplied with for each channel; nothing if it was not."""
    if gradient.shape != behind.shape or not (is_readable(gradient) and is_readable(behind)):
        return ()
    arrays = read_array(gradient).astype(np.float64), read_array(behind).astype(np.float64)
    axis = 1 if arrays[0].ndim > 2 else arrays[0].ndim - 1
    others = tuple(other for other in range(arrays[0].ndim) if other != axis)
    energies = np.square(arrays[1]).sum(others)
    factors = np.ones_like(energies)  # where a channel has no gradient, its weight has none either
    np.divide((arrays[0] * arrays[1]).sum(others), energies, out=factors, where=energies > 0)
    return tuple(factors.tolist())


def _is_batch_norm(source: Source, module: str) -> bool:
    """Return True if a module holds running statistics, by the names that torch gives them."""
    held = read_held_tensors(source.meta)
    return all(f"{module}.{name}".lstrip(".") in held for name in ("running_mean", "running_var"))
