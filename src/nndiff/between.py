"""Between which of the calls inside a module a difference comes in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nndiff.handed import holds
from nndiff.sites import SitePair

if TYPE_CHECKING:
    from nndiff.divergence import Run


def around(run: Run, site: SitePair) -> dict[str, Any]:
    """Say, for a composite module, between which of its inner calls the difference comes in."""
    calls = [each for each in run.sites if each.slot == "output" and holds(site, each)]
    inner = [each for each in calls if each.order < site.order]
    if site.slot != "output" or not inner:
        return {}
    first_out = next((number for number, each in enumerate(inner) if _is_out(run, each)), len(inner))
    after = inner[first_out - 1].pair.name if first_out else ""
    return {"after": after, "before": _name(run, inner[first_out]) if first_out < len(inner) else ""}


def _is_out(run: Run, call: SitePair) -> bool:
    """Tell whether a call does not agree, or is given other values and makes up for it.

    A norm makes the same of a tensor whatever it is multiplied with: what went into it tells. Other calls that agree
    may be given the same in another form.
    """
    return not call.passed or (call.is_norm and bool(run.main_input(call)))


def _name(run: Run, out: SitePair) -> str:
    return run.main_input(out) if out.passed else out.pair.name
