"""Compare modes with their reference: one pair for each mode and layer, over all samples. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from nndiff.errors import SourceError, UsageError
from nndiff.facts.modes import LayerFacts, LayerKey, ModeFacts, ModesFacts, RatingLimits, Threshold
from nndiff.files import unchanged
from nndiff.judge import apply_thresholds, judge_candidate, judge_numbers
from nndiff.metrics import Metrics
from nndiff.modes.folder import LayerOutput, StoredMode, list_modes, open_mode
from nndiff.modes.logits import compare_logits
from nndiff.modes.places import find_places
from nndiff.modes.thresholds import check_metric, get_number
from nndiff.result import (
    CANDIDATE,
    REFERENCE,
    Comparison,
    Judgement,
    Leftover,
    LeftoverReason,
    Method,
    Note,
    NoteSlug,
    Pair,
    Rules,
    Side,
)
from nndiff.stats import Job
from nndiff.stats.engine import get_engine
from nndiff.stats.exact_percentiles import refine_percentiles
from nndiff.tensors import TensorRef
from nndiff.text import first_few, listed, plural
from nndiff.tolerance import Tolerance
from nndiff.verdict import Verdict

Progress = Callable[[str, int, int], None]  # mode, elements done, elements in all


@dataclass(frozen=True)
class ModeRules:
    """Say how modes are judged, rated and required to be."""

    tolerance: Tolerance = field(default_factory=Tolerance)
    limits: RatingLimits = field(default_factory=RatingLimits)
    thresholds: tuple[Threshold, ...] = ()


@dataclass
class _ModeResult:
    """Hold what was found out about one mode."""

    stored: StoredMode
    side: Side
    pairs: list[Pair] = field(default_factory=list)
    leftovers: list[Leftover] = field(default_factory=list)
    layers: dict[LayerKey, LayerFacts] = field(default_factory=dict)
    facts: ModeFacts = field(default_factory=lambda: ModeFacts("", 0, math.nan))
    output: Metrics | None = None


def compare_modes(
    folder: str,
    reference: str,
    modes: Sequence[str] = (),
    rules: ModeRules | None = None,
    *,
    recorder: str = "nndiff modes FILE.py",
    progress: Progress | None = None,
) -> Comparison:
    """Compare the modes of a folder with a reference; all of them unless some are named.

    `recorder` is the command that makes the reference, for the error that says that it is missing.
    """
    rules = rules or ModeRules()
    present = list_modes(folder)
    stored_reference = open_mode(folder, reference) if reference in present else StoredMode(reference, folder)
    if not stored_reference.layers:
        raise _missing_reference(folder, reference, present, stored_reference, recorder)
    for mode in modes:
        if mode not in present:
            raise UsageError(f"{folder}: there is no mode {mode!r}; there are {listed(present, 20)}")
    chosen = [mode for mode in dict.fromkeys(modes or present) if mode != reference]
    if not chosen and len(present) > 1:
        raise UsageError(f"{reference!r} is the reference: name other modes; {folder} has {listed(present, 20)}")
    if not chosen:
        raise UsageError(f"{folder}: there is no mode to compare with {reference!r}: it is alone; record others first")
    results = []
    with unchanged():
        for mode in chosen:
            results.append(_compare_mode(stored_reference, open_mode(folder, mode), rules, progress))
    for threshold in rules.thresholds:
        option = f"--fail-{threshold.direction.value}"
        check_metric(option, threshold.metric, [result.facts for result in results])
    return _build_comparison(stored_reference, results, rules)


def _missing_reference(
    folder: str, reference: str, present: Sequence[str], stored: StoredMode, recorder: str
) -> SourceError:
    reason = stored.failed or first_few(stored.troubles, 1)
    trouble = f"its reference {reference!r} cannot be read: {reason}" if reason else f"there is no mode {reference!r}"
    others = [mode for mode in present if mode != reference]
    choice = f", or choose another with --reference (there are {listed(others, 20)})" if others else ""
    return SourceError(
        folder, f"{trouble}; record the reference with `{recorder} -o {folder} --only {reference}`{choice}"
    )


def _compare_mode(
    reference: StoredMode, candidate: StoredMode, rules: ModeRules, progress: Progress | None
) -> _ModeResult:
    """Measure all layers of one mode; what cannot be read is told in its facts."""
    result = _ModeResult(candidate, _make_side(candidate))
    failed = candidate.failed
    if failed is None and not candidate.layers:
        failed = first_few(candidate.troubles, 1) or "no outputs were recorded"
    if failed is None:
        try:
            _measure_layers(reference, result, rules, progress)
        except SourceError as error:  # damaged data: what was measured before it is dropped
            result = _ModeResult(candidate, result.side)
            failed = str(error)
    output = _find_output(reference, candidate)
    pair = next((pair for pair in result.pairs if pair.name == output), None)
    result.output = pair.metrics if pair is not None else None
    facts = ModeFacts(
        mode=candidate.mode,
        rank=0,
        error=result.output.mse if result.output is not None else math.nan,
        failed=failed or _describe_failure(result, output),
        output=output if pair is not None else None,
    )
    if reference.has_logits and output == reference.output and result.output is not None:
        facts = replace(facts, logits=compare_logits(reference.layers[output], candidate.layers[output]))
    if reference.perplexity is not None and candidate.perplexity is not None:
        facts = replace(facts, perplexity=(reference.perplexity, candidate.perplexity))
    unmet = []
    for threshold in rules.thresholds:
        if not threshold.is_met(get_number(threshold.metric, result.output, facts)):
            unmet.append(threshold)
    result.facts = replace(facts, unmet=tuple(unmet))
    return result


def _find_output(reference: StoredMode, candidate: StoredMode) -> str:
    """Return what a mode is ranked by: the model's own output, or else its last layer."""
    if reference.output and reference.output in reference.layers and candidate.output:
        return reference.output
    return reference.last


def _measure_layers(reference: StoredMode, result: _ModeResult, rules: ModeRules, progress: Progress | None) -> None:
    """Fill in the pairs, leftovers and facts of the layers of one mode."""
    candidate = result.stored
    both = [name for name in reference.layers if name in candidate.layers]
    for side, here, there in ((REFERENCE, reference, candidate), (CANDIDATE, candidate, reference)):
        for name, layer in here.layers.items():
            if name not in there.layers:
                result.leftovers.append(_make_leftover(candidate.mode, side, layer))
    outputs = [(reference.layers[name], candidate.layers[name]) for name in both]
    measurable = [(ref, cand) for ref, cand in outputs if ref.shapes == cand.shapes]
    metrics = dict(
        zip((ref.name for ref, _ in measurable), _measure(measurable, rules, progress, candidate.mode), strict=True)
    )
    for ref, cand in outputs:
        numbers = metrics.get(ref.name)
        result.pairs.append(_make_pair(candidate.mode, ref.pool(), cand.pool(), numbers, rules.tolerance))
        if numbers is not None:
            places = find_places(ref, cand, numbers)
            facts = LayerFacts(rules.limits.rate(numbers), places.clipped, places.channel, places.token)
            result.layers[candidate.mode, ref.name] = facts


def _measure(
    outputs: Sequence[tuple[LayerOutput, LayerOutput]], rules: ModeRules, progress: Progress | None, mode: str
) -> Iterator[Metrics]:
    """Yield the numbers of each pair, all in one pass over the engine."""
    jobs = []
    for ref, cand in outputs:
        reference, candidate = ref.pool(), cand.pool()
        atol, rtol = rules.tolerance.for_pair((ref.name,), reference.dtype, candidate.dtype)
        jobs.append(Job(reference, candidate, atol, rtol))
    total, done = sum(job.reference.count for job in jobs), 0

    def count(elements: int) -> None:
        nonlocal done
        done += elements
        if progress is not None:
            progress(mode, done, total)

    for job, metrics in zip(jobs, get_engine().measure(jobs, count), strict=True):
        yield refine_percentiles(metrics, job.reference, job.candidate)


def _make_pair(
    mode: str, reference: TensorRef, candidate: TensorRef, metrics: Metrics | None, tolerance: Tolerance
) -> Pair:
    atol, rtol = tolerance.for_pair((reference.name,), reference.dtype, candidate.dtype)
    dtypes = (reference.dtype.name, candidate.dtype.name)
    return Pair(
        candidate=mode,
        reference_name=reference.name,
        candidate_name=candidate.name,
        method=Method.NAME,
        certain=True,
        verdict=Verdict.SHAPE if metrics is None else judge_numbers(metrics, dtypes, Rules()),
        shape=(reference.shape, candidate.shape),
        dtype=dtypes,
        order=0,
        stored=metrics,
        atol=atol,
        rtol=rtol,
        sites=(reference.site, candidate.site) if reference.recorded and candidate.recorded else None,
    )


def _make_leftover(mode: str, side: str, layer: LayerOutput) -> Leftover:
    tensor = layer.pool()
    site = tensor.site if tensor.recorded else None
    return Leftover(mode, side, layer.name, tensor.shape, tensor.dtype.name, LeftoverReason.NO_PARTNER, site)


def _make_side(stored: StoredMode) -> Side:
    tensors = [layer.pool() for layer in stored.layers.values()]
    return Side(
        label=stored.mode,
        kind=stored.kind,
        tensors=len(tensors),
        elements=sum(tensor.count for tensor in tensors),
        trainable=0,
        nbytes=sum(tensor.nbytes for tensor in tensors),
        notes=stored.troubles,
    )


def _describe_failure(result: _ModeResult, output: str) -> str | None:
    """Return why a mode that ran cannot be trusted: unreadable files, another shape, NaN, no output."""
    shapes = [pair for pair in result.pairs if pair.verdict is Verdict.SHAPE]
    if shapes:
        pair = shapes[0]
        sizes = f"{list(pair.shape[1])} instead of {list(pair.shape[0])}"
        return f"another shape in {len(shapes)} of {plural(len(result.pairs), 'layer')}: {pair.name} is {sizes}"
    nonfinite = [pair for pair in result.pairs if pair.verdict is Verdict.NOT_FINITE]
    if nonfinite:
        return f"NaN or inf in {len(nonfinite)} of {plural(len(result.pairs), 'layer')}, first in {nonfinite[0].name}"
    if result.stored.troubles:
        return first_few(result.stored.troubles, 1, "; ")
    if all(pair.name != output for pair in result.pairs):
        return f"{output} is missing"
    return None


def _build_comparison(reference: StoredMode, results: Sequence[_ModeResult], rules: ModeRules) -> Comparison:
    """Return the result: modes by rank, pairs by mode and layer."""
    ranked = sorted(results, key=lambda result: (result.facts.failed is not None, _sort_error(result.facts.error)))
    facts = {}
    for rank, result in enumerate(ranked, 1):
        facts[result.facts.mode] = replace(result.facts, rank=rank)
    pairs: list[Pair] = []
    layers: dict[LayerKey, LayerFacts] = {}
    judgements: dict[str, Judgement] = {}
    notes = [Note(NoteSlug.MODE, f"reference: {trouble}") for trouble in reference.troubles]
    side = _make_side(reference)
    for result in results:
        mode = result.facts.mode
        for pair in result.pairs:
            pairs.append(replace(pair, order=len(pairs)))
        layers |= result.layers
        judgement = judge_candidate(result.pairs, result.leftovers, Rules(), side, result.side)
        judgements[mode] = apply_thresholds(judgement, facts[mode], rules.thresholds)
    return Comparison(
        kind="modes",
        reference=side,
        candidates=tuple(result.side for result in results),
        tolerance=rules.tolerance,
        pairs=tuple(pairs),
        judgements=judgements,
        leftovers=tuple(leftover for result in results for leftover in result.leftovers),
        notes=tuple(notes),
        modes=ModesFacts(
            reference=reference.mode,
            modes=tuple(facts[result.facts.mode] for result in ranked),
            layers=layers,
            first=reference.first,
            last=reference.last,
            limits=rules.limits,
            thresholds=rules.thresholds,
        ),
    )


def _sort_error(error: float) -> float:
    return math.inf if math.isnan(error) else error
