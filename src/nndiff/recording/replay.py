"""Replay: run a model on the reference's tensors, so that every module is tried on inputs that are right."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from nndiff.recording.capture.substitution import Substitution
from nndiff.recording.reader import Recording, open_recording
from nndiff.recording.record import record
from nndiff.tensors import Site, Slot, TensorRef


def replay(
    model: torch.nn.Module,
    inputs: Any = None,
    *,
    reference: str | os.PathLike[str] | Recording,
    partners: Mapping[str, str],
    path: str | os.PathLike[str],
    **options: Any,
) -> Recording:
    """Run a model once, each tensor replaced by the reference's after it was recorded; return the recording.

    `partners` are names of sites, {the model's: the reference's}: inputs and outputs of modules, and gradients at
    outputs. A site without a partner, or whose partner was not kept in full or has another shape or dtype, goes on as
    it is. The metadata say under `replay` which sites hold the reference's bytes. `options` are those of
    `nndiff.record`; inputs of modules and parameters are always kept.
    """
    opened = reference if isinstance(reference, Recording) else open_recording(reference)
    options |= {"params": True, "inputs_kept": True, "keep": "full"}
    return record(model, inputs, path=path, substitution=make_substitution(opened, partners), **options)


def make_substitution(reference: Recording, partners: Mapping[str, str]) -> Substitution:
    """Return the reference's tensors by the model's sites, {the model's: the reference's}."""
    tensors = _TensorFinder(reference)
    found: dict[str, TensorRef] = {}
    for name, partner in partners.items():
        tensor = tensors.find(partner)
        if tensor is not None:
            found[name] = tensor
    return Substitution(found)


class _TensorFinder:
    """Find the tensors of a recording by name, those too that are only linked to what they are."""

    def __init__(self, recording: Recording) -> None:
        self._tensors = recording.source().tensors
        by_order = {tensor.trace.order: tensor for tensor in self._tensors.values()}
        self._linked: dict[str, TensorRef] = {}
        for call in recording.calls:
            for link in call.inputs:
                # a view shows some of the elements, and nobody knows which
                if link.event in by_order and link.how != "view":
                    self._linked[Site(call.module, Slot.INPUT, call.call, link.path).name] = by_order[link.event]

    def find(self, name: str) -> TensorRef | None:
        """Return a tensor that was kept in full; None where there is none."""
        for tensor in (self._tensors.get(name), self._linked.get(name)):
            if tensor is not None and not tensor.missing:
                return tensor
        return None
