"""Vectors that one side adds: a bias or a row of a table, found among the weights of both models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from nndiff.diagnosis.tensor_values import read_wide
from nndiff.diagnosis.trials import Trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.elementwise import FEWEST_PER_PLACE, may_be_elementwise
from nndiff.findings.hypotheses.family import Family, Proof
from nndiff.findings.hypotheses.operands import Array, can_read, has_few_numbers, is_forward_trial

MOST_MATRICES = 64  # through which biases are carried


class Vectors(NamedTuple):
    """Hold vectors of one length that a tensor holds."""

    name: str
    rows: Array
    is_bias: bool

    def describe(self, place: int) -> str:
        """Return which vector this is."""
        if len(self.rows) == 1:
            return f"`{self.name}`"
        return f"part {place} of `{self.name}`" if self.is_bias else f"row {place} of `{self.name}`"


def may_be_known(trial: Trial) -> bool:
    """Return True if both sides made numbers of one shape in the forward pass."""
    return is_forward_trial(trial) and may_be_elementwise(trial)


def prove_known_vector(trial: Trial) -> Proof | None:
    """Return the vector of the models' weights that one side adds and the other does not."""
    reference = trial.reference_values
    size = reference.shape[-1] if reference.ndim > 1 else 0
    if size < FEWEST_PER_PLACE or reference.size < FEWEST_PER_PLACE * size:
        return None
    shift = (trial.candidate_values - reference).reshape(-1, size).mean(0)
    if has_few_numbers(shift) or not trial.gives_candidate(reference + shift):
        return None
    for vectors in _list_vectors(trial, size):
        proof = _match(trial, shift, vectors, vectors.rows, "")
        if proof is not None:
            return proof
    for number, (name, matrix) in enumerate(_list_matrices(trial, size)):
        if number == MOST_MATRICES:
            break
        for vectors in _list_vectors(trial, len(matrix), is_near=True):
            if vectors.is_bias:
                proof = _match(trial, shift, vectors, vectors.rows @ matrix, f", which comes here through `{name}`")
                if proof is not None:
                    return proof
    return None


def _match(trial: Trial, shift: Array, vectors: Vectors, carried: Array, way: str) -> Proof | None:
    """Return that one of these vectors is the shift, on one side or the other."""
    for sign, verb in ((-1, "does not add"), (1, "adds")):
        place = int(np.abs(sign * carried - shift).max(1).argmin())
        if trial.gives_candidate(trial.reference_values + sign * carried[place]):
            which = vectors.describe(place)
            text = f"the candidate {verb} {which}{way}" + (", the reference does not" if sign > 0 else "")
            cause = Cause.BIAS_MISSING if vectors.is_bias else Cause.LAYER_SKIPPED
            return Proof(cause, text, f"add {which}" if sign < 0 else f"leave out {which}")
    return None


def _list_vectors(trial: Trial, size: int, is_near: bool = False) -> Iterator[Vectors]:
    """Yield the biases of a length, whole or fused with others, then the rows of tables."""
    tables = []
    for name, values in _list_weights(trial, is_near):
        if values.ndim == 1 and values.size and values.size % size == 0:
            yield Vectors(name, values.reshape(-1, size), is_bias=True)
        elif values.ndim > 1 and values.shape[-1] == size:
            tables.append(Vectors(name, values.reshape(-1, size), is_bias=False))
    yield from tables


def _list_matrices(trial: Trial, size: int) -> Iterator[tuple[str, Array]]:
    """Yield the matrices near the error that end in a length, inputs first."""
    for name, values in _list_weights(trial, is_near=True):
        if values.ndim == 2 and size in values.shape:
            if values.shape[0] == size:
                yield name, values.T
            if values.shape[1] == size:
                yield name, values


def _list_weights(trial: Trial, is_near: bool) -> Iterator[tuple[str, Array]]:
    """Yield what the models hold, or what the modules on trial and those inside them hold; equal tensors once."""
    seen = set()
    modules = trial.error.module, trial.error.candidate_module
    for module, held, tree in zip(modules, trial.model_weights, trial.trees, strict=True):
        is_everywhere = not is_near or module not in tree  # a port may have no such module
        for name, tensor in held.items():
            digest = tensor.trace.digest
            if digest in seen or tensor.dtype.kind != "float" or not can_read(tensor):
                continue
            if is_everywhere or not module or name.startswith(f"{module}."):
                seen.update([digest] if digest else [])
                yield name, read_wide(tensor)


KNOWN_VECTORS = Family("known bias or row of a table", may_be_known, prove_known_vector)
