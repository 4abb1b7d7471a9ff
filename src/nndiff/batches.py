"""Several batches in one result: the second batch is the second call of every module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nndiff.result import Comparison, FirstDivergence, Judgement, Leftover, Pair
from nndiff.tensors import Site, Slot
from nndiff.verdict import Outcome

_ONCE = (Slot.PARAM, Slot.BUFFER_BEFORE)  # the same for every batch: kept of the first

# The worst outcome of all batches is that of the whole; nothing compared in one of them is no pass.
_BEST_FIRST = (Outcome.IDENTICAL, Outcome.CLOSE, Outcome.NOTHING, Outcome.DIFFERENT)


def merge_batches(results: Sequence[Comparison]) -> Comparison:
    """Return one result of comparisons of the same models on several batches."""
    first = results[0]
    calls = [site.call for result in results for pair in result.pairs for site in pair.sites or ()]
    stride = max(calls, default=0) + 1
    pairs: list[Pair] = []
    leftovers: list[Leftover] = []
    firsts: dict[str, FirstDivergence] = {}
    for batch, result in enumerate(results):
        names: dict[str, str] = {}
        for pair in result.pairs:
            if batch and pair.slot in _ONCE:
                continue
            shifted = _shift_pair(pair, batch, stride)
            names[pair.name] = shifted.name
            pairs.append(replace(shifted, order=len(pairs)))
        for leftover in result.leftovers:
            site = _shift_site(leftover.site, batch, stride) if leftover.site else None
            leftovers.append(replace(leftover, name=site.name if site else leftover.name, site=site))
        for label, divergence in result.first_divergences.items():
            order = next((pair.order for pair in pairs if pair.name == names.get(divergence.name)), divergence.order)
            name = names.get(divergence.name, divergence.name)
            call = divergence.call + batch * stride
            firsts.setdefault(label, replace(divergence, name=name, order=order, call=call))
    judgements = {}
    for label in first.judgements:
        judgements[label] = _judge_worst([result.judgements[label] for result in results])
    return replace(
        first,
        pairs=tuple(pairs),
        leftovers=tuple(leftovers),
        first_divergences=firsts,
        judgements={
            label: _judge_worst([result.judgements[label] for result in results]) for label in first.judgements
        },
        findings=tuple(dict.fromkeys(finding for result in results for finding in result.findings)),
        notes=tuple(dict.fromkeys(note for result in results for note in result.notes)),
    )


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
        max((judgement.outcome for judgement in judgements), key=_BEST_FIRST.index),
        outside=max(outside, key=_BEST_FIRST.index) if outside else None,
        inside_compared=sum(judgement.inside_compared for judgement in judgements),
        inside_different=sum(judgement.inside_different for judgement in judgements),
    )
