"""Hints for tensors without a partner: what may have been meant, and what they are a copy of."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping

from nndiff.align.alignment import Draft, Hint
from nndiff.tensors import Shape, Slot, TensorRef

_MOST_HINTED = 200  # close names are searched for so many; the rest are listed without
_MOST_SEARCHED = 2000  # names among which a close one is searched for; comparing texts is slow
_CLOSE = 0.75  # share of letters two names have in common: a typo, not another layer


def file_hints(draft: Draft, is_candidate: bool) -> dict[str, Hint]:
    """Return a hint for every leftover of a file: close names, shapes that stand alone, tied weights."""
    tensors, partners = draft.tensors_of(is_candidate), draft.tensors_of(not is_candidate)
    leftovers = {name: tensors[name] for name in draft.free_names(is_candidate)}
    other_leftovers = {name: partners[name] for name in draft.free_names(not is_candidate)}
    tied = _find_tied(leftovers, draft.paired_tensors(is_candidate))
    names_to_search = list(other_leftovers)[:_MOST_SEARCHED]
    alone_in_shape = _names_alone_in_shape(leftovers)
    other_alone_in_shape = _names_alone_in_shape(other_leftovers)
    hints: dict[str, Hint] = {}
    for number, (name, tensor) in enumerate(leftovers.items()):
        close = difflib.get_close_matches(name, names_to_search, 1, _CLOSE) if number < _MOST_HINTED else []
        if name in tied:
            hints[name] = Hint(same_as=tied[name])
        elif close:
            close_shape = other_leftovers[close[0]].shape
            hints[name] = Hint(close[0], close_shape if close_shape != tensor.shape else None)
        elif tensor.shape and tensor.shape in alone_in_shape:
            hints[name] = Hint(other_alone_in_shape.get(tensor.shape, ""))
        else:
            hints[name] = Hint()
    return hints


def recording_hints(draft: Draft, is_candidate: bool) -> dict[str, Hint]:
    """Return a hint for every leftover of a recording, most of them empty: its names are many and seldom mistyped.

    An output that repeats a paired one (a wrapper, an Identity, dropout at rest) says so. A parameter or buffer may
    have been meant for one of its own kind, shape and nearly its name.
    """
    tensors, partners = draft.tensors_of(is_candidate), draft.tensors_of(not is_candidate)
    leftovers = {name: tensors[name] for name in draft.free_names(is_candidate)}
    paired = draft.paired_tensors(is_candidate)
    same_as = _find_repeated_outputs(leftovers, paired) | _find_tied(leftovers, paired)
    names_of_kind: dict[tuple[Slot, Shape], list[str]] = {}
    for name in draft.free_names(not is_candidate):
        names_of_kind.setdefault((partners[name].site.slot, partners[name].shape), []).append(name)
    hints: dict[str, Hint] = {}
    searched = 0
    for name, tensor in leftovers.items():
        slot = tensor.site.slot
        hints[name] = Hint(same_as=same_as.get(name, ""))
        if (slot.is_parameter or slot.is_buffer) and searched < _MOST_HINTED and name not in same_as:
            searched += 1
            names_to_search = names_of_kind.get((slot, tensor.shape), [])[:_MOST_SEARCHED]
            close = difflib.get_close_matches(name, names_to_search, 1, _CLOSE)
            hints[name] = Hint(close[0]) if close else Hint()
    return hints


def _find_repeated_outputs(leftovers: Mapping[str, TensorRef], paired: Mapping[str, TensorRef]) -> dict[str, str]:
    """Return the paired output of the same content for every leftover output that has one."""
    outputs = {tensor.trace.digest: name for name, tensor in paired.items() if tensor.site.slot is Slot.OUTPUT}
    repeated: dict[str, str] = {}
    for name, tensor in leftovers.items():
        if tensor.site.slot is Slot.OUTPUT and tensor.trace.digest and tensor.trace.digest in outputs:
            repeated[name] = outputs[tensor.trace.digest]
    return repeated


def _find_tied(leftovers: Mapping[str, TensorRef], paired: Mapping[str, TensorRef]) -> dict[str, str]:
    """Return the paired tensor in the same memory for every leftover that has one: tied weights."""
    owners: dict[tuple[object, Shape], str] = {}
    for name, tensor in paired.items():
        if tensor.storage_id is not None:
            owners[tensor.storage_id, tensor.shape] = name
    tied: dict[str, str] = {}
    for name, tensor in leftovers.items():
        owner = owners.get((tensor.storage_id, tensor.shape))
        if tensor.storage_id is not None and owner is not None:
            tied[name] = owner
    return tied


def _names_alone_in_shape(tensors: Mapping[str, TensorRef]) -> dict[Shape, str]:
    counts = Counter(tensor.shape for tensor in tensors.values())
    return {tensor.shape: name for name, tensor in tensors.items() if counts[tensor.shape] == 1}
