"""Causes of own errors, each proven by an experiment on recorded tensors: one file per family."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from nndiff.diagnosis.trials import Trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.activations import ACTIVATION_VARIANTS
from nndiff.findings.hypotheses.attention import ATTENTION
from nndiff.findings.hypotheses.convolutions import CONVOLUTIONS
from nndiff.findings.hypotheses.elementwise import ALONG_AXES, ELEMENTWISE
from nndiff.findings.hypotheses.family import Family, Proof
from nndiff.findings.hypotheses.gradients import GRADIENTS
from nndiff.findings.hypotheses.inputs import INPUTS
from nndiff.findings.hypotheses.known_vectors import KNOWN_VECTORS
from nndiff.findings.hypotheses.layouts import LAYOUTS, REORDERED
from nndiff.findings.hypotheses.masks import MASKS
from nndiff.findings.hypotheses.narrowing import narrow_trial
from nndiff.findings.hypotheses.norms import NORMS
from nndiff.findings.hypotheses.operands import have_equal_values
from nndiff.findings.hypotheses.parts import PARTS
from nndiff.findings.hypotheses.positions import POSITIONS
from nndiff.findings.hypotheses.recurrences import RECURRENCES
from nndiff.findings.hypotheses.structure import SKIPPED, STRUCTURE
from nndiff.findings.hypotheses.weights import WEIGHTS, explain_by_weights
from nndiff.result import Finding

__all__ = ["FAMILIES", "Family", "Proof", "explain_trials"]

COMPUTATIONS: tuple[Family, ...] = (  # the most specific first: the first proof is given
    POSITIONS,
    WEIGHTS,
    NORMS,
    ACTIVATION_VARIANTS,
    MASKS,
    ATTENTION,
    CONVOLUTIONS,
    RECURRENCES,
    LAYOUTS,
    INPUTS,
    PARTS,
    KNOWN_VECTORS,
    ELEMENTWISE,
)
# What is said of code as a whole. Weights that are all that differs come before it: a layer scaled down to nothing
# looks as if it were skipped.
STRUCTURES: tuple[Family, ...] = (STRUCTURE, ALONG_AXES, REORDERED, SKIPPED, GRADIENTS)
FAMILIES = (*COMPUTATIONS, *STRUCTURES)
# What may have made one of the parts that were joined.
OF_PARTS: tuple[Family, ...] = (ACTIVATION_VARIANTS, CONVOLUTIONS, ELEMENTWISE, STRUCTURE)

PROVEN = 0.98  # confidence of a cause that reproduces the candidate's numbers
LEFT_OVER = 0.8  # of weights that are all that differs, where the numbers could not be computed
UNEXPLAINED = 0.5  # of code of which only is known what it does not do


def explain_trials(trials: Iterable[Trial]) -> Iterator[Finding]:
    """Yield for each own error its proven cause, else weights that alone differ, else what was ruled out."""
    trials = list(trials)
    with np.errstate(all="ignore"):  # what is infinite on both sides proves nothing, and is no reason to warn
        explained = [_explain_trial(trial) for trial in trials]
    reordered = {
        trial.error.module
        for trial, (proof, _) in zip(trials, explained, strict=True)
        if proof.cause is Cause.BLOCK_ORDER
    }
    for trial, (proof, confidence) in zip(trials, explained, strict=True):
        if proof.cause is Cause.LAYER_SKIPPED and trial.error.module in reordered:
            evidence = f"{proof.evidence}; what seems to be skipped runs later"
            proof = replace(proof, cause=Cause.BLOCK_ORDER, evidence=evidence)
        yield Finding(proof.cause, _list_places(trial), proof.evidence, proof.repair, confidence)


def _explain_trial(trial: Trial) -> tuple[Proof, float]:
    """Return the cause of one own error and how sure it is."""
    tried: list[str] = []
    proof = _prove_any(trial, COMPUTATIONS, tried)
    if proof is not None:
        return proof, PROVEN
    proof = explain_by_weights(trial)
    if proof is not None:
        return proof, LEFT_OVER
    proof = _prove_any(trial, STRUCTURES, tried)
    if proof is not None:
        return proof, PROVEN
    narrowed = narrow_trial(trial)
    if narrowed is not None:
        proof = _prove_any(narrowed[0], OF_PARTS, [])
        if proof is not None:
            return replace(proof, evidence=f"{proof.evidence}; {narrowed[1]}"), PROVEN
    return _describe_unexplained(trial, tried), UNEXPLAINED


def _prove_any(trial: Trial, families: Iterable[Family], tried: list[str]) -> Proof | None:
    """Return the first proof; the names of the families that were tried are added to `tried`.

    A family that does not know what to do with tensors of some shape proves nothing and rules nothing out: it must not
    take the causes of all other modules with it.
    """
    for family in families:
        try:
            if not family.applies(trial):
                continue
            proof = family.prove(trial)
        except (ArithmeticError, LookupError, ValueError):
            if os.environ.get("NNDIFF_TRACEBACK"):
                raise
            continue
        if proof is not None:
            return proof
        tried.append(family.name)
    return None


def _list_places(trial: Trial) -> tuple[str, ...]:
    """Return where an error is: a gradient is seen at the output of another module than the one that made it."""
    error = trial.error
    is_elsewhere = error.slot.is_gradient and error.module and trial.reference.site.module != error.module
    return (error.module, error.name) if is_elsewhere else (error.name,)


def _describe_unexplained(trial: Trial, tried: Sequence[str]) -> Proof:
    """Return what is known of an error without a proven cause: what is equal, what it is not, where it happens."""
    error = trial.error
    differing = [name for name, (ours, theirs) in trial.weights.items() if not have_equal_values(ours, theirs)]
    differing += trial.unread_weights
    weights = f", weights differ ({', '.join(differing)})" if differing else ", weights equal"
    if not differing and not trial.model_weights[0]:
        weights = ""  # nothing is known of them
    ruled_out = f", no {' or '.join(tried)}" if tried else ""
    place = f"the code of {error.candidate_module or 'the model'}"
    if error.after or error.before:
        place += f" between {error.after or 'its inputs'} and {error.before or 'its output'}"
    shapes = ""
    if trial.reference.shape != trial.candidate.shape:
        shapes = f", shape {trial.candidate.shape} in the candidate, {trial.reference.shape} in the reference"
    evidence = f"inputs equal{weights}{ruled_out}{shapes}: {place}"
    return Proof(Cause.OWN_CODE, evidence, f"compare {place} on both sides")
