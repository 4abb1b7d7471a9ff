"""What one call hands over in different containers on the two sides: `o` here, `(o, None)` there.

Whose tensors they are is known from the call. Which of them belong together is told by their place, by what they
hold, by shape and dtype, and last by their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence

from nndiff.align.alignment import Draft, Tensors
from nndiff.align.by_name import Spelling
from nndiff.result import Method
from nndiff.tensors import Slot, TensorRef

_BY_NAME = (Method.NAME, Method.PREFIX, Method.RENAME, Method.MAP)

TensorPair = tuple[TensorRef, TensorRef]


def pair_outputs(
    draft: Draft, reference: Iterable[TensorRef], candidate: Iterable[TensorRef], method: Method, certain: bool
) -> None:
    """Pair the free outputs of two calls that belong together."""
    reference_outputs = [tensor for tensor in reference if tensor.name in draft.free_reference]
    candidate_outputs = [tensor for tensor in candidate if tensor.name in draft.free_candidate]

    def take(reference_output: TensorRef, candidate_output: TensorRef, is_certain: bool) -> None:
        draft.pair(reference_output.name, candidate_output.name, method, is_certain)
        reference_outputs.remove(reference_output)
        candidate_outputs.remove(candidate_output)

    for reference_output, candidate_output in pairs_of_same_place(reference_outputs, candidate_outputs):
        if reference_output.shape == candidate_output.shape:
            take(reference_output, candidate_output, certain)
    for reference_output, candidate_output in pairs_of_same_content(reference_outputs, candidate_outputs):
        take(reference_output, candidate_output, certain)
    for reference_output, candidate_output, is_told in list(pairs_of_same_kind(reference_outputs, candidate_outputs)):
        take(reference_output, candidate_output, certain and is_told)
    for reference_output, candidate_output in pairs_of_same_place(reference_outputs, candidate_outputs):
        take(reference_output, candidate_output, certain)


def pairs_of_same_place(reference: Sequence[TensorRef], candidate: Sequence[TensorRef]) -> list[TensorPair]:
    """Return the tensors that stand at the same place in the container of their call."""
    at_path = {tensor.site.path: tensor for tensor in candidate}
    return [(tensor, at_path[tensor.site.path]) for tensor in reference if tensor.site.path in at_path]


def pairs_of_same_content(reference: Iterable[TensorRef], candidate: Iterable[TensorRef]) -> list[TensorPair]:
    """Return the tensors of the same digest, where only one on each side has it."""
    partners = _by_unique_digest(candidate)
    unique = _by_unique_digest(reference)
    return [(tensor, partners[digest]) for digest, tensor in unique.items() if digest in partners]


def _by_unique_digest(tensors: Iterable[TensorRef]) -> dict[str, TensorRef]:
    of_digest: dict[str, list[TensorRef]] = {}
    for tensor in tensors:
        if tensor.trace.digest:
            of_digest.setdefault(tensor.trace.digest, []).append(tensor)
    return {digest: group[0] for digest, group in of_digest.items() if len(group) == 1}


def pairs_of_same_kind(
    reference: Iterable[TensorRef], candidate: Iterable[TensorRef]
) -> Iterator[tuple[TensorRef, TensorRef, bool]]:
    """Yield the tensors of one call that belong together by content, dtype and shape, and whether that is certain.

    Those of one kind are paired in their order, which is a guess where one side has more of them.
    """
    reference_left, candidate_left = list(reference), list(candidate)
    for key in (_shape_and_dtype, _shape):
        for kind in dict.fromkeys(map(key, reference_left)):
            reference_group = [tensor for tensor in reference_left if key(tensor) == kind]
            candidate_group = [tensor for tensor in candidate_left if key(tensor) == kind]
            pairs = pairs_of_same_content(reference_group, candidate_group)
            for reference_tensor, candidate_tensor in pairs:
                reference_group.remove(reference_tensor)
                candidate_group.remove(candidate_tensor)
                yield reference_tensor, candidate_tensor, True
            in_order = list(zip(reference_group, candidate_group, strict=False))
            for reference_tensor, candidate_tensor in in_order:
                yield reference_tensor, candidate_tensor, len(reference_group) == len(candidate_group)
            for reference_tensor, candidate_tensor in (*pairs, *in_order):
                reference_left.remove(reference_tensor)
                candidate_left.remove(candidate_tensor)


def _shape_and_dtype(tensor: TensorRef) -> Hashable:
    return tensor.shape, tensor.dtype


def _shape(tensor: TensorRef) -> Hashable:
    return tensor.shape


def pair_in_other_containers(draft: Draft, spelling: Spelling, mapped_tensors: Container[str]) -> None:
    """Pair what calls of one name return, and were given, in different containers."""
    candidate_calls = _group_by_call(draft.candidate, spelling.of_candidate)
    for key, reference_tensors in _group_by_call(draft.reference, spelling.of_reference).items():
        candidate_tensors = candidate_calls.get(key, [])
        if not (_are_of_one_call(reference_tensors) and _are_of_one_call(candidate_tensors)):
            continue
        _unpair_misplaced(draft, reference_tensors, candidate_tensors, mapped_tensors)
        reference_free = [tensor for tensor in reference_tensors if tensor.name in draft.free_reference]
        candidate_free = [tensor for tensor in candidate_tensors if tensor.name in draft.free_candidate]
        only_outputs = len(reference_tensors) == len(candidate_tensors) == 1
        if only_outputs and reference_free and candidate_free and reference_free[0].site.slot is Slot.OUTPUT:
            draft.pair(reference_free[0].name, candidate_free[0].name, Method.NAME)  # whatever their shapes
            continue
        for reference_tensor, candidate_tensor, certain in pairs_of_same_kind(reference_free, candidate_free):
            draft.pair(reference_tensor.name, candidate_tensor.name, Method.NAME, certain)


def _group_by_call(tensors: Tensors, spell: Callable[[str], str]) -> dict[str, list[TensorRef]]:
    """Return the inputs and outputs of calls, without plain values, by call and slot."""
    groups: dict[str, list[TensorRef]] = {}
    for name, tensor in tensors.items():
        if tensor.site.slot in (Slot.OUTPUT, Slot.INPUT) and tensor.trace.digest:
            key = spell(f"{name.partition(':')[0]}:{tensor.site.slot}")
            groups.setdefault(key, []).append(tensor)
    return groups


def _are_of_one_call(tensors: Iterable[TensorRef]) -> bool:
    return len({(tensor.site.module, tensor.site.call) for tensor in tensors}) == 1


def _unpair_misplaced(
    draft: Draft, reference: Sequence[TensorRef], candidate: Sequence[TensorRef], mapped_tensors: Container[str]
) -> None:
    """Free pairs of one place and different shapes, where a tensor in another place has the shape.

    Not those of the model itself, where everybody sees in which place it returns what, nor those the user mapped.
    """
    candidate_named = {tensor.name: tensor for tensor in candidate}
    counts = Counter(map(_shape_and_dtype, reference))
    candidate_counts = Counter(map(_shape_and_dtype, candidate))
    alone = {kind for kind, count in counts.items() if count == candidate_counts[kind] == 1}
    misplaced: list[str] = []
    for tensor in reference:
        match = draft.matches.get(tensor.name)
        if match is None or match.method not in _BY_NAME or tensor.name in mapped_tensors or not tensor.site.module:
            continue
        partner = candidate_named.get(match.candidate)
        if partner is None or partner.shape == tensor.shape:
            continue
        if alone & {_shape_and_dtype(tensor), _shape_and_dtype(partner)}:
            misplaced.append(tensor.name)
    if misplaced:
        draft.unpair(misplaced)
