"""From judged pairs of two recordings to an explanation: the first divergence, findings, notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nndiff.divergence import Run, describe
from nndiff.endless import without_meaning
from nndiff.findings.modules import module_tree
from nndiff.findings.runs_apart import recording_findings
from nndiff.findings.settings import idle_settings
from nndiff.findings.weights import weights_of
from nndiff.handed import forward_of
from nndiff.lost import Asked, Lost
from nndiff.recorded import is_final, is_gradient, is_inner
from nndiff.restructured import UNLIKE
from nndiff.result import Comparison, Finding, Leftover, Pair
from nndiff.rewrites import Standing, without_rewrites
from nndiff.sites import SitePair
from nndiff.sources import Source
from nndiff.tensors import TensorRef

Sides = tuple[TensorRef, TensorRef]


def explain(comparison: Comparison, sources: Mapping[str, tuple[Source, Source]], sides: Sequence[Sides]) -> Comparison:
    """Return the comparison with what its pairs say together; `sides` are the tensors behind its pairs."""
    sites = [SitePair(pair, *both) for pair, both in zip(comparison.pairs, sides, strict=True)]
    firsts: dict[str, dict[str, Any]] = {}
    findings: list[Finding] = []
    kept: list[SitePair] = []
    leftovers: list[Leftover] = []
    aside: list[Pair] = []
    latent: list[Finding] = []
    notes: list[str] = []
    for label, (reference, candidate) in sources.items():
        mine = [site for site in sites if site.pair.candidate == label]
        left = [each for each in comparison.leftovers if each.candidate == label]
        telling = without_meaning(mine, left, reference.meta, candidate.meta)
        standing = without_rewrites(telling, left, (reference, candidate))
        kept += standing.sites
        leftovers += standing.leftovers
        aside += standing.aside
        latent += [replace(each, candidate=label) for each in standing.latent]
        run = _run(standing, reference, candidate)
        first = run.first()
        site = None if isinstance(first, Lost) else first
        held = weights_of(run, site, reference.meta, candidate.meta)
        found = recording_findings(run, site, held, reference.meta, candidate.meta, standing.layouts)
        about = f"{label}: " if len(sources) > 1 else ""
        notes += [about + note for note in idle_settings(run, reference.meta, candidate.meta)]
        findings += [replace(each, candidate=label) for each in (*found, *standing.findings)]
        if first is not None:
            trees = module_tree(reference.meta), module_tree(candidate.meta)
            firsts[label] = describe(run, first, trees) | ({"weights": held._asdict()} if held else {})
    return replace(
        comparison,
        pairs=tuple(site.pair for site in kept),
        leftovers=tuple(leftovers),
        first_divergences=firsts,
        findings=tuple(findings),
        notes=(*comparison.notes, *_notes(kept), *notes),
        aside=tuple(aside),
        latent=tuple(latent),
    )


def _run(standing: Standing, reference: Source, candidate: Source) -> Run:
    """Return the judged pairs of one candidate, ready to be asked about causes."""
    left = standing.leftovers
    lost = _lost(left, reference, "reference"), _lost(left, candidate, "candidate")
    alone = _alone(left, reference, "reference"), _alone(left, candidate, "candidate")
    ours, theirs = _by_order(reference), _by_order(candidate)
    asking = _asking(reference, ours), _asking(candidate, theirs)
    return Run(standing.sites, ours, theirs, lost, asking, standing.moved, alone)


def _lost(leftovers: Sequence[Leftover], source: Source, side: str) -> list[TensorRef]:
    """Return the gradients of a side without a partner: those that count, and those at outputs inside the model."""
    left = [each for each in leftovers if each.side == side and not each.unreached and each.hint != UNLIKE]
    tensors = [source.tensors[each.name] for each in left if each.counts or is_inner(source.tensors[each.name])]
    return [tensor for tensor in tensors if is_gradient(tensor)]


def _alone(leftovers: Sequence[Leftover], source: Source, side: str) -> list[TensorRef]:
    """Return the outputs of the model without a partner."""
    left = [source.tensors[each.name] for each in leftovers if each.side == side and each.counts and not each.unreached]
    return [tensor for tensor in left if is_final(tensor)]


def _asking(source: Source, tensors: Mapping[int, TensorRef]) -> Asked | None:
    """Return what a side asks gradients for, where what it got none of was noted."""
    silent = source.meta.get("without_gradient", [])
    if source.meta.get("producer") != "nndiff.record" or not isinstance(silent, list):
        return None
    reached = (tensors.get(forward_of(each)) for each in tensors.values() if each.site.slot == "grad_output")
    names = (name for name in (*source.others, *source.tensors) if name.endswith(":param_grad"))
    return Asked(frozenset(names), frozenset((*map(str, silent), *(each.name for each in reached if each))))


def _by_order(source: Source) -> dict[int, TensorRef]:
    return {tensor.trace.order: tensor for tensor in source.tensors.values()}


def _notes(sites: Sequence[SitePair]) -> list[str]:
    if not any(is_gradient(site.reference) and site.pair.scale != 1.0 for site in sites):
        return []
    return ["gradients are judged on their own scale: atol times their largest value, where that is below 1"]
