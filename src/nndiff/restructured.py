"""Parameters that two implementations hold in another form: told, and no difference where all else agrees.

One side may stack what the other keeps apart, or compute a weight from others at each call. Such parameters
have no partner, and neither have their gradients. They are taken for the same ones in another form where, in
one part of the model, both sides have some left and these hold the same elements, as far as their number, sum and
size tell, or where one side's are those that a parametrisation (weight norm and its kind) makes of the other's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from nndiff.align.calls import Paired, Regions
from nndiff.align.fused import PART
from nndiff.names import plural
from nndiff.recorded import is_owned
from nndiff.recording.events import Stats
from nndiff.result import Finding, Leftover
from nndiff.sites import SitePair
from nndiff.sources import Source
from nndiff.tensors import TensorRef

Stem = tuple[str, str, str]  # slot, module by the reference's name, name of the parameter before it was parametrised

_SIDES = ("reference", "candidate")
_HINT = "in another form on the other side; not compared"
_COMPUTED = re.compile(r"(?:(.*)\.)?parametrizations\.([^.]+)")
_ALIKE = 1e-3  # how far sums over all elements may be apart, relatively, by rounding alone
_MADE_OF = re.compile(r"(.+)_(?:g|v|orig)")


@dataclass(frozen=True)
class _Lost:
    """Hold a parameter, or its gradient, without a partner."""

    left: Leftover
    tensor: TensorRef
    stem: Stem

    @property
    def computed(self) -> bool:
        """Tell whether its name is one that a parametrisation gives."""
        return bool(self.stem[2] != self.tensor.meta["tensor"])


def without_restructured(
    sites: Sequence[SitePair], leftovers: Sequence[Leftover], sources: tuple[Source, Source]
) -> tuple[Sequence[Leftover], tuple[Finding, ...]]:
    """Return the leftovers, those in another form no longer counting, if nothing else would count.

    Parameters themselves are only recorded where somebody asked for them: then what was not compared is no pass.
    """
    counting = [left for left in leftovers if left.counts]
    regions = Regions(_calls(sites))
    lost = [_lost(left, sources, regions) for left in counting if _owned(left, sources) and not left.unreached]
    excused = _reparametrised(lost, sites, regions)
    known = set(map(id, excused))
    excused += _in_another_form([each for each in lost if id(each) not in known], regions)
    if not excused or len(excused) < len(counting):
        return leftovers, tuple(_unlike(lost, excused))
    if any(each.tensor.meta["slot"] == "param" for each in excused):
        return leftovers, (_finding(excused, harmless=False),)
    gone = {id(each.left) for each in excused}
    told = [replace(left, counts=False, hint=_HINT) if id(left) in gone else left for left in leftovers]
    return told, (_finding(excused, harmless=True),)


def _calls(sites: Iterable[SitePair]) -> Paired:
    found: Paired = {}
    for site in sites:
        if site.slot == "output" and PART not in site.pair.matched_by:
            one, other = site.reference.meta, site.candidate.meta
            found[one["module"], one["call"]] = other["module"], other["call"]
    return found


def _tensor(left: Leftover, sources: tuple[Source, Source]) -> TensorRef:
    return sources[left.side == "candidate"].tensors[left.name]


def _owned(left: Leftover, sources: tuple[Source, Source]) -> bool:
    return is_owned(_tensor(left, sources))


def _lost(left: Leftover, sources: tuple[Source, Source], regions: Regions) -> _Lost:
    tensor = _tensor(left, sources)
    return _Lost(left, tensor, _stem(tensor.meta, regions, candidate=left.side == "candidate"))


def _stem(meta: Mapping[str, Any], regions: Regions, candidate: bool) -> Stem:
    """Return what a parameter was before it was parametrised, if it was."""
    module, name = meta["module"], meta["tensor"]
    computed, made_of = _COMPUTED.fullmatch(module), _MADE_OF.fullmatch(name)
    if computed and name.startswith("original"):
        module, name = computed[1] or "", computed[2]
    elif made_of:
        name = made_of[1]
    return meta["slot"], regions.partner(module, candidate), name


def _reparametrised(lost: Sequence[_Lost], sites: Iterable[SitePair], regions: Regions) -> list[_Lost]:
    """Return those that a parametrisation makes of a parameter that the other side has plain, and the plain ones."""
    stems: tuple[set[Stem], set[Stem]] = (set(), set())
    for site in sites:
        for known, tensor, candidate in zip(stems, (site.reference, site.candidate), (False, True), strict=True):
            if is_owned(tensor):
                known.add(_stem(tensor.meta, regions, candidate))
    for each in lost:
        stems[each.left.side == "candidate"].add(each.stem)
    both = {each.stem for each in lost if each.computed} & stems[0] & stems[1]
    return [each for each in lost if each.stem in both]


def _in_another_form(lost: Sequence[_Lost], regions: Regions) -> list[_Lost]:
    """Return those of which both sides have the same elements in one part of the model, the innermost first."""
    groups: dict[tuple[str, str], list[_Lost]] = {}
    for each in lost:
        meta = each.tensor.meta
        inside = f"{meta['module']}.{meta['tensor']}"  # so that its module itself may be the part
        groups.setdefault((meta["slot"], regions.of(inside, each.left.side == "candidate")), []).append(each)
    found: list[_Lost] = []
    while groups:
        slot, region = max(groups, key=lambda key: len(key[1].split(".")) if key[1] else 0)
        inner = groups.pop((slot, region))
        if _hold_the_same(inner):
            found += inner
        elif region:  # what does not add up here may do so in the part around
            groups.setdefault((slot, regions.of(region, candidate=False)), []).extend(inner)
    return found


def _hold_the_same(lost: Sequence[_Lost]) -> bool:
    """Tell whether both sides hold the same elements, in whatever order: as many, of one sum and one size."""
    one, other = ([each.tensor for each in lost if each.left.side == side] for side in _SIDES)
    if sum(each.count for each in one) != sum(each.count for each in other):
        return False
    here, there = _moments(one), _moments(other)
    if here is None or there is None:
        return True  # nobody took any
    size = max(here.size, there.size)
    # what elements may add up to is no more than their number makes of their size
    most = math.sqrt(size * max(1, sum(each.count for each in one)))
    return abs(here.total - there.total) <= _ALIKE * most and abs(here.size - there.size) <= _ALIKE * size


class _Moments(NamedTuple):
    total: float
    size: float  # the sum of the squares


def _moments(tensors: Sequence[TensorRef]) -> _Moments | None:
    """Return the sum and the sum of the squares of all elements, where statistics were taken of them."""
    known: list[Stats] = [each.meta["stats"] for each in tensors if each.meta.get("stats")]
    if len(known) < len(tensors):
        return None
    return _Moments(sum(each.mean * each.count for each in known), sum(each.l2**2 for each in known))


def _unlike(lost: Sequence[_Lost], excused: Sequence[_Lost]) -> Iterator[Finding]:
    """Yield what is to be said of parameters that both sides hold, and not with the same elements."""
    known = set(map(id, excused))
    names = {side: [each for each in lost if id(each) not in known and each.left.side == side] for side in _SIDES}
    if all(names.values()):
        rest = [each for side in names.values() for each in side]
        counts = " and ".join(f"{plural(len(names[side]), 'tensor')} of the {side}" for side in _SIDES)
        yield Finding(
            "restructured",
            tuple(each.left.name for each in rest),
            f"{counts} have no partner and do not hold the same elements; all around them agrees",
            "pair them with --rename or --map to see by how much they differ",
            0.6,
        )


def _finding(excused: Sequence[_Lost], harmless: bool) -> Finding:
    sides = [sum(each.left.side == side for each in excused) for side in _SIDES]
    counts = f"{plural(sides[0], 'tensor')} of the reference and {sides[1]:,} of the candidate"
    return Finding(
        "restructured",
        tuple(each.left.name for each in excused),
        f"parameters in another form: {counts} have no partner and were not compared; all around them agrees",
        "compare the weights themselves with nndiff diff, after bringing them into one form",
        0.8,
        harmless,
    )
