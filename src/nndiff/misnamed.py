"""Names that mislead: layers that go by the names of others, though the two models do the same.

A layer put in front of a Sequential, or a list that is run through in another order, gives every layer after it
the name of another. Where all that goes in and comes out agrees and only layers paired by name do not, the names
are set aside and those layers paired by what they do. So they are beside a real difference, if layers of other classes
go by one name and it is smaller, or later, once each is laid beside one of its own class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nndiff.excuses import Excuses, Orders, Ruling
from nndiff.names import first_few, plural
from nndiff.result import Leftover, Pair, outside_agrees

Modules = tuple[frozenset[str], frozenset[str]]  # of the reference and of the candidate


MISLED = "names mislead: "
_HELD = ("buffer", "buffer_before")


def misnamed(pairs: Sequence[Pair], leftovers: Iterable[Leftover]) -> Modules | None:
    """Return the modules whose names may mislead while all outside agrees; None where names are not what is wrong."""
    # what a layer holds goes by its name: of two that changed names it differs as their outputs do
    agrees = outside_agrees(pair for pair in pairs if pair.slot not in _HELD)
    return _modules(pairs, leftovers) if agrees else None


def of_other_classes(pairs: Sequence[Pair], leftovers: Iterable[Leftover]) -> Modules | None:
    """Return the modules whose names may mislead beside a real difference: some go by the name of another class."""
    outputs = (pair.site for pair in _failing_by_name(pairs) if pair.slot == "output")
    unlike = any(site is not None and site.classes[0] != site.classes[1] for site in outputs)
    return _modules(pairs, leftovers) if unlike else None


def _failing_by_name(pairs: Iterable[Pair]) -> list[Pair]:
    return [pair for pair in pairs if not pair.verdict.passed and pair.matched_by.startswith(("name", "prefix"))]


def _modules(pairs: Iterable[Pair], leftovers: Iterable[Leftover]) -> Modules | None:
    named = [pair.site for pair in _failing_by_name(pairs) if pair.site is not None]
    modules = frozenset(site.modules[0] for site in named), frozenset(site.modules[1] for site in named)
    alone = len(modules[0]) == 1 and not any(":output" in left.name for left in leftovers)
    return None if alone or not named else modules  # one alone has nobody to change names with


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
