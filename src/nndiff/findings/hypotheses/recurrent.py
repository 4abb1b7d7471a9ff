"""LSTM, GRU and RNN of tanh in NumPy: what a layer of some weights makes of a sequence."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nndiff.findings.hypotheses.operands import Array

MOST_STEPS = 4096  # steps of a sequence that are computed one after the other


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x))."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def read_recurrent_kind(weights: Mapping[str, Array]) -> str | None:
    """Return whether weights are those of an LSTM, a GRU or a plain RNN, by the number of their gates."""
    on_input, on_state = weights.get("weight_ih_l0"), weights.get("weight_hh_l0")
    if on_input is None or on_state is None or on_state.ndim != 2 or len(on_input) != len(on_state):
        return None
    return {4: "lstm", 3: "gru", 1: "rnn"}.get(len(on_state) / on_state.shape[1])


def run_recurrent(
    kind: str, values: Array, weights: Mapping[str, Array], batch_first: bool = False, flipped: bool = False
) -> Array | None:
    """Return the outputs of all layers and directions of an LSTM or GRU that starts from zeros.

    `values` are one sequence (time, features), or a batch of them. `flipped` runs the forward direction from the end.
    """
    if values.ndim not in (2, 3) or "weight_ih_l0" not in weights:
        return None
    is_batch = values.ndim == 3
    steps = values if is_batch else values[:, None]
    if is_batch and batch_first:
        steps = steps.swapaxes(0, 1)
    if len(steps) > MOST_STEPS:
        return None
    layer = 0
    while f"weight_ih_l{layer}" in weights:
        outputs = []
        for suffix in ("", "_reverse"):
            if f"weight_ih_l{layer}{suffix}" in weights:
                backwards = (suffix == "_reverse") != flipped
                made = _run_direction(kind, steps[::-1] if backwards else steps, weights, f"_l{layer}{suffix}")
                if made is None:
                    return None
                outputs.append(made[::-1] if backwards else made)
        steps = np.concatenate(outputs, -1)
        layer += 1
    if not is_batch:
        return steps[:, 0]
    return steps.swapaxes(0, 1) if batch_first else steps


def _run_direction(kind: str, steps: Array, weights: Mapping[str, Array], name: str) -> Array | None:
    """Return the outputs of one layer in one direction."""
    on_input, on_state = weights[f"weight_ih{name}"], weights[f"weight_hh{name}"]
    if steps.shape[-1] != on_input.shape[1] or f"weight_hr{name}" in weights:
        return None
    size = on_state.shape[1]
    nothing = np.zeros(len(on_state))
    from_input = steps @ on_input.T + weights.get(f"bias_ih{name}", nothing)
    bias = weights.get(f"bias_hh{name}", nothing)
    state: Array = np.zeros((steps.shape[1], size))
    cell = state
    outputs = []
    for step in from_input:
        from_state = state @ on_state.T + bias
        if kind == "lstm":
            i, f, g, o = np.split(step + from_state, 4, -1)
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            state = sigmoid(o) * np.tanh(cell)
        elif kind == "gru":
            reset, update, new = np.split(step, 3, -1)
            state_reset, state_update, state_new = np.split(from_state, 3, -1)
            update = sigmoid(update + state_update)
            state = (1 - update) * np.tanh(new + sigmoid(reset + state_reset) * state_new) + update * state
        else:
            state = np.tanh(step + from_state)
        outputs.append(state)
    return np.stack(outputs)
