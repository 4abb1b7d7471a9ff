"""Where two runs part first at another tolerance, as far as a saved result tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nndiff.result import Comparison, Pair

First = Mapping[str, Any]

_WHY = "the first that is out of tolerance: a saved result does not tell what went into it"
_SLOTS = ("model_input", "output", "loss", "grad_output", "param_grad")  # one kind after the other


# What is said of the first divergence, or of everything that agrees: where that is another one, nobody knows.
_OF_THE_FIRST = frozenset(
    (
        *("attribute", "another-class", "weights-differ", "called-otherwise", "in-place", "train-mode", "early-layers"),
        *("norms-only", "gradients-only", "gradients-scaled", "inner-only", "rounding", "more-than-rounding"),
    )
)


def told_again(before: Comparison, judged: Comparison) -> Comparison:
    """Return a result judged again with where its candidates part first, and what still holds of what was found."""
    firsts = _first_divergences(before, judged)
    moved = {label for label, first in firsts.items() if first.get("why") == _WHY}
    findings = (each for each in judged.findings if not (each.candidate in moved and each.cause in _OF_THE_FIRST))
    return replace(judged, first_divergences=firsts, findings=tuple(findings))


def _first_divergences(before: Comparison, judged: Comparison) -> dict[str, First]:
    """Return where each candidate parts first: the place known before if it still holds, else the first that is out."""
    found: dict[str, First] = {}
    for side in judged.candidates:
        known = before.first_divergences.get(side.label)
        still = known is not None and _is_still_first(known, side.label, before, judged)
        first = known if still else _first_out(side.label, judged)
        if first is not None:
            found[side.label] = first
    return found


def _is_still_first(known: First, candidate: str, before: Comparison, judged: Comparison) -> bool:
    """Tell whether a place found at one tolerance is the first at another: still out, and none before it newly."""
    failed = {pair.name for pair in before.pairs if pair.candidate == candidate and not pair.verdict.passed}
    now = [pair for pair in judged.pairs if pair.candidate == candidate and not pair.verdict.passed]
    name = known.get("name", "")
    order = {pair.name: pair.order for pair in now}.get(name, -1)
    found = order >= 0 or any(left.name == name for left in before.leftovers if left.candidate == candidate)
    return found and all(0 <= order <= pair.order for pair in now if pair.name not in failed)


def _first_out(candidate: str, judged: Comparison) -> First | None:
    out = [pair for pair in judged.pairs if pair.candidate == candidate and not pair.verdict.passed and pair.site]
    out = [pair for pair in out if not _lies_otherwise(pair)] or out
    for slot in _SLOTS:
        first = min((pair for pair in out if pair.slot == slot), key=lambda pair: pair.order, default=None)
        if first is not None:
            return _described(first)
    return None


def _lies_otherwise(pair: Pair) -> bool:
    """Tell whether a pair is known to agree once one side is rearranged: something else is the cause."""
    return bool(pair.site and pair.site.layout and pair.site.layout.agrees(pair.atol, pair.rtol))


def _described(pair: Pair) -> First:
    facts = {
        "name": pair.reference_name,
        "candidate_name": pair.candidate_name,
        "candidate": pair.candidate,
        "order": pair.order,
        "slot": pair.slot,
        "verdict": pair.verdict.value,
        "why": _WHY,
    }
    where = (
        {"module": pair.site.modules[0] or "(model)", "call": pair.site.call, "class": list(pair.site.classes)}
        if pair.site
        else {}
    )
    size = {"max_abs": pair.metrics.max_abs} if pair.metrics else {}
    return {**facts, **where, **size}
