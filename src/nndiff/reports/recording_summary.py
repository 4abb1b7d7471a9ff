"""The totals of two recordings as plain data, for the JSON report: derived from the pairs, never read back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nndiff.reports.layers import Rate, Recorded, recorded
from nndiff.result import Comparison

_ALWAYS = ("forward", "backward", "param_grad")


def of_all(comparison: Comparison) -> dict[str, Any]:
    """Return the totals over all candidates."""
    return _summary(recorded(comparison))


def of_each(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Return the totals of each candidate by its label."""
    return {view.candidate.label: _summary([view]) for view in recorded(comparison)}


def _summary(views: Sequence[Recorded]) -> dict[str, Any]:
    names = dict.fromkeys((*_ALWAYS, *(rate.name for view in views for rate in view.rates)))
    return {
        "final_output": _final_output(views),
        "layers": {
            "common": sum(view.common for view in views),
            "only_reference": sum(view.only_in("reference") for view in views),
            "only_candidate": sum(view.only_in("candidate") for view in views),
        },
        "rates": {name: _total(name, (rate for view in views for rate in view.rates)) for name in names},
        "gradient_scale": max((view.scale for view in views), default=0.0),
        "unreached": sum(len(view.unreached) for view in views),
    }


def _final_output(views: Sequence[Recorded]) -> dict[str, Any]:
    said = [view.outputs_match for view in views if view.outputs_match is not None]
    sizes = [pair.metrics.max_abs for view in views for pair in view.outputs if pair.metrics]
    return {"match": all(said) if said else None, "max_abs": max(sizes, default=None)}


def _total(name: str, rates: Iterable[Rate]) -> dict[str, Any]:
    mine = [rate for rate in rates if rate.name == name]
    matched, total = sum(rate.matched for rate in mine), sum(rate.total for rate in mine)
    return {"matched": matched, "total": total, "match_rate": matched / total if total else None}
