"""Did you mean: for a tensor without a partner, the leftover of the other side it may belong to."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Mapping

from nndiff.tensors import TensorRef

_MOST_HINTED = 200  # close names are searched for so many; the rest are listed without
_MOST_SEARCHED = 2000

# from the leftovers of a side, those of the other side, and the paired tensors of its own: {name: hint or ""}
Suggest = Callable[[Mapping[str, TensorRef], Mapping[str, TensorRef], Mapping[str, TensorRef]], dict[str, str]]


def name_hints(
    left: Mapping[str, TensorRef], others: Mapping[str, TensorRef], paired: Mapping[str, TensorRef]
) -> dict[str, str]:
    """Return hints for the leftovers of a checkpoint: names that are close, shapes that are alone, tied weights."""
    return {**_close_ones(left, others), **_ties(left, paired)}


def site_hints(
    left: Mapping[str, TensorRef], others: Mapping[str, TensorRef], paired: Mapping[str, TensorRef]
) -> dict[str, str]:
    """Return hints for the leftovers of a recording, few: its names are many, alike, and seldom mistyped.

    An output that is a paired one over again (a wrapper, an Identity, dropout at rest) says so. What would
    count as a difference may have been meant for one of its own kind, shape and nearly its name.
    """
    return {**dict.fromkeys(left, ""), **_over_again(left, paired), **_mistyped(left, others)}


def _over_again(left: Mapping[str, TensorRef], paired: Mapping[str, TensorRef]) -> dict[str, str]:
    outputs = {tensor.trace.digest: name for name, tensor in paired.items() if tensor.site.slot == "output"}
    digests = {name: each.trace.digest for name, each in left.items() if _digest_of_output(each)}
    return {
        name: f"the same values as {outputs[digest]!r}, which is paired"
        for name, digest in digests.items()
        if digest in outputs
    }


def _digest_of_output(tensor: TensorRef) -> str | None:
    return tensor.trace.digest if tensor.site.slot == "output" else None


_NAMED = ("param", "param_grad", "buffer", "buffer_before")


def _mistyped(left: Mapping[str, TensorRef], others: Mapping[str, TensorRef]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in [name for name, tensor in left.items() if tensor.site.slot in _NAMED][:_MOST_HINTED]:
        kind = left[name].site.slot, left[name].shape
        pool = [each for each, other in others.items() if (other.site.slot, other.shape) == kind]
        close = difflib.get_close_matches(name, pool[:_MOST_SEARCHED], 1, 0.75)
        if close:
            found[name] = f"did you mean {close[0]!r}?"
    return found


def _close_ones(left: Mapping[str, TensorRef], others: Mapping[str, TensorRef]) -> dict[str, str]:
    """Return {name: hint} for every leftover; an empty hint where nothing is near."""
    unique = _by_unique_shape(others)
    mine = Counter(tensor.shape for tensor in left.values())
    pool = list(others)[:_MOST_SEARCHED]
    found: dict[str, str] = {}
    for number, (name, tensor) in enumerate(left.items()):
        close = difflib.get_close_matches(name, pool, 1, 0.75) if number < _MOST_HINTED else []
        if close:
            found[name] = _close(close[0], tensor, others[close[0]])
        elif tensor.shape and tensor.shape in unique and mine[tensor.shape] == 1:
            found[name] = f"{unique[tensor.shape]!r} is the only other one of its shape"
        else:
            found[name] = ""
    return found


def _ties(left: Mapping[str, TensorRef], paired: Mapping[str, TensorRef]) -> dict[str, str]:
    """Return a hint for every leftover that is a paired tensor under a second name: tied weights."""
    owners = {_memory(tensor): name for name, tensor in paired.items() if tensor.storage_id is not None}
    found = {name: owners.get(_memory(tensor)) for name, tensor in left.items() if tensor.storage_id is not None}
    return {
        name: f"tied: it shares its storage with {owner!r}, which is paired" for name, owner in found.items() if owner
    }


def _memory(tensor: TensorRef) -> tuple[object, tuple[int, ...]]:
    return tensor.storage_id, tensor.shape


def _close(name: str, tensor: TensorRef, other: TensorRef) -> str:
    shape = "" if tensor.shape == other.shape else f" (of shape {list(other.shape)})"
    return f"did you mean {name!r}?{shape}"


def _by_unique_shape(tensors: Mapping[str, TensorRef]) -> dict[tuple[int, ...], str]:
    counts = Counter(tensor.shape for tensor in tensors.values())
    return {tensor.shape: name for name, tensor in tensors.items() if counts[tensor.shape] == 1}
