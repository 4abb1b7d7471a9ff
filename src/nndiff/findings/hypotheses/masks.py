"""A mask that code hands on: which places it leaves open on either side."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.diagnosis.trials import Trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.family import Family, Proof
from nndiff.findings.hypotheses.places import Places, describe_places, fit_places, rebuild_places
from nndiff.relations.operations import MASKED_BELOW

Array = NDArray[Any]

MOST_PLACES = 1 << 24  # elements of a mask


def applies(trial: Trial) -> bool:
    """Return True if both sides made what may be a mask."""
    shape = trial.reference.shape
    if trial.candidate.shape != shape or not 2 <= len(shape) <= 4 or trial.reference.count > MOST_PLACES:
        return False
    if trial.error.slot.is_gradient or 0 in shape:
        return False
    return all(_may_be_mask(values) for values in (trial.reference_values, trial.candidate_values))


def _may_be_mask(values: Array) -> bool:
    """Return True if there are two values at most: 0 and 1, or 0 and something far below every score."""
    if np.iscomplexobj(values) or np.isnan(values).any():
        return False
    return bool(np.all((values == 0) | (values == 1)) or np.all((values == 0) | (values < MASKED_BELOW)))


def prove(trial: Trial) -> Proof | None:
    """Return in which places two masks differ, as causality, window or padding."""
    reference, candidate = trial.reference_values, trial.candidate_values
    additive = bool((reference < MASKED_BELOW).any() or (candidate < MASKED_BELOW).any())
    is_square = reference.shape[0] == reference.shape[1]
    inputs = [given.shape for given in trial.model_inputs.values()]
    if reference.ndim == 2 and is_square and reference.shape in inputs:
        return None  # queries by keys, or samples by positions: there are as many of both
    # whether a true place is open or closed is not said: the own position is open
    meanings = (False,) if additive else (True, False)
    for true_is_open in meanings:
        opened = [_put_heads_away((values != 0) == true_is_open) for values in (reference, candidate)]
        if opened[0] is None or opened[1] is None:
            return None
        if reference.ndim > 2 or is_square:
            proof = _compare_rules(trial, opened[0], opened[1], true_is_open)
        else:
            proof = _compare_keys(trial, opened[0][0], opened[1][0])
        if proof is not None:
            return proof
    return None


def _put_heads_away(opened: Array) -> Array | None:
    """Return a mask as [batch, queries, keys]; None if its heads see different places."""
    if opened.ndim == 2:
        return opened[None]
    if opened.ndim == 4:
        return opened[:, 0] if bool((opened == opened[:, :1]).all()) else None
    return opened


def _compare_rules(trial: Trial, reference: Array, candidate: Array, true_is_open: bool) -> Proof | None:
    rules = [fit_places(opened) for opened in (reference, candidate)]
    if rules[0] is None or rules[1] is None or not _sees_itself(reference):
        return None
    if not trial.gives_candidate(_write_mask(trial, rules[1], true_is_open)):
        return None
    return describe_places(rules[0], rules[1])


def _sees_itself(opened: Array) -> bool:
    """Return True if most queries that see anything see their own position."""
    queries, keys = opened.shape[1:]
    if queries > keys:
        return False
    own = opened[:, np.arange(queries), np.arange(queries) + keys - queries]
    seeing = opened.any(2)
    return bool(2 * (own & seeing).sum() > seeing.sum()) or bool(opened.shape[1] == 1)


def _write_mask(trial: Trial, places: Places, true_is_open: bool) -> Array:
    """Return open places in the candidate's numbers."""
    theirs = trial.candidate_values
    opened = rebuild_places(places)
    if theirs.ndim == 4:
        opened = opened[:, None]
    opened = np.broadcast_to(opened, theirs.shape) if theirs.ndim > 2 else opened[0]
    closed_values = theirs[theirs < MASKED_BELOW]
    if closed_values.size:
        return np.where(opened, 0.0, closed_values.flat[0])
    if (trial.reference_values < MASKED_BELOW).any():
        return np.where(opened, 0.0, -np.inf)
    return np.asarray(opened == true_is_open, np.float64)


def _compare_keys(trial: Trial, reference: Array, candidate: Array) -> Proof | None:
    """Return how a mask over [batch, keys] differs: inverted, or open everywhere."""
    theirs = trial.candidate_values
    if np.array_equal(candidate, ~reference):
        return Proof(Cause.PADDING_MASK, "the candidate inverts the padding mask", "invert the padding mask")
    if candidate.all() and not reference.all() and np.all(theirs == theirs.flat[0]):
        return Proof(
            Cause.PADDING_MASK, "the candidate ignores the padding mask", "apply the padding mask in the candidate"
        )
    return None


MASKS = Family("mask of other places", applies, prove)
