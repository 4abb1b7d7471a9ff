"""Between which of the calls inside a module a difference comes in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nndiff.doubts import is_guess
from nndiff.handed import holds
from nndiff.sites import SitePair

if TYPE_CHECKING:
    from nndiff.divergence import Run


def around(run: Run, site: SitePair) -> dict[str, Any]:
    """Say, for a composite module, between which of its inner calls the difference comes in.

    Calls whose pairing is sure are the edges, where there are such. Where all that is sure agrees, the guesses after
    it are all that is known.
    """
    calls = [each for each in run.telling if each.slot == "output" and holds(site, each)]
    inner = [each for each in calls if _order(each) < _order(site)]
    if site.slot != "output" or not inner:
        return {}
    sure = [each for each in inner if not is_guess(each)]
    later = [each for each in inner if not sure or _order(each) > _order(sure[-1])]
    out = next((each for each in (*sure, *later) if _is_out(run, each)), None)
    before = [each for each in inner if each.passed and (out is None or _order(each) < _order(out))]
    agree = [each for each in before if not is_guess(each)] or before
    return {"after": agree[-1].pair.name if agree else "", "before": _name(run, out) if out is not None else ""}


def _order(site: SitePair) -> int:
    return int(site.reference.meta["order"])


def _is_out(run: Run, call: SitePair) -> bool:
    """Tell whether a call does not agree, or is given other values and makes up for it.

    A norm makes the same of a tensor whatever it is multiplied with: what went into it tells.
    """
    return not call.passed or bool(run.main_input(call))


def _name(run: Run, out: SitePair) -> str:
    return run.main_input(out) if out.passed else out.pair.name
