"""One layer that does the work of several, such as query, key and value: which tensors may hold which.

Found by structure alone: the several have one parent, one class and one input, and their shapes add up to that of
the one. Where they lie in it is proven by their elements, elsewhere.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nndiff.align.alignment import Draft, FusedMatch
from nndiff.align.calls import Call, CallPairs, Regions, group_calls
from nndiff.tensors import Shape, Slot, TensorRef


@dataclass(frozen=True)
class FusedCall:
    """Say that one call of a side may stand for several of the other."""

    whole: Call
    parts: tuple[Call, ...]
    whole_is_reference: bool


def find_fused_calls(pairs: CallPairs) -> list[FusedCall]:
    """Find free calls whose output has the shape of several of the other side laid end to end.

    Those several have one parent and one class, were given the very same input, and ran one after the other; or
    they are calls of one module, which the other side calls for all rows at once. What is found is taken out of
    the calls that may still be paired.
    """
    lineage = _Lineage(pairs)
    fused_calls: list[FusedCall] = []
    taken: set[int] = set()
    for whole_is_reference in (False, True):
        parts_side = whole_is_reference  # is_candidate of the side that holds the parts
        part_calls = _free_layers(pairs, is_candidate=parts_side)
        alike = group_calls(part_calls, lambda call: (call.module.rpartition(".")[0], call.cls, call.inputs))
        repeated = group_calls(part_calls, lambda call: call.module)
        groups_given = lineage.index_groups((group for group in alike.values() if len(group) > 1), parts_side)
        for whole in _free_layers(pairs, is_candidate=not parts_side):
            groups = [repeated.get(module, []) for module in lineage.names_of(whole.module, not parts_side)]
            for key in lineage.keys_of(whole, is_candidate=not parts_side):
                groups += groups_given.get(key, [])
            parts = None if id(whole) in taken else next(_fitting_parts(whole, groups, taken), None)
            if parts is not None:
                fused_calls.append(FusedCall(whole, parts, whole_is_reference))
                taken.update(map(id, (whole, *parts)))
    for fused in fused_calls:
        pairs.leave_out((fused.whole, *fused.parts))
    return fused_calls


def _free_layers(pairs: CallPairs, is_candidate: bool) -> list[Call]:
    """Return the innermost calls of one free output."""
    calls, free = pairs.candidate if is_candidate else pairs.reference, pairs.draft.free_names(is_candidate)
    return [call for call in calls if call.leaf and len(call.outputs) == 1 and call.outputs[0].name in free]


def _fitting_parts(whole: Call, groups: Iterable[list[Call]], taken: Container[int]) -> Iterator[tuple[Call, ...]]:
    """Yield the calls of a group that follow one another and make up a whole."""
    (shape,) = whole.shapes
    for group in groups:
        if len(group) > 1 and _shorter_axis(group[0].shapes[0], shape) is not None:
            free = [call for call in group if id(call) not in taken]
            for start, stop in _fitting_runs([call.shapes[0] for call in free], shape):
                yield tuple(free[start:stop])


def _fitting_runs(shapes: Sequence[Shape], whole: Shape) -> Iterator[tuple[int, int]]:
    """Yield the runs of shapes that add up to a whole."""
    for start in range(len(shapes)):
        filled = 0
        for stop in range(start + 1, len(shapes) + 1):
            axis = _shorter_axis(shapes[stop - 1], whole)
            filled += shapes[stop - 1][axis] if axis is not None else 0
            if axis is None or filled > whole[axis]:
                break
            if filled == whole[axis] and _joining_axis(shapes[start:stop], whole) is not None:
                yield start, stop


def _shorter_axis(part: Shape, whole: Shape) -> int | None:
    """Return the one axis along which a part is shorter than a whole."""
    if part == whole or len(part) != len(whole):
        return None
    axes = [axis for axis, size in enumerate(part) if size != whole[axis]]
    return axes[0] if len(axes) == 1 else None


def _joining_axis(parts: Sequence[Shape], whole: Shape) -> int | None:
    """Return the axis along which parts add up to a whole, if they do."""
    axes = {_shorter_axis(part, whole) for part in parts}
    axis = axes.pop()
    if axis is None or axes:
        return None
    return axis if sum(part[axis] for part in parts) == whole[axis] else None


_InputKey = tuple[str, str, object, int]  # region, what the input is known by, the input, number of inputs


class _Lineage:
    """Know which calls of the two sides were given the same, in the same part of the models."""

    def __init__(self, pairs: CallPairs) -> None:
        modules = pairs.modules()
        self._partner_modules = modules, {partner: module for module, partner in modules.items()}
        self._regions = Regions(modules)
        draft = pairs.draft
        self._partner_events: dict[int, int] = {}
        for match in draft.matches.values():
            reference_event = draft.reference[match.reference].trace.order
            self._partner_events[reference_event] = draft.candidate[match.candidate].trace.order
        self._paired_events = set(self._partner_events.values())
        self._digests = [
            {tensor.trace.order: tensor.trace.digest for tensor in tensors.values()}
            for tensors in (draft.reference, draft.candidate)
        ]

    def names_of(self, module: str, is_candidate: bool) -> set[str]:
        """Return what a module may be called on the other side: its partner's name, and its own."""
        return {self._partner_modules[is_candidate].get(module, module), module}

    def keys_of(self, call: Call, is_candidate: bool) -> Iterator[_InputKey]:
        """Yield what calls of the two sides share if they were given the same: the surest there is.

        An input whose partner is known is known by that; others by their content, or, in a part of the model
        that both are known to have, by being there.
        """
        region, count = self._regions.region_of(call.module, is_candidate), len(call.inputs)
        first = call.inputs[0] if call.inputs else -1
        partner = self._partner_events.get(first)
        if is_candidate:
            partner = first if first in self._paired_events else None
        if partner is not None:
            yield region, "partner", partner, count
            return
        digest = self._digests[is_candidate].get(first)
        if digest is not None:
            yield region, "content", digest, count
        if region:
            yield region, "place", None, count

    def index_groups(self, groups: Iterable[list[Call]], is_candidate: bool) -> dict[_InputKey, list[list[Call]]]:
        """Return groups of calls by what they were given."""
        index: dict[_InputKey, list[list[Call]]] = {}
        for group in groups:
            for key in self.keys_of(group[0], is_candidate):
                index.setdefault(key, []).append(group)
        return index


def pair_fused_calls(draft: Draft, fused_calls: Iterable[FusedCall]) -> None:
    """Pair what belongs to fused calls: outputs, gradients at them, parameters and their gradients."""
    belongings = _Belongings(draft.reference.values()), _Belongings(draft.candidate.values())
    for fused in fused_calls:
        parts_side = fused.whole_is_reference
        parts = [belongings[parts_side].of_call(call) for call in fused.parts]
        labels = _label_parts([call.module for call in fused.parts], [call.number for call in fused.parts])
        group = f"{fused.whole.module}@{fused.whole.number}"
        for key, whole in belongings[not parts_side].of_call(fused.whole).items():
            tensors = [part[key] for part in parts if key in part]
            if len(tensors) == len(parts):
                _pair_fused_tensors(draft, whole, tensors, fused.whole_is_reference, group, labels)


class _Belongings:
    """Know what belongs to a call: its output, the gradient there, the parameters of its module."""

    def __init__(self, tensors: Iterable[TensorRef]) -> None:
        self._gradients: dict[int, TensorRef] = {}
        self._parameters: dict[str, dict[Hashable, TensorRef]] = {}
        for tensor in tensors:
            site = tensor.site
            if site.slot is Slot.GRAD_OUTPUT and tensor.trace.forward is not None and not site.nth:
                self._gradients[tensor.trace.forward] = tensor
            elif site.slot.is_parameter:
                self._parameters.setdefault(site.module, {})[site.slot, site.tensor] = tensor

    def of_call(self, call: Call) -> dict[Hashable, TensorRef]:
        """Return what belongs to a call, by what it is."""
        (output,) = call.outputs
        belongings: dict[Hashable, TensorRef] = {Slot.OUTPUT: output, **self._parameters.get(call.module, {})}
        gradient = self._gradients.get(output.trace.order)
        if gradient is not None:
            belongings[Slot.GRAD_OUTPUT] = gradient
        return belongings


def _label_parts(modules: Sequence[str], numbers: Sequence[int]) -> tuple[str, ...]:
    """Return short names of parts: the last of their paths, with the number of the call where these are the same."""
    names = [module.rpartition(".")[2] for module in modules]
    if len(set(names)) == len(names):
        return tuple(names)
    return tuple(f"{name}@{number}" for name, number in zip(names, numbers, strict=True))


def _pair_fused_tensors(
    draft: Draft,
    whole: TensorRef,
    parts: Sequence[TensorRef],
    whole_is_reference: bool,
    group: str,
    labels: tuple[str, ...],
) -> None:
    """Pair parts with the whole they add up to, if all are free and can be read."""
    free_parts = draft.free_names(is_candidate=whole_is_reference)
    is_free = whole.name in draft.free_names(not whole_is_reference) and all(part.name in free_parts for part in parts)
    if not is_free or any(tensor.missing for tensor in (whole, *parts)):
        return
    turned = False
    axis = _joining_axis([part.shape for part in parts], whole.shape)
    if axis is None and len(whole.shape) == 2:  # a layer may hold its weight the other way round
        axis, turned = _joining_axis([part.shape[::-1] for part in parts], whole.shape), True
    if axis is not None and len({part.name for part in parts}) == len(parts):
        names = tuple(part.name for part in parts)
        draft.pair_fused(FusedMatch(whole.name, names, whole_is_reference, axis, turned, group, labels))


def pair_fused_parameters(pairs: CallPairs, modules: Mapping[str, str]) -> None:
    """Pair parameters that are left with a larger one: no call tells of them, their names do.

    As `in_proj_weight` holds the `weight` of three. Where equally many of the one are left as of the others, in
    one part of the model, they are paired in their order.
    """
    regions = Regions(modules)
    inputs = [{call.module: call.inputs for call in calls} for calls in (pairs.reference, pairs.candidate)]
    for whole_is_reference in (False, True):
        parts_side = whole_is_reference
        groups: dict[Hashable, _ParameterGroup] = {}
        for tensor in _free_parameters(pairs.draft, is_candidate=parts_side):
            site = tensor.site
            region, parent = regions.region_of(site.module, parts_side), site.module.rpartition(".")[0]
            key = region, site.slot, site.tensor, parent, inputs[parts_side].get(site.module)
            groups.setdefault(key, _ParameterGroup(region, site.slot, site.tensor, [])).tensors.append(tensor)
        wholes: dict[_ParameterKind, list[TensorRef]] = {}
        for tensor in _free_parameters(pairs.draft, is_candidate=not parts_side):
            site = tensor.site
            inside = f"{site.module}.{site.tensor}"  # so that its module itself may be the region
            region = regions.region_of(inside, not parts_side)
            wholes.setdefault((region, site.slot, site.tensor, tensor.shape), []).append(tensor)
        for kind, tensors in wholes.items():
            runs = [run for group in groups.values() if (run := group.find_parts(kind))]
            if len(runs) == len(tensors):
                for whole, parts in zip(tensors, runs, strict=True):
                    labels = _label_parts([part.site.module for part in parts], range(len(parts)))
                    _pair_fused_tensors(pairs.draft, whole, parts, whole_is_reference, "", labels)


def _free_parameters(draft: Draft, is_candidate: bool) -> list[TensorRef]:
    """Return the free parameters of a side that can be read, and their gradients."""
    tensors = draft.free_tensors(is_candidate)
    return [tensor for tensor in tensors if tensor.site.slot.is_parameter and not tensor.missing]


_ParameterKind = tuple[str, Slot, str, Shape]  # region, slot, name in the module and shape


@dataclass(frozen=True)
class _ParameterGroup:
    """Hold parameters of one name in modules of one parent that were given the same."""

    region: str
    slot: Slot
    name: str
    tensors: list[TensorRef]

    def find_parts(self, kind: _ParameterKind) -> list[TensorRef]:
        """Return those that make up a larger parameter, whose name ends in theirs; none where they do not."""
        region, slot, name, shape = kind
        if (region, slot) != (self.region, self.slot) or name == self.name or not name.endswith(self.name):
            return []
        for start, stop in _fitting_runs([tensor.shape for tensor in self.tensors], shape):
            return self.tensors[start:stop]
        return []
