"""Tied: one tensor under two names."""

from __future__ import annotations

import numpy as np

from nndiff.relations.relation import Relation
from nndiff.tensors import TensorRef
from nndiff.verdict import RelationKind

BLOCK = 1 << 20  # elements read at once
PEEKED = 64  # elements that tell most tensors apart


def prove_tied(leftover: TensorRef, twin: TensorRef) -> Relation | None:
    """Return the relation of two names of one side that hold the same elements, bit by bit.

    Elements that are all alike show nothing, unless both names are known to share one storage.
    """
    if leftover.shape != twin.shape or leftover.dtype != twin.dtype or not leftover.count:
        return None
    tied = Relation(RelationKind.TIED)
    if shares_storage(leftover, twin):
        return tied if leftover.missing or twin.missing or have_equal_bits(leftover, twin)[0] else None
    digest, twin_digest = leftover.trace.digest, twin.trace.digest
    if digest is not None and twin_digest is not None and digest != twin_digest:
        return None
    if leftover.missing or twin.missing:
        stats = leftover.trace.stats
        varies = stats is not None and stats.min < stats.max
        return tied if digest is not None and digest == twin_digest and varies else None
    return tied if have_equal_bits(leftover, twin) == (True, True) else None


def shares_storage(leftover: TensorRef, twin: TensorRef) -> bool:
    """Return True if two names are known to be of one tensor."""
    return leftover.storage_id is not None and leftover.storage_id == twin.storage_id


def have_equal_bits(leftover: TensorRef, twin: TensorRef) -> tuple[bool, bool]:
    """Return whether two tensors hold the same bits, and whether not all of their elements are alike."""
    first = leftover.read(0, 1).tobytes()
    varies = False
    few = min(leftover.count, PEEKED)
    if leftover.read(0, few).tobytes() != twin.read(0, few).tobytes():
        return False, varies
    for start in range(0, leftover.count, BLOCK):
        stop = min(start + BLOCK, leftover.count)
        block, twin_block = leftover.read(start, stop), twin.read(start, stop)
        if block.tobytes() != twin_block.tobytes():
            return False, varies
        rows = np.frombuffer(block.tobytes(), np.uint8).reshape(stop - start, -1)
        varies = varies or bool((rows != np.frombuffer(first, np.uint8)).any())
    return True, varies
