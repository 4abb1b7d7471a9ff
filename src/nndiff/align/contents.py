"""What free tensors hold: each is hashed once, and only if its size lets it fit something of the other side."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np

from nndiff.align.alignment import Draft
from nndiff.stats.content_hashes import ContentHash, Rounding, hash_content, is_constant, sample_values
from nndiff.tensors import TensorRef

_FEWEST_VALUES = 12  # n numbers of k values agree by chance as often as n ** -((k - 1) / 2), below 1e-6 from n = 16 on

Hashes = dict[str, ContentHash]  # by name, of one side


class Contents:
    """Hash tensors, each once for each type that it is rounded to."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Rounding], ContentHash] = {}
        self._constant: dict[int, bool] = {}
        self._varied: dict[int, bool] = {}

    def hash_tensor(self, tensor: TensorRef, rounding: Rounding = Rounding.NOTHING) -> ContentHash:
        """Return the hash of a tensor that can be read."""
        key = id(tensor), rounding
        if key not in self._known:
            self._known[key] = hash_content(tensor, rounding)
        return self._known[key]

    def hash_tensors(self, tensors: Iterable[TensorRef], rounding: Rounding = Rounding.NOTHING) -> Hashes:
        """Return the hashes of tensors by name."""
        return {tensor.name: self.hash_tensor(tensor, rounding) for tensor in tensors}

    def are_equal(self, tensor: TensorRef, partner: TensorRef) -> bool:
        """Return True if two tensors can be read and hold the same values in the same order."""
        if tensor.missing or partner.missing or tensor.count != partner.count:
            return False
        return self.hash_tensor(tensor) == self.hash_tensor(partner)

    def is_telling(self, tensor: TensorRef) -> bool:
        """Return False for single elements and constants, which are equal by chance."""
        if id(tensor) not in self._constant:
            self._constant[id(tensor)] = is_constant(tensor, self.hash_tensor(tensor))
        return not self._constant[id(tensor)]

    def is_varied(self, tensor: TensorRef) -> bool:
        """Return False if so few values make up a tensor that another may hold them as often by chance: a mask."""
        if id(tensor) not in self._varied:
            sample = sample_values(tensor)
            fewest = max(2, min(_FEWEST_VALUES, sample.size))
            self._varied[id(tensor)] = len(np.unique(sample)) >= fewest
        return self._varied[id(tensor)]


def list_readable(draft: Draft, is_candidate: bool) -> list[TensorRef]:
    """Return the free tensors of a side that have elements to read."""
    return [tensor for tensor in draft.free_tensors(is_candidate) if tensor.count and not tensor.missing]


def keep_fitting(tensors: Sequence[TensorRef], partners: Sequence[TensorRef]) -> list[TensorRef]:
    """Return the tensors whose sizes let them be one of the partners, hold several of them, or be a part of one."""
    counts = {tensor.count for tensor in partners}
    wholes = _possible_wholes(tensors, partners)
    largest_partner = max(_possible_wholes(partners, tensors), default=0)
    fitting = []
    for tensor in tensors:
        if tensor.count in counts or tensor.count in wholes or tensor.count < largest_partner:
            fitting.append(tensor)
    return fitting


def _possible_wholes(tensors: Sequence[TensorRef], parts: Sequence[TensorRef]) -> set[int]:
    """Return the sizes of tensors that two or more parts could make up."""
    part_counts = sorted(part.count for part in parts)
    wholes = set()
    for count in {tensor.count for tensor in tensors}:
        smaller = part_counts[: bisect_left(part_counts, count)]
        if len(smaller) > 1 and sum(smaller) >= count:
            wholes.add(count)
    return wholes
