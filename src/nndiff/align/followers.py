"""What follows paired calls and modules: gradients, inputs, parameters and buffers."""

from __future__ import annotations

import re
from collections.abc import Container, Hashable, Iterator, Mapping
from itertools import product

from nndiff.align.alignment import Draft
from nndiff.align.calls import CallPairs
from nndiff.result import Method
from nndiff.tensors import Shape, Site, Slot, TensorRef

TensorKey = tuple[str, str]  # module, and name of a parameter or buffer in it

_MOST_OF_ONE_SHAPE = 64  # tensors in one module that are told apart by their statistics; all are compared with all
_REPARAMETRISED = re.compile(r"(.+)_(?:g|v|orig)")  # what weight norm and its kind make of a parameter
_COMPUTED_IN = {Slot.PARAM: Slot.OUTPUT, Slot.PARAM_GRAD: Slot.GRAD_OUTPUT}


def _is_of_module(slot: Slot) -> bool:
    """Return True for what a module holds, and its gradients: no call is needed to tell whose it is."""
    return slot.is_parameter or slot.is_buffer


def pair_same_tensors(draft: Draft, same_tensors: Mapping[TensorKey, TensorKey]) -> None:
    """Pair equal parameters and buffers of modules that hold the same weights, and their gradients."""
    candidate_names: dict[Hashable, str] = {}
    for tensor in draft.free_tensors(is_candidate=True):
        if _is_of_module(tensor.site.slot):
            candidate_names[tensor.site.slot, (tensor.site.module, tensor.site.tensor)] = tensor.name
    for tensor in draft.free_tensors(is_candidate=False):
        partner = same_tensors.get((tensor.site.module, tensor.site.tensor))
        candidate_name = candidate_names.get((tensor.site.slot, partner))
        if partner is not None and candidate_name is not None:
            draft.pair(tensor.name, candidate_name, Method.WEIGHTS)


def pair_followers(pairs: CallPairs) -> None:
    """Pair the output gradients, inputs, parameters and buffers of paired calls; as certain as these are."""
    draft, modules, certain_modules = pairs.draft, pairs.modules(), pairs.certain_modules()
    partner_events: dict[int, tuple[int, bool]] = {}
    for match in draft.matches.values():
        reference_event = draft.reference[match.reference].trace.order
        partner_events[reference_event] = draft.candidate[match.candidate].trace.order, match.certain
    candidate_names: dict[Hashable, str] = {}
    for tensor in draft.free_tensors(is_candidate=True):
        site, forward = tensor.site, tensor.trace.forward
        if _is_of_module(site.slot):
            candidate_names[site.slot, site.module, site.tensor] = tensor.name
        elif forward is not None:
            candidate_names[site.slot, forward, site.nth] = tensor.name
        else:
            candidate_names[site.slot, site.module, site.call, site.path] = tensor.name
    for tensor in draft.free_tensors(is_candidate=False):
        site, forward = tensor.site, tensor.trace.forward
        key: Hashable
        if _is_of_module(site.slot):
            key, certain = (site.slot, modules.get(site.module), site.tensor), site.module in certain_modules
        elif forward is not None:
            event, certain = partner_events.get(forward, (None, False))
            key = site.slot, event, site.nth
        else:
            call = site.module, site.call
            key = (site.slot, *pairs.partners[call], site.path) if call in pairs.partners else None
            certain = pairs.is_certain(call)
        candidate_name = candidate_names.get(key)
        if candidate_name in draft.free_candidate:
            draft.pair(tensor.name, candidate_name, Method.MODULE, certain)


def pair_moved_parameters(draft: Draft) -> None:
    """Pair remaining parameters and buffers of the same name whose module moved.

    Those of one kind, name and shape, equally many on both sides, are paired in their order.
    """
    candidate_groups = _group_by_name_and_shape(draft, is_candidate=True)
    for key, names in _group_by_name_and_shape(draft, is_candidate=False).items():
        candidate_names = candidate_groups.get(key, [])
        if len(candidate_names) == len(names):
            for reference_name, candidate_name in zip(names, candidate_names, strict=True):
                draft.pair(reference_name, candidate_name, Method.CALL, certain=False)


def _group_by_name_and_shape(draft: Draft, is_candidate: bool) -> dict[Hashable, list[str]]:
    groups: dict[Hashable, list[str]] = {}
    for tensor in draft.free_tensors(is_candidate):
        if _is_of_module(tensor.site.slot):
            key = tensor.site.slot, tensor.site.tensor, tensor.shape
            groups.setdefault(key, []).append(tensor.name)
    return groups


def pair_computed_parameters(draft: Draft, modules: Mapping[str, str], certain_modules: Container[str]) -> None:
    """Pair a plain parameter with one that the other side computes anew at each call (weight norm and its kind).

    What such a computation returns is the parameter, and the gradient there is that of the parameter.
    """
    reference_modules = {partner: module for module, partner in modules.items()}
    for plain, computed in _find_computed(draft, modules, is_candidate=False):
        draft.pair(plain.name, computed.name, Method.MODULE, plain.site.module in certain_modules)
    for plain, computed in _find_computed(draft, reference_modules, is_candidate=True):
        certain = reference_modules[plain.site.module] in certain_modules
        draft.pair(computed.name, plain.name, Method.MODULE, certain)


def _find_computed(
    draft: Draft, partner_modules: Mapping[str, str], is_candidate: bool
) -> list[tuple[TensorRef, TensorRef]]:
    """Return free parameters of a side, each with the tensor in which the other side computes it."""
    tensors_at: dict[Site, TensorRef] = {}
    for tensor in draft.free_tensors(not is_candidate):
        tensors_at[Site(tensor.site.module, tensor.site.slot, tensor.site.call, nth=tensor.site.nth)] = tensor
    computed: list[tuple[TensorRef, TensorRef]] = []
    for tensor in draft.free_tensors(is_candidate):
        partner = partner_modules.get(tensor.site.module)
        slot = _COMPUTED_IN.get(tensor.site.slot)
        if partner is None or slot is None:
            continue
        site = Site(f"{partner}.parametrizations.{tensor.site.tensor}", slot)
        if site in tensors_at and tensors_at[site].shape == tensor.shape:
            computed.append((tensor, tensors_at[site]))
    return computed


_HeldTensor = dict[Slot, TensorRef]  # a parameter and its gradient, or a buffer before and after
_HeldTensors = dict[str, _HeldTensor]  # by the name in the module
_HeldPair = tuple[str, str, Method, bool]  # names of the reference and the candidate, how they were paired, certain


def pair_renamed_parameters(pairs: CallPairs) -> None:
    """Pair what paired modules hold under different names, `weight` here and `scale` there.

    By what they hold, by a shape that no other has, and where several have one shape by their statistics.
    """
    for is_buffer in (False, True):
        candidate_modules = _group_held_tensors(pairs.draft, is_buffer, is_candidate=True)
        modules = pairs.modules()
        for module, reference_held in _group_held_tensors(pairs.draft, is_buffer, is_candidate=False).items():
            candidate_held = candidate_modules.get(modules[module], {}) if module in modules else {}
            for reference_name, candidate_name, method, certain in _match_held(reference_held, candidate_held):
                reference_tensors, candidate_tensors = reference_held[reference_name], candidate_held[candidate_name]
                for slot, tensor in reference_tensors.items():
                    partner = candidate_tensors.get(slot)
                    if partner is None:
                        continue
                    # a parameter may differ though its gradient, which told the name, does not
                    is_other_content = method is Method.CONTENT and tensor.trace.digest != partner.trace.digest
                    slot_method = Method.MODULE if is_other_content else method
                    pairs.draft.pair(tensor.name, partner.name, slot_method, certain)


def _group_held_tensors(draft: Draft, is_buffer: bool, is_candidate: bool) -> dict[str, _HeldTensors]:
    held_by_module: dict[str, _HeldTensors] = {}
    for tensor in draft.free_tensors(is_candidate):
        site = tensor.site
        if site.slot.is_buffer if is_buffer else site.slot.is_parameter:
            held_by_module.setdefault(site.module, {}).setdefault(site.tensor, {})[site.slot] = tensor
    return held_by_module


def _match_held(reference: _HeldTensors, candidate: _HeldTensors) -> Iterator[_HeldPair]:
    """Yield the names that belong together, the surest first; no guess where one side has more of them."""
    reference_left, candidate_left = dict(reference), dict(candidate)
    for reference_name, candidate_name in _match_by_content(reference, candidate).items():
        del reference_left[reference_name], candidate_left[candidate_name]
        yield reference_name, candidate_name, Method.CONTENT, True
    if len(reference_left) != len(candidate_left):
        return
    names_of_shape = _group_names_by_shape(candidate_left)
    for shape, names in _group_names_by_shape(reference_left).items():
        candidate_names = names_of_shape.get(shape, [])
        if len(names) == len(candidate_names) == 1:
            if not _are_forms_of_one(names[0], candidate_names[0]):
                yield names[0], candidate_names[0], Method.MODULE, False
        elif len(names) == len(candidate_names) <= _MOST_OF_ONE_SHAPE:
            reference_group = {name: reference_left[name] for name in names}
            candidate_group = {name: candidate_left[name] for name in candidate_names}
            for reference_name, candidate_name in _match_by_statistics(reference_group, candidate_group):
                yield reference_name, candidate_name, Method.STATISTICS, False


def _match_by_content(reference: _HeldTensors, candidate: _HeldTensors) -> dict[str, str]:
    """Return the names whose tensors are the same bit for bit, where only one on each side is."""
    candidate_names = _names_by_unique_content(candidate)
    matched: dict[str, str] = {}
    taken: set[str] = set()
    for content, name in _names_by_unique_content(reference).items():
        partner = candidate_names.get(content)
        if partner is None or name in matched or partner in taken or _are_forms_of_one(name, partner):
            continue
        matched[name] = partner
        taken.add(partner)
    return matched


def _names_by_unique_content(held: _HeldTensors) -> dict[Hashable, str]:
    """Return names by slot and digest; nothing where two share them, or where one element is all there is."""
    names: dict[Hashable, list[str]] = {}
    for name, tensors in held.items():
        for slot, tensor in tensors.items():
            if tensor.trace.digest and tensor.count > 1:
                names.setdefault((slot, tensor.trace.digest), []).append(name)
    return {content: group[0] for content, group in names.items() if len(group) == 1}


def _group_names_by_shape(held: _HeldTensors) -> dict[Shape, list[str]]:
    groups: dict[Shape, list[str]] = {}
    for name, tensors in sorted(held.items()):
        groups.setdefault(next(iter(tensors.values())).shape, []).append(name)
    return groups


def _are_forms_of_one(reference_name: str, candidate_name: str) -> bool:
    """Return True for `weight` and `weight_v`: one is computed from the other, and they do not hold the same."""
    stems = []
    for name in (reference_name, candidate_name):
        reparametrised = _REPARAMETRISED.fullmatch(name)
        stems.append(reparametrised[1] if reparametrised else name)
    return stems[0] == stems[1]


def _match_by_statistics(reference: _HeldTensors, candidate: _HeldTensors) -> Iterator[tuple[str, str]]:
    """Yield names of one shape, the nearest first; none where nobody took statistics."""
    distances: dict[tuple[str, str], float] = {}
    for reference_name, candidate_name in product(reference, candidate):
        distance = _statistics_distance(reference[reference_name], candidate[candidate_name])
        if distance is None:
            return
        distances[reference_name, candidate_name] = distance
    reference_free, candidate_free = set(reference), set(candidate)
    for reference_name, candidate_name in sorted(distances, key=lambda names: (distances[names], names)):
        if reference_name in reference_free and candidate_name in candidate_free:
            reference_free.remove(reference_name)
            candidate_free.remove(candidate_name)
            yield reference_name, candidate_name


def _statistics_distance(reference: _HeldTensor, candidate: _HeldTensor) -> float | None:
    """Return how far apart the statistics of two are, relative to their scale; None where nobody took any."""
    distance = 0.0
    common_slots = reference.keys() & candidate.keys()
    for slot in common_slots:
        stats, partner_stats = reference[slot].trace.stats, candidate[slot].trace.stats
        if stats is None or partner_stats is None:
            return None
        scale = max(stats.abs_max, partner_stats.abs_max) or 1.0
        for name in ("mean", "std", "min", "max"):
            distance += abs(getattr(stats, name) - getattr(partner_stats, name)) / scale
    return distance if common_slots else None
