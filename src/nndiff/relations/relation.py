"""What a relation is: operations on either side that make two tensors one; applied, printed and stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from nndiff.errors import ReportError
from nndiff.tensors import Shape, TensorRef
from nndiff.verdict import RelationKind

Array = NDArray[Any]


class Operation(Protocol):
    """One step from the tensors of a side to the form in which they are compared."""

    op: ClassVar[str]  # its name in stored relations

    @property
    def text(self) -> str:
        """Return it as a person would write it."""

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it."""


@dataclass(frozen=True)
class Reshape:
    """Give an array another shape, its elements in the same order."""

    op: ClassVar[str] = "reshape"
    shape: Shape

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"reshape{list(self.shape)}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it."""
        return [array.reshape(self.shape) for array in arrays]


@dataclass(frozen=True)
class Permute:
    """Put the axes of an array in another order."""

    op: ClassVar[str] = "permute"
    axes: tuple[int, ...]

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"permute{self.axes}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it."""
        return [array.transpose(self.axes) for array in arrays]


@dataclass(frozen=True)
class Relation:
    """Hold the operations that bring the tensors of both sides into one form, in which they agree."""

    kind: RelationKind
    reference: tuple[Operation, ...] = ()
    candidate: tuple[Operation, ...] = ()

    @property
    def text(self) -> str:
        """Return the operations as a person would write them: `permute(1, 0)`."""
        sides = []
        for operations, suffix in ((self.candidate, ""), (self.reference, " of the reference")):
            if operations:
                sides.append(", ".join(operation.text for operation in operations) + suffix)
        return "; ".join(sides)

    def apply(self, reference: Sequence[Array], candidate: Sequence[Array]) -> tuple[Array, Array]:
        """Return both sides in one form."""
        sides: list[Array] = []
        for arrays, operations in ((reference, self.reference), (candidate, self.candidate)):
            for operation in operations:
                arrays = operation.apply(arrays)
            (array,) = arrays
            sides.append(array)
        return sides[0], sides[1]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "kind": self.kind.value,
            "reference": [_store_operation(operation) for operation in self.reference],
            "candidate": [_store_operation(operation) for operation in self.candidate],
        }


Prove = Callable[[Sequence[TensorRef], Sequence[TensorRef], float, float], "Relation | None"]
# (reference tensors, candidate tensors, atol, rtol) -> the relation, proven on every element at that tolerance


def read_array(tensor: TensorRef) -> Array:
    """Return the elements of a tensor in its shape: its own, or those of a sketch that kept all of them."""
    source = tensor.trace.sketch if tensor.missing and tensor.trace.sketch else tensor
    return np.asarray(source.numpy()).reshape(tensor.shape)


def is_readable(tensor: TensorRef) -> bool:
    """Return True if every element can be read."""
    sketch = tensor.trace.sketch
    return not tensor.missing or (sketch is not None and sketch.count == tensor.count)


def _store_operation(operation: Operation) -> dict[str, Any]:
    stored = asdict(operation)  # type: ignore[call-overload]  # every operation is a dataclass
    return {"op": operation.op, **{name: _plain(value) for name, value in stored.items()}}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def load_relation(data: dict[str, Any], known: Sequence[type[Any]]) -> Relation:
    """Return a stored relation; `known` are the classes of operations."""
    classes = {operation.op: operation for operation in known}
    sides: list[tuple[Operation, ...]] = []
    for side in ("reference", "candidate"):
        operations = []
        for stored in data[side]:
            if stored.get("op") not in classes:
                raise ReportError(f"unknown operation {stored.get('op')!r} in a relation")
            operation = classes[stored["op"]]
            values = {each.name: stored[each.name] for each in fields(operation)}
            operations.append(operation(**{name: _frozen(value) for name, value in values.items()}))
        sides.append(tuple(operations))
    return Relation(RelationKind(data["kind"]), *sides)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value
