"""What own errors say about the place and the causes that were found without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nndiff.diagnosis.modules import get_source_line
from nndiff.diagnosis.replay import OwnErrors
from nndiff.diagnosis.trials import Trial
from nndiff.findings.causes import Cause
from nndiff.findings.settings import compare_settings
from nndiff.result import Finding, FirstDivergence, InputState, Pair, PartingReason, WeightsAtSite
from nndiff.tensors import Slot
from nndiff.verdict import Verdict

_FORWARD = (Slot.INPUT, Slot.OUTPUT)
# Where the runs were not fed the same, that is where they part, whatever the modules do. A module that is out while
# its inputs agree is sure as it is.
_STANDING = (PartingReason.INPUTS_DIFFER, PartingReason.LOSS_NOT_FINITE, PartingReason.OWN_ERROR)
# What is said of the first module that differs, by what is known of it.
_ABOUT_FIRST_MODULE = frozenset({Cause.ANOTHER_CLASS, Cause.ATTRIBUTE, Cause.EARLY_LAYERS})


def choose_first_divergence(
    known: FirstDivergence | None, own: OwnErrors, pairs: Sequence[Pair]
) -> FirstDivergence | None:
    """Return the first own error as the place where the runs part; what was known where there is none, or a better."""
    if known is not None and known.reason in _STANDING:
        return known
    by_name = {pair.reference_name: pair for pair in pairs}
    for trial in own.trials:
        if trial.error.slot in _FORWARD:
            return _describe_place(trial, by_name)
    return known


def _describe_place(trial: Trial, pairs: Mapping[str, Pair]) -> FirstDivergence:
    error = trial.error
    pair = pairs.get(error.name)
    later = [other.order for other in pairs.values() if other.sites and other.name == error.before]
    sites = trial.reference.site, trial.candidate.site
    is_elsewhere = sites[0].module != error.module
    return FirstDivergence(
        candidate=error.candidate,
        name=error.name,
        candidate_name=error.candidate_name,
        order=pair.order if pair is not None else min(later, default=0),
        slot=error.slot,
        reason=PartingReason.OWN_ERROR,
        verdict=pair.verdict if pair is not None else Verdict.DIFFERENT,
        why="given the reference's tensors, it makes something else of them",
        max_abs=error.max_abs,
        module=error.module,
        candidate_module=error.candidate_module,
        call=sites[0].call,
        classes=(sites[0].cls, sites[1].cls),
        module_classes=error.classes if is_elsewhere else None,
        inputs=InputState.AGREE if error.slot is Slot.OUTPUT else None,
        sources=(get_source_line(trial.modules[0]), get_source_line(trial.modules[1])),
        settings=compare_settings(*trial.modules),
        weights=_compare_weights(trial),
        after=error.after,
        before=error.before,
    )


def _compare_weights(trial: Trial) -> WeightsAtSite | None:
    """Return how what the module itself holds compares."""
    differing, alone = [], ([], [])  # type: ignore[var-annotated]
    common = 0
    for name, (ours, theirs) in trial.weights.items():
        if ours is None or theirs is None:
            module = trial.error.candidate_module if ours is None else trial.error.module
            alone[0 if theirs is None else 1].append(f"{module}.{name}".lstrip("."))
            continue
        common += 1
        if ours.trace.digest != theirs.trace.digest:
            differing.append(f"{trial.error.module}.{name}".lstrip("."))
    differing += [f"{trial.error.module}.{name}".lstrip(".") for name in trial.unread_weights]
    common += len(trial.unread_weights)
    if not (trial.weights or trial.unread_weights):
        return None
    return WeightsAtSite(common, tuple(differing), tuple(alone[0]), tuple(alone[1]))


def drop_repeated_findings(findings: Sequence[Finding], proven: Sequence[Finding], own: OwnErrors) -> list[Finding]:
    """Return the findings that still say something beside the own errors and their causes.

    What was said of the first module that differs is left out where that module is not at fault, and where its cause
    is proven.
    """
    at_fault = {name for error in own.errors for name in (error.name, *error.also)}
    explained = {name for finding in proven if finding.cause != Cause.OWN_CODE for name in finding.where}
    causes = {finding.cause for finding in proven}
    kept = []
    for finding in findings:
        is_explained = bool(explained.intersection(finding.where))
        is_elsewhere = bool(at_fault) and not at_fault.intersection(finding.where)
        if finding.cause in _ABOUT_FIRST_MODULE and (is_explained or is_elsewhere):
            continue
        if finding.cause in causes and is_explained:
            continue
        if at_fault and finding.cause == Cause.NORMS_ONLY:
            continue  # a guess at what own errors tell
        kept.append(finding)
    return kept
