"""Which tensors belong together where a side holds a layer in several: folded norms, adapters, weight norm, packed.

Names only say what to try. The proof decides, on every element.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nndiff.names import made_of, natural_key, strip_wrappers
from nndiff.relations import fold, low_rank, quantised, summed, weight_norm
from nndiff.relations.fold import JOINED
from nndiff.relations.leftovers import RelatedGroup
from nndiff.relations.operations import Arrange
from nndiff.relations.relation import Operation, Prove, Relation
from nndiff.tensors import TensorRef

MOST_NORMS_TRIED = 8  # norms that are tried with a layer, the nearest by name first

Tensors = Mapping[str, TensorRef]

_DOWN = re.compile(r"(.+)\.lora_A(?:\.([^.]+))?\.weight|(.+)\.lora_A(?:\.([^.]+))?")
_NUMBERS = re.compile(r"\d+")
# integers -> scales and zero points beside them
_PACKED = {
    "qweight": (("scales", "qzeros"),),
    "weight_packed": (("weight_scale", "weight_zero_point"),),
    "weight": (
        ("weight_scale", "weight_zero_point"),
        ("weight_scale_inv", "weight_zero_point"),
        ("SCB", "zeros"),
        ("scales", "zeros"),
        ("scale", "zero_point"),
    ),
}
_STATISTICS = ("weight", "bias", "running_mean", "running_var")


@dataclass(frozen=True)
class Group:
    """Hold tensors of both sides that may be one, and what would prove it."""

    reference: tuple[TensorRef, ...]
    candidate: tuple[TensorRef, ...]
    prove: Prove


class Side:
    """Hold the tensors of one side that are in question, and their partners' names."""

    def __init__(self, tensors: Tensors, partners: Mapping[str, str]) -> None:
        self.tensors = tensors
        self.partners = partners
        self.by_bare_name = {strip_wrappers(name): tensor for name, tensor in tensors.items()}

    def get(self, module: str, leaf: str) -> TensorRef | None:
        """Return a tensor of a module."""
        return self.tensors.get(f"{module}.{leaf}" if module else leaf)

    def find_partner(self, name: str, other: Side) -> TensorRef | None:
        """Return the other side's tensor for a name of this one: its partner, or the one of the same name."""
        partner = other.tensors.get(self.partners.get(name, name))
        return other.by_bare_name.get(strip_wrappers(name)) if partner is None else partner


def relate_groups(
    reference: Tensors, candidate: Tensors, pairs: Sequence[tuple[str, str]], atol: float, rtol: float
) -> list[RelatedGroup]:
    """Return the groups that are proven, each tensor in one group at most, norms before several layers excepted."""
    proven: list[RelatedGroup] = []
    taken: set[tuple[int, str]] = set()
    for group in find_groups(reference, candidate, pairs):
        # one norm stands before query, key and value: it may be in several groups, the layers may not
        heads = {(0, group.reference[0].name), (1, group.candidate[0].name)}
        if heads & taken:
            continue
        relation = group.prove(group.reference, group.candidate, atol, rtol)
        if relation is not None:
            taken |= heads
            proven.append(RelatedGroup(group.reference, group.candidate, relation))
    return proven


def find_groups(reference: Tensors, candidate: Tensors, pairs: Sequence[tuple[str, str]]) -> Iterator[Group]:
    """Yield what may belong together, of tensors without a partner and of pairs that differ; several may be wrong."""
    sides = Side(reference, dict(pairs)), Side(candidate, {second: first for first, second in pairs})
    for parts_side, whole_side in ((sides[0], sides[1]), (sides[1], sides[0])):
        on_reference = parts_side is sides[0]
        for find in (find_weight_norms, find_adapters, find_packed, find_batch_norms, find_norms, find_sums):
            for parts, whole, prove in find(parts_side, whole_side):
                yield Group(*((parts, whole) if on_reference else (whole, parts)), prove)


Found = Iterator[tuple[tuple[TensorRef, ...], tuple[TensorRef, ...], Prove]]


def find_weight_norms(side: Side, other: Side) -> Found:
    """Yield sizes and directions of one side with the weight of the other, by the names that torch gives them."""
    roles: dict[str, dict[str, TensorRef]] = {}
    for name, tensor in side.tensors.items():
        module, _, leaf = name.rpartition(".")
        made = made_of(module, leaf)
        if made is not None:
            roles.setdefault(f"{made.module}.{made.weight}".lstrip("."), {})[made.role] = tensor
    for name, tensors in roles.items():
        if set(tensors) != {"g", "v"}:
            continue
        weight = side.find_partner(name, other) or side.find_partner(tensors["v"].name, other)
        if weight is not None:
            yield (tensors["g"], tensors["v"]), (weight,), weight_norm.prove


def find_adapters(side: Side, other: Side) -> Found:
    """Yield a weight with its adapter (A, B) and the merged weight of the other side, by the names that PEFT gives."""
    for name, down in side.tensors.items():
        named = _DOWN.fullmatch(name)
        up = side.tensors.get(name.replace("lora_A", "lora_B")) if named else None
        if named is None or up is None:
            continue
        module = named[1] or named[3]
        for weight_name in (f"{module}.base_layer.weight", f"{module}.weight"):
            weight = side.tensors.get(weight_name)
            if weight is None:
                continue
            for merged_name in (weight_name, f"{module}.weight"):
                merged = side.find_partner(merged_name, other)
                if merged is not None:
                    yield (weight, down, up), (merged,), low_rank.prove_adapter
                    break


def find_packed(side: Side, other: Side) -> Found:
    """Yield packed integers with their scales and the weight of the other side, by the names that quantisers give."""
    for name, integers in side.tensors.items():
        module, _, leaf = name.rpartition(".")
        for scale_leaf, zero_leaf in _PACKED.get(leaf, ()):
            scales = side.get(module, scale_leaf)
            weight = side.find_partner(f"{module}.weight" if module else "weight", other)
            if scales is None or weight is None or integers.dtype == weight.dtype:
                continue
            parts = [integers, scales]
            for optional in (side.get(module, zero_leaf), side.get(module, "g_idx")):
                if optional is None:
                    break
                parts.append(optional)
            yield tuple(parts), (weight,), quantised.prove_packed


def find_batch_norms(side: Side, other: Side) -> Found:
    """Yield layers with the batch norm that may be folded into them, nearest first, and the folded layer."""
    for module in list_modules(side.tensors):
        statistics = [side.get(module, leaf) for leaf in _STATISTICS]
        present = [tensor for tensor in statistics if tensor is not None]
        if len(present) != len(_STATISTICS) or len(present[3].shape) != 1:
            continue
        gamma, beta, mean, variance = present
        for layer in list_nearest(module, list_layers(side.tensors, variance.shape[0])):
            weight, bias = side.get(layer, "weight"), side.get(layer, "bias")
            folded = side.find_partner(weight.name, other) if weight is not None else None
            folded_bias = other.get(folded.name.rpartition(".")[0], "bias") if folded is not None else None
            if weight is None or folded is None or folded_bias is None:
                continue
            own = (weight,) if bias is None else (weight, bias)
            yield (*own, gamma, beta, mean, variance), (folded, folded_bias), fold.prove_batch_norm


def find_norms(side: Side, other: Side) -> Found:
    """Yield layers with the norm that may be folded into them, nearest first, and those of the other side."""
    norms: dict[int, dict[str, TensorRef]] = {}
    for name, tensor in side.tensors.items():
        module, _, leaf = name.rpartition(".")
        if len(tensor.shape) == 1 and leaf in ("weight", "scale", "gamma"):
            norms.setdefault(tensor.count, {})[module] = tensor
    for name, weight in side.tensors.items():
        folded = side.find_partner(name, other) if len(weight.shape) == 2 else None
        if folded is None or folded.shape != weight.shape or not fold.may_hold_norm(weight, folded):
            continue
        fitting = {**norms.get(weight.shape[0], {}), **norms.get(weight.shape[1], {})}
        for module in list_nearest(name.rpartition(".")[0], fitting):
            gamma = fitting[module]
            other_gamma = side.find_partner(gamma.name, other)
            whole = (folded,) if other_gamma is None else (folded, other_gamma)
            yield (weight, gamma), whole, fold.prove_norm


def find_sums(side: Side, other: Side) -> Found:
    """Yield both biases of recurrent layers, by the names that torch gives them, and what may be their sum."""
    for name, bias in side.tensors.items():
        second = side.tensors.get(name.replace("bias_ih", "bias_hh")) if "bias_ih" in name else None
        for whole in other.tensors.values() if second is not None else ():
            if second is not None and whole.shape == bias.shape:
                yield (bias, second), (whole,), summed.prove


def list_modules(tensors: Tensors) -> list[str]:
    """Return the modules of some tensors, in natural order."""
    return sorted({name.rpartition(".")[0] for name in tensors}, key=natural_key)


def list_layers(tensors: Tensors, channels: int) -> list[str]:
    """Return the modules whose weight has two axes or more and may have so many outputs."""
    layers = []
    for name, tensor in tensors.items():
        module, _, leaf = name.rpartition(".")
        if leaf == "weight" and len(tensor.shape) > 1 and channels in tensor.shape[:2]:
            layers.append(module)
    return layers


def list_nearest(module: str, others: Iterable[str]) -> list[str]:
    """Return the modules nearest to one: by their path, by the numbers in it, and in natural order."""
    ordered = sorted({module, *others}, key=natural_key)
    own = ordered.index(module)
    distances: dict[str, tuple[int, bool, int]] = {}
    for place, other in enumerate(ordered):
        shared = 0
        for first, second in zip(module.split("."), other.split("."), strict=False):
            if first != second:
                break
            shared += 1
        distances[other] = -shared, _NUMBERS.findall(module) != _NUMBERS.findall(other), abs(place - own)
    del distances[module]
    return sorted(distances, key=distances.__getitem__)[:MOST_NORMS_TRIED]


def split_targets(relation: Relation, count: int) -> tuple[tuple[Operation, ...], ...] | None:
    """Return the reference's operations for each of the candidate's tensors, where those are only joined; else None.

    A conversion writes one tensor at a time: weight and bias of a folded batch norm, each with operations of its own.
    """
    if count == 1 and not relation.candidate:
        return (relation.reference,)
    if relation.candidate != JOINED or relation.reference[-len(JOINED) :] != JOINED:
        return None
    return tuple((*relation.reference[: -len(JOINED)], Arrange((number,))) for number in range(count))
