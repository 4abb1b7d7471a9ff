"""Tensors paired by name or place that hold what another name holds on the other side: swapped, shifted, misordered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nndiff.align.contents import Contents, Hashes
from nndiff.stats.content_hashes import Rounding, find_roundings
from nndiff.tensors import TensorRef


@dataclass(frozen=True)
class Moved:
    """Say that the values of one of the reference's tensors are in one of the candidate's of another name."""

    reference_name: str
    partner_name: str  # the candidate's tensor that it is paired with; its own name if it has no partner
    candidate_name: str  # the one that holds its values


def find_moved(pairs: Sequence[tuple[TensorRef, TensorRef]], left: Sequence[TensorRef] = ()) -> list[Moved]:
    """Return the tensors of pairs that differ whose values, in any order, are in another of these pairs.

    `left` are tensors of the reference without a partner, whose values may be there too. Tensors of few values, and
    values that several tensors of a side hold, show nothing.
    """
    contents = Contents()
    counts = Counter(tensor.count for tensor in (*(tensor for tensor, _ in pairs), *left))
    partner_counts = Counter(partner.count for _, partner in pairs)
    sides: tuple[list[TensorRef], list[TensorRef]] = ([], [])
    for pair in pairs:
        for side, tensor in enumerate(pair):
            fits = (partner_counts, counts)[side][tensor.count] > (pair[0].count == pair[1].count)
            if fits and tensor.count and not tensor.missing and contents.is_varied(tensor):
                sides[side].append(tensor)
    for tensor in left:
        if partner_counts[tensor.count] and not tensor.missing and contents.is_varied(tensor):
            sides[0].append(tensor)
    name_of = {tensor.name: partner.name for tensor, partner in pairs}
    moved: dict[str, Moved] = {}
    for rounded_side, rounding in list_roundings(sides):
        hashes: list[Hashes] = []
        for side, tensors in enumerate(sides):
            hashes.append(contents.hash_tensors(tensors, rounding if side == rounded_side else Rounding.NOTHING))
        owners = Counter(content.key for content in hashes[0].values())
        partners: dict[tuple[int, int], list[str]] = {}
        for name, content in hashes[1].items():
            partners.setdefault(content.key, []).append(name)
        for name, content in hashes[0].items():
            names = partners.get(content.key, [])
            if owners[content.key] == 1 and len(names) == 1 and names[0] != name_of.get(name):
                moved.setdefault(name, Moved(name, name_of.get(name, name), names[0]))
    return list(moved.values())


def list_roundings(sides: tuple[Sequence[TensorRef], Sequence[TensorRef]]) -> list[tuple[int, Rounding]]:
    """Return which side is to be rounded to what before values are compared: to the types that the other one has."""
    types: list[set[Rounding]] = []
    for tensors in sides:
        types.append({rounding for tensor in tensors for rounding in find_roundings(tensor)})
    choices = [(0, Rounding.NOTHING)]
    for side in (0, 1):
        choices += [(side, rounding) for rounding in sorted(types[1 - side] - types[side])]
    return choices
