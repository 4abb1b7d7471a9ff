"""What is said where nothing was compared: why, and the way out."""

from __future__ import annotations

from collections.abc import Iterator

from nndiff.names import plural
from nndiff.result import Comparison
from nndiff.verdict import Outcome

FILTERED = "left out by --include/--exclude: "  # how the note on filters begins
_RECORDING = "recording"


def why(comparison: Comparison) -> str:
    """Return why nothing was compared."""
    totals = comparison.totals
    if totals.pairs:
        return f"not one element of {plural(totals.pairs, 'pair')} could be compared"
    if any(note.startswith(FILTERED) and not note.startswith(f"{FILTERED}0 ") for note in comparison.notes):
        return "--include/--exclude left no tensor to compare"
    empty = [role for role, held in _held(comparison) if not held]
    alone = [(totals.only_reference, "only in the reference"), (totals.only_candidate, "only in the candidate")]
    told = ", ".join(f"{number:,} {where}" for number, where in alone if number)
    if not told:
        return "there are no tensors"
    return f"{f'the {empty[0]} holds no tensors' if empty else 'no tensor found a partner'} ({told})"


def _held(comparison: Comparison) -> Iterator[tuple[str, int]]:
    yield "reference", comparison.reference.tensors
    yield "candidate", sum(side.tensors for side in comparison.candidates)


def ways_out(comparison: Comparison) -> Iterator[str]:
    """Yield what to do about it, where that is known."""
    if comparison.outcome is not Outcome.NOTHING:
        return
    totals = comparison.totals
    kinds = {side.kind for side in (comparison.reference, *comparison.candidates)}
    if totals.pairs:
        if comparison.kind == _RECORDING:
            yield "digests and statistics tell little of tensors that differ: record again with --keep full or sketch"
    elif _RECORDING in kinds and len(kinds) > 1:
        yield (
            "a recording holds what layers did, and no weights under their names: compare it with another recording, "
            "or with a MODEL that is fed the recorded inputs (nndiff diff REF.nnrec MODEL --ckpt FILE)"
        )
    elif totals.only_reference and totals.only_candidate:
        what = "layers" if kinds == {_RECORDING} else "tensors"
        yield f"{what} that go by other names are paired by --rename or --map; --dry-run shows all names"
