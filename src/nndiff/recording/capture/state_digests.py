"""What a model holds when a run begins: a digest of each parameter and buffer, so that weights are known equal."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from nndiff.recording.capture.tensors import raw_tensor
from nndiff.recording.format.digests import measure


def state_digests(model: torch.nn.Module) -> dict[str, dict[str, Any]]:
    """Return dtype, shape and digest of what a model holds, by name; what has no elements to read is left out."""
    known: dict[int, dict[str, Any] | None] = {}  # tied ones are read once
    found: dict[str, dict[str, Any]] = {}
    for name, tensor in itertools.chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    ):
        if id(tensor) not in known:
            known[id(tensor)] = digest_of(tensor)
        digest = known[id(tensor)]
        if digest is not None:
            found[name] = digest
    return found


def digest_of(tensor: torch.Tensor) -> dict[str, Any] | None:
    """Return dtype, shape and digest of a tensor; None where it has no elements that can be read."""
    if is_lazy(tensor) or tensor.is_meta:
        return None
    try:
        raw = raw_tensor(tensor)
    except (RuntimeError, TypeError):
        return None  # tensors of a kind of their own: sharded, packed; what they do is recorded all the same
    return {"dtype": raw.dtype.name, "shape": list(raw.shape), "digest": measure(raw, with_stats=False).digest}
