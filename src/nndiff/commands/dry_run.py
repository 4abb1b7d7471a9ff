"""The plan of a comparison, printed before one tensor is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nndiff.planning import Plan
from nndiff.reports.output import print_text
from nndiff.text import printable


def print_plans(plans: Sequence[Plan]) -> int:
    """Print which names belong together and by which rule; return 0 if all do, 1 if not, 2 if none does."""
    for plan in plans:
        print_text("\n".join(_lines(plan)) + "\n")
    if not any(plan.alignment.matches for plan in plans):
        return 2
    whole = all(not list(plan.leftovers()) and not _misfits(plan) for plan in plans)
    return 0 if whole else 1


def _misfits(plan: Plan) -> int:
    return sum(reference.shape != candidate.shape for _, reference, candidate in plan.pairs())


def _lines(plan: Plan) -> list[str]:
    lines = [f"plan: {printable(plan.reference.label)} against {printable(plan.label)}"]
    for match, reference, candidate in plan.pairs():
        shape = str(list(reference.shape))
        if reference.shape != candidate.shape:
            shape += f" against {list(candidate.shape)}: shapes differ"
        names = printable(match.reference)
        if match.candidate != match.reference:
            names += f" <- {printable(match.candidate)}"
        lines.append(f"  {names}  {shape}  by {printable(match.matched_by)}")
    for left in plan.leftovers():
        hint = f"  {printable(left.hint)}" if left.hint else ""
        lines.append(f"  only in the {left.side}: {printable(left.name)}  {list(left.shape)}{hint}")
    rules = Counter(match.matched_by for match in plan.alignment.matches)
    how = ", ".join(f"{count} by {printable(rule)}" for rule, count in rules.most_common()) or "none"
    lines.append(
        f"pairs: {how}; only in the reference: {len(plan.alignment.only_reference)}; "
        f"only in the candidate: {len(plan.alignment.only_candidate)}; shapes that differ: {_misfits(plan)}"
    )
    return lines + [f"note: {printable(note)}" for note in plan.notes]
