"""A loss that is not finite on both sides: its gradients are NaN whatever the models do, and prove nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nndiff.diagnosis.modules import read_module_tree
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.recording.format.weights import read_held_tensors
from nndiff.result import Leftover, Note, NoteSlug
from nndiff.tensors import Slot, TensorRef
from nndiff.verdict import Verdict

LOSS_NOT_FINITE = Note(
    NoteSlug.LOSS_NOT_FINITE, "the loss is NaN or infinite on both sides, so its gradients mean nothing"
)

Meta = Mapping[str, Any]


def drop_meaningless_gradients(
    pairs: Sequence[SitePair], leftovers: Sequence[Leftover], reference_meta: Meta, candidate_meta: Meta
) -> Sequence[SitePair]:
    """Return the pairs, gradients marked as not compared where the loss is finite on neither side.

    One model run twice stays identical: same classes, settings and weights, every pair equal bit for bit.
    """
    losses = [site for site in pairs if site.slot is Slot.LOSS]
    if not any(_is_not_finite(site.reference) and _is_not_finite(site.candidate) for site in losses):
        return pairs
    all_identical = not leftovers and all(site.pair.verdict is Verdict.IDENTICAL for site in pairs)
    if all_identical and _are_same_model(reference_meta, candidate_meta):
        return pairs
    kept = []
    for site in pairs:
        if site.is_gradient:
            notes = (*site.pair.notes, LOSS_NOT_FINITE)
            pair = replace(site.pair, verdict=Verdict.NOT_COMPARED, stored=None, related=None, notes=notes)
            site = replace(site, pair=pair)
        kept.append(site)
    return kept


def _is_not_finite(loss: TensorRef) -> bool:
    return loss.trace.stats is not None and loss.trace.stats.nonfinite > 0


def _are_same_model(reference: Meta, candidate: Meta) -> bool:
    """Return True if two recordings are of the same classes, settings and weights."""
    same_modules = _describe_modules(reference) == _describe_modules(candidate)
    return same_modules and read_held_tensors(reference) == read_held_tensors(candidate)


def _describe_modules(meta: Meta) -> list[tuple[str, Any, Mapping[str, Any]]]:
    described: list[tuple[str, Any, Mapping[str, Any]]] = []
    for name, module in read_module_tree(meta).items():
        attributes = module.get("attributes")
        settings = {}
        for setting, value in attributes.items() if isinstance(attributes, Mapping) else ():
            # texts may be made anew by each run; a forward that was put into the module itself is part of it
            if setting == "forward" or not isinstance(value, str):
                settings[setting] = value
        described.append((name, module.get("type"), settings))
    return described
