"""Two checkpoints: relations proven for pairs that differ, and for groups of tensors that are one another's parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nndiff import relations
from nndiff.align.alignment import GroupMatch
from nndiff.diagnosis.noise import Bounds
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.plan import Plan
from nndiff.proofs import NOT_SEARCHED, RelatedTensors, apply_relation, make_related_pair, pair_tied
from nndiff.result import CANDIDATE, REFERENCE, Leftover, Rules
from nndiff.tensors import Shape, TensorRef
from nndiff.tolerance import Tolerance
from nndiff.verdict import RelationKind, Verdict

MOST_HINTS = 8  # relations of tensors of the same shapes that are tried first


def relate_checkpoints(
    plan: Plan, pairs: Sequence[SitePair], leftovers: Sequence[Leftover], tolerance: Tolerance, rules: Rules
) -> RelatedTensors:
    """Prove how pairs that differ are related, and pair what is left by relations of several tensors."""
    search = CheckpointSearch(plan, tolerance, rules)
    related = RelatedTensors(list(pairs), list(leftovers))
    if any(leftover.counts for leftover in leftovers):
        pair_tied(plan, related, tolerance, rules)
    search.prove_groups(related)  # first: a weight into which a norm is folded is also one scaled by channels
    pairs = list(related.pairs)
    # weights before biases, single numbers of which do not tell in what order they stand
    for number in sorted(range(len(pairs)), key=lambda number: -len(pairs[number].reference.shape)):
        pairs[number] = search.prove_pair(pairs[number])
    related.pairs = pairs
    return related


class CheckpointSearch:
    """Look for relations in two checkpoints; what was proven for one tensor is tried first on those of as many rows."""

    def __init__(self, plan: Plan, tolerance: Tolerance, rules: Rules) -> None:
        self._plan = plan
        self._tolerance = tolerance
        self._rules = rules
        self._hints: dict[tuple[Shape, ...], list[relations.Relation]] = {}  # by the length of the first axis of each

    def prove_pair(self, site: SitePair) -> SitePair:
        """Return a pair, with the relation that makes it agree where it differs and one is proven."""
        pair = site.pair
        is_explained = pair.related is not None and pair.related.relation.kind is not RelationKind.TIED
        if pair.verdict.passed or is_explained or pair.verdict is Verdict.NOT_COMPARED:
            return site
        if pair.stored is not None and pair.stored.nonfinite_ref != pair.stored.nonfinite_cand:
            return site  # overflow is no rounding
        relation = self._prove([site.reference], [site.candidate], pair.atol, pair.rtol)
        if relation is None and relations.are_too_large_to_move(site.reference, site.candidate):
            return replace(site, pair=replace(pair, notes=(*pair.notes, NOT_SEARCHED)))
        if relation is None:
            return site
        metrics = relations.measure_related(relation, [site.reference], [site.candidate], pair.atol, pair.rtol)
        return replace(site, pair=apply_relation(pair, relation, metrics, self._rules))

    def prove_groups(self, related: RelatedTensors) -> None:
        """Pair groups that alignment found by content, and those that belong together by their names."""
        plan = self._plan

        def count_axes(group: GroupMatch) -> int:
            return len(plan.reference.tensors[group.reference[0]].shape)

        for group in sorted(plan.alignment.groups, key=count_axes, reverse=True):
            reference = [plan.reference.tensors[name] for name in group.reference]
            candidate = [plan.candidate.tensors[name] for name in group.candidate]
            relation = self._prove(reference, candidate, *self._choose_tolerance(reference, candidate))
            if relation is not None:
                self._add_group(related, relations.RelatedGroup(tuple(reference), tuple(candidate), relation))
        free = related.list_free(REFERENCE, plan.reference), related.list_free(CANDIDATE, plan.candidate)
        # equal values may be those of a part: weight norm keeps the weight itself as its direction
        may_be_parts = any(free)
        in_question = []
        for site in related.pairs:
            if not site.passed or (may_be_parts and site.pair.method.is_by_content):
                in_question.append(site)
        sides = {tensor.name: tensor for tensor in free[0]}, {tensor.name: tensor for tensor in free[1]}
        for site in in_question:
            sides[0][site.reference.name], sides[1][site.candidate.name] = site.tensors
        names = [(site.reference.name, site.candidate.name) for site in in_question]
        atol, rtol = self._tolerance.atol, self._tolerance.rtol
        for proven in relations.relate_groups(*sides, names, atol, rtol):
            self._add_group(related, proven)

    def _choose_tolerance(self, reference: Sequence[TensorRef], candidate: Sequence[TensorRef]) -> tuple[float, float]:
        names = [tensor.name for tensor in (*reference, *candidate)]
        return self._tolerance.for_pair(names, reference[0].dtype, candidate[0].dtype)

    def _add_group(self, related: RelatedTensors, group: relations.RelatedGroup) -> None:
        """Make one pair of several tensors; pairs by name of the same tensors are part of it now."""
        atol, rtol = self._choose_tolerance(group.reference, group.candidate)
        pair = make_related_pair(self._plan, group.reference, group.candidate, Bounds(atol, rtol))
        pair = apply_relation(pair, group.relation, group.measure(atol, rtol), self._rules)
        taken = {tensor.name for tensor in group.reference}, {tensor.name for tensor in group.candidate}
        related.pairs = [
            site for site in related.pairs if site.reference.name not in taken[0] or site.candidate.name not in taken[1]
        ]
        related.add_group(SitePair(pair, group.reference[0], group.candidate[0]), group.reference, group.candidate)

    def _prove(
        self, reference: Sequence[TensorRef], candidate: Sequence[TensorRef], atol: float, rtol: float
    ) -> relations.Relation | None:
        lengths = tuple(tensor.shape[:1] for tensor in (*reference, *candidate))
        hints = self._hints.setdefault(lengths, [])
        relation = relations.prove(reference, candidate, atol, rtol, hints, relations.STORED_FAMILIES)
        if relation is not None and relation not in hints and len(hints) < MOST_HINTS:
            hints.append(relation)
        return relation
