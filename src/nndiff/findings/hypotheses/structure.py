"""How the parts of a block are put together: residuals, norms, order, skipped layers, pooling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.diagnosis.trials import Given, Trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.attention_search import list_setting_values
from nndiff.findings.hypotheses.family import Family, Proof
from nndiff.findings.hypotheses.linear_sums import (
    LARGEST_SUM,
    Term,
    add_up,
    find_factors,
    list_terms,
    list_usual_factors,
)

Array = NDArray[Any]

MOST_MOVED = 3  # positions by which rows are tried to be shifted


def applies(trial: Trial) -> bool:
    """Return True if a tensor was made from given ones of a size that can be added up."""
    if trial.error.slot.is_gradient or trial.reference.shape != trial.candidate.shape:
        return False
    return trial.reference.dtype.kind == "float" and bool(trial.given) and 0 < trial.reference.count <= LARGEST_SUM


def prove(trial: Trial) -> Proof | None:
    """Return how the candidate puts together otherwise what was given."""
    for explain in (_explain_sum, _explain_pooling, _explain_shift):
        if proof := explain(trial):
            return proof
    return None


def _explain_sum(trial: Trial) -> Proof | None:
    """Return which given tensors the candidate adds, or by which factor, where the reference does not."""
    terms = list_terms(trial, trial.reference.shape)
    if not terms:
        return None
    usual = list_usual_factors(trial.reference.shape[-1] if trial.reference.shape else 1, list_setting_values(trial))
    reference = find_factors(terms, trial.reference_values, usual)
    candidate = find_factors(terms, trial.candidate_values, usual)
    if candidate is not None and not trial.gives_candidate(add_up(terms, candidate)):
        candidate = None
    if reference is not None and not trial.gives_reference(add_up(terms, reference)):
        reference = None
    if reference is not None and candidate is not None:
        return _describe_sums(trial, terms, reference, candidate)
    return _explain_difference(trial, terms, usual)


def prove_skipped(trial: Trial) -> Proof | None:
    """Return what the candidate hands on as it is; true of many faults, so it is said where nothing else is known."""
    for term in list_terms(trial, trial.candidate.shape):
        if trial.gives_candidate(term.values):
            text = f"the candidate hands on {_name_term(term)} as it is; the reference makes something else of it"
            return Proof(Cause.LAYER_SKIPPED, text, f"do what the reference does with {_name_term(term)}")
    return None


def _explain_difference(trial: Trial, terms: Sequence[Term], usual: Sequence[float]) -> Proof | None:
    """Return the one given tensor by which both sides differ, whatever else they are made of."""
    gap = trial.candidate_values - trial.reference_values
    for place, term in enumerate(terms):
        factors = find_factors([term], gap, usual)
        if not factors or abs(factors[0]) != 1.0:
            continue
        if trial.gives_candidate(trial.reference_values + factors[0] * term.values):
            before, after = ({}, {place: 1.0}) if factors[0] > 0 else ({place: 1.0}, {})
            return _describe_sums(trial, terms, before, after)
    return None


def _describe_sums(
    trial: Trial, terms: Sequence[Term], reference: Mapping[int, float], candidate: Mapping[int, float]
) -> Proof | None:
    lost = [place for place in reference if place not in candidate]
    gained = [place for place in candidate if place not in reference]
    rescaled = [place for place in reference if place in candidate and reference[place] != candidate[place]]
    if not (lost or gained or rescaled):
        return None
    if rescaled and not lost and not gained:
        texts = [
            f"{_name_term(terms[place])} is multiplied by {candidate[place]:.6g} in the candidate, "
            f"by {reference[place]:.6g} in the reference"
            for place in rescaled
        ]
        repairs = [f"multiply {_name_term(terms[place])} by {reference[place]:.6g}" for place in rescaled]
        return Proof(Cause.SCALED, "; ".join(texts), "; ".join(repairs))
    lost_names, gained_names = (" and ".join(_name_term(terms[place]) for place in places) for places in (lost, gained))
    words = "adds" if len(reference) > 1 or len(candidate) > 1 else "uses"
    if lost and gained:
        text = f"the candidate {words} {gained_names} where the reference {words} {lost_names}"
    elif lost:
        text = f"the candidate does not add {lost_names}"
    else:
        text = f"the candidate adds {gained_names}, the reference does not"
    place = f" before {trial.error.before}" if trial.error.before else ""
    repair = f"use {_describe_sum(terms, reference)}{place}" if reference else f"do not add {gained_names}{place}"
    return Proof(_choose_cause(trial, terms, lost, gained, reference), text, repair)


def _choose_cause(
    trial: Trial, terms: Sequence[Term], lost: list[int], gained: list[int], reference: Mapping[int, float]
) -> Cause:
    """Return what it is called that some tensors are used instead of others."""
    norms = any("norm" in terms[place].given.cls.lower() for place in (*lost, *gained))
    if any(_comes_later(trial, terms[place].given) for place in gained):
        return Cause.NORM_PLACEMENT if norms else Cause.BLOCK_ORDER
    is_shared = len(reference) > len(lost)
    if is_shared and gained and not any("norm" in terms[place].given.cls.lower() for place in lost) and norms:
        return Cause.RESIDUAL  # it starts behind the norm
    if lost and gained and norms:
        # what a norm returns is replaced: in front of a layer it stands elsewhere, at the end it is missing
        only_norm = len(reference) == 1 and not trial.error.before
        return Cause.LAYER_SKIPPED if only_norm else Cause.NORM_PLACEMENT
    arguments = [terms[place].given.is_argument for place in lost]
    if len(reference) == 1 and lost and gained:
        return Cause.BLOCK_ORDER if all(arguments) else Cause.LAYER_SKIPPED
    # a branch that is left out right after it was computed is a layer without effect; an earlier one was left behind
    latest = ["", *(given.name for given in trial.inner if not _comes_later(trial, given))][-1]
    if lost and not gained and not any(arguments) and any(latest in terms[place].names for place in lost):
        return Cause.LAYER_SKIPPED
    return Cause.RESIDUAL


def _comes_later(trial: Trial, given: Given) -> bool:
    """Return True if the reference makes a tensor only after the one on trial."""
    made = trial.reference.trace.order
    return not given.is_argument and made >= 0 and given.tensor.trace.order > made


def _name_term(term: Term) -> str:
    kind = "argument" if term.given.is_argument else "output of"
    return f"{kind} {term.names[0]}"


def _describe_sum(terms: Sequence[Term], factors: Mapping[int, float]) -> str:
    parts = []
    for place, factor in factors.items():
        parts.append(_name_term(terms[place]) if factor == 1 else f"{factor:.6g} * {_name_term(terms[place])}")
    return " + ".join(parts)


def _explain_pooling(trial: Trial) -> Proof | None:
    """Return which position, or which mean, the candidate takes of a sequence."""
    shape = trial.reference.shape
    for given in trial.given:
        if given.tensor.dtype.kind != "float" or len(given.tensor.shape) != len(shape) + 1:
            continue
        values = given.values
        if (*values.shape[:1], *values.shape[2:]) != shape or not values.size:
            continue
        pooled = list(_pool_sequence(trial, values))
        ours = next((text for text, taken in pooled if trial.gives_reference(taken)), None)
        theirs = next((text for text, taken in pooled if trial.gives_candidate(taken)), None)
        if ours and theirs and ours != theirs:
            text = f"the candidate takes {theirs} of {given.name}, the reference {ours}"
            return Proof(Cause.POOLING, text, f"take {ours}")
    return None


def _pool_sequence(trial: Trial, values: Array) -> Iterator[tuple[str, Array]]:
    """Yield what may be taken of a sequence."""
    yield "the first position", values[:, 0]
    yield "the last position", values[:, -1]
    yield "the mean over positions", values.mean(1)
    yield "the sum over positions", values.sum(1)
    yield "the maximum over positions", values.max(1)
    if values.shape[1] > 1:
        yield "the second position", values[:, 1]
        yield "the mean over all positions but the first", values[:, 1:].mean(1)
    masks = [given.values for given in trial.arguments] + [tensor.numpy() for tensor in trial.model_inputs.values()]
    for mask in masks:
        if mask.shape != values.shape[:2] or np.iscomplexobj(mask) or not np.all((mask == 0) | (mask == 1)):
            continue
        kept = mask.astype(np.float64)
        if not kept.sum(1).all():
            continue
        spread = kept.reshape(*kept.shape, *(1,) * (values.ndim - 2))
        yield "the mean over unmasked positions", (values * spread).sum(1) / spread.sum(1)
        last = values.shape[1] - 1 - np.argmax(kept[:, ::-1], 1)
        yield "the last unmasked position", values[np.arange(len(last)), last]


def _explain_shift(trial: Trial) -> Proof | None:
    """Return by how many positions the candidate's rows are shifted."""
    made = trial.reference_values
    if made.ndim < 2:
        return None
    for axis in (1,) if made.ndim > 2 else (0,):
        for shift in [sign * number for number in range(1, MOST_MOVED + 1) for sign in (1, -1)]:
            if abs(shift) >= made.shape[axis]:
                continue
            rolled = np.roll(made, shift, axis)
            emptied = rolled.copy()
            edge = slice(0, shift) if shift > 0 else slice(shift, None)
            emptied[(slice(None),) * axis + (edge,)] = 0.0
            for values, rest in ((rolled, "the rest comes round"), (emptied, "zeros fill the rest")):
                if trial.gives_candidate(values):
                    text = f"positions of the candidate are shifted by {shift:+d}; {rest}"
                    return Proof(Cause.POSITION_OFFSET, text, f"shift positions by {-shift:+d}")
    return None


STRUCTURE = Family("sum or pooling of what was given", applies, prove)
SKIPPED = Family("layer that is skipped", applies, prove_skipped)
