"""The orchestrator: open, align, stream, judge. Data flows one way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nndiff.align import Rename
from nndiff.files import unchanged
from nndiff.measuring import Progress, Row, measured
from nndiff.names import parse_groups
from nndiff.planning import Plan, Rules, plan, settled
from nndiff.result import Comparison, Pair
from nndiff.tolerance import Tolerance, choose


def compare_sources(
    reference: Any,
    *candidates: Any,
    atol: float | None = None,
    rtol: float | None = None,
    tolerance: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    rename: Sequence[str] = (),
    mapping: Mapping[str, str] | None = None,
    group: Mapping[str, str] | Sequence[str] = (),
    progress: Progress | None = None,
) -> Comparison:
    """Compare a reference with one or more candidates, each anything that `open_source` opens."""
    rules = Rules(
        tuple(Rename.parse(text) for text in rename),
        dict(mapping or {}),
        tuple(include),
        tuple(exclude),
        dict(group) if isinstance(group, Mapping) else parse_groups(group),
    )
    return run(plan(reference, candidates, rules), choose(atol, rtol, tolerance), rules, progress)


def run(plans: Sequence[Plan], tolerance: Tolerance, rules: Rules, progress: Progress | None = None) -> Comparison:
    """Measure and judge every pair of the plans."""
    with unchanged():
        return _run(plans, tolerance, rules, progress)


def _run(plans: Sequence[Plan], tolerance: Tolerance, rules: Rules, progress: Progress | None) -> Comparison:
    recorded = all(each.recorded for each in plans)
    plans = [settled(each) for each in plans] if recorded else plans
    rows = [row for each in plans for row in each.rows()]
    pairs = measured(rows, tolerance, progress)
    if recorded:
        plans, rows, pairs = _looked_again(plans, rows, pairs, tolerance, rules)
    comparison = Comparison(
        kind="recording" if recorded else "checkpoint",
        reference=plans[0].reference.side(),
        candidates=tuple(replace(each.candidate.side(), label=each.label) for each in plans),
        tolerance=tolerance,
        pairs=tuple(pairs),
        leftovers=tuple(left for each in plans for left in each.leftovers()),
        groups=rules.groups,
        notes=tuple(dict.fromkeys(note for each in plans for note in (*each.notes, *_form(each)))),
    )
    if not recorded:
        return comparison
    from nndiff.explain import explain

    sources = {each.label: (each.reference, each.candidate) for each in plans}
    return explain(comparison, sources, [(row.reference, row.candidate) for row in rows])


def _form(plan: Plan) -> Iterator[str]:
    """Yield what is to be told of the form of a recorded model's outputs."""
    if plan.recorded:
        from nndiff.returned import returned_otherwise

        yield from returned_otherwise(plan)


_Judged = tuple[Sequence[Plan], list[Row], list[Pair]]


def _looked_again(
    plans: Sequence[Plan], rows: list[Row], pairs: list[Pair], tolerance: Tolerance, rules: Rules
) -> _Judged:
    """Return plans and pairs with those in place of which names misled."""
    if rules.renames or rules.mapping:  # whoever gave rules for names means them
        return plans, rows, pairs
    from nndiff.paired_again import Judged, paired_again

    judged: list[Judged] = []
    for each in plans:
        mine = [(row, pair) for row, pair in zip(rows, pairs, strict=True) if row.label == each.label]
        named = Judged(each, [row for row, _ in mine], [pair for _, pair in mine])
        judged.append(paired_again(named, tolerance, rules))
    ordered = [pair for each in judged for pair in each.pairs]
    numbered = [replace(pair, order=order) if pair.order != order else pair for order, pair in enumerate(ordered)]
    return [each.plan for each in judged], [row for each in judged for row in each.rows], numbered
