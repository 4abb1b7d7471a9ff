"""Why two training runs part: by arithmetic on what was kept, one file per family of causes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nndiff.findings.causes import Cause
from nndiff.result import Finding
from nndiff.runs.case import RunCase
from nndiff.runs.causes.averages import find_average
from nndiff.runs.causes.buffers import find_buffers
from nndiff.runs.causes.data import find_data
from nndiff.runs.causes.finiteness import find_finiteness, find_frozen, find_skipped_steps
from nndiff.runs.causes.gradients import find_gradients
from nndiff.runs.causes.initialisation import find_initialisation
from nndiff.runs.causes.onset import Explanation, Onset, list_onsets
from nndiff.runs.causes.optimizer_state import find_lost_state
from nndiff.runs.causes.precision import find_precision
from nndiff.runs.causes.randomness import find_randomness
from nndiff.runs.causes.reporting import find_reported_loss, find_reporting
from nndiff.runs.causes.rounding import (
    explain_rounding,
    find_leap,
    find_passes,
    find_remainder,
    is_rounding,
)
from nndiff.runs.causes.settings import find_settings
from nndiff.runs.causes.updates import find_updates
from nndiff.runs.run import TensorKind

Finder = Callable[[Onset], Iterable[Explanation]]

_MOST_ONSETS = 8  # steps at which a distance begins or jumps; more jumps are chaos

# What happens in a step, in this order. Of each line the first finder that explains something is enough.
_STAGES: tuple[tuple[Finder, ...], ...] = (
    (find_buffers,),
    (find_gradients, find_randomness),
    (find_reported_loss,),
    (
        lambda onset: find_precision(
            onset.case, onset.place, (TensorKind.GRADIENT, TensorKind.STATE, TensorKind.WEIGHT)
        ),
        find_average,
        find_skipped_steps,
        find_lost_state,
        find_frozen,
        find_updates,
    ),
)
_OF_PASSES = frozenset(
    {
        Cause.BATCH_NORM_MODE,
        Cause.FROZEN,
        Cause.GRADIENTS_ACCUMULATED,
        Cause.GRADIENTS_SCALED,
        Cause.GRADIENTS_CLIPPED,
        Cause.DROPOUT,
        Cause.LOW_PRECISION,
    }
)


def explain_runs(case: RunCase) -> tuple[Finding, ...]:
    """Return why two runs part: causes that reproduce the numbers, the first in time first."""
    initial = list(find_initialisation(case))
    data = list(find_data(case))
    settings = list(find_settings(case))
    onsets = [] if initial else list_onsets(case)[:_MOST_ONSETS]
    if data:
        # from here on everything may follow from the data
        onsets = [onset for onset in onsets if onset.place < data[0].place]
    steps: list[Explanation] = []
    rounding: Onset | None = None
    for onset in onsets:
        steps = explain_onset(onset)
        if steps:
            break
        if onset is onsets[0]:
            if not is_rounding(onset):
                break
            rounding = onset
    explanations = [*initial, *data, *steps, *find_reporting(case)]
    # a setting that changes after the runs have parted may do so because they have: a rate that follows the loss
    root = min((explanation.place for explanation in explanations), default=len(case.steps))
    explanations += [change for change in settings if change.place <= max(root, 0)]
    if not explanations and rounding is not None:
        explanations = list(find_leap(case)) or [explain_rounding(rounding)]
    elif not explanations:
        explanations = list(find_remainder(case, onsets[0] if onsets else None))
    explanations.sort(key=lambda explanation: explanation.place)
    return tuple(explanation.finding for explanation in explanations)


def explain_onset(onset: Onset) -> list[Explanation]:
    """Return what explains the differences of one step, in causal order."""
    explanations = list(find_finiteness(onset))
    if explanations:
        return explanations  # whatever else differs in this step follows from it
    for finders in _STAGES:
        for find_causes in finders:
            causes = list(find_causes(onset))
            if causes:
                explanations += causes
                break
    if not _OF_PASSES & {explanation.finding.cause for explanation in explanations}:
        explanations += find_passes(onset)
    frozen = [explanation for explanation in explanations if explanation.finding.cause == Cause.FROZEN]
    return [explanation for explanation in explanations if explanation not in frozen[1:]]
