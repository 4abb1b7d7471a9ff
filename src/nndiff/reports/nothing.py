"""What is said where nothing was compared: why, and the way out."""

from __future__ import annotations

from collections.abc import Iterator

from nndiff.result import Comparison
from nndiff.text import plural, printable
from nndiff.verdict import Outcome

FILTERED = "left out by --include/--exclude: "  # how the note on filters begins
_RECORDING = "recording"


def why(comparison: Comparison) -> str:
    """Return why nothing was compared."""
    totals, untold = comparison.totals, unread(comparison)
    if untold:
        more = f", and {len(untold) - 1:,} more" if len(untold) > 1 else ""
        return f"no output of the model could be: {untold[0]}{more}"
    if totals.pairs and all(pair.is_fed for pair in comparison.pairs):
        return "only what the models were fed could be, nothing that they made of it"
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


def unread(comparison: Comparison) -> list[str]:
    """Return the outputs of the model that could not be recorded, each with what it is and where."""
    places: dict[tuple[str, str], dict[str, None]] = {}
    for side in comparison.candidates:
        for each in comparison.unread(side.label):
            places.setdefault((each.name, each.what), {})[f"the {each.side}"] = None
    return [
        f"{printable(name, 80)} is {printable(what, 200)} in {' and '.join(where)}"
        for (name, what), where in places.items()
    ]


def _held(comparison: Comparison) -> Iterator[tuple[str, int]]:
    yield "reference", comparison.reference.tensors
    yield "candidate", sum(side.tensors for side in comparison.candidates)


def ways_out(comparison: Comparison) -> Iterator[str]:
    """Yield what to do about it, where that is known."""
    untold = [each.name for side in comparison.candidates for each in comparison.unread(side.label)]
    if untold:
        yield (
            "outputs that are neither tensors, arrays nor plain values are not recorded: return what is in them, or "
            f"leave them out with --exclude '{printable(untold[0], 80)}'"
        )
        return
    if comparison.outcome is not Outcome.NOTHING:
        return
    totals = comparison.totals
    kinds = {side.kind for side in (comparison.reference, *comparison.candidates)}
    if totals.pairs:
        if comparison.kind == _RECORDING and all(pair.is_fed for pair in comparison.pairs):
            yield "a model that returns nothing and has no modules leaves no trace: let it return what it makes"
        elif comparison.kind == _RECORDING:
            yield "digests and statistics tell little of tensors that differ: record again with --keep full or sketch"
    elif _RECORDING in kinds and len(kinds) > 1:
        yield (
            "a recording holds what layers did, and no weights under their names: compare it with another recording, "
            "or with a MODEL that is fed the recorded inputs (nndiff diff REF.nnrec MODEL --ckpt FILE)"
        )
    elif totals.only_reference and totals.only_candidate:
        what = "layers" if kinds == {_RECORDING} else "tensors"
        yield f"{what} that go by other names are paired by --rename or --map; --dry-run shows all names"
