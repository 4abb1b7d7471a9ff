"""Norms: eps and its place, weight + 1, mean, groups, statistics of the batch against collected ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from nndiff.diagnosis.tensor_values import read_wide
from nndiff.diagnosis.trials import Given, Trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.family import Family, Proof
from nndiff.findings.hypotheses.normalisation import (
    Norm,
    NormTensors,
    choose_tensors,
    describe_norm,
    identify_norms,
)
from nndiff.findings.hypotheses.operands import (
    can_read,
    find_setting,
    has_few_numbers,
    is_forward_trial,
    is_training,
    list_operands,
    pair_own_weights,
)
from nndiff.findings.settings import SYNONYMS

EPS_NAMES = next(names for names in SYNONYMS if "eps" in names)
# The facets of a norm with their causes; of several that differ the first is the cause.
_CAUSES = {
    "statistics": Cause.TRAIN_MODE,
    "rows": Cause.NORM_KIND,
    "centered": Cause.NORM_KIND,
    "unbiased": Cause.NORM_KIND,
    "weight": Cause.NORM_KIND,
    "offset": Cause.NORM_OFFSET,
    "placement": Cause.NORM_EPS_PLACEMENT,
    "eps": Cause.NORM_EPS,
    "bias": Cause.BIAS_MISSING,
}
MOST_CHANGES = 3  # facets in which two norms may differ: layer norm against RMS norm (mean, bias, eps)


def may_be_norm(trial: Trial) -> bool:
    """Return True if something was given that has the shape of what was made."""
    if not is_forward_trial(trial) or trial.reference.shape != trial.candidate.shape:
        return False
    return len(trial.reference.shape) >= 2 and any(_list_inputs(trial))


def _list_inputs(trial: Trial) -> list[Given]:
    return [given for given in list_operands(trial) if given.tensor.shape == trial.reference.shape]


def prove_norm(trial: Trial) -> Proof | None:
    """Return how the candidate's norm differs from the reference's, both identified by what they make."""
    if has_few_numbers(trial.reference_values) or has_few_numbers(trial.candidate_values):
        return None
    for given in _list_inputs(trial):
        norms = find_norms(trial, given.values)
        if norms is not None:
            return describe_change(trial, *norms)
    return None


def read_norm_tensors(trial: Trial, side: int) -> NormTensors:
    """Return the tensors of the norm on trial."""
    weights = {}
    for name, tensors in pair_own_weights(trial).items():
        tensor = tensors[side]
        if tensor is not None and tensor.dtype.kind == "float" and can_read(tensor):
            weights[name] = read_wide(tensor)
    return choose_tensors(weights)


def find_norms(trial: Trial, values: Any) -> tuple[Norm, Norm] | None:
    """Return the norms of both sides, as near to one another as what they make allows."""
    reference_eps = read_eps(trial, 0)
    tensors = read_norm_tensors(trial, 0), read_norm_tensors(trial, 1)
    room = trial.measure_room(trial.reference_values)
    ours = next(
        identify_norms(values, tensors[0], trial.reference_values, room, trial.gives_reference, reference_eps), None
    )
    if ours is None:
        return None
    known = [*read_eps(trial, 1), ours.eps]
    room = trial.measure_room(trial.candidate_values)
    nearest: tuple[int, Norm] | None = None
    for theirs in identify_norms(values, tensors[1], trial.candidate_values, room, trial.gives_candidate, known):
        changes = len(list_changes(trial, ours, theirs))
        if 0 < changes <= MOST_CHANGES and (nearest is None or changes < nearest[0]):
            nearest = changes, theirs
    return None if nearest is None else (ours, nearest[1])


def read_eps(trial: Trial, side: int) -> list[float]:
    """Return the eps that a side's module has by its settings."""
    setting = find_setting(trial, side, EPS_NAMES)
    if setting is None or isinstance(setting[1], bool) or not isinstance(setting[1], (int, float)):
        return []
    return [float(setting[1])]


def list_changes(trial: Trial, ours: Norm, theirs: Norm) -> list[str]:
    """Return the facets in which two norms differ."""
    if not theirs.has_weight:
        theirs = replace(theirs, offset=ours.offset)
    before, after = describe_norm(ours), describe_norm(theirs)
    changes = [facet for facet in _CAUSES if before[facet] != after[facet]]
    return [facet for facet in changes if facet != "eps"] + ["eps"] * (ours.eps != theirs.eps)


def describe_change(trial: Trial, ours: Norm, theirs: Norm) -> Proof | None:
    """Return what differs between two norms, with the setting to change."""
    changes = list_changes(trial, ours, theirs)
    facets = [facet for facet in _CAUSES if facet in changes]
    before, after = describe_norm(ours), describe_norm(theirs)
    cause = _CAUSES[facets[0]]
    if facets == ["eps"]:
        return describe_eps(trial, ours, theirs)
    texts = [f"{after[facet]} in the candidate, {before[facet]} in the reference" for facet in facets]
    repair = "make the candidate's norm that of the reference: " + ", ".join(before[facet] for facet in facets)
    if cause is Cause.TRAIN_MODE:
        modes = ["train mode" if is_training(trial, side) else "eval mode" for side in (0, 1)]
        if modes[0] != modes[1]:
            texts[0] += f" (the candidate is in {modes[1]}, the reference in {modes[0]})"
        repair = "call eval() on both sides" if ours.running else "use the statistics of the batch on both sides"
    elif cause is Cause.NORM_OFFSET:
        repair = f"have the candidate's norm {before['offset'].replace('multiplied', 'multiply')}"
    return Proof(cause, "; ".join(texts), repair)


def describe_eps(trial: Trial, ours: Norm, theirs: Norm) -> Proof | None:
    """Return both values of eps; nothing if a factor explains the numbers as well and no setting speaks for eps."""
    declared = read_eps(trial, 1)
    if theirs.eps not in declared and is_mere_factor(trial, ours):
        return None
    setting = find_setting(trial, 1, EPS_NAMES)
    name = f"`{setting[0]}`" if setting else "its eps"
    evidence = f"eps is {theirs.eps:.1e} in the candidate, {ours.eps:.1e} in the reference"
    if declared and theirs.eps not in declared:
        evidence += f"; the candidate's {name} of {declared[0]:.1e} is not what it uses"
        return Proof(Cause.NORM_EPS, evidence, f"have the candidate add {ours.eps:.1e}")
    return Proof(Cause.NORM_EPS, evidence, f"set {name} to {ours.eps:.1e}")


def is_mere_factor(trial: Trial, norm: Norm) -> bool:
    """Return True if one factor for all rows, before the bias is added, explains the candidate as well as eps."""
    tensors = read_norm_tensors(trial, 0)
    shift: Any = np.zeros(())
    if norm.has_bias and tensors.bias is not None:
        shift = norm.rows.spread(tensors.bias, trial.reference.shape)
    reference, candidate = trial.reference_values - shift, trial.candidate_values - shift
    energy = float(np.vdot(reference, reference))
    factor = float(np.vdot(reference, candidate)) / energy if energy else 1.0
    return trial.gives_candidate(factor * reference + shift)


NORMS = Family("norm variant", may_be_norm, prove_norm)
