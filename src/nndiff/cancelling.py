"""Rewrites that cancel out: inner tensors in another form, inside modules that return what they should.

What a module returns may be in another order, repeated, or hold the work of the layer behind it. Each such form is
proven on every element. It counts only where a module around it agrees as it is: there it has cancelled out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nndiff.diagnosis.noise import RecordedTolerance
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.names import ancestors
from nndiff.plan import Plan
from nndiff.proofs import apply_relation, fits_parameter, lay_out_gradients, make_related_pair
from nndiff.recording.format.weights import read_held_tensors
from nndiff.relations import Relation, is_readable, measure_related, recorded_order, repeated
from nndiff.relations.fold_operations import TakeBehind
from nndiff.relations.proof import agree, is_telling, read_array
from nndiff.result import Rules
from nndiff.sources import Source
from nndiff.tensors import Slot, TensorRef
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
        if not (self._orders or self._repeats) or not self._is_open(site):
            return site
        pair, sides = site.pair, ([site.reference], [site.candidate])
        relation = None
        if pair.shape[0] == pair.shape[1]:
            relation = recorded_order.follow(*sides, pair.atol, pair.rtol, self._orders)
        elif site.module in self._repeats:
            relation = repeated.prove(*sides, pair.atol, pair.rtol)
        return self._apply(site, relation) if relation is not None else site

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
        for is_candidate, source in enumerate((self._plan.reference, self._plan.candidate)):
            tensors = site.tensors[is_candidate], site.tensors[1 - is_candidate]
            for behind in self._takers[is_candidate].get(tensors[0].trace.order, ()):
                if not is_cancelled and behind.name not in self._agreeing[is_candidate]:
                    continue
                sides: tuple[list[TensorRef], list[TensorRef]] = [tensors[0], behind], [tensors[1]]
                if is_candidate:
                    sides = sides[1], sides[0]
                bounds = self._recorded.choose_bounds(*sides)
                if not _are_same(behind, tensors[1], bounds.atol, bounds.rtol):
                    continue
                operation = TakeBehind(_is_batch_norm(source, behind.site.module))
                operations = ((), (operation,)) if is_candidate else ((operation,), ())
                relation = Relation(RelationKind.FOLD, *operations)
                pair = make_related_pair(self._plan, *sides, bounds)
                metrics = measure_related(relation, *sides, bounds.atol, bounds.rtol)
                return replace(site, pair=apply_relation(pair, relation, metrics, self._rules))
        return None


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


def _is_batch_norm(source: Source, module: str) -> bool:
    """Return True if a module holds running statistics, by the names that torch gives them."""
    held = read_held_tensors(source.meta)
    return all(f"{module}.{name}".lstrip(".") in held for name in ("running_mean", "running_var"))
