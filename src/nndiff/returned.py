"""The form in which a model returns its outputs: what agrees at another place is the same, and that is told."""

from __future__ import annotations

from collections.abc import Iterator

from nndiff.planning import Plan
from nndiff.recorded import is_final

_SHOWN = 3


def returned_otherwise(plan: Plan) -> Iterator[str]:
    """Yield a note where final outputs of recordings stand at other places of what the candidate returns."""
    finals = (pair for pair in plan.pairs() if is_final(pair[1]) and is_final(pair[2]))
    moved = [(_place(each.meta["path"]), _place(other.meta["path"])) for _, each, other in finals]
    apart = [f"{here} -> {there}" for here, there in moved if here != there]
    if apart:
        more = f" and {len(apart) - _SHOWN:,} more" if len(apart) > _SHOWN else ""
        yield f"final outputs are returned in another form, reference -> candidate: {', '.join(apart[:_SHOWN])}{more}"


def _place(path: str) -> str:
    return f"output.{path}" if path else "output"
