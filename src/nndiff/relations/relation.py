"""What a relation is: operations on either side that bring both sides into one form; applied, printed and stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from nndiff.tensors import TensorRef
from nndiff.verdict import RelationKind

Array = NDArray[Any]

ROUND = "round"  # the name of the operation that rounds to a float type
MOVING = (RelationKind.LAYOUT, RelationKind.VOCAB)  # kinds that leave every value as it is


class Operation(Protocol):
    """Be one step from the tensors of a side to the form in which they are compared; a frozen dataclass."""

    op: ClassVar[str]  # its name in stored relations

    @property
    def text(self) -> str:
        """Return it as a person would write it."""

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it; raise ValueError if it does not fit them."""


@dataclass(frozen=True)
class Relation:
    """Hold the operations that bring the tensors of both sides into one form, in which they agree."""

    kind: RelationKind
    reference: tuple[Operation, ...] = ()
    candidate: tuple[Operation, ...] = ()
    ambiguous: bool = field(default=False, kw_only=True)  # equal rows: other orders agree as well

    @property
    def kinds(self) -> tuple[RelationKind, ...]:
        """Return all that must be accepted: its kind, and cast where elements are not only moved but rounded too.

        What is computed must be rounded to be stored: that is no cast.
        """
        is_rounded = any(operation.op == ROUND for operation in (*self.reference, *self.candidate))
        return (self.kind, RelationKind.CAST) if is_rounded and self.kind in MOVING else (self.kind,)

    def without_rounding(self) -> Relation:
        """Return what is done to elements beside rounding them."""
        reference = tuple(operation for operation in self.reference if operation.op != ROUND)
        candidate = tuple(operation for operation in self.candidate if operation.op != ROUND)
        return replace(self, reference=reference, candidate=candidate)

    @property
    def text(self) -> str:
        """Return the operations as a person would write them: `permute(1, 0)`; those of the candidate go unnamed."""
        on_reference = ", ".join(operation.text for operation in self.reference)
        on_candidate = ", ".join(operation.text for operation in self.candidate)
        if not on_reference:
            return on_candidate or "equal elements"
        return f"reference: {on_reference}" + (f"; candidate: {on_candidate}" if on_candidate else "")

    def apply(self, reference: Sequence[Array], candidate: Sequence[Array]) -> tuple[Array, Array]:
        """Return both sides in one form; raise ValueError if the operations do not fit the arrays."""
        return _apply_operations(self.reference, reference), _apply_operations(self.candidate, candidate)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, from which `load_relation` builds it again."""
        stored: dict[str, Any] = {
            "kind": self.kind.value,
            "reference": [_store_operation(operation) for operation in self.reference],
            "candidate": [_store_operation(operation) for operation in self.candidate],
        }
        return {**stored, "ambiguous": True} if self.ambiguous else stored


class Prove(Protocol):
    """Find the relation of one family between some tensors of the reference and some of the candidate."""

    def __call__(
        self,
        reference: Sequence[TensorRef],
        candidate: Sequence[TensorRef],
        atol: float,
        rtol: float,
        hints: Sequence[Relation] = (),
    ) -> Relation | None:
        """Return the relation, proven on every element at that tolerance; None if there is none.

        Hints are relations proven for tensors of the same shapes or of the same layer: they are tried first.
        """


def _apply_operations(operations: Sequence[Operation], arrays: Sequence[Array]) -> Array:
    try:
        with np.errstate(all="ignore"):  # NaN and inf are values like others
            for operation in operations:
                arrays = operation.apply(arrays)
    except IndexError as error:
        raise ValueError(str(error)) from None
    if len(arrays) != 1:
        raise ValueError(f"{len(arrays)} arrays remain where one is compared")
    return arrays[0]


def _store_operation(operation: Operation) -> dict[str, Any]:
    fields = asdict(operation)  # type: ignore[call-overload]  # every operation is a dataclass
    stored: dict[str, Any] = {"op": operation.op}
    for name, value in fields.items():
        if isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Enum):
            value = value.value
        stored[name] = value
    return stored
