"""From judged pairs of two recordings to an explanation: the first divergence, findings, notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nndiff.align.sites import GUESSED
from nndiff.divergence import Run, SitePair, describe
from nndiff.findings.runs_apart import module_tree, recording_findings
from nndiff.recorded import is_final, is_gradient, is_inner
from nndiff.result import Comparison, Finding, Leftover
from nndiff.sources import Source
from nndiff.tensors import TensorRef

Sides = tuple[TensorRef, TensorRef]


def explain(comparison: Comparison, sources: Mapping[str, tuple[Source, Source]], sides: Sequence[Sides]) -> Comparison:
    """Return the comparison with what its pairs say together; `sides` are the tensors behind its pairs."""
    sites = [SitePair(pair, *both) for pair, both in zip(comparison.pairs, sides, strict=True)]
    firsts: dict[str, dict[str, Any]] = {}
    findings: list[Finding] = []
    kept: list[SitePair] = []
    given_up: list[Leftover] = []
    for label, (reference, candidate) in sources.items():
        mine, wrong = _without_wrong_guesses([site for site in sites if site.pair.candidate == label])
        kept += mine
        given_up += wrong
        run = Run(mine, _by_order(reference), _by_order(candidate))
        first = run.first()
        found = recording_findings(run, first, reference.meta, candidate.meta)
        findings += [replace(each, candidate=label) for each in found]
        if first is not None:
            trees = module_tree(reference.meta), module_tree(candidate.meta)
            firsts[label] = describe(run, first, trees)
    return replace(
        comparison,
        pairs=tuple(site.pair for site in kept),
        leftovers=(*comparison.leftovers, *given_up),
        first_divergences=firsts,
        findings=tuple(findings),
        notes=(*comparison.notes, *_notes(kept)),
    )


def _without_wrong_guesses(sites: list[SitePair]) -> tuple[list[SitePair], list[Leftover]]:
    """Take back guessed pairs that do not agree where everything that is certain does.

    Calls paired by their order may simply not belong together; if all that was paired by name agrees, the
    outputs of the model among it, a disagreement of two guessed partners says that the guess was wrong.
    """
    certain = [site for site in sites if GUESSED not in site.pair.matched_by]
    final = [site for site in certain if is_final(site.reference)]
    if not final or not all(site.passed for site in certain):
        return sites, []
    wrong = [site for site in sites if not site.passed]
    return [site for site in sites if site.passed], [left for site in wrong for left in _both_left(site)]


def _both_left(site: SitePair) -> list[Leftover]:
    pair = site.pair
    hint = "laid beside the other side's by order of calls, and not equal"
    counts = not is_inner(site.reference)
    return [
        Leftover(pair.candidate, "reference", pair.reference_name, pair.shape[0], pair.dtype[0], hint, counts),
        Leftover(pair.candidate, "candidate", pair.candidate_name, pair.shape[1], pair.dtype[1], hint, counts),
    ]


def _by_order(source: Source) -> dict[int, TensorRef]:
    return {tensor.meta["order"]: tensor for tensor in source.tensors.values()}


def _notes(sites: Sequence[SitePair]) -> list[str]:
    if not any(is_gradient(site.reference) and site.pair.scale != 1.0 for site in sites):
        return []
    return ["gradients are judged on their own scale: atol times their largest value, where that is below 1"]
