"""Which site of the candidate gets which tensor of the reference in a replay."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nndiff.names import ancestors
from nndiff.plan import Plan
from nndiff.recording.format.weights import read_held_tensors
from nndiff.recording.reader import Recording
from nndiff.relations.operations import Flatten, Reshape
from nndiff.relations.relation import Relation
from nndiff.result import Pair, Related
from nndiff.sources import Source
from nndiff.tensors import Shape, Site, Slot, TensorRef

_NUMBER = re.compile(r"\d{1,9}")
_REPLACED = (Slot.OUTPUT, Slot.GRAD_OUTPUT)
_MEASURED = (Slot.PARAM_GRAD, Slot.BUFFER, Slot.LOSS, Slot.MODEL_INPUT)


@dataclass(frozen=True)
class Partner:
    """Name the tensor of the reference that belongs to a site of the candidate."""

    reference: str
    is_replaced: bool = True  # False for what is only measured: gradients of parameters, the loss, another form
    is_reshaped: bool = False  # the same elements in the same order, in another shape

    def find(self, tensors: Mapping[str, TensorRef]) -> TensorRef | None:
        """Return the tensor."""
        return tensors.get(self.reference)


def choose_partners(plan: Plan, pairs: Iterable[Pair], reference: Recording) -> dict[str, Partner]:
    """Return the partners by the candidate's name: of sites whose pair is certain, or guessed and in agreement.

    A guess is trusted too if the same modules of another block, which differ by their numbers alone, are partners.
    Inputs of modules are paired by the calls they belong to: `reference` holds them all.
    """
    pairs = list(pairs)
    blocks = {_compare_numbers(*pair.sites) for pair in pairs if pair.sites and (pair.certain or pair.verdict.passed)}
    partners: dict[str, Partner] = {}
    calls: dict[tuple[str, int], tuple[str, int]] = {}
    reshaped_calls: set[tuple[str, int]] = set()  # what goes into them may have another shape, as what comes out has
    tensors = reference.source().tensors
    for pair in pairs:
        if pair.sites is None or pair.reference_name not in tensors:
            continue
        if not (pair.certain or pair.verdict.passed or _compare_numbers(*pair.sites) in blocks):
            continue
        slot = pair.sites[1].slot
        if slot in _MEASURED and pair.candidate_name in plan.candidate.tensors:
            partners[pair.candidate_name] = Partner(pair.reference_name, is_replaced=False)
        if slot not in _REPLACED or pair.candidate_name not in plan.candidate.tensors:
            continue
        is_reshaped = pair.related is not None and pair.related.accepted
        if is_reshaped and not _keeps_order(pair.related):
            continue  # in another form
        is_reshaped = is_reshaped or _differ_by_ones(*pair.shape)
        fits = is_reshaped or pair.shape[0] == pair.shape[1]
        partners[pair.candidate_name] = Partner(pair.reference_name, fits, is_reshaped)
        if slot is Slot.OUTPUT:
            reference_site, candidate_site = pair.sites
            calls.setdefault((candidate_site.module, candidate_site.call), (reference_site.module, reference_site.call))
            if is_reshaped:
                reshaped_calls.add((candidate_site.module, candidate_site.call))
    ours = _list_arguments(reference.source())
    theirs = _list_arguments(plan.candidate)
    for candidate_call, reference_call in calls.items():
        pairs_of_call = _pair_arguments(ours.get(reference_call), theirs.get(candidate_call))
        for reference_path, candidate_path in pairs_of_call:
            name = Site(candidate_call[0], Slot.INPUT, candidate_call[1], candidate_path).name
            partner = Site(reference_call[0], Slot.INPUT, reference_call[1], reference_path).name
            shapes = [
                ours[reference_call].tensors[reference_path].shape,
                theirs[candidate_call].tensors[candidate_path].shape,
            ]
            is_reshaped = candidate_call in reshaped_calls and math.prod(shapes[0]) == math.prod(shapes[1])
            partners[name] = Partner(partner, is_reshaped or shapes[0] == shapes[1], is_reshaped)
    return partners


def _compare_numbers(reference: Site, candidate: Site) -> tuple[str, str, tuple[int, ...]]:
    """Return two modules without the numbers in their paths, and by how much these are apart."""
    numbers = [[int(digits) for digits in _NUMBER.findall(site.module)] for site in (reference, candidate)]
    apart = tuple(theirs - ours for ours, theirs in zip(*numbers, strict=False))
    return _NUMBER.sub("#", reference.module), _NUMBER.sub("#", candidate.module), apart


@dataclass(frozen=True)
class _Arguments:
    """Hold the tensors a call was given, by path."""

    cls: str
    largest_held: int  # elements of the largest tensor that its module holds, itself or inside
    tensors: Mapping[str, TensorRef]


def _list_arguments(source: Source) -> dict[tuple[str, int], _Arguments]:
    """Return the arguments of every call that returned something."""
    tensors, largest_held = source.tensors, _measure_held(source.meta)
    by_order = {tensor.trace.order: tensor for tensor in tensors.values()}
    arguments: dict[tuple[str, int], _Arguments] = {}
    for output in tensors.values():
        site = output.site
        if site.slot is not Slot.OUTPUT or (site.module, site.call) in arguments:
            continue
        given: dict[str, TensorRef] = {}
        for link in output.trace.inputs:
            recorded = tensors.get(Site(site.module, Slot.INPUT, site.call, link.path).name)
            if recorded is None and link.event is not None and link.how != "view":
                recorded = by_order.get(link.event)
            if recorded is not None:
                given[link.path] = recorded
        arguments[site.module, site.call] = _Arguments(site.cls, largest_held.get(site.module, 0), given)
    return arguments


def _measure_held(meta: Mapping[str, Any]) -> dict[str, int]:
    """Return the elements of the largest tensor that each module holds, itself or inside."""
    largest: dict[str, int] = {}
    for name, tensor in read_held_tensors(meta).items():
        for module in ancestors(name):
            largest[module] = max(largest.get(module, 0), math.prod(tensor.shape))
    return largest


def _pair_arguments(reference: _Arguments | None, candidate: _Arguments | None) -> list[tuple[str, str]]:
    """Return which arguments of two calls belong together, by path.

    Modules of one class take the same arguments by the same name. Of others, what is equal belongs together; if they
    may do the same by what they hold, also the first argument, and what alone has its form. Nothing else is known.
    """
    if reference is None or candidate is None:
        return []
    ours, theirs = dict(reference.tensors), dict(candidate.tensors)
    paired: list[tuple[str, str]] = []

    def pair(reference_path: str, candidate_path: str) -> None:
        paired.append((reference_path, candidate_path))
        del ours[reference_path], theirs[candidate_path]

    if reference.cls == candidate.cls:
        for path in [path for path in ours if path in theirs]:
            pair(path, path)
    for path in list(ours):
        equal = [other for other, tensor in theirs.items() if tensor.trace.digest == ours[path].trace.digest]
        if equal:
            pair(path, path if path in equal else equal[0])
    if reference.largest_held != candidate.largest_held:
        return paired  # an attention and its last layer return the same, and are given something else
    first = next(iter(reference.tensors), None), next(iter(candidate.tensors), None)
    if first[0] in ours and first[1] in theirs and first[0] is not None and first[1] is not None:
        pair(first[0], first[1])
    forms = _group_forms(ours), _group_forms(theirs)
    for form, paths in forms[0].items():
        others = forms[1].get(form, [])
        if len(paths) == len(others) == 1:
            pair(paths[0], others[0])
    return paired


def _group_forms(tensors: Mapping[str, TensorRef]) -> dict[tuple[Shape, str], list[str]]:
    forms: dict[tuple[Shape, str], list[str]] = {}
    for path, tensor in tensors.items():
        forms.setdefault((tensor.shape, tensor.dtype.name), []).append(path)
    return forms


def _differ_by_ones(reference: Shape, candidate: Shape) -> bool:
    """Return True for two shapes that differ by axes of one place: positions with and without a batch."""
    return reference != candidate and _drop_ones(reference) == _drop_ones(candidate)


def _drop_ones(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)


def _keeps_order(related: Related | None) -> bool:
    """Return True for a relation that only gives another shape to the same elements in the same order."""
    if related is None or not isinstance(related.relation, Relation):
        return False
    operations = (*related.relation.reference, *related.relation.candidate)
    return all(isinstance(operation, (Reshape, Flatten)) for operation in operations)


def list_replaced(partners: Mapping[str, Partner]) -> dict[str, str]:
    """Return the names that a replay needs: {the candidate's: the reference's}."""
    return {name: partner.reference for name, partner in partners.items() if partner.is_replaced}
