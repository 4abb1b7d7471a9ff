"""Did you mean: for a tensor without a partner, the leftover of the other side it may belong to."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping

from nndiff.tensors import TensorRef

_MOST_HINTED = 200  # close names are searched for so many; the rest are listed without
_MOST_SEARCHED = 2000


def hints(left: Mapping[str, TensorRef], others: Mapping[str, TensorRef]) -> dict[str, str]:
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


def ties(left: Mapping[str, TensorRef], everything: Mapping[str, TensorRef], paired: set[str]) -> dict[str, str]:
    """Return a hint for every leftover that is a paired tensor under a second name: tied weights."""
    owners = {_memory(everything[name]): name for name in paired if everything[name].storage_id is not None}
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
