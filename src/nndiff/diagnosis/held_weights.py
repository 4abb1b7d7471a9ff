"""The parameters and buffers that two models held when they began, as far as their elements are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nndiff.recording.format.weights import HeldTensor
from nndiff.tensors import Slot, TensorRef


@dataclass(frozen=True)
class HeldWeights:
    """Hold the parameters and buffers of both models by name, and those that differ and cannot be read by module."""

    reference: Mapping[str, TensorRef]
    candidate: Mapping[str, TensorRef]
    unread: Mapping[str, frozenset[str]]  # by the candidate's modules

    def pair(self, module: str, candidate_module: str) -> dict[str, tuple[TensorRef | None, TensorRef | None]]:
        """Return what two modules hold themselves, by local name; None where one has none."""
        ours, theirs = _list_own(self.reference, module), _list_own(self.candidate, candidate_module)
        return {name: (ours.get(name), theirs.get(name)) for name in dict.fromkeys([*ours, *theirs])}


def read_held_weights(
    references: Mapping[str, TensorRef],
    candidates: Mapping[str, TensorRef],
    digests: Mapping[str, HeldTensor],
    partners: Mapping[str, str],
) -> HeldWeights:
    """Return what two models held, given their tensors, and which module of the reference each of the candidate's is.

    Of what the reference's recording holds the digest alone, the candidate has the elements, if they are equal.
    """
    ours, theirs = _list_held(references), _list_held(candidates)
    unread: dict[str, frozenset[str]] = {}
    kept = {tensor.trace.digest: tensor for tensor in theirs.values()}
    for candidate_name, tensor in list(theirs.items()):
        module = partners.get(tensor.site.module)
        if module is None:
            continue
        site = replace(tensor.site, module=module)
        name = f"{module}.{site.tensor}".lstrip(".")
        if name in ours:
            continue
        held = digests.get(name)
        equal = kept.get(held.digest) if held is not None else None
        if held and equal and (held.dtype, held.shape) == (equal.dtype.name, equal.shape):
            ours[name] = replace(equal, name=site.name, site=site)
        elif held is not None or not digests:
            del theirs[candidate_name]  # nothing can be tried with one side alone
            names = {site.tensor} if held is not None else set()
            unread[tensor.site.module] = unread.get(tensor.site.module, frozenset()) | names
    return HeldWeights(ours, theirs, unread)


def _list_held(tensors: Mapping[str, TensorRef]) -> dict[str, TensorRef]:
    """Return the parameters and buffers a model began with, by name, whose elements were kept."""
    held = {}
    for tensor in tensors.values():
        if tensor.site.slot in (Slot.PARAM, Slot.BUFFER_BEFORE) and not tensor.missing:
            held[f"{tensor.site.module}.{tensor.site.tensor}".lstrip(".")] = tensor
    return held


def _list_own(tensors: Mapping[str, TensorRef], module: str) -> dict[str, TensorRef]:
    return {tensor.site.tensor: tensor for tensor in tensors.values() if tensor.site.module == module}
