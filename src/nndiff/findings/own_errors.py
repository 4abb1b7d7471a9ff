"""What own errors say about the place and the causes that were found without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nndiff.diagnosis.call_graph import have_same_bytes
from nndiff.diagnosis.modules import get_source_line
from nndiff.diagnosis.replay import OwnErrors
from nndiff.diagnosis.trials import Trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.operands import have_equal_values
from nndiff.findings.settings import compare_settings
from nndiff.result import Finding, FirstDivergence, InputState, OwnError, Pair, PartingReason, WeightsAtSite
from nndiff.tensors import Slot
from nndiff.text import plural
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
    sites = trial.reference.site, trial.candidate.site
    is_elsewhere = sites[0].module != error.module
    return FirstDivergence(
        candidate=error.candidate,
        name=error.name,
        candidate_name=error.candidate_name,
        order=pair.order if pair is not None else error.order,
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
        if not have_equal_values(ours, theirs):
            differing.append(f"{trial.error.module}.{name}".lstrip("."))
    differing += [f"{trial.error.module}.{name}".lstrip(".") for name in trial.unread_weights]
    common += len(trial.unread_weights)
    if not (trial.weights or trial.unread_weights):
        return None
    return WeightsAtSite(common, tuple(differing), tuple(alone[0]), tuple(alone[1]))


@dataclass(frozen=True)
class Cancelled:
    """Hold own errors that what takes them undoes: neither is a fault."""

    errors: tuple[OwnError, ...] = ()
    takers: tuple[OwnError, ...] = ()

    def describe(self) -> Finding:
        """Return what is to be said of them."""
        where = tuple(error.name for error in self.errors)
        count = plural(len(where), "output")
        evidence = (
            f"{count} inside differ{'s' if len(where) == 1 else ''}, and {self.takers[0].name} agrees all the same: "
            "given the reference's tensor instead it is wrong, so that the two changes undo each other"
        )
        return Finding(Cause.CANCELS_OUT, where, evidence, "", 0.98, harmless=True)

    def explains(self, finding: Finding) -> bool:
        """Return True for what was said of these places before they were known to be no fault."""
        if finding.where and {error.name for error in self.errors}.issuperset(finding.where):
            return True
        if finding.cause not in _ABOUT_FIRST_MODULE | {Cause.WEIGHTS_DIFFER, Cause.INNER_ONLY, Cause.NORMS_ONLY}:
            return False
        modules = {error.module for error in (*self.errors, *self.takers)}
        owners = [place.partition(":")[0] for place in finding.where]
        # a tensor of a module, or what is inside it; everything is inside the model itself
        return all(owner in modules or owner.rpartition(".")[0] in modules - {""} for owner in owners)


def find_cancelled(own: OwnErrors, pairs: Sequence[Pair]) -> Cancelled:
    """Return the own errors that are undone by what takes them, with what undoes them.

    Given the reference's tensor in place of the one that differs, the taker is wrong; given the one that differs, as in
    the ordinary run, it agrees. That holds for the model as a whole only if all that it returns agrees.
    """
    finals = [pair for pair in pairs if pair.is_final_output]
    if not finals or not all(pair.verdict.passed for pair in finals):
        return Cancelled()
    agreeing = {pair.reference_name for pair in pairs if pair.verdict.passed}
    forward = [trial for trial in own.trials if trial.error.slot in _FORWARD]
    takers = [trial for trial in forward if trial.error.name in agreeing]
    errors: list[OwnError] = []
    undoing: dict[str, OwnError] = {}
    for trial in forward:
        if trial.error.name in agreeing:
            continue
        for taker in takers:
            if any(have_same_bytes(given.tensor, trial.reference) for given in taker.given):
                errors.append(trial.error)
                undoing.setdefault(taker.error.name, taker.error)
                break
    return Cancelled(tuple(errors), tuple(undoing.values()))


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
        if is_elsewhere and finding.cause == Cause.SHAPES_DIFFER:
            continue  # given the reference's tensors these have its shapes
        kept.append(finding)
    return kept
