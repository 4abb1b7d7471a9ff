"""Several batches in one result: the second batch is the second call of every module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nndiff.result import Comparison, FirstDivergence, Judgement, Leftover, OwnError, Pair
from nndiff.tensors import Site, Slot
from nndiff.verdict import worst_outcome

_ONCE = (Slot.PARAM, Slot.BUFFER_BEFORE)  # the same for every batch: kept of the first


def merge_batches(results: Sequence[Comparison]) -> Comparison:
    """Return one result of comparisons of the same models on several batches."""
    first = results[0]
    calls = [site.call for result in results for pair in result.pairs for site in pair.sites or ()]
    stride = max(calls, default=0) + 1
    pairs: list[Pair] = []
    leftovers: list[Leftover] = []
    firsts: dict[str, FirstDivergence] = {}
    for batch, result in enumerate(results):
        shifted_pairs: dict[tuple[str, str], Pair] = {}  # by candidate and name before
        for pair in result.pairs:
            if batch and pair.slot in _ONCE:
                continue
            shifted = replace(_shift_pair(pair, batch, stride), order=len(pairs))
            shifted_pairs[pair.candidate, pair.name] = shifted
            pairs.append(shifted)
        for leftover in result.leftovers:
            if batch and leftover.site is not None and leftover.site.slot in _ONCE:
                continue
            site = _shift_site(leftover.site, batch, stride) if leftover.site else None
            leftovers.append(replace(leftover, name=site.name if site else leftover.name, site=site))
        for label, divergence in result.first_divergences.items():
            at = shifted_pairs.get((label, divergence.name))
            if at is not None:
                divergence = replace(
                    divergence,
                    name=at.reference_name,
                    candidate_name=at.candidate_name,
                    order=at.order,
                    call=divergence.call + batch * stride,
                )
            firsts.setdefault(label, divergence)
    judgements = {}
    for label in first.judgements:
        judgements[label] = _judge_worst([result.judgements[label] for result in results])
    return replace(
        first,
        pairs=tuple(pairs),
        leftovers=tuple(leftovers),
        first_divergences=firsts,
        judgements=judgements,
        findings=tuple(dict.fromkeys(finding for result in results for finding in result.findings)),
        own_errors=_merge_own_errors(results),
        notes=tuple(dict.fromkeys(note for result in results for note in result.notes)),
    )


def _merge_own_errors(results: Sequence[Comparison]) -> tuple[OwnError, ...]:
    """Return every module at fault once: what is wrong with it shows in most batches."""
    merged: dict[tuple[str, str, str], OwnError] = {}
    for result in results:
        for error in result.own_errors:
            merged.setdefault((error.candidate, error.name, error.module), error)
    return tuple(merged.values())


def _shift_pair(pair: Pair, batch: int, stride: int) -> Pair:
    if pair.sites is None or not batch:
        return pair
    reference, candidate = (_shift_site(site, batch, stride) for site in pair.sites)
    # a part of a fused layer has more after the name of its site
    return replace(
        pair,
        sites=(reference, candidate),
        reference_name=reference.name + pair.reference_name.removeprefix(pair.sites[0].name),
        candidate_name=candidate.name + pair.candidate_name.removeprefix(pair.sites[1].name),
    )


def _shift_site(site: Site, batch: int, stride: int) -> Site:
    """Return the site of a later batch: calls are counted on, gradients of parameters are numbered."""
    if site.slot.is_parameter or site.slot.is_buffer:
        return replace(site, nth=site.nth + batch)
    return replace(site, call=site.call + batch * stride)


def _judge_worst(judgements: Sequence[Judgement]) -> Judgement:
    outside = [judgement.outside for judgement in judgements if judgement.outside is not None]
    return Judgement(
        worst_outcome(judgement.outcome for judgement in judgements),
        outside=worst_outcome(outside) if outside else None,
        inside_compared=sum(judgement.inside_compared for judgement in judgements),
        inside_different=sum(judgement.inside_different for judgement in judgements),
    )
