"""One layer that does the work of several, such as query, key and value: compared stretch by stretch."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from nndiff.align.calls import Call, Paired, Regions
from nndiff.align.plan import Slice
from nndiff.align.work import Work
from nndiff.tensors import Shape, TensorRef

PART = "part of a fused layer"  # how such pairs say they were found
_OF_A_LAYER = ("param", "param_grad")


@dataclass(frozen=True)
class Fused:
    """Say that one call of a side stands for several of the other."""

    whole: Call
    parts: tuple[Call, ...]
    flipped: bool  # the whole is the reference's


@dataclass(frozen=True)
class _Way:
    """Say how parts lie in a whole: along an axis, perhaps with the two axes of each exchanged."""

    axis: int
    turned: bool = False


def find_fused(work: Work, reference: Sequence[Call], candidate: Sequence[Call], same: Paired) -> list[Fused]:
    """Find calls whose output has the shape of several of the other side laid end to end.

    Those several have one parent and one class, were given the very same input, and ran one after the other; or
    they are calls of one module, which the other side calls for all rows at once.
    """
    lineage = _Lineage(work, same)
    found: list[Fused] = []
    taken: set[int] = set()
    for flipped in (False, True):
        wholes, others = (reference, candidate) if flipped else (candidate, reference)
        parts_of = list(_free(work, others, candidate=flipped))
        groups, again = lineage.index(_alike(parts_of), candidate=flipped), _by_module(parts_of)
        for whole in _free(work, wholes, candidate=not flipped):
            given = [group for key in lineage.keys(whole, not flipped) for group in groups.get(key, ())]
            given = [*again.get(whole.module, ()), *given]
            parts = None if id(whole) in taken else next(_fitting(whole, given, taken), None)
            if parts is not None:
                found.append(Fused(whole, parts, flipped))
                taken.update(map(id, (whole, *parts)))
    return found


def _free(work: Work, calls: Iterable[Call], candidate: bool) -> Iterator[Call]:
    names = work.free(candidate)
    return (call for call in calls if call.leaf and len(call.outputs) == 1 and call.outputs[0].name in names)


def _alike(calls: Iterable[Call]) -> list[list[Call]]:
    """Return the calls that could be parts of one: of one parent, class and input."""
    groups: dict[Hashable, list[Call]] = {}
    for call in calls:
        groups.setdefault((call.module.rpartition(".")[0], call.cls, call.inputs), []).append(call)
    return [group for group in groups.values() if len(group) > 1]


def _by_module(calls: Iterable[Call]) -> dict[str, list[list[Call]]]:
    """Return the calls of each module, all in one group."""
    groups: dict[str, list[Call]] = {}
    for call in calls:
        groups.setdefault(call.module, []).append(call)
    return {module: [group] for module, group in groups.items() if len(group) > 1}


def _fitting(whole: Call, groups: Iterable[list[Call]], taken: Container[int]) -> Iterator[tuple[Call, ...]]:
    (shape,) = whole.shapes
    for group in groups:
        if _other_axis(group[0].shapes[0], shape) is not None:
            free = [call for call in group if id(call) not in taken]
            for start, stop in _runs([call.shapes[0] for call in free], shape):
                yield tuple(free[start:stop])


def _runs(shapes: Sequence[Shape], whole: Shape) -> Iterator[tuple[int, int]]:
    """Yield the stretches of shapes that make up a whole."""
    for start in range(len(shapes)):
        filled = 0
        for stop in range(start + 1, len(shapes) + 1):
            axis = _other_axis(shapes[stop - 1], whole)
            filled += shapes[stop - 1][axis] if axis is not None else 0
            if axis is None or filled > whole[axis]:
                break
            if filled == whole[axis] and _axis(shapes[start:stop], whole) is not None:
                yield start, stop


def _other_axis(part: Shape, whole: Shape) -> int | None:
    """Return the one axis along which a part is shorter than a whole."""
    if part == whole or len(part) != len(whole):
        return None
    axes = [axis for axis, size in enumerate(part) if size != whole[axis]]
    return axes[0] if len(axes) == 1 else None


def _axis(parts: Sequence[Shape], whole: Shape) -> int | None:
    """Return the axis along which parts make up a whole, if they do."""
    if any(len(part) != len(whole) for part in parts):
        return None
    axes = {axis for part in parts for axis, size in enumerate(part) if size != whole[axis]}
    if len(axes) != 1:
        return None
    (axis,) = axes
    return axis if sum(part[axis] for part in parts) == whole[axis] else None


_Key = tuple[str, str, object, int]  # region, what the input is known by, the input, number of inputs


class _Lineage:
    """Know which calls of the two sides were given the same, in the same part of the models."""

    def __init__(self, work: Work, same: Paired) -> None:
        self._regions = Regions(same)
        self._partner = work.partners()
        self._answered = set(self._partner.values())
        self._digests = [
            {tensor.trace.order: tensor.trace.digest for tensor in tensors.values()}
            for tensors in (work.all_reference, work.all_candidate)
        ]

    def keys(self, call: Call, candidate: bool) -> Iterator[_Key]:
        """Yield what calls of the two sides share if they were given the same: the surest there is.

        An input whose partner is known is known by that; others by their content, or, in a part of the model
        that both are known to have, by being there.
        """
        region, many = self._regions.of(call.module, candidate), len(call.inputs)
        first = call.inputs[0] if call.inputs else -1
        paired = first if candidate and first in self._answered else None if candidate else self._partner.get(first)
        if paired is not None:
            yield region, "partner", paired, many
            return
        digest = self._digests[candidate].get(first)
        if digest is not None:
            yield region, "content", digest, many
        if region:
            yield region, "place", None, many

    def index(self, groups: Iterable[list[Call]], candidate: bool) -> dict[_Key, list[list[Call]]]:
        """Return groups of calls by what they were given."""
        found: dict[_Key, list[list[Call]]] = {}
        for group in groups:
            for key in self.keys(group[0], candidate):
                found.setdefault(key, []).append(group)
        return found


def pair_fused(work: Work, fused: Iterable[Fused]) -> None:
    """Pair what belongs to fused calls: outputs, gradients at them, parameters and their gradients."""
    sides = _Belongings(work.all_reference.values()), _Belongings(work.all_candidate.values())
    for each in fused:
        ours, theirs = sides if each.flipped else sides[::-1]
        parts = [theirs.of(part) for part in each.parts]
        labels = _labels([call.module for call in each.parts], [call.number for call in each.parts])
        for key, whole in ours.of(each.whole).items():
            if all(key in part for part in parts):
                _cut(work, whole, dict(zip(labels, (part[key] for part in parts), strict=True)), each)


class _Belongings:
    """Know what belongs to a call: its output, the gradient there, the parameters of its module."""

    def __init__(self, tensors: Iterable[TensorRef]) -> None:
        self._gradients: dict[int, TensorRef] = {}
        self._owned: dict[str, dict[Hashable, TensorRef]] = {}
        for tensor in tensors:
            site = tensor.site
            if site.slot == "grad_output" and tensor.trace.forward is not None and not site.nth:
                self._gradients[tensor.trace.forward] = tensor
            elif site.slot in _OF_A_LAYER:
                self._owned.setdefault(site.module, {})[site.slot, site.tensor] = tensor

    def of(self, call: Call) -> dict[Hashable, TensorRef]:
        """Return what belongs to a call, by what it is."""
        (output,) = call.outputs
        gradient = self._gradients.get(output.trace.order)
        found: dict[Hashable, TensorRef] = {"output": output, **self._owned.get(call.module, {})}
        return found if gradient is None else {**found, "grad_output": gradient}


def _labels(modules: Sequence[str], numbers: Sequence[int]) -> list[str]:
    last = [module.rpartition(".")[2] for module in modules]
    numbered = [f"{name}@{number}" for name, number in zip(last, numbers, strict=True)]
    return last if len(set(last)) == len(last) else numbered


def _cut(work: Work, whole: TensorRef, parts: dict[str, TensorRef], fused: Fused) -> None:
    """Pair parts with the stretches of the whole they lie in, in their order."""
    way = _way([part.shape for part in parts.values()], whole.shape)
    others = work.free(candidate=fused.flipped)
    free = whole.name in work.free(not fused.flipped) and all(part.name in others for part in parts.values())
    readable = not any(tensor.missing for tensor in (whole, *parts.values()))
    if way is None or not free or not readable:
        return
    group = f"{fused.whole.module}@{fused.whole.number}"
    work.pair_parts(_slices(whole, parts, way, fused.flipped, group), PART)


def _slices(whole: TensorRef, parts: dict[str, TensorRef], way: _Way, flipped: bool, group: str = "") -> list[Slice]:
    """Return the stretches of a whole its parts lie in, one after the other."""
    sizes = [part.shape[::-1][way.axis] if way.turned else part.shape[way.axis] for part in parts.values()]
    ends = list(accumulate(sizes))
    names = [(f"{whole.name}.[{label}]", whole.name, part.name, flipped) for label, part in parts.items()]
    return [
        Slice(*name, way.axis, end - size, end, way.turned, group)
        for name, size, end in zip(names, sizes, ends, strict=True)
    ]


def _way(parts: Sequence[Shape], whole: Shape) -> _Way | None:
    axis = _axis(parts, whole)
    if axis is not None:
        return _Way(axis)
    axis = _axis([part[::-1] for part in parts], whole) if len(whole) == 2 else None
    return None if axis is None else _Way(axis, turned=True)


def pair_owned_parts(work: Work, reference: Sequence[Call], candidate: Sequence[Call], same: Paired) -> None:
    """Pair parameters that are left with the stretches of a larger one: no call tells of them, their names do.

    As `in_proj_weight` holds the `weight` of three. Where equally many of the one are left as of the others, in
    one part of the model, they are paired in their order.
    """
    regions = Regions(same)
    inputs = tuple({call.module: call.inputs for call in calls} for calls in (reference, candidate))
    for flipped in (False, True):
        groups = _owned_alike(_owned(work, flipped), regions, inputs[flipped], flipped)
        for key, wholes in _owned_wholes(_owned(work, not flipped), regions, not flipped).items():
            runs = [run for run in map(_FittingRun(*key), groups) if run]
            if len(runs) == len(wholes):
                for whole, run in zip(wholes, runs, strict=True):
                    work.pair_parts(_owned_slices(whole, run, flipped), PART)


def _owned(work: Work, candidate: bool) -> list[TensorRef]:
    """Return the free parameters of a side that can be read, and their gradients."""
    tensors = (work.tensors(candidate)[name] for name in work.free(candidate))
    return [tensor for tensor in tensors if tensor.site.slot in _OF_A_LAYER and not tensor.missing]


_Inputs = Mapping[str, tuple[int, ...]]  # what each module was given


@dataclass(frozen=True)
class _Group:
    """Hold parameters of one kind in modules of one parent that were given the same."""

    region: str
    slot: str
    name: str
    tensors: list[TensorRef]


def _owned_alike(tensors: Iterable[TensorRef], regions: Regions, inputs: _Inputs, candidate: bool) -> list[_Group]:
    groups: dict[Hashable, _Group] = {}
    for tensor in tensors:
        site = tensor.site
        region, slot, name = regions.of(site.module, candidate), site.slot, site.tensor
        key = region, slot, name, site.module.rpartition(".")[0], inputs.get(site.module)
        groups.setdefault(key, _Group(region, slot, name, [])).tensors.append(tensor)
    return list(groups.values())


_Kind = tuple[str, str, str, Shape]  # region, slot, name and shape


def _owned_wholes(tensors: Iterable[TensorRef], regions: Regions, candidate: bool) -> dict[_Kind, list[TensorRef]]:
    found: dict[_Kind, list[TensorRef]] = {}
    for tensor in tensors:
        site = tensor.site
        inside = f"{site.module}.{site.tensor}"  # so that its module itself may be the region
        found.setdefault((regions.of(inside, candidate), site.slot, site.tensor, tensor.shape), []).append(tensor)
    return found


@dataclass(frozen=True)
class _FittingRun:
    """Find the parameters of a group that make up a larger one, whose name ends in theirs."""

    region: str
    slot: str
    name: str
    shape: Shape

    def __call__(self, group: _Group) -> list[TensorRef]:
        """Return them, one after the other; none where they do not."""
        longer = self.name != group.name and self.name.endswith(group.name)
        if not longer or (group.region, group.slot) != (self.region, self.slot):
            return []
        runs = _runs([tensor.shape for tensor in group.tensors], self.shape)
        return next((group.tensors[start:stop] for start, stop in runs), [])


def _owned_slices(whole: TensorRef, run: Sequence[TensorRef], flipped: bool) -> list[Slice]:
    axis = _axis([part.shape for part in run], whole.shape)
    assert axis is not None  # they were found to fit
    labels = _labels([part.site.module for part in run], list(range(len(run))))
    return _slices(whole, dict(zip(labels, run, strict=True)), _Way(axis), flipped)
