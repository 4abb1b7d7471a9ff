"""Layers paired again by what they do, where their names mislead: kept only if that explains what names do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from nndiff.align.sites import align_sites
from nndiff.excuses import Excuses
from nndiff.findings.modules import has_weights, module_tree
from nndiff.measuring import Row, measured
from nndiff.misnamed import Modules, is_explained, is_no_more, misnamed, note
from nndiff.planning import Plan, Rules, filtered, settled
from nndiff.result import Leftover, Pair
from nndiff.rewrites import lies
from nndiff.sites import SitePair
from nndiff.tolerance import Tolerance


@dataclass(frozen=True)
class Judged:
    """Hold the plan of one candidate with its pairs, judged."""

    plan: Plan
    rows: Sequence[Row]
    pairs: Sequence[Pair]

    @cached_property
    def leftovers(self) -> list[Leftover]:
        """Return what has no partner."""
        return list(self.plan.leftovers())

    @cached_property
    def is_explained(self) -> bool:
        """Tell whether nothing differs but what lies otherwise or has no effect."""
        failing = frozenset(pair.order for pair in self.pairs if not pair.verdict.passed)
        excuses = Excuses(self.pairs, self.leftovers)
        both = zip(self.rows, self.pairs, strict=True)
        lying = lies([SitePair(pair, row.reference, row.candidate) for row, pair in both])
        return is_explained(excuses, excuses.ruling(failing, lying), failing)

    @property
    def partners(self) -> dict[tuple[str, str], None]:
        """Return the modules whose outputs are paired, in order."""
        return dict.fromkeys(pair.site.modules for pair in self.pairs if pair.slot == "output" and pair.site)

    @cached_property
    def alone(self) -> frozenset[tuple[str, str]]:
        """Return the modules with weights an output of which has no partner, each with its side."""
        return frozenset(self._alone())

    def _alone(self) -> Iterator[tuple[str, str]]:
        for side, source in (("reference", self.plan.reference), ("candidate", self.plan.candidate)):
            tree = module_tree(source.meta)
            left = (source.tensors[each.name].meta for each in self.leftovers if each.side == side)
            modules = {meta["module"] for meta in left if meta["slot"] == "output"}
            yield from ((side, module) for module in modules if has_weights(tree.get(module, {})))


def paired_again(named: Judged, tolerance: Tolerance, rules: Rules) -> Judged:
    """Return the pairs of one candidate, by what layers do where names mislead."""
    modules = misnamed(named.pairs, named.leftovers)
    if modules is None or named.is_explained:
        return named
    other = _by_what_they_do(named.plan, modules, tolerance, rules)
    moved = [both for both in other.partners if both not in named.partners]
    if not moved or not _explains_more(other, named):
        return named
    return replace(other, plan=replace(other.plan, notes=(*other.plan.notes, note(moved))))


def _by_what_they_do(plan: Plan, modules: Modules, tolerance: Tolerance, rules: Rules) -> Judged:
    found, notes = filtered(align_sites(plan.reference.tensors, plan.candidate.tensors, misnamed=modules), rules)
    other = settled(replace(plan, alignment=found, notes=notes))
    rows = list(other.rows())
    return Judged(other, rows, measured(rows, tolerance))


def _explains_more(other: Judged, named: Judged) -> bool:
    """Tell whether all is explained now, no more is without a partner, and nobody's work is left undone.

    A norm that is folded into the layer before it leaves that one, with its weights, alone: then that one differs.
    """
    paired = is_no_more(other.leftovers, named.leftovers) and other.alone <= named.alone
    return paired and other.is_explained
