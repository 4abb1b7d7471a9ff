"""Layers paired again by what they do, where their names mislead: kept only if that explains what names do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from nndiff.align.calls import calls_of
from nndiff.align.sites import align_sites
from nndiff.excuses import Excuses
from nndiff.findings.modules import has_weights, module_tree
from nndiff.measuring import Row, measured
from nndiff.misnamed import Modules, is_explained, is_no_more, misnamed, misnamed_beside, note
from nndiff.planning import Plan, Rules, filtered, settled
from nndiff.result import Leftover, Pair
from nndiff.rewrites import lies
from nndiff.sites import SitePair
from nndiff.tolerance import Tolerance

_FAR = 10  # so many times smaller, a difference is not the one that names showed


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

    @cached_property
    def outputs(self) -> list[Pair]:
        """Return the pairs of outputs."""
        return [pair for pair in self.pairs if pair.slot == "output" and pair.site]

    @property
    def is_exchanged(self) -> bool:
        """Tell whether what a module holds that does not agree is held by another, and run in the same order.

        Weights that are run in another order were mixed up: then that is the fault.
        """
        both = zip(self.rows, self.pairs, strict=True)
        out = [row for row, pair in both if pair.slot == "output" and not pair.verdict.passed]
        held = [(row.reference.trace.weights, row.candidate.trace.weights) for row in out]
        elsewhere = {theirs for _, theirs in held if theirs}
        if not any(ours != theirs and ours in elsewhere for ours, theirs in held):
            return False
        sides = calls_of(self.plan.reference.tensors), calls_of(self.plan.candidate.tensors)
        runs = [[call.held for call in side if call.held] for side in sides]
        common = set(runs[0]) & set(runs[1])
        ours, theirs = ([each for each in run if each in common] for run in runs)
        return ours == theirs

    @property
    def worst(self) -> float:
        """Return the smallest tolerance at which all outputs pass."""
        return max((pair.passes_at for pair in self.outputs), default=0.0)

    @cached_property
    def partners(self) -> dict[tuple[str, str], None]:
        """Return the modules whose outputs are paired, in order."""
        return dict.fromkeys(pair.site.modules for pair in self.outputs if pair.site)

    @cached_property
    def alone(self) -> frozenset[tuple[str, str]]:
        """Return the modules with weights an output of which has no partner, each with its side."""
        return frozenset(self._alone())

    def _alone(self) -> Iterator[tuple[str, str]]:
        for side, source in (("reference", self.plan.reference), ("candidate", self.plan.candidate)):
            tree = module_tree(source.meta)
            left = (source.tensors[each.name].site for each in self.leftovers if each.side == side)
            modules = {site.module for site in left if site.slot == "output"}
            yield from ((side, module) for module in modules if has_weights(tree.get(module, {})))


def paired_again(named: Judged, tolerance: Tolerance, rules: Rules) -> Judged:
    """Return the pairs of one candidate, by what layers do where names mislead."""
    agreeing = misnamed(named.pairs, named.leftovers)
    modules = agreeing or misnamed_beside(named.pairs, named.leftovers, named.is_exchanged)
    if modules is None or named.is_explained:
        return named
    plan = _by_what_they_do(named.plan, modules, rules)
    rows = list(plan.rows())
    moved = [row for row in rows if _is_output(row) and _modules(row) not in named.partners]
    unlike = _unlike(rows)
    alike = unlike == 0 or unlike < _unlike(named.rows)
    if not moved or not (agreeing or alike):
        return named
    other = Judged(plan, rows, measured(rows, tolerance))
    explained = bool(agreeing) and other.is_explained
    if not _leaves_nobody_out(other, named) or not (explained or (alike and _fits_better(other, named))):
        return named
    return replace(other, plan=replace(plan, notes=(*plan.notes, note(list(dict.fromkeys(map(_modules, moved)))))))


def _by_what_they_do(plan: Plan, modules: Modules, rules: Rules) -> Plan:
    found, notes = filtered(align_sites(plan.reference.tensors, plan.candidate.tensors, misnamed=modules), rules)
    return settled(replace(plan, alignment=found, notes=notes))


def _is_output(row: Row) -> bool:
    return row.reference.site.slot == "output"


def _modules(row: Row) -> tuple[str, str]:
    return str(row.reference.site.module), str(row.candidate.site.module)


def _unlike(rows: Iterable[Row]) -> int:
    """Return how many outputs are laid beside those of another class."""
    return sum(row.reference.site.cls != row.candidate.site.cls for row in rows if _is_output(row))


def _leaves_nobody_out(other: Judged, named: Judged) -> bool:
    """Tell whether no more is without a partner, and no layer with weights that had one.

    A norm that is folded into the layer before it leaves that one, with its weights, alone: then that one differs.
    """
    return is_no_more(other.leftovers, named.leftovers) and other.alone <= named.alone


def _fits_better(other: Judged, named: Judged) -> bool:
    """Tell whether more layers agree; or as many, and more with weights have a partner or others differ far less."""
    passing, before = (sum(pair.verdict.passed for pair in each.outputs) for each in (other, named))
    found_more = len(other.alone) < len(named.alone)
    return passing > before or (passing == before and (found_more or _FAR * other.worst <= named.worst))
