"""What a factor, a sum, a limit, dropout or a shorter type does to every element of what the reference makes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nndiff.diagnosis.trials import Trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.family import Family, Proof
from nndiff.findings.hypotheses.layers import list_layers, read_weights
from nndiff.findings.hypotheses.operands import (
    SHORT_TYPES,
    Array,
    can_read,
    has_few_numbers,
    is_forward_trial,
    is_training,
    list_operands,
    list_round_numbers,
)
from nndiff.relations.rounding import measure_spacing, round_numbers
from nndiff.tolerance import NOISE_FACTOR

FEWEST_PER_PLACE = 4  # elements that share one factor or number: fewer fit by themselves
FEWEST_AT_LIMIT = 4  # elements at the limit that is taken for a clamp
FEWEST_DROPPED = 8  # elements that are zero on one side only
MOST_DEVIATIONS = 5.0  # standard errors by which the share of dropped elements may miss its probability
BISECTIONS = 200  # halvings that solve for a cap


def may_be_elementwise(trial: Trial) -> bool:
    """Return True if both sides made numbers of one shape, in the forward pass or as a gradient."""
    sides = trial.reference, trial.candidate
    if sides[0].shape != sides[1].shape or not all(side.dtype.kind == "float" and can_read(side) for side in sides):
        return False
    return is_forward_trial(trial) or trial.error.slot.is_gradient


def prove_elementwise(trial: Trial) -> Proof | None:
    """Return what was done to every element of the reference to make the candidate."""
    reference, candidate = trial.reference_values, trial.candidate_values
    if not (np.isfinite(reference).all() and np.isfinite(candidate).all()):
        return None if trial.error.slot.is_gradient else prove_not_finite(trial)
    if has_few_numbers(reference):
        return None
    if trial.error.slot.is_gradient:
        return prove_factor(trial)
    for prove in (
        prove_factor,
        prove_own_vector,
        prove_shift,
        prove_dropout,
        prove_softcap,
        prove_clamp,
        prove_unit_rows,
        prove_low_precision,
    ):
        proof = prove(trial)
        if proof is not None:
            return proof
    return None


def prove_along(trial: Trial) -> Proof | None:
    """Return the number for each row, or the factor for each place along an axis: so many explain a lot."""
    if trial.error.slot.is_gradient or has_few_numbers(trial.reference_values):
        return None
    if not (np.isfinite(trial.reference_values).all() and np.isfinite(trial.candidate_values).all()):
        return None
    return prove_row_shift(trial) or prove_along_axis(trial)


def prove_not_finite(trial: Trial) -> Proof | None:
    """Return where one side is not finite, if the sides agree elsewhere."""
    reference, candidate = trial.reference_values, trial.candidate_values
    finite = np.isfinite(reference), np.isfinite(candidate)
    both = finite[0] & finite[1]
    if np.array_equal(*finite) or not both.any():
        return None
    gap = float(np.max(np.abs(np.where(both, reference, 0) - np.where(both, candidate, 0))))
    side, whole, broken = (
        ("candidate", reference, candidate) if finite[0].all() else ("reference", candidate, reference)
    )
    if not np.isfinite(whole).all():
        return None
    # in a shorter type what is left has a coarser rounding
    largest = float(np.finfo(np.float16).max)
    beyond = round_numbers(whole, "float16").astype(np.float64)
    room = NOISE_FACTOR * trial.noise + float(np.max(np.abs(np.where(both, beyond - whole, 0))))
    if gap > room:
        return None
    places = ~np.isfinite(broken)
    if np.array_equal(np.isinf(broken), np.isinf(beyond)) and np.isinf(broken).sum() == places.sum():
        evidence = f"infinite in the {side} where numbers are beyond {largest:g}, the range of float16"
        return Proof(Cause.OVERFLOW, evidence, "compute this in bfloat16 or float32")
    if gap > NOISE_FACTOR * trial.noise:
        return None
    what = (
        "NaN"
        if np.isnan(broken[places]).all()
        else "infinity"
        if np.isinf(broken).sum() == places.sum()
        else "NaN or infinity"
    )
    where = f"{what} in the {side} at {int(places.sum()):,} of {places.size:,} elements, all else agrees"
    for axis in range(places.ndim):
        others = tuple(other for other in range(places.ndim) if other != axis)
        lines = places.any(others)
        if places.ndim > 1 and lines.sum() < lines.size and np.array_equal(lines, places.all(others)):
            which = ", ".join(str(place) for place in np.flatnonzero(lines)[:3])
            where += f": the whole of place {which} along axis {axis}"
            break
    return Proof(
        Cause.NOT_FINITE, where, "look for a division by zero, a root or logarithm of what is negative, an overflow"
    )


def fit_factor(ours: Array, theirs: Array) -> float:
    """Return the factor that brings one array closest to another."""
    energy = float(np.vdot(ours, ours))
    return float(np.vdot(ours, theirs)) / energy if energy else 0.0


def list_named_factors(trial: Trial, factor: float) -> Iterator[tuple[float, str]]:
    """Yield values near a factor that sizes explain, with what they are called, then rounded ones."""
    shapes = [trial.reference.shape, *(given.tensor.shape for given in trial.given)]
    shapes += [tensor.shape for tensors in trial.weights.values() for tensor in tensors if tensor is not None]
    for value in list_round_numbers(factor):
        if float(f"{value:.1e}") == value:
            yield value, ""
    for size in sorted({size for shape in shapes for size in shape if size > 1}):
        for value, name in (
            (math.sqrt(size), f"sqrt({size})"),
            (1 / math.sqrt(size), f"1 / sqrt({size})"),
            (float(size), f"{size}"),
            (1 / size, f"1 / {size}"),
        ):
            yield value, f" = {name}"
    for value in list_round_numbers(factor):
        yield value, ""


def prove_factor(trial: Trial) -> Proof | None:
    """Return the factor between the sides."""
    factor = fit_factor(trial.reference_values, trial.candidate_values)
    if not math.isfinite(factor) or factor == 0:
        return None
    if not trial.gives_candidate(factor * trial.reference_values):
        return None
    for value, name in list_named_factors(trial, factor):
        if trial.gives_candidate(value * trial.reference_values):
            text = f"{value:g}{name}"
            if trial.error.slot.is_gradient:
                evidence = f"the candidate's gradient is {text} times the reference's here"
                return Proof(Cause.GRADIENTS_SCALED, evidence, "look for a factor in the backward pass of this module")
            if value == -1:
                return Proof(Cause.SCALED, "the sign of the candidate is opposite", "change the sign")
            evidence = f"the candidate is {text} times the reference"
            return Proof(
                Cause.SCALED, evidence, f"multiply by {1 / value:g} in the candidate, or find where {text} comes from"
            )
    return None


def prove_own_vector(trial: Trial) -> Proof | None:
    """Return that a vector the module holds is added or multiplied on one side only."""
    reference = trial.reference_values
    for name, vector in read_weights(trial, 0).items():
        if vector.ndim != 1 or has_few_numbers(vector):
            continue
        for axis in range(reference.ndim):
            if reference.shape[axis] != vector.size:
                continue
            spread = vector.reshape((-1,) + (1,) * (reference.ndim - 1 - axis))
            for sign, how in ((-1, "does not add"), (1, "adds once more")):
                if trial.gives_candidate(reference + sign * spread):
                    return Proof(Cause.BIAS_MISSING, f"the candidate {how} `{name}`", f"add `{name}` once")
            with np.errstate(all="ignore"):
                without, twice = reference / spread, reference * spread
            if trial.gives_candidate(without):
                return Proof(Cause.SCALED, f"the candidate does not multiply by `{name}`", f"multiply by `{name}`")
            if trial.gives_candidate(twice):
                evidence = f"the candidate multiplies once more by `{name}`"
                return Proof(Cause.SCALED, evidence, f"multiply by `{name}` once")
    return None


def prove_shift(trial: Trial) -> Proof | None:
    """Return the number that one side adds."""
    shift = float(np.mean(trial.candidate_values - trial.reference_values))
    for value in list_round_numbers(shift):
        if value and trial.gives_candidate(trial.reference_values + value):
            evidence = f"the candidate is the reference {'+' if value > 0 else '-'} {abs(value):g}"
            return Proof(Cause.SHIFTED, evidence, f"find what adds {value:g} in the candidate")
    return None


def prove_along_axis(trial: Trial) -> Proof | None:
    """Return that one number or factor for each place along an axis lies between the sides."""
    reference, candidate = trial.reference_values, trial.candidate_values
    for axis in reversed(range(reference.ndim)):
        places = reference.shape[axis]
        if places < 2 or reference.size < FEWEST_PER_PLACE * places:
            continue
        others = tuple(other for other in range(reference.ndim) if other != axis)
        shifts = (candidate - reference).mean(others, keepdims=True)
        if trial.gives_candidate(reference + shifts):
            span = f"{shifts.min():.3g} to {shifts.max():.3g}"
            evidence = f"the candidate is the reference plus one number for each place along axis {axis} ({span})"
            return Proof(Cause.SHIFTED, evidence, "find the vector that one side adds")
        energy = np.square(reference).sum(others, keepdims=True)
        overlap = (reference * candidate).sum(others, keepdims=True)
        factors = np.divide(overlap, energy, out=np.ones_like(energy), where=energy > 0)
        signs = np.sign(factors)
        if trial.gives_candidate(reference * signs):
            evidence = f"the sign is opposite at {int((signs < 0).sum())} of {places} places along axis {axis}"
            return Proof(Cause.SCALED, evidence, "change the sign")
        if trial.gives_candidate(reference * factors):
            span = f"{factors.min():.3g} to {factors.max():.3g}"
            evidence = f"the candidate is the reference times one factor for each place along axis {axis} ({span})"
            return Proof(Cause.SCALED, evidence, "find the vector that one side multiplies by")
    return None


def prove_row_shift(trial: Trial) -> Proof | None:
    """Return that one number for each row lies between the sides: a log-softmax, rows that are centred."""
    reference, candidate = trial.reference_values, trial.candidate_values
    if reference.ndim < 2 or reference.shape[-1] < 2 * FEWEST_PER_PLACE:
        return None
    shifts = (candidate - reference).mean(-1, keepdims=True)
    if not trial.gives_candidate(reference + shifts):
        return None
    for side, other, values in (("candidate", "reference", reference), ("reference", "candidate", candidate)):
        largest = values.max(-1, keepdims=True)
        total = largest + np.log(np.exp(values - largest).sum(-1, keepdims=True))
        gives = trial.gives_candidate if side == "candidate" else trial.gives_reference
        if gives(values - total):
            evidence = f"the {side} is the log-softmax of the {other}: each row is shifted by one number"
            return Proof(Cause.SHIFTED, evidence, "take the log-softmax on both sides, or on neither")
    evidence = f"the candidate is the reference plus one number for each row ({shifts.min():.3g} to {shifts.max():.3g})"
    return Proof(Cause.SHIFTED, evidence, "find what one side adds to whole rows: a mean, a log-sum")


def prove_dropout(trial: Trial) -> Proof | None:
    """Return the probability with which elements are zero on one side, the others scaled up for it."""
    for side, whole, dropped in (
        (1, trial.reference_values, trial.candidate_values),
        (0, trial.candidate_values, trial.reference_values),
    ):
        gone = (dropped == 0) & (whole != 0)
        kept = (dropped != 0) & (whole != 0)
        count = int(gone.sum()) + int(kept.sum())
        if gone.sum() < FEWEST_DROPPED or not kept.any():
            continue
        factor = fit_factor(whole[kept], dropped[kept])
        if factor <= 1:
            continue
        gives = trial.gives_candidate if side else trial.gives_reference
        for p in list_round_numbers(1 - 1 / factor):
            if not 0 < p < 1 or not gives(np.where(gone, 0.0, whole / (1 - p))):
                continue
            error = math.sqrt(p * (1 - p) / count)
            if abs(gone.sum() / count - p) > MOST_DEVIATIONS * error and not _drops_lines(gone):
                continue
            name, other = ("reference", "candidate")[side], ("candidate", "reference")[side]
            zeros = f"{int(gone.sum()):,} of {count:,} elements are zero, the others {1 / (1 - p):.4g} times as large"
            evidence = f"dropout of {p:g} in the {name}: {zeros}"
            if is_training(trial, side) and not is_training(trial, 1 - side):
                return Proof(Cause.TRAIN_MODE, f"{evidence}; the {name} is in train mode", f"call eval() on the {name}")
            if is_training(trial, side):
                return Proof(Cause.DROPOUT, evidence, f"leave it out, or drop as much in the {other}")
            return Proof(Cause.DROPOUT, evidence, f"pass training=self.training to dropout in the {name}")
    return None


def _drops_lines(gone: Array) -> bool:
    """Return True if whole channels or samples are dropped, of which there are few: their share is not telling."""
    for axes in ((0,), (0, 1)):
        others = tuple(axis for axis in range(gone.ndim) if axis not in axes)
        if others and np.array_equal(gone.any(others), gone.all(others)):
            return True
    return False


def solve_cap(before: Array, after: Array) -> float | None:
    """Return the c for which after = c * tanh(before / c), by the element that is capped most."""
    place = int(np.argmax(np.abs(before)))
    x, y = abs(float(before.flat[place])), abs(float(after.flat[place]))
    if not 0 < y < x:
        return None
    low, high = y, y
    while high * math.tanh(x / high) < y or high == low:
        high *= 2
        if high > x * 1e6:
            return None
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if middle * math.tanh(x / middle) < y else (low, middle)
    return high


def find_cap(trial: Trial, before: Array, side: int) -> float | None:
    """Return the cap with which a side's numbers are those before it; None if there is none."""
    after = (trial.reference_values, trial.candidate_values)[side]
    cap = solve_cap(before, after)
    if cap is None:
        return None
    gives = (trial.gives_reference, trial.gives_candidate)[side]
    return next((value for value in list_round_numbers(cap) if gives(value * np.tanh(before / value))), None)


def prove_softcap(trial: Trial) -> Proof | None:
    """Return at what value one side, or each, caps by tanh."""
    cap = find_cap(trial, trial.reference_values, 1)
    if cap is not None:
        evidence = f"the candidate caps at {cap:g} by tanh, the reference does not"
        return Proof(Cause.SOFTCAP, evidence, "leave out the cap in the candidate")
    cap = find_cap(trial, trial.candidate_values, 0)
    if cap is not None:
        evidence = f"the reference caps at {cap:g} by tanh, the candidate does not"
        return Proof(Cause.SOFTCAP, evidence, f"cap at {cap:g} in the candidate: {cap:g} * tanh(x / {cap:g})")
    for given in list_operands(trial):
        if given.tensor.shape == trial.reference.shape:
            ours, theirs = find_cap(trial, given.values, 0), find_cap(trial, given.values, 1)
            if ours is not None and theirs is not None:
                evidence = f"the candidate caps at {theirs:g}, the reference at {ours:g}"
                return Proof(Cause.SOFTCAP, evidence, f"cap at {ours:g} in the candidate")
    return None


def prove_clamp(trial: Trial) -> Proof | None:
    """Return the limits to which one side clamps."""
    for side, whole, cut in (
        ("candidate", trial.reference_values, trial.candidate_values),
        ("reference", trial.candidate_values, trial.reference_values),
    ):
        low, high = float(cut.min()), float(cut.max())
        gives = trial.gives_candidate if side == "candidate" else trial.gives_reference
        at_low, at_high = int((cut == low).sum()), int((cut == high).sum())
        limits = []
        if at_low >= FEWEST_AT_LIMIT and (whole < low).any():
            limits.append(f"at least {low:g}")
        if at_high >= FEWEST_AT_LIMIT and (whole > high).any():
            limits.append(f"at most {high:g}")
        if limits and gives(np.clip(whole, low, high)):
            evidence = f"the {side} is clamped to {' and '.join(limits)}, the other side is not"
            return Proof(Cause.ACTIVATION, evidence, "clamp on both sides, or on neither")
    return None


def prove_unit_rows(trial: Trial) -> Proof | None:
    """Return that rows are brought to length 1 on one side only."""
    for side, whole, gives in (
        ("candidate", trial.reference_values, trial.gives_candidate),
        ("reference", trial.candidate_values, trial.gives_reference),
    ):
        for axis in reversed(range(whole.ndim)):
            length = np.sqrt(np.square(whole).sum(axis, keepdims=True))
            if whole.shape[axis] > 1 and gives(whole / np.maximum(length, 1e-12)):
                evidence = f"rows along axis {axis} are brought to length 1 in the {side} only"
                return Proof(Cause.NORM_KIND, evidence, "normalise on both sides, or on neither")
    return None


def prove_low_precision(trial: Trial) -> Proof | None:
    """Return the shorter type in which the candidate computes, or to which it rounds what it makes."""
    candidate = trial.candidate_values
    noise = NOISE_FACTOR * trial.noise
    for dtype in SHORT_TYPES:
        is_short = np.array_equal(round_numbers(candidate.astype(np.float32), dtype), candidate)
        reference = trial.reference_values
        was_short = np.array_equal(round_numbers(reference.astype(np.float32), dtype), reference)
        if is_short and not was_short:
            gap = np.abs(candidate - reference)
            if np.all(gap <= 0.5 * measure_spacing(reference, dtype) + noise):
                evidence = f"what the candidate makes is rounded to {dtype}"
                return Proof(Cause.LOW_PRECISION, evidence, f"leave out the cast to {dtype}")

        def shorten(values: Array, dtype: str = dtype) -> Array:
            return round_numbers(values.astype(np.float32), dtype).astype(np.float64)

        weights = {name: shorten(values) for name, values in read_weights(trial, 0).items()}
        for layer in list_layers(trial, 0, shorten):
            made = layer.run(weights)
            if made is None or made.shape != candidate.shape:
                continue
            # the product is rounded, and once more with the bias
            is_near = is_short and bool(np.all(np.abs(candidate - made) <= measure_spacing(made, dtype) + noise))
            if (is_near and not was_short) or trial.gives_candidate(made):
                evidence = f"the numbers are the candidate's once inputs and weights are rounded to {dtype}"
                return Proof(
                    Cause.LOW_PRECISION, evidence, f"compute this {layer.kind} in float32: look for autocast and casts"
                )
    return None


ELEMENTWISE = Family("factor, shift, limit or rounding", may_be_elementwise, prove_elementwise)
ALONG_AXES = Family("number for each row or place", may_be_elementwise, prove_along)
