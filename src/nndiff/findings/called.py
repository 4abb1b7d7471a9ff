"""Modules that the two sides call another number of times: one in place of another, one left out, a loop too many."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nndiff.divergence import Run, State
from nndiff.findings.modules import Meta, has_weights, module_tree
from nndiff.lost import SIDES
from nndiff.names import ancestors
from nndiff.result import Finding
from nndiff.sites import SitePair
from nndiff.tensors import TensorRef
from nndiff.text import first_few

_SHOWN = 3


class Calls:
    """Know how often a side called each of its modules, and what these are."""

    def __init__(self, tensors: Iterable[TensorRef], meta: Meta) -> None:
        self.tree = module_tree(meta)
        never = meta.get("never_called")
        self._never = frozenset(map(str, never)) if isinstance(never, list) else frozenset()
        outputs = [tensor for tensor in tensors if tensor.site.slot == "output"]
        self.calls: dict[str, dict[int, int]] = {}  # by module: when each of its calls returned
        self.elements: Counter[str] = Counter()
        for tensor in outputs:
            self.elements[tensor.site.module] += tensor.count
            self.calls.setdefault(tensor.site.module, {}).setdefault(tensor.site.call, tensor.trace.order)
        owners = [name for name, module in self.tree.items() if has_weights(module)]
        self._inside = {outer for module in self.calls for outer in ancestors(module)}
        self.weighted = {each for name in owners for each in (name, *ancestors(name))}

    def times(self, module: str) -> int:
        """Return how often a module was called."""
        return len(self.calls.get(module, ()))

    def when(self, module: str, number: int) -> int:
        """Return when the call of a number, from 0, returned."""
        return sorted(self.calls[module].values())[number]

    def is_unused(self, module: str) -> bool:
        """Tell whether neither a module nor anything in it was called."""
        return module in self._never and module not in self._inside

    def holds(self, module: str) -> bool:
        """Tell whether something inside a module was called."""
        return module in self._inside

    def kind(self, module: str) -> str:
        """Return the class of a module."""
        return str(self.tree.get(module, {}).get("class", ""))


def called_findings(
    run: Run, first: SitePair | None, reference: Meta, candidate: Meta, harmless: bool
) -> Iterator[Finding]:
    """Yield the modules with weights that are called in place of others, and, where the runs part, those left out.

    Where all agrees it is worth knowing that layers share weights on one side only, and no more.
    """
    sides = Calls(run.reference.values(), reference), Calls(run.candidate.values(), candidate)
    until = _until(first)
    named = [
        *(finding for number in (0, 1) for finding in _in_place(sides, number, until[number], harmless)),
        *(_left_out(run, sides, until) if first is not None and first.slot == "output" else ()),
    ]
    if not harmless:
        named += _out_of_order(run, sides)
    yield from named or _by_partners(run, sides, until[0], harmless)


_Sides = tuple[Calls, Calls]
_Until = tuple[float, float]


def _until(first: SitePair | None) -> _Until:
    """Return when the runs part on either side: what is called after that may depend on what differs."""
    return (math.inf, math.inf) if first is None else (first.reference.trace.order, first.candidate.trace.order)


def _in_place(sides: _Sides, number: int, until: float, harmless: bool) -> Iterator[Finding]:
    """Tell where a side calls a layer more often than the other does, and never another of its kind."""
    side, other = sides[number], sides[1 - number]
    more = _outermost(name for name in _more_often(side, other, until) if name in side.weighted)
    kinds = {side.kind(name) for name in more}
    unused = _outermost(name for name in other.calls if side.is_unused(name) and other.kind(name) in kinds)
    if more and (unused or not harmless):
        told = [f"{name} is {_often(sides, name)}" for name in more[:_SHOWN]]
        told += [f"{first_few(unused)} {_are(unused)} never called by the {SIDES[number]}"] if unused else []
        yield Finding(
            "called-otherwise",
            (*more, *unused),
            "; ".join(told),
            "" if harmless else "call each layer where, and as often as, the other side does",
            0.9 if unused else 0.7,
            harmless,
        )


def _left_out(run: Run, sides: _Sides, until: _Until) -> Iterator[Finding]:
    """Tell which modules one side never calls, up to where the runs part."""
    for number, (side, other) in enumerate((sides, sides[::-1])):
        unused = [name for name in other.calls if side.is_unused(name) and _same_around(name, *sides)]
        before = [name for name in unused if other.when(name, 0) <= until[1 - number]]
        doing = [name for name in before if _does_something(name, (run.candidate, run.reference)[number])]
        spared = {
            side.kind(name) for name in _more_often(side, other, math.inf)
        }  # one activation may stand in for several
        missing = _outermost(name for name in doing if other.kind(name) not in spared)
        if missing:
            yield Finding(
                "called-otherwise",
                tuple(missing),
                f"{first_few(missing)} {_are(missing)} called by the {SIDES[1 - number]} "
                f"and never by the {SIDES[number]}",
                "call it there too, or look for what does its work",
                0.7,
            )


def _more_often(side: Calls, other: Calls, until: float) -> Iterator[str]:
    """Yield what a side calls more often than the other does; called for a few rows at a time is no more."""
    for name in side.calls:
        times = other.times(name)
        more = side.times(name) > times > 0 and side.elements[name] > other.elements[name]
        if more and side.when(name, times) <= until:
            yield name


def _out_of_order(run: Run, sides: _Sides) -> Iterator[Finding]:
    """Tell that the first layer that is out runs before another on one side, and is given what that makes on the other.

    A first layer that is out on its own is at fault itself, wherever it is run.
    """
    leaves = [site for site in run.telling if site.slot == "output" and _is_plain(site, sides)]
    first = next((site for site in leaves if not site.passed), None)
    if first is None or run.inputs_of(first) is not State.OUT:
        return
    ahead = [site for site in leaves if site.order > first.order and site.orders[1] < first.orders[1]]
    if ahead:
        yield Finding(
            "called-otherwise",
            (first.module, ahead[0].module),
            f"{first.module} runs before {ahead[0].module} in the reference, and after it in the candidate",
            "run the layers in the same order",
            0.7,
        )


def _is_plain(site: SitePair, sides: _Sides) -> bool:
    """Tell whether a layer has weights, nothing inside it that is called, and is called once on both sides."""
    names = site.module, str(site.candidate.site.module)
    both = list(zip(sides, names, strict=True))
    return all(name in side.weighted and side.times(name) == 1 and not side.holds(name) for side, name in both)


def _by_partners(run: Run, sides: _Sides, until: float, harmless: bool) -> Iterator[Finding]:
    """Tell where one layer of a side stands in for several of the other, whatever they are called."""
    outputs = [site for site in run.sites if site.slot == "output" and not site.part]
    early = [site for site in outputs if site.reference.trace.order <= until]
    for number, side in enumerate(sides):
        other = sides[1 - number]
        shared = [name for name, each in _partners(early, number).items() if len(each) > 1 and name in side.weighted]
        partners = _partners(outputs, number)
        alike = (name for name in shared if all(other.kind(one) == side.kind(name) for one in partners[name]))
        for name in _outermost(alike):
            yield Finding(
                "called-otherwise",
                (name, *partners[name]),
                f"{name} of the {SIDES[number]} is called {_times(side.times(name))}, in place of "
                f"{first_few(partners[name])} of the {SIDES[1 - number]}",
                "" if harmless else "give it layers of its own, or share one on both sides",
                0.8,
                harmless,
            )


def _partners(outputs: Iterable[SitePair], number: int) -> dict[str, list[str]]:
    """Return the modules of the other side that each of a side was paired with."""
    found: dict[str, list[str]] = {}
    for site in outputs:
        both = site.module, str(site.candidate.site.module)
        known = found.setdefault(both[number], [])
        known += [both[1 - number]] if both[1 - number] not in known else []
    return found


def _same_around(name: str, one: Calls, other: Calls) -> bool:
    """Tell whether a module is inside one of the same class on both sides: another may do its work otherwise."""
    outer = name.rpartition(".")[0]
    return one.kind(outer) == other.kind(outer) != ""


def _does_something(name: str, tensors: Mapping[int, TensorRef]) -> bool:
    """Tell whether a module returned anything else than it was given."""
    for tensor in tensors.values():
        if tensor.site.slot == "output" and tensor.site.module == name:
            links = tensor.trace.inputs
            given = (tensors.get(link.event) for link in links if link.event is not None)
            if tensor.trace.digest not in {each.trace.digest for each in given if each is not None}:
                return True
    return False


def _outermost(names: Iterable[str]) -> list[str]:
    found = list(names)
    inside: Collection[str] = set(found)
    return [name for name in found if not any(outer in inside for outer in ancestors(name))]


def _often(sides: _Sides, name: str) -> str:
    one, other = (_times(side.times(name)) for side in sides)
    return f"called {one} by the reference and {other} by the candidate"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
