"""A gradient that one module hands back otherwise: by another factor, not at all, or in part."""

from __future__ import annotations

import numpy as np

from nndiff.diagnosis.trials import Given, Trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.family import Family, Proof
from nndiff.findings.hypotheses.linear_sums import LARGEST_SUM, Term, find_factors, list_usual_factors

LEAST_ZEROED = 1e-3  # share of elements without a gradient on one side alone, below which none is missing


def applies(trial: Trial) -> bool:
    """Return True for gradients of one shape."""
    return (
        trial.error.slot.is_gradient
        and trial.reference.shape == trial.candidate.shape
        and 0 < trial.reference.count <= LARGEST_SUM
    )


def prove(trial: Trial) -> Proof | None:
    """Return what the candidate does with a gradient that the reference does not."""
    reference, candidate = trial.reference_values, trial.candidate_values
    if not (np.isfinite(reference).all() and np.isfinite(candidate).all()):
        return None
    owner = trial.error.candidate_module or "the model"
    for one, other, who in ((reference, candidate, "candidate"), (candidate, reference, "reference")):
        if one.any() and not other.any():
            text = f"the {who} hands no gradient back at {owner}: it is zero everywhere"
            return Proof(Cause.GRADIENTS_MISSING, text, "look for detach(), no_grad or an unused output there")
    usual = list_usual_factors(reference.shape[-1] if reference.shape else 1)
    itself = Term(Given("", True, "", trial.reference), ("",), reference)
    if factors := find_factors([itself], candidate, usual):
        factor = factors[0]
        if factor != 1 and trial.gives_candidate(factor * reference):
            text = f"the gradient that {owner} hands back is {factor:.6g} times that of the reference"
            return Proof(Cause.GRADIENTS_SCALED, text, "look for a factor that acts on the gradient alone")
    zeroed = (candidate == 0) & (reference != 0)
    if zeroed.mean() >= LEAST_ZEROED and trial.gives_candidate(np.where(zeroed, 0.0, reference)):
        text = f"{int(zeroed.sum()):,} of {zeroed.size:,} elements have no gradient in the candidate, all others agree"
        return Proof(Cause.GRADIENTS_MISSING, text, f"look for a part that is detached in {owner}")
    return None


GRADIENTS = Family("factor or cut of a gradient", applies, prove)
