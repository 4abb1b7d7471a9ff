"""Relations: operations that make two tensors, or groups of tensors, one; each proven on every element."""

from __future__ import annotations

from collections.abc import Sequence

from nndiff.relations import (
    cast,
    fused,
    layout,
    mask,
    order,
    repeated,
    rounded,
    scale,
    shift,
    summed,
    vocab,
    weight_norm,
)
from nndiff.relations.forms import Form, LayoutForm, describe_layout
from nndiff.relations.fused import cut_part, natural_parts, relate_parts
from nndiff.relations.groups import relate_groups, split_targets
from nndiff.relations.inversion import invert_operations
from nndiff.relations.layout import is_rearrangement
from nndiff.relations.leftovers import RelatedGroup, RelatedLeftovers, measure_related, relate_leftovers
from nndiff.relations.proof import are_too_large, are_too_large_to_move, is_readable
from nndiff.relations.relation import Operation, Prove, Relation
from nndiff.relations.scale import read_factor
from nndiff.relations.stored import load_relation
from nndiff.relations.tied import prove_tied, shares_storage
from nndiff.relations.weight_norm import prove_gradient
from nndiff.tensors import TensorRef

__all__ = [
    "FAMILIES",
    "STORED_FAMILIES",
    "Form",
    "LayoutForm",
    "Operation",
    "Prove",
    "RelatedGroup",
    "RelatedLeftovers",
    "Relation",
    "are_too_large",
    "are_too_large_to_move",
    "cut_part",
    "describe_layout",
    "invert_operations",
    "is_readable",
    "is_rearrangement",
    "load_relation",
    "measure_related",
    "natural_parts",
    "prove",
    "prove_gradient",
    "prove_tied",
    "read_factor",
    "relate_groups",
    "relate_leftovers",
    "relate_parts",
    "shares_storage",
    "split_targets",
]

# From sure to vague: the first that is proven is the relation.
FAMILIES: tuple[Prove, ...] = (
    mask.prove,
    layout.prove,
    order.prove,
    weight_norm.prove,
    fused.prove,
    summed.prove,
    scale.prove,
)
# Of files, whose weights were not computed: exact where the operation is.
STORED_FAMILIES: tuple[Prove, ...] = (
    cast.prove,
    layout.prove,
    order.prove,
    repeated.prove,
    vocab.prove,
    scale.prove_stored,
    shift.prove,
    weight_norm.prove,
    fused.prove,
    summed.prove,
    rounded.prove,
)


def prove(
    reference: TensorRef | Sequence[TensorRef],
    candidate: TensorRef | Sequence[TensorRef],
    atol: float,
    rtol: float,
    hints: Sequence[Relation] = (),
    families: Sequence[Prove] = FAMILIES,
) -> Relation | None:
    """Return the relation between two tensors, or several and one, proven on every element at that tolerance.

    None means that none was found, or that none is needed because they agree as they are. Hints are relations proven
    for tensors of the same shapes or the same layer; they decide where constant elements cannot.
    """
    reference = (reference,) if isinstance(reference, TensorRef) else reference
    candidate = (candidate,) if isinstance(candidate, TensorRef) else candidate
    for prove_family in families:
        relation = prove_family(reference, candidate, atol, rtol, hints)
        if relation is not None:
            return relation
    return None
