"""The form in which a model returns its outputs: what agrees at another place is the same, and that is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nndiff.planning import Plan
from nndiff.recorded import is_final
from nndiff.tensors import TensorRef
from nndiff.text import first_few


def returned_otherwise(plan: Plan) -> Iterator[str]:
    """Yield a note where final outputs of recordings stand at other places of what the candidate returns."""
    finals = [(each, other) for _, each, other in plan.pairs() if is_final(each) and is_final(other)]
    moved = [(_place(each.site.path), _place(other.site.path)) for each, other in finals]
    apart = [f"{here} -> {there}" for here, there in moved if here != there]
    if apart:
        form = "another order: who takes them by their place gets others" if _turned(finals) else "another form"
        yield f"final outputs are returned in {form}, reference -> candidate: {first_few(apart)}"


def _turned(finals: Sequence[tuple[TensorRef, TensorRef]]) -> bool:
    """Tell whether the candidate returns what the reference does in another order."""
    orders = [other.trace.order for _, other in sorted(finals, key=lambda both: both[0].trace.order)]
    return orders != sorted(orders)


def _place(path: str) -> str:
    return f"output.{path}" if path else "output"
