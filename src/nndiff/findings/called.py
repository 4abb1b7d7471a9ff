"""Modules that the two sides call another number of times: one in place of another, one left out, a loop too many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nndiff.divergence import Run
from nndiff.findings.modules import Meta, has_weights, module_tree
from nndiff.lost import SIDES
from nndiff.names import ancestors
from nndiff.result import Finding
from nndiff.sites import SitePair
from nndiff.tensors import TensorRef

_SHOWN = 3


class Calls:
    """Know how often a side called each of its modules, and what these are."""

    def __init__(self, tensors: Iterable[TensorRef], meta: Meta) -> None:
        self.tree = module_tree(meta)
        never = meta.get("never_called")
        self._never = frozenset(map(str, never)) if isinstance(never, list) else frozenset()
        outputs = [tensor for tensor in tensors if tensor.meta["slot"] == "output"]
        made = dict.fromkeys((str(tensor.meta["module"]), int(tensor.meta["call"])) for tensor in outputs)
        self.times = Counter(module for module, _ in made)
        self.elements: Counter[str] = Counter()
        self.began: dict[str, int] = {}
        for tensor in outputs:
            self.elements[tensor.meta["module"]] += tensor.count
            self.began.setdefault(tensor.meta["module"], tensor.meta["order"])
        owners = [name for name, module in self.tree.items() if has_weights(module)]
        self._inside = {outer for module in self.times for outer in ancestors(module)}
        self.weighted = {each for name in owners for each in (name, *ancestors(name))}

    def is_unused(self, module: str) -> bool:
        """Tell whether neither a module nor anything in it was called."""
        return module in self._never and module not in self._inside

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
    named = [
        *(finding for number in (0, 1) for finding in _in_place(sides, number, harmless)),
        *(() if harmless or first is None else _left_out(run, sides, first)),
    ]
    yield from named or _by_partners(run, sides, harmless)


_Sides = tuple[Calls, Calls]


def _in_place(sides: _Sides, number: int, harmless: bool) -> Iterator[Finding]:
    """Tell where a side calls a layer more often than the other does, and never another of its kind."""
    side, other = sides[number], sides[1 - number]
    more = _outermost(name for name in _more_often(side, other) if name in side.weighted)
    kinds = {side.kind(name) for name in more}
    unused = _outermost(name for name in other.times if side.is_unused(name) and other.kind(name) in kinds)
    if more and (unused or not harmless):
        told = [f"{name} is {_often(sides, name)}" for name in more[:_SHOWN]]
        told += [f"{_listed(unused)} {_are(unused)} never called by the {SIDES[number]}"] if unused else []
        yield Finding(
            "called-otherwise",
            (*more, *unused),
            "; ".join(told),
            "" if harmless else "call each layer where, and as often as, the other side does",
            0.9 if unused else 0.7,
            harmless,
        )


def _left_out(run: Run, sides: _Sides, first: SitePair) -> Iterator[Finding]:
    """Tell which modules one side never calls, or another number of times, up to where the runs part."""
    until = int(first.reference.meta["order"]), int(first.candidate.meta["order"])
    for number, (side, other) in enumerate((sides, sides[::-1])):
        unused = [name for name in other.times if side.is_unused(name) and _same_around(name, *sides)]
        before = [name for name in unused if other.began[name] <= until[1 - number]]
        doing = [name for name in before if _does_something(name, (run.candidate, run.reference)[number])]
        spared = {side.kind(name) for name in _more_often(side, other)}  # one activation may stand in for several
        missing = _outermost(name for name in doing if other.kind(name) not in spared)
        if missing:
            yield Finding(
                "called-otherwise",
                tuple(missing),
                f"{_listed(missing)} {_are(missing)} called by the {SIDES[1 - number]} "
                f"and never by the {SIDES[number]}",
                "call it there too, or look for what does its work",
                0.7,
            )


def _more_often(side: Calls, other: Calls) -> Iterator[str]:
    """Yield what a side calls more often than the other does; called for a few rows at a time is no more."""
    for name, times in side.times.items():
        if times > other.times[name] > 0 and side.elements[name] > other.elements[name]:
            yield name


def _by_partners(run: Run, sides: _Sides, harmless: bool) -> Iterator[Finding]:
    """Tell where one layer of a side stands in for several of the other, whatever they are called."""
    outputs = [site for site in run.sites if site.slot == "output" and not site.part]
    pairs = [(site.module, str(site.candidate.meta["module"])) for site in outputs]
    for number, side in enumerate(sides):
        other = sides[1 - number]
        partners: dict[str, dict[str, None]] = {}
        for both in pairs:
            partners.setdefault(both[number], {})[both[1 - number]] = None
        several = {
            name: list(each)
            for name, each in partners.items()
            if len(each) > 1 and name in side.weighted and all(other.kind(one) == side.kind(name) for one in each)
        }
        for name in _outermost(several):
            yield Finding(
                "called-otherwise",
                (name, *several[name]),
                f"{name} of the {SIDES[number]} is called {_times(side.times[name])}, in place of "
                f"{_listed(several[name])} of the {SIDES[1 - number]}",
                "" if harmless else "give it layers of its own, or share one on both sides",
                0.8,
                harmless,
            )


def _same_around(name: str, one: Calls, other: Calls) -> bool:
    """Tell whether a module is inside one of the same class on both sides: another may do its work otherwise."""
    outer = name.rpartition(".")[0]
    return one.kind(outer) == other.kind(outer) != ""


def _does_something(name: str, tensors: Mapping[int, TensorRef]) -> bool:
    """Tell whether a module returned anything else than it was given."""
    for tensor in tensors.values():
        if tensor.meta["slot"] == "output" and tensor.meta["module"] == name:
            links = tensor.meta.get("inputs", ())
            given = (tensors.get(link.event) for link in links if link.event is not None)
            if tensor.meta.get("digest") not in {each.meta.get("digest") for each in given if each is not None}:
                return True
    return False


def _outermost(names: Iterable[str]) -> list[str]:
    found = list(names)
    inside: Collection[str] = set(found)
    return [name for name in found if not any(outer in inside for outer in ancestors(name))]


def _often(sides: _Sides, name: str) -> str:
    one, other = (_times(side.times[name]) for side in sides)
    return f"called {one} by the reference and {other} by the candidate"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
