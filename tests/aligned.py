"""What tests of alignment need: two models recorded and paired."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import nndiff
from nndiff.align import Alignment
from nndiff.align.recordings import align_recordings
from nndiff.tensors import TensorRef

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
    """Record two models and pair what was recorded; `inputs` of both, or a list of one for each."""
    sources = []
    for number, model in enumerate(models):
        path = folder / f"{next(_numbers)}.nnrec"
        nndiff.record(model, inputs[number] if isinstance(inputs, list) else inputs, path=path, **options)
        sources.append(nndiff.open_source(path))
    tensors, weights = [dict(source.tensors) for source in sources], [held_weights(source) for source in sources]
    if not weights_known:
        tensors, weights = [without_weights(side) for side in tensors], [{}, {}]
    return align_recordings(tensors[0], tensors[1], renames, mapping, (weights[0], weights[1]))


def held_weights(source: Any) -> dict[str, str]:
    """Return the digests of what a recorded model holds."""
    return {name: held["digest"] for name, held in source.meta["held"].items()}


def without_weights(tensors: dict[str, TensorRef]) -> dict[str, TensorRef]:
    """Return tensors as recordings of other makers hold them, which do not tell what modules hold."""
    return {name: replace(tensor, trace=replace(tensor.trace, weights=())) for name, tensor in tensors.items()}


def partners(alignment: Alignment) -> dict[str, str]:
    """Return which names are paired."""
    return {match.reference: match.candidate for match in alignment.matches}


def certain_partners(alignment: Alignment) -> dict[str, str]:
    """Return which names are paired with certainty."""
    return {match.reference: match.candidate for match in alignment.matches if match.certain}


def methods(alignment: Alignment) -> dict[str, tuple[str, str, bool]]:
    """Return partner, method and certainty by the reference's name."""
    return {match.reference: (match.candidate, match.method.value, match.certain) for match in alignment.matches}
