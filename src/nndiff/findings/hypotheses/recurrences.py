"""Recurrent layers of equal weights: batch first or time first, direction, order of gates."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from nndiff.diagnosis.modules import get_settings
from nndiff.diagnosis.trials import Trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.family import Family, Proof
from nndiff.findings.hypotheses.layers import Weights, read_weights
from nndiff.findings.hypotheses.operands import Array, is_forward_trial, list_operands
from nndiff.findings.hypotheses.recurrent import read_recurrent_kind, run_recurrent

_GATES = {"lstm": "ifgo", "gru": "rzn"}


def is_recurrent(trial: Trial) -> bool:
    """Return True if the module on trial holds the weights of an LSTM, GRU or RNN."""
    return is_forward_trial(trial) and "weight_ih_l0" in trial.weights


def prove_recurrence(trial: Trial) -> Proof | None:
    """Return how the candidate runs the reference's layer differently."""
    batch_first = bool(get_settings(trial.modules[0]).get("batch_first"))
    weights = read_weights(trial, 0)
    kind = read_recurrent_kind(weights)
    if kind is None:
        return None
    for given in list_operands(trial):
        made = run_recurrent(kind, given.values, weights, batch_first)
        if made is None or not trial.gives_reference(made):
            continue
        for proof, other in list_variants(kind, given.values, weights, batch_first):
            if other is not None and trial.gives_candidate(other):
                return proof
    return None


def list_variants(
    kind: str, values: Array, weights: Weights, batch_first: bool
) -> Iterator[tuple[Proof, Array | None]]:
    """Yield what a layer makes with one thing changed."""
    first = {True: "batch first", False: "time first"}
    evidence = f"the candidate takes its input as {first[not batch_first]}, the reference as {first[batch_first]}"
    proof = Proof(Cause.PERMUTED, evidence, f"set `batch_first` to {batch_first}")
    yield proof, run_recurrent(kind, values, weights, not batch_first)
    proof = Proof(Cause.ROWS_PERMUTED, "the candidate runs from the end of the sequence", "run from its beginning")
    yield proof, run_recurrent(kind, values, weights, batch_first, flipped=True)
    biases = {name: values for name, values in weights.items() if not name.startswith("bias_hh")}
    if len(biases) < len(weights):
        proof = Proof(Cause.BIAS_MISSING, "the candidate does not add `bias_hh`", "add `bias_hh`")
        yield proof, run_recurrent(kind, values, biases, batch_first)
    gates = _GATES.get(kind, "")
    for order in permutations(range(len(gates))):
        if list(order) == sorted(order) or not gates:
            continue
        moved = {}
        for name, held in weights.items():
            is_gated = name.startswith(("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
            moved[name] = np.concatenate([np.split(held, len(gates))[place] for place in order]) if is_gated else held
        names = "".join(gates[order.index(place)] for place in range(len(gates)))
        evidence = f"the candidate takes the gates in the order {names}, the reference in the order {gates}"
        proof = Proof(Cause.GATE_ORDER, evidence, "take the gates in the reference's order")
        yield proof, run_recurrent(kind, values, moved, batch_first)


RECURRENCES = Family("recurrent variant", is_recurrent, prove_recurrence)
