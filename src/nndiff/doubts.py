"""Pairs that were guessed and turn out to be no pairs: no cause is looked for in them.

Calls that were laid side by side by their order may not belong together. Where they differ and the module around
them, which is certain, returns the same, they do not; and neither do those laid side by side like them elsewhere.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from nndiff.align.sites import GUESSED
from nndiff.names import ancestors, without_numbers
from nndiff.sites import SitePair

_Likeness = tuple[str, str]  # the modules of both sides without their numbers


def misguided(sites: Sequence[SitePair], moved: Container[int]) -> frozenset[int]:
    """Return the ids of the pairs of modules that do not belong together; `moved` are orders of those that do."""
    outputs = [site for site in sites if site.slot == "output"]
    apart = {site.module for site in outputs if not site.passed}
    certain = {site.module for site in outputs if not is_guess(site)} - apart - {""}  # the model itself is around all
    wrong = {
        _likeness(site)
        for site in outputs
        if is_guess(site)
        and not site.passed
        and site.pair.order not in moved
        and certain.intersection(ancestors(site.module))
    }
    return frozenset(id(site) for site in sites if is_guess(site) and _likeness(site) in wrong)


def is_guess(site: SitePair) -> bool:
    """Tell whether a pair was made by the order of calls, or is but a stretch of a larger layer."""
    return GUESSED in site.pair.matched_by or site.part


def _likeness(site: SitePair) -> _Likeness:
    one, other = (without_numbers(side.site.module) for side in (site.reference, site.candidate))
    return one, other
