"""Experiments with live models: the reference with its noise floor, the candidate on the reference's tensors."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nndiff.comparison import CompareOptions, Progress, run_plans
from nndiff.errors import NndiffError, UsageError
from nndiff.plan import Plan, plan_comparison
from nndiff.relations import Relation
from nndiff.relations.fold_operations import TakeBehind
from nndiff.result import (
    JOINT,
    Comparison,
    Finding,
    FirstDivergence,
    Note,
    NoteSlug,
    Pair,
    PartingReason,
)
from nndiff.sources import Source
from nndiff.tensors import Slot
from nndiff.tolerance import NOISE_DRAWS, Tolerance
from nndiff.verdict import Outcome, RelationKind

if TYPE_CHECKING:  # what only recordings need
    from nndiff.diagnosis.replay import OwnErrors
    from nndiff.diagnosis.replay_calls import Key
    from nndiff.diagnosis.replay_partners import Partner
    from nndiff.diagnosis.trials import Trial
    from nndiff.recording.reader import Recording


@dataclass(frozen=True)
class Wishes:
    """Say which experiments are wanted; None leaves it to the result: they run when something differs."""

    replay: bool | None = None
    noise: bool | None = None

    def wants_replay(self, comparison: Comparison) -> bool:
        """Return True if the candidates are to be replayed."""
        return self._decide(self.replay, comparison)

    def wants_noise(self, comparison: Comparison) -> bool:
        """Return True if the noise floor is to be measured."""
        return self._decide(self.noise, comparison)

    @staticmethod
    def _decide(wish: bool | None, comparison: Comparison) -> bool:
        return comparison.outcome is Outcome.DIFFERENT if wish is None else wish


@dataclass(frozen=True)
class LiveModels:
    """Run models again, wherever they are; paths are of recordings, candidates are counted from 0."""

    reference: str  # its recording
    record_reference: Callable[[int], str] | None  # again, with so many draws of noise; None if it is no live model
    replay_candidates: Mapping[int, Callable[[str, Mapping[str, str]], str]]  # given the reference's path and partners


def measure_judging_noise(
    reference: Source, models: LiveModels, tolerance: Tolerance, wishes: Wishes
) -> tuple[Source, LiveModels]:
    """Return the reference with its noise floors if these are to judge, and models that do not run it once more."""
    if tolerance.origin != "noise" or models.record_reference is None:
        return reference, models
    if wishes.noise is False:
        raise UsageError("--tolerance noise judges by the noise floor, and --no-noise leaves it out: give one of them")
    recording = _record_reference(reference, models, NOISE_DRAWS)
    if "noise_failure" in recording.meta:
        raise NndiffError(f"--tolerance noise cannot judge: {recording.meta['noise_failure']}")
    return _add_noise(reference, recording), replace(models, reference=recording.path, record_reference=None)


def run_experiments(
    comparison: Comparison,
    sources: Sequence[Source],
    options: CompareOptions,
    models: LiveModels,
    wishes: Wishes,
    progress: Progress | None = None,
) -> Comparison:
    """Return the comparison with what experiments tell; as it was, with a note, where they cannot be made.

    `sources` are the recordings that were compared, the reference first.
    """
    wants_replay = wishes.wants_replay(comparison) and bool(models.replay_candidates)
    wants_noise = wishes.wants_noise(comparison) and models.record_reference is not None
    if not (wants_replay or wants_noise) or comparison.kind != "recording":
        return comparison
    try:
        # with the replay, four forward passes more
        reference = _record_reference(sources[0], models, NOISE_DRAWS if wants_noise else 0)
        plans = plan_comparison(_add_noise(sources[0], reference), sources[1:], options.pairing)
        renewed = run_plans(plans, options.tolerance, options.rules, options.pairing.groups, progress)
    except Exception as error:
        return _add_note(comparison, f"no experiments: {_describe(error)}")
    if "noise_failure" in reference.meta:
        renewed = _add_note(renewed, str(reference.meta["noise_failure"]))
    if not wants_replay:
        return renewed
    for number, (plan, source) in enumerate(zip(plans, sources[1:], strict=True)):
        replay = models.replay_candidates.get(number)
        if replay is None or renewed.outcome_of(plan.label) is Outcome.NOTHING:
            continue
        try:
            renewed = _replay_candidate(renewed, plan, source, reference, options, replay)
        except Exception as error:
            renewed = _add_note(renewed, f"{plan.label} was not replayed: {_describe(error)}")
    return renewed


def _record_reference(recorded: Source, models: LiveModels, draws: int) -> Recording:
    """Return the reference recorded with all its inputs and parameters; a recording that is all there is, as it is."""
    from nndiff.recording.reader import open_recording

    if models.record_reference is None:
        return open_recording(models.reference)
    recording = open_recording(models.record_reference(draws))
    _check_weights("reference", recorded, recording)
    before = {tensor.name: tensor.trace.digest for tensor in recorded.tensors.values()}
    for name, tensor in recording.source().tensors.items():
        if before.get(name, tensor.trace.digest) != tensor.trace.digest:
            raise NndiffError(f"the reference does not repeat itself: run again, {name} is another")
    return recording


def _add_noise(recorded: Source, reference: Recording) -> Source:
    """Return what was compared before with the noise floors of the same tensors: the sides stay what they were."""
    floors = {name: tensor.trace.noise for name, tensor in reference.source().tensors.items()}
    tensors = {}
    for name, tensor in recorded.tensors.items():
        tensors[name] = replace(tensor, trace=replace(tensor.trace, noise=floors.get(name, tensor.trace.noise)))
    noise = {"noise": reference.meta["noise"]} if "noise" in reference.meta else {}
    return replace(recorded, tensors=tensors, meta={**recorded.meta, **noise})


def _check_weights(side: str, recorded: Source, recording: Recording) -> None:
    if recorded.meta.get("held") != recording.meta.get("held"):
        raise NndiffError(f"the {side} built again does not hold the same weights: seed what it draws, or load them")


def _replay_candidate(
    comparison: Comparison,
    plan: Plan,
    recorded: Source,
    reference: Recording,
    options: CompareOptions,
    replay: Callable[[str, Mapping[str, str]], str],
) -> Comparison:
    """Return the comparison with the own errors of one candidate."""
    from nndiff.diagnosis.replay_partners import choose_partners, list_replaced
    from nndiff.recording.reader import open_recording

    pairs = comparison.pairs_of(plan.label)
    partners = _drop_folded_inputs(choose_partners(plan, pairs, reference), pairs)
    replayed = open_recording(replay(reference.path, list_replaced(partners)))
    _check_weights("candidate", recorded, replayed)
    return attach_own_errors(comparison, plan, partners, reference, replayed, options)


def _drop_folded_inputs(partners: Mapping[str, Partner], pairs: Sequence[Pair]) -> dict[str, Partner]:
    """Return the partners without what goes from a layer to the one behind it, where the other side has both in one.

    The other side has no such tensor: what stands at its place there would be given one that was never meant for it.
    """
    kept = dict(partners)
    for pair in pairs:
        if pair.related is None or not isinstance(pair.related.relation, Relation) or pair.sites is None:
            continue
        relation = pair.related.relation
        if pair.slot is Slot.PARAM_GRAD and relation.kind is RelationKind.FOLD:
            kept.pop(pair.candidate_name, None)  # that of a weight into which something was folded
        for side, operations in enumerate((relation.reference, relation.candidate)):
            if not any(isinstance(operation, TakeBehind) for operation in operations):
                continue
            behind = (pair.reference_name, pair.candidate_name)[side].split(JOINT)[1]
            taken = behind.replace(f":{Slot.OUTPUT}", f":{Slot.INPUT}", 1)
            gradient = replace(pair.sites[1], slot=Slot.GRAD_OUTPUT).name
            for name, partner in partners.items():
                at_input = (partner.reference, name)[side]
                if at_input == taken or at_input.startswith(f"{taken}.") or name == gradient:
                    kept.pop(name, None)
    return kept


def attach_own_errors(
    comparison: Comparison,
    plan: Plan,
    partners: Mapping[str, Partner],
    reference: Recording,
    replayed: Recording,
    options: CompareOptions,
) -> Comparison:
    """Return the comparison with the own errors of one candidate, their causes, and the place they decide."""
    from nndiff.diagnosis.replay import find_own_errors
    from nndiff.findings.own_errors import choose_first_divergence, find_cancelled

    pairs = comparison.pairs_of(plan.label)
    firsts = dict(comparison.first_divergences)
    known_first = firsts.get(plan.label)
    own = find_own_errors(plan, pairs, partners, reference, replayed, options.tolerance, known_first)
    cancelled = find_cancelled(own, pairs)
    own = own.without({error.name for error in (*cancelled.errors, *cancelled.takers)})
    own = _drop_refuted(own, known_first, pairs)
    own = own.without(_list_untied_gradients(comparison, plan.label))
    if not (own.errors or reference.meta.get("inputs_kept")) and comparison.outcome_of(plan.label) is Outcome.DIFFERENT:
        text = "the reference was recorded without --inputs: what code hands from module to module was not tried"
        comparison = _add_note(comparison, text)
    proven, own = _explain_errors(own, plan.label)
    findings: Sequence[Finding] = comparison.findings
    if cancelled.errors:
        findings = [found for found in findings if found.candidate != plan.label or not cancelled.explains(found)]
        proven.append(replace(cancelled.describe(), candidate=plan.label))
    if own.errors and comparison.outcome_of(plan.label) is Outcome.DIFFERENT:
        first = choose_first_divergence(known_first, own, pairs)
        if first is not None:
            firsts[plan.label] = first
    return replace(
        comparison,
        pairs=tuple(_attach_own(comparison, plan.label, own)),
        own_errors=(*comparison.own_errors, *own.errors),
        findings=_merge_findings(findings, proven, plan.label, own),
        first_divergences=firsts,
    )


def _drop_refuted(own: OwnErrors, known_first: FirstDivergence | None, pairs: Sequence[Pair]) -> OwnErrors:
    """Return the own errors without those that the ordinary runs refute.

    A call that returned there what the reference's does, within noise, is right: what happens inside cancels out. And
    where the runs part for sure elsewhere, the inputs of sites that agree were as good as the reference's: what a
    replay shows at such a site, it brought about itself.
    """
    refuted = _list_errors_of_right_calls(own, pairs)
    if known_first is not None and known_first.reason is PartingReason.OWN_ERROR:
        refuted |= {
            pair.reference_name for pair in pairs if pair.verdict.passed and not (pair.slot and pair.slot.is_gradient)
        }
    return own.without(refuted)


def _list_errors_of_right_calls(own: OwnErrors, pairs: Sequence[Pair]) -> set[str]:
    outputs: dict[tuple[str, int], list[Pair]] = {}
    for pair in pairs:
        if pair.sites is not None and pair.slot is Slot.OUTPUT:
            outputs.setdefault((pair.sites[1].module, pair.sites[1].call), []).append(pair)
    names: set[str] = set()
    for error, call in zip(own.errors, own.calls, strict=True):
        returned = outputs.get(call or ("", 0), [])
        if not error.slot.is_gradient and returned and all(_is_right(pair) for pair in returned):
            names.add(error.name)
    return names


def _is_right(pair: Pair) -> bool:
    return pair.verdict.passed or pair.is_within_noise


def _list_untied_gradients(comparison: Comparison, label: str) -> set[str]:
    """Return the gradients of weights that are tied on one side only: no one module makes these."""
    from nndiff.findings.causes import Cause

    names: set[str] = set()
    for finding in comparison.findings:
        if finding.candidate == label and finding.cause == Cause.UNTIED:
            names.update(finding.where)
    return names


def _explain_errors(own: OwnErrors, label: str) -> tuple[list[Finding], OwnErrors]:
    """Return the causes of own errors, and the errors that are known to be such.

    The code of a call that went wrong once may pass that on: what shows in it later is an error of its own only if
    another cause is proven for it. So it is with code that draws random numbers after other code drew wrong ones.
    """
    from nndiff.diagnosis.replay import OwnErrors
    from nndiff.findings.causes import Cause
    from nndiff.findings.hypotheses import explain_trials

    findings: list[Finding] = []
    trials: list[Trial] = []
    calls: list[Key | None] = []
    first_in_call: dict[tuple[str, int], int] = {}  # where the first error of a call is
    causes: dict[int, set[str]] = {}
    for trial, call, finding in zip(own.trials, own.calls, explain_trials(own.trials), strict=True):
        is_explained = finding.cause != Cause.OWN_CODE
        if trial.drew and not is_explained and any(earlier.drew for earlier in trials):
            continue  # it drew other numbers than the reference because of what went wrong before
        first = first_in_call.get(call) if call is not None else None
        if first is not None and (not is_explained or finding.cause in causes[first]):
            error = trials[first].error
            error = replace(error, also=(*error.also, trial.error.name, *trial.error.also))
            trials[first] = replace(trials[first], error=error)
            continue
        if trial.error.slot.is_gradient and not is_explained and trials:
            continue  # what is wrong before it has another derivative
        if call is not None:
            first = first_in_call.setdefault(call, len(trials))
            causes.setdefault(first, set()).add(finding.cause)
        trials.append(trial)
        calls.append(call)
        findings.append(replace(finding, candidate=label))
    return findings, OwnErrors(tuple(trials), tuple(calls), own.own_by_name)


def _attach_own(comparison: Comparison, label: str, own: OwnErrors) -> Iterator[Pair]:
    for pair in comparison.pairs:
        error = own.own_by_name.get(pair.candidate_name) if pair.candidate == label else None
        yield pair if error is None else replace(pair, own=error)


def _merge_findings(
    findings: Sequence[Finding], proven: Sequence[Finding], label: str, own: OwnErrors
) -> tuple[Finding, ...]:
    """Return the causes of own errors first, then what else was found of this candidate, in the candidates' order."""
    from nndiff.findings.own_errors import drop_repeated_findings

    ours = [finding for finding in findings if finding.candidate == label]
    kept = drop_repeated_findings(ours, proven, own)
    merged: list[Finding] = []
    is_placed = False
    for finding in findings:
        if finding.candidate != label:
            merged.append(finding)
        elif not is_placed:
            merged += [*proven, *kept]
            is_placed = True
    return tuple(merged if is_placed else [*merged, *proven])


def _add_note(comparison: Comparison, text: str) -> Comparison:
    return replace(comparison, notes=(*comparison.notes, Note(NoteSlug.NO_EXPERIMENT, text)))


def _describe(error: Exception) -> str:
    """Return an error in one sentence; its traceback goes to stderr where that is asked for."""
    if os.environ.get("NNDIFF_TRACEBACK"):
        traceback.print_exception(error, file=sys.stderr)
    text = str(error).split("\n", 1)[0][:300]
    return text if isinstance(error, NndiffError) else f"{type(error).__name__}: {text}"
