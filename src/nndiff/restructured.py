"""Parameters that two implementations hold in another form: told, and no difference where all else agrees.

One side may stack what the other keeps apart, or compute a weight from others at each call. Such parameters
have no partner, and neither have their gradients. They are taken for the same ones in another form where that is
shown: in one part of the model they hold the same elements, as far as their number, sum and size tell, each one for
itself or together where one was cut or put together; or they are what weight norm makes of one another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from nndiff.align.calls import Paired, Regions
from nndiff.align.fused import PART
from nndiff.excuses import IN_ANOTHER_FORM, RESTRUCTURED
from nndiff.recorded import is_owned
from nndiff.result import Finding, Leftover
from nndiff.sites import SitePair
from nndiff.sources import Source
from nndiff.tensors import Stats, TensorRef
from nndiff.text import listed, plural
from nndiff.weight_norm import Normed, fits, is_gradient, is_weight, made_of, original_of

Sources = tuple[Source, Source]

UNLIKE = "may be there in another form on the other side; not shown to be the same"

_SIDES = ("reference", "candidate")
_ALIKE = 1e-3  # how far sums over all elements may be apart, relatively, by rounding alone
_NOISE = 1e-6  # of the largest gradient without a partner: less than that is nothing
_MOST_TRIED = 2000  # ways to put tensors together that are tried for one


@dataclass(frozen=True)
class _Lost:
    """Hold a parameter, or its gradient, without a partner."""

    left: Leftover
    tensor: TensorRef

    @property
    def side(self) -> int:
        """Return the number of the side that has it."""
        return _SIDES.index(self.left.side)

    @property
    def slot(self) -> str:
        """Return whether it is a parameter or a gradient."""
        return str(self.tensor.site.slot)


class _Shown(NamedTuple):
    """Hold what came of the parameters without a partner."""

    same: list[_Lost]
    unlike: list[_Lost]  # may be the same in another form: not shown
    alone: list[_Lost]
    unknown: list[_Lost]  # those of them of which too little was kept to tell


def without_restructured(
    sites: Sequence[SitePair], leftovers: Sequence[Leftover], sources: Sources
) -> tuple[Sequence[Leftover], tuple[Finding, ...]]:
    """Return the leftovers, those shown to be there in another form no longer counting.

    Parameters themselves are only compared where somebody asked for them: then what was not compared is no pass.
    """
    leftovers = [_not_asked_for(left, sources) for left in leftovers]
    counting = [left for left in leftovers if left.counts]
    lost = [_Lost(left, _tensor(left, sources)) for left in counting if _owned(left, sources) and not left.unreached]
    shown = _shown(lost, sites, sources)
    findings = (*_unlike(shown), *_alone(shown.alone, sites))
    asked = any(each.slot == "param" for each in shown.same)
    if shown.same:
        all_else = len(shown.same) == len(counting)
        findings = _finding(shown.same, all_else, harmless=not asked), *findings
    hints = {id(each.left): UNLIKE for each in shown.unlike}
    hints |= {} if asked else {id(each.left): IN_ANOTHER_FORM for each in shown.same}
    return [_told(left, hints.get(id(left))) for left in leftovers], findings


def _not_asked_for(left: Leftover, sources: Sources) -> Leftover:
    """Return a leftover, not counting if it is a parameter that was only recorded to show what gradients should be."""
    unasked = sources[left.side == "candidate"].meta.get("params") is False
    return replace(left, counts=False) if unasked and _tensor(left, sources).site.slot == "param" else left


def _told(left: Leftover, hint: str | None) -> Leftover:
    return left if hint is None else replace(left, counts=hint == UNLIKE, hint=hint)


def _calls(sites: Iterable[SitePair]) -> Paired:
    found: Paired = {}
    for site in sites:
        if site.slot == "output" and PART not in site.pair.matched_by:
            one, other = site.reference.site, site.candidate.site
            found[one.module, one.call] = other.module, other.call
    return found


def _tensor(left: Leftover, sources: Sources) -> TensorRef:
    return sources[left.side == "candidate"].tensors[left.name]


def _owned(left: Leftover, sources: Sources) -> bool:
    return is_owned(_tensor(left, sources))


def _shown(lost: Sequence[_Lost], sites: Sequence[SitePair], sources: Sources) -> _Shown:
    regions = Regions(_calls(sites))
    noise = _NOISE * max((_largest(each.tensor) for each in lost if each.slot == "param_grad"), default=0.0)
    compared = _compared(sites, regions)
    normed = [(group, group.is_shown(sources, noise)) for group in _normed(lost, compared, regions)]
    same = [each for group, shown in normed if shown for each in group.lost]
    wrong = [group.lost for group, shown in normed if not shown and (shown is False or len(group.lost) > len("gv"))]
    same += [each for each in _without(lost, (*same, *_all(wrong))) if _original_of(each, regions) in compared]
    found = _in_another_form(_without(lost, same), regions, lambda one, other: _alike(one, other, noise))
    formed = set(map(id, _all(found)))
    mixed = {id(each) for group in wrong for each in group if set(map(id, group)) - formed}
    same += _all(part for part in found if not mixed & set(map(id, part)))
    rest = _without(lost, same)
    doubted = [each for each in rest if id(each) in mixed]
    unlike = [*doubted, *_all(_in_another_form(_without(rest, doubted), regions, _as_many))]
    unknown = [each for group, shown in normed if shown is None for each in group.lost if id(each) in mixed]
    return _Shown(same, unlike, _without(rest, unlike), [*unknown, *(each for each in unlike if not _stats([each]))])


def _all(parts: Iterable[Iterable[_Lost]]) -> list[_Lost]:
    return [each for part in parts for each in part]


_Key = tuple[str, int, str, str]  # slot, side, module by the reference's name, name of the parameter


def _compared(sites: Iterable[SitePair], regions: Regions) -> dict[_Key, TensorRef]:
    """Return the plain parameters that were compared with what the other side computes at each call."""
    found: dict[_Key, TensorRef] = {}
    for site in sites:
        both = site.reference, site.candidate
        for number, (plain, other) in enumerate((both, both[::-1])):
            if is_owned(plain) and not is_owned(other):
                place = plain.site
                found[place.slot, number, regions.partner(place.module, bool(number)), place.tensor] = plain
    return found


def _original_of(lost: _Lost, regions: Regions) -> _Key | None:
    """Return the plain parameter of the other side that is computed from one, if it is the original of one."""
    found = original_of(lost.tensor.site.module, lost.tensor.site.tensor)
    return found and (lost.slot, 1 - lost.side, regions.partner(found[0], bool(lost.side)), found[1])


def _without(lost: Iterable[_Lost], others: Iterable[_Lost]) -> list[_Lost]:
    known = set(map(id, others))
    return [each for each in lost if id(each) not in known]


@dataclass(frozen=True)
class _Normed:
    """Hold a weight of one side, and what weight norm has of it on the other."""

    weight: TensorRef
    g: _Lost
    v: _Lost
    lost: tuple[_Lost, ...]  # those of them that have no partner

    def is_shown(self, sources: Sources, noise: float) -> bool | None:
        """Tell whether they are the same weight, or gradients that belong together; None where it is not known."""
        normed = Normed(self.g.tensor, self.v.tensor)
        if any(each.missing for each in (self.weight, *normed)):
            return None
        if self.g.slot == "param":
            return is_weight(self.weight, normed)
        known = sources[self.g.side].tensors
        values = [known.get(each.name.removesuffix("_grad")) for each in normed]
        held = [each for each in values if each is not None and not each.missing]
        if [each.shape for each in held] != [each.shape for each in normed]:
            return None
        return is_gradient(self.weight, normed, Normed(*held), noise)


def _normed(lost: Sequence[_Lost], compared: Mapping[_Key, TensorRef], regions: Regions) -> Iterator[_Normed]:
    """Yield the weights of which the other side has a size and a direction, of shapes that fit."""
    plain: dict[_Key, _Lost] = {}
    parts: dict[_Key, dict[str, _Lost]] = {}
    for each in lost:
        module, name, candidate = each.tensor.site.module, each.tensor.site.tensor, bool(each.side)
        plain[each.slot, each.side, regions.partner(module, candidate), name] = each
        made = made_of(module, name)
        if made:
            key = each.slot, 1 - each.side, regions.partner(made.module, candidate), made.weight
            parts.setdefault(key, {})[made.role] = each
    for key, roles in parts.items():
        free, g, v = plain.get(key), roles.get("g"), roles.get("v")
        weight = free.tensor if free else compared.get(key)
        if weight and g and v and weight.shape == v.tensor.shape and fits(g.tensor.shape, v.tensor.shape):
            yield _Normed(weight, g, v, (free, g, v) if free else (g, v))


_Part = tuple[_Lost, ...]
_Same = Callable[[Sequence[_Lost], Sequence[_Lost]], bool]


def _in_another_form(lost: Sequence[_Lost], regions: Regions, same: _Same) -> list[_Part]:
    """Return those of which both sides have the same in one part of the model, the innermost first."""
    groups: dict[tuple[str, str], list[_Lost]] = {}
    for each in lost:
        place = each.tensor.site
        inside = f"{place.module}.{place.tensor}"  # so that its module itself may be the part
        groups.setdefault((each.slot, regions.of(inside, bool(each.side))), []).append(each)
    found: list[_Part] = []
    while groups:
        slot, region = max(groups, key=lambda key: len(key[1].split(".")) if key[1] else 0)
        inner = groups.pop((slot, region))
        parts = list(_parts(inner, same))
        found += parts
        rest = _without(inner, (each for part in parts for each in part))
        if region and rest:  # what does not add up here may do so in the part around
            groups.setdefault((slot, regions.of(region, candidate=False)), []).extend(rest)
    return found


def _parts(lost: Sequence[_Lost], same: _Same) -> Iterator[_Part]:
    """Yield what is the same: one and one, else one and several, else all that remain together.

    A large tensor says nothing of a small one beside it, so that as few as can be are taken together.
    """
    sides = [[each for each in lost if each.side == number] for number in (0, 1)]
    for ways, number in ((_singly, 0), (_together, 0), (_together, 1)):
        for one in sides[number]:
            others = next((way for way in ways(one, sides[1 - number]) if same((one,), way)), ())
            if others:
                yield one, *others
                sides = [_without(side, (one, *others)) for side in sides]
    if all(sides) and same(*sides):
        yield *sides[0], *sides[1]


def _singly(one: _Lost, others: Sequence[_Lost]) -> Iterator[_Part]:
    """Yield the tensors of as many elements, those of the most similar size first."""
    fitting = [(each,) for each in others if each.tensor.count == one.tensor.count]
    yield from sorted(fitting, key=lambda part: abs(_length(part[0].tensor) - _length(one.tensor)))


def _length(tensor: TensorRef) -> float:
    stats: Stats | None = tensor.trace.stats
    return stats.l2 if stats else 0.0


def _together(one: _Lost, others: Sequence[_Lost]) -> Iterator[_Part]:
    """Yield several tensors of as many elements together, those in a row first."""
    smaller = [each for each in others if 0 < each.tensor.count < one.tensor.count]
    rows = (tuple(smaller[i:j]) for i in range(len(smaller)) for j in range(i + 2, len(smaller) + 1))
    mixed = (part for size in range(2, len(smaller) + 1) for part in itertools.combinations(smaller, size))
    for part in (*itertools.islice(rows, _MOST_TRIED), *itertools.islice(mixed, _MOST_TRIED)):
        if _count(part) == one.tensor.count:
            yield part


def _count(lost: Iterable[_Lost]) -> int:
    return sum(each.tensor.count for each in lost)


def _as_many(one: Sequence[_Lost], other: Sequence[_Lost]) -> bool:
    return _count(one) == _count(other)


def _alike(one: Sequence[_Lost], other: Sequence[_Lost], noise: float) -> bool:
    """Tell whether both hold the same elements, in whatever order: as many, of one sum and one size."""
    if not _as_many(one, other):
        return False
    digests = {each.tensor.trace.digest for each in (*one, *other)}
    if len(one) == len(other) == 1 == len(digests) and None not in digests:
        return True
    here, there = _moments(one), _moments(other)
    if here is None or there is None or here.nonfinite != there.nonfinite:
        return False  # where nothing is known nothing is shown
    least = noise**2 * _count(one)
    size = max(here.size, there.size) + least
    # what elements may add up to is no more than their number makes of their size
    most = math.sqrt(size * max(1, _count(one)))
    near = abs(here.total - there.total) <= _ALIKE * most + noise * _count(one)
    return near and abs(here.size - there.size) <= _ALIKE * size + least


class _Moments(NamedTuple):
    total: float
    size: float  # the sum of the squares
    nonfinite: int


def _stats(lost: Iterable[_Lost]) -> list[Stats]:
    return [each.tensor.trace.stats for each in lost if each.tensor.trace.stats]


def _moments(lost: Sequence[_Lost]) -> _Moments | None:
    """Return the sum and the sum of the squares of all elements, where statistics were taken of them."""
    known = _stats(lost)
    if len(known) < len(lost):
        return None
    total = sum(each.mean * (each.count - each.nonfinite) for each in known)
    return _Moments(total, sum(each.l2**2 for each in known), sum(each.nonfinite for each in known))


def _largest(tensor: TensorRef) -> float:
    stats: Stats | None = tensor.trace.stats
    return stats.abs_max if stats else 0.0


def _unlike(shown: _Shown) -> Iterator[Finding]:
    """Yield what is to be said of parameters that both sides may hold, and that were not shown to be the same."""
    if not shown.unlike:
        return
    sides = [(side, [each.left.name for each in shown.unlike if each.left.side == side]) for side in _SIDES]
    who = " and ".join(f"{listed(names)} of the {side}" for side, names in sides if names)
    why, way_out = (_TOO_LITTLE, _KEEP_MORE) if shown.unknown else (_NOT_THE_SAME, _PAIR)
    where = tuple(name for _, names in sides for name in names)
    confidence = 0.6 if shown.unknown else 0.8
    yield Finding(RESTRUCTURED, where, f"{who} have no partner, and {why}", way_out, confidence)


_NOT_THE_SAME = "are not the same in any other form that is known (cut, stacked, weight norm)"
_TOO_LITTLE = "could not be shown to be the same in another form: too little was kept of them"
_PAIR = "look at what computes them; to see how they differ, bring both sides into one form, or pair them with --map"
_KEEP_MORE = "record both sides again and keep these in full (--keep)"


def _alone(alone: Sequence[_Lost], sites: Iterable[SitePair]) -> Iterator[Finding]:
    """Yield what is to be said of gradients of which the other side has nothing, where no module shows it."""
    ran = {(number, each.site.module) for site in sites for number, each in _outputs(site)}
    for number, side in enumerate(_SIDES):
        names = [
            each.left.name for each in alone if each.side == number and (number, each.tensor.site.module) not in ran
        ]
        if names:
            yield Finding(
                RESTRUCTURED,
                tuple(names),
                f"{listed(names)} of the {side} have no partner, and the {_SIDES[1 - number]} has nothing left that "
                "they may be in another form",
                f"look whether the {_SIDES[1 - number]} has these parameters, and whether they are frozen there",
                0.6,
            )


def _outputs(site: SitePair) -> Iterator[tuple[int, TensorRef]]:
    if site.slot == "output":
        yield from enumerate((site.reference, site.candidate))


def _finding(same: Sequence[_Lost], all_else: bool, harmless: bool) -> Finding:
    sides = [sum(each.side == number for each in same) for number in (0, 1)]
    counts = f"{plural(sides[0], 'tensor')} of the reference and {sides[1]:,} of the candidate"
    around = "; all around them agrees" if all_else else ""
    return Finding(
        RESTRUCTURED,
        tuple(each.left.name for each in same),
        f"parameters in another form: {counts} have no partner and were not compared{around}",
        "compare the weights themselves with nndiff diff, after bringing them into one form",
        0.8,
        harmless,
    )
