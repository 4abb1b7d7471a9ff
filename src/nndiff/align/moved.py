"""Tensors paired by name or place that hold what another name holds on the other side: swapped, shifted, misordered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nndiff.align.contents import Contents, Hashes
from nndiff.tensors import TensorRef


@dataclass(frozen=True)
class Moved:
    """Say that the values of one of the reference's tensors are in one of the candidate's of another name."""

    reference_name: str
    partner_name: str  # the candidate's tensor that it is paired with
    candidate_name: str  # the one that holds its values


def find_moved(pairs: Sequence[tuple[TensorRef, TensorRef]]) -> list[Moved]:
    """Return the tensors of pairs that differ whose values, in any order, are in another of these pairs.

    Tensors of few values, and values that several tensors of a side hold, show nothing.
    """
    contents = Contents()
    counts = Counter(tensor.count for tensor, _ in pairs)
    partner_counts = Counter(partner.count for _, partner in pairs)
    hashes: tuple[Hashes, Hashes] = ({}, {})
    for pair in pairs:
        for side, tensor in enumerate(pair):
            fits = (partner_counts, counts)[side][tensor.count] > (pair[0].count == pair[1].count)
            if fits and tensor.count and not tensor.missing and contents.is_varied(tensor):
                hashes[side][tensor.name] = contents.hash_tensor(tensor)
    owners = Counter(content.key for content in hashes[0].values())
    partners: dict[tuple[int, int], list[str]] = {}
    for name, content in hashes[1].items():
        partners.setdefault(content.key, []).append(name)
    name_of = {tensor.name: partner.name for tensor, partner in pairs}
    moved = []
    for name, content in hashes[0].items():
        names = partners.get(content.key, [])
        if owners[content.key] == 1 and len(names) == 1 and names[0] != name_of[name]:
            moved.append(Moved(name, name_of[name], names[0]))
    return moved
