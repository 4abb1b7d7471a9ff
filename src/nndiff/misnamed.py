"""Names that mislead: layers that go by the names of others, though the two models do the same.

A layer put in front of a Sequential, or a list that is run through in another order, gives every layer after it
the name of another. Where all that goes in and comes out agrees and only layers paired by name do not, the names
are set aside and those layers paired by what they do. So they are beside a real difference, if layers of other classes
go by one name, or weights by other names, and it is smaller, or later, once each is laid beside one of its own class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nndiff.excuses import Excuses, Orders, Ruling
from nndiff.result import Leftover, Pair, PairSite, outside_agrees
from nndiff.text import first_few, plural
from nndiff.verdict import Verdict

Modules = tuple[frozenset[str], frozenset[str]]  # of the reference and of the candidate


MISLED = "names mislead: "
_HELD = ("buffer", "buffer_before")


def misnamed(pairs: Sequence[Pair], leftovers: Iterable[Leftover]) -> Modules | None:
    """Return the modules whose names may mislead while all outside agrees; None where names are not what is wrong."""
    # what a layer holds goes by its name: of two that changed names it differs as their outputs do
    agrees = outside_agrees(pair for pair in pairs if pair.slot not in _HELD)
    return _modules(pairs, leftovers) if agrees else None


def misnamed_beside(pairs: Sequence[Pair], leftovers: Iterable[Leftover], exchanged: bool) -> Modules | None:
    """Return the modules whose names may mislead beside a real difference.

    Some go by the name of another class, or their weights are `exchanged`: under other names on the other side.
    """
    unlike = any(_are_unlike(pair, site) for pair, site in _by_name(pairs) if not pair.verdict.passed)
    return _modules(pairs, leftovers) if unlike or exchanged else None


def _by_name(pairs: Iterable[Pair]) -> list[tuple[Pair, PairSite]]:
    named = (pair for pair in pairs if pair.matched_by.startswith(("name", "prefix")))
    return [(pair, pair.site) for pair in named if pair.site is not None]


def _are_unlike(pair: Pair, site: PairSite) -> bool:
    """Tell whether outputs that differ, be it within tolerance, are of modules of other classes."""
    return pair.slot == "output" and pair.verdict is not Verdict.IDENTICAL and site.classes[0] != site.classes[1]


def _modules(pairs: Sequence[Pair], leftovers: Iterable[Leftover]) -> Modules | None:
    failing = [site for pair, site in _by_name(pairs) if not pair.verdict.passed and any(site.modules)]
    alone = len({site.modules[0] for site in failing}) == 1 and not any(":output" in left.name for left in leftovers)
    if alone or not failing:
        return None  # one alone has nobody to change names with
    sites = (*failing, *(site for pair, site in _by_name(pairs) if _are_unlike(pair, site)))
    return frozenset(site.modules[0] for site in sites), frozenset(site.modules[1] for site in sites)


def is_explained(excuses: Excuses, ruling: Ruling, failing: Orders) -> bool:
    """Tell whether pairs made by what layers do all agree, or those that do not but lie otherwise or have no effect.

    That a guess was wrong is no excuse here: of what has no partner nothing is known.
    """
    inputs = {pair.order for pair in excuses.pairs if pair.slot == "input"}
    return not failing or (ruling.agreed and ruling.aside <= ruling.moved | ruling.idle | inputs)


def is_no_more(leftovers: Iterable[Leftover], before: Iterable[Leftover]) -> bool:
    """Tell whether no more is without a partner than before, nor more outputs: of these nothing is known."""
    after, earlier = list(leftovers), list(before)
    counting, counted = (sum(left.counts for left in each) for each in (after, earlier))
    outputs, had = (sum(":output" in left.name for left in each) for each in (after, earlier))
    return counting <= counted and outputs <= had


def note(moved: Sequence[tuple[str, str]]) -> str:
    """Return what is said of layers that were paired by what they do."""
    told = first_few([f"{one} with {other}" for one, other in moved])
    return f"{MISLED}{plural(len(moved), 'layer')} paired by what they do ({told})"
