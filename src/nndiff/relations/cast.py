"""Cast: one side is the other rounded to a shorter float type, even where it was stored in a wider one again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from nndiff.relations.along import LEAST_EVIDENCE, read_parting_first, read_row_blocks
from nndiff.relations.relation import Operation, Relation
from nndiff.relations.rounding import FORMATS, round_numbers
from nndiff.relations.value_operations import Round
from nndiff.tensors import TensorRef
from nndiff.verdict import RelationKind

# What checkpoints are rounded to, the last of each by way of those before it.
CHAINS: tuple[tuple[str, ...], ...] = (
    ("float32",),
    ("bfloat16",),
    ("float16",),
    ("float32", "bfloat16"),
    ("float32", "float16"),
    ("bfloat16", "float16"),
    ("float16", "bfloat16"),
    ("float8_e4m3fn",),
    ("float8_e5m2",),
    ("bfloat16", "float8_e4m3fn"),
    ("bfloat16", "float8_e5m2"),
    ("float16", "float8_e4m3fn"),
    ("float16", "float8_e5m2"),
)


def prove(
    reference: Sequence[TensorRef],
    candidate: Sequence[TensorRef],
    atol: float,
    rtol: float,
    hints: Sequence[Relation] = (),
) -> Relation | None:
    """Return to which type one side was rounded to give the very values of the other; tolerances take no part."""
    if len(reference) != 1 or len(candidate) != 1 or reference[0].shape != candidate[0].shape:
        return None
    if not all(is_rounded_float(tensor) for tensor in (*reference, *candidate)):
        return None
    known = {hint for hint in hints if hint.kind is RelationKind.CAST}
    for finer, coarser, finer_is_reference in (
        (reference[0], candidate[0], True),
        (candidate[0], reference[0], False),
    ):
        chain = find_chain(finer, coarser)
        operations: tuple[Operation, ...] = tuple(Round(dtype) for dtype in chain)
        relation = Relation(RelationKind.CAST, *((operations, ()) if finer_is_reference else ((), operations)))
        if chain and (chain[-1] == coarser.dtype.name or relation in known or is_telling(coarser, chain[-1])):
            return relation
    return None


def is_telling(rounded: TensorRef, dtype: str) -> bool:
    """Return True if the elements vary enough: a weight of ones is what any weight near one is rounded to."""
    first = None
    varying = 0
    for _, block in read_row_blocks(rounded):
        finite = block[np.isfinite(block)]
        if first is None and finite.size:
            first = finite[0]
        varying += int(np.count_nonzero(finite != first))
        if varying * FORMATS[dtype].digits >= LEAST_EVIDENCE:
            return True
    return False


def is_rounded_float(tensor: TensorRef) -> bool:
    """Return True if a tensor has elements, of a float type whose rounding is known."""
    return tensor.count > 0 and not tensor.missing and tensor.dtype.name in FORMATS


def find_chain(finer: TensorRef, coarser: TensorRef) -> tuple[str, ...]:
    """Return the types that one tensor was rounded to, in turn, to give the other; () if nothing does, or nothing must.

    A chain that rounds nothing away is no cast: the elements of both sides would be equal.
    """
    chains = [chain for chain in CHAINS if fits_types(chain, finer, coarser)]
    are_equal = True
    for _, finer_block, coarser_block in read_parting_first(finer, coarser):
        are_equal = False
        kept = []
        for chain in chains:
            rounded = finer_block
            for dtype in chain:
                rounded = round_numbers(rounded, dtype)
            if np.array_equal(rounded, coarser_block, equal_nan=True):
                kept.append(chain)
        chains = kept
        if not chains:
            return ()
    return () if are_equal else chains[0]


def fits_types(chain: Sequence[str], finer: TensorRef, coarser: TensorRef) -> bool:
    """Return True if each step loses digits or range, and the stored type has all digits of the last."""
    formats = [FORMATS[dtype] for dtype in (finer.dtype.name, *chain)]
    loses = all(after.digits < before.digits or after.least > before.least for before, after in pairwise(formats))
    return loses and formats[-1].digits <= FORMATS[coarser.dtype.name].digits
