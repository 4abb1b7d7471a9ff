"""Stored relations, which may be hostile: how they are read back."""

from __future__ import annotations

from typing import Any

from nndiff.errors import ReportError
from nndiff.relations.fold_operations import FOLD_OPERATIONS
from nndiff.relations.operations import MOST_OPERATIONS, OPERATIONS, Fields, describe_value
from nndiff.relations.packed import PACKED_OPERATIONS
from nndiff.relations.relation import Operation, Relation
from nndiff.relations.value_operations import VALUE_OPERATIONS
from nndiff.verdict import RelationKind

ALL_OPERATIONS: tuple[Any, ...] = (*OPERATIONS, *VALUE_OPERATIONS, *FOLD_OPERATIONS, *PACKED_OPERATIONS)


def load_relation(data: object) -> Relation:
    """Return a stored relation; raise ReportError for anything that nndiff would not have stored."""
    if not isinstance(data, dict):
        raise ReportError(f"a stored relation is damaged: it is a {type(data).__name__}, expected an object")
    kinds = {kind.value: kind for kind in RelationKind}
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise ReportError(f"a stored relation is of the unknown kind {describe_value(kind)}")
    sides: list[tuple[Operation, ...]] = []
    for side in ("reference", "candidate"):
        operations = data.get(side)
        if not isinstance(operations, list) or len(operations) > MOST_OPERATIONS:
            raise ReportError(
                f"a stored relation is damaged: {side!r} is no list of at most {MOST_OPERATIONS} operations"
            )
        sides.append(tuple(_load_operation(stored) for stored in operations))
    ambiguous = data.get("ambiguous", False)
    if not isinstance(ambiguous, bool):
        raise ReportError(f"a stored relation is damaged: 'ambiguous' is {describe_value(ambiguous)}, expected a bool")
    return Relation(kinds[kind], *sides, ambiguous=ambiguous)


def _load_operation(stored: object) -> Operation:
    classes = {operation.op: operation for operation in ALL_OPERATIONS}
    op = stored.get("op") if isinstance(stored, dict) else None
    if not isinstance(stored, dict) or not isinstance(op, str) or op not in classes:
        raise ReportError(f"a stored relation has the unknown operation {describe_value(op)}")
    operation: Operation = classes[op].load(Fields(op, stored))
    return operation
