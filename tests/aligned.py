"""What tests of alignment need: two models recorded and paired."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import nndiff
from nndiff.align import Alignment
from nndiff.align.recordings import align_recordings

_numbers = itertools.count()


def align_models(
    folder: Path,
    models: Any,
    inputs: Any,
    *,
    renames: Any = (),
    mapping: Any = None,
    weights_known: bool = True,
    **options: Any,
) -> Alignment:
    """Record two models and pair what was recorded; `options` are those of `nndiff.record`."""
    sources = []
    for model in models:
        path = folder / f"{next(_numbers)}.nnrec"
        nndiff.record(model, inputs, path=path, **options)
        sources.append(nndiff.open_source(path))
    weights: list[dict[str, str]] = [{}, {}]
    if weights_known:
        weights = [{name: held["digest"] for name, held in source.meta["held"].items()} for source in sources]
    reference, candidate = sources
    return align_recordings(reference.tensors, candidate.tensors, renames, mapping, (weights[0], weights[1]))


def partners(alignment: Alignment) -> dict[str, str]:
    """Return which names are paired."""
    return {match.reference: match.candidate for match in alignment.matches}


def certain_partners(alignment: Alignment) -> dict[str, str]:
    """Return which names are paired with certainty."""
    return {match.reference: match.candidate for match in alignment.matches if match.certain}


def methods(alignment: Alignment) -> dict[str, tuple[str, str, bool]]:
    """Return partner, method and certainty by the reference's name."""
    return {match.reference: (match.candidate, match.method.value, match.certain) for match in alignment.matches}
