"""Activations: which function of which given numbers each side computes, alone or as a gate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import permutations

import numpy as np

from nndiff.diagnosis.trials import Given, Trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.family import Family, Proof
from nndiff.findings.hypotheses.operands import (
    Array,
    has_few_numbers,
    is_forward_trial,
    list_operands,
    list_round_numbers,
    spread_values,
)

SAMPLED = 2048  # elements by which most functions are ruled out before all are computed

Function = Callable[[Array], Array]
_erf = np.frompyfunc(math.erf, 1, 1)


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x))."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def softplus(x: Array) -> Array:
    """Return log(1 + exp(x))."""
    return np.logaddexp(0.0, x)


def gelu(x: Array) -> Array:
    """Return the exact GELU."""
    return np.asarray(0.5 * x * (1 + np.asarray(_erf(x / math.sqrt(2)), np.float64)))


def gelu_tanh(x: Array) -> Array:
    """Return the GELU computed by tanh."""
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def softmax(axis: int, x: Array) -> Array:
    """Return the softmax along an axis."""
    powers = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True))


def log_softmax(axis: int, x: Array) -> Array:
    """Return the logarithm of the softmax along an axis."""
    below = x - x.max(axis, keepdims=True)
    return np.asarray(below - np.log(np.exp(below).sum(axis, keepdims=True)))


def leaky_relu(slope: float, x: Array) -> Array:
    """Return numbers, negative ones times a slope."""
    return np.where(x > 0, x, slope * x)


def elu(alpha: float, x: Array) -> Array:
    """Return numbers, negative ones bent towards -alpha."""
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def swish(beta: float, x: Array) -> Array:
    """Return x * sigmoid(beta * x)."""
    return x * sigmoid(beta * x)


ACTIVATIONS: Mapping[str, Function] = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu (erf)": gelu,
    "gelu (tanh)": gelu_tanh,
    "gelu (quick)": partial(swish, 1.702),
    "silu": partial(swish, 1.0),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "relu6": lambda x: np.clip(x, 0, 6),
    "relu squared": lambda x: np.square(np.maximum(x, 0)),
    "elu": partial(elu, 1.0),
    "selu": lambda x: 1.0507009873554805 * elu(1.6732632423543772, x),
    "softplus": softplus,
    "mish": lambda x: x * np.tanh(softplus(x)),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hardtanh": lambda x: np.clip(x, -1, 1),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "logsigmoid": lambda x: -softplus(-x),
    "exp": np.exp,
    "square": np.square,
    "abs": np.abs,
}


def solve_leaky(x: Array, y: Array) -> Iterator[tuple[str, Function]]:
    """Yield leaky ReLUs of the slope that numbers show below zero."""
    below = x < 0
    energy = float(np.square(x[below]).sum())
    if energy:
        for slope in list_round_numbers(float((x * y)[below].sum()) / energy):
            yield f"leaky relu (slope {slope:g})", partial(leaky_relu, slope)


def solve_elu(x: Array, y: Array) -> Iterator[tuple[str, Function]]:
    """Yield ELUs of the alpha that numbers show below zero."""
    below = x < 0
    curve = np.expm1(x[below])
    energy = float(np.square(curve).sum())
    if energy:
        for alpha in list_round_numbers(float((curve * y[below]).sum()) / energy):
            yield f"elu (alpha {alpha:g})", partial(elu, alpha)


def solve_swish(x: Array, y: Array) -> Iterator[tuple[str, Function]]:
    """Yield x * sigmoid(beta * x) of the beta that numbers show."""
    share = np.divide(y, x, out=np.full_like(x, 0.5), where=x != 0)
    telling = (share > 0.05) & (share < 0.95) & (np.abs(x) > 0.1)
    if telling.any():
        logits = np.log(share[telling] / (1 - share[telling]))
        for beta in list_round_numbers(float((logits * x[telling]).sum() / np.square(x[telling]).sum())):
            yield f"swish (beta {beta:g})", partial(swish, beta)


SOLVERS = (solve_leaky, solve_elu, solve_swish)


@dataclass(frozen=True)
class Form:
    """Say what an activation is applied to, and what the result is multiplied with."""

    gate: Array
    up: Array | None
    text: str  # "f(gate_proj) * up_proj"
    source: tuple[str, ...]  # names of the tensors; forms of the same ones differ in order
    is_split: bool = False  # gate and up are parts of one tensor

    def run(self, function: Function, places: slice = slice(None)) -> Array:
        """Return what a function makes of this form, of some elements or all."""
        gate, up = self.gate, self.up
        if places != slice(None):
            gate, up = gate.reshape(-1)[places], None if up is None else up.reshape(-1)[places]
        with np.errstate(all="ignore"):
            values = function(gate)
            return np.asarray(values if up is None else values * up)


def list_forms(trial: Trial) -> Iterator[Form]:
    """Yield what an activation may have been applied to."""
    shape = trial.reference.shape
    operands = list(list_operands(trial))
    for given in operands:
        if given.tensor.shape == shape:
            yield Form(given.values, None, f"f({_name_operand(given)})", (given.name,))
    for given in operands:
        whole = given.tensor.shape
        for axis in range(len(whole)):
            if len(whole) == len(shape) and whole == (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]):
                halves = np.split(given.values, 2, axis)
                even, odd = (np.take(given.values, range(start, whole[axis], 2), axis) for start in (0, 1))
                names = f"{given.name}'s first half", f"{given.name}'s second half"
                yield from _list_orders(halves[0], halves[1], names, (given.name, "halves"))
                names = f"{given.name}'s even elements", f"{given.name}'s odd elements"
                yield from _list_orders(even, odd, names, (given.name, "interleaved"))
    along = [(given, spread_values(given.values, shape)) for given in operands]
    for (gate, gate_values), (up, up_values) in permutations(along, 2):
        is_whole = shape in (gate.tensor.shape, up.tensor.shape)
        if is_whole and gate_values is not None and up_values is not None:
            text = f"f({_name_operand(gate)}) * {_name_operand(up)}"
            yield Form(gate_values, up_values, text, tuple(sorted((gate.name, up.name))))


def _name_operand(given: Given) -> str:
    return f"argument {given.name}" if given.is_argument else given.name


def _list_orders(first: Array, second: Array, names: tuple[str, str], source: tuple[str, ...]) -> Iterator[Form]:
    yield Form(first, second, f"f({names[0]}) * {names[1]}", source, is_split=True)
    yield Form(second, first, f"f({names[1]}) * {names[0]}", source, is_split=True)


def find_functions(
    form: Form, made: Array, is_made: Callable[[Array], bool], room: float
) -> tuple[list[str], list[Function]]:
    """Return the functions that make some numbers of a form; several where they cannot be told apart."""
    found: dict[str, Function] = {}
    step = max(1, made.size // SAMPLED)
    places, sample = slice(0, None, step), made.reshape(-1)[::step]
    for name, function in [*ACTIVATIONS.items(), *_list_softmax(form)]:
        if not name.startswith(("softmax", "log_softmax")) and not _is_near(form.run(function, places), sample, room):
            continue
        values = form.run(function)
        # relu6 of small numbers is relu: what makes the very same numbers is called by its usual name
        if is_made(values) and not any(np.array_equal(values, form.run(usual)) for usual in found.values()):
            found[name] = function
    if not found:
        gate, target = form.gate.reshape(-1)[places], sample
        if form.up is not None:
            up = form.up.reshape(-1)[places]
            target = np.divide(target, up, out=np.zeros_like(gate), where=up != 0)
        for solve in SOLVERS:
            for name, function in solve(gate, target):
                if _is_near(form.run(function, places), sample, room) and is_made(form.run(function)):
                    found[name] = function
                    break
    return list(found), list(found.values())


def _list_softmax(form: Form) -> Iterator[tuple[str, Function]]:
    if form.up is not None or form.gate.ndim < 1:
        return
    for axis in range(form.gate.ndim):
        yield f"softmax (axis {axis})", partial(softmax, axis)
        yield f"log_softmax (axis {axis})", partial(log_softmax, axis)


def _is_near(values: Array, made: Array, room: float) -> bool:
    with np.errstate(all="ignore"):
        return not bool(np.any(np.abs(values - made) > room))


def may_be_activation(trial: Trial) -> bool:
    """Return True if both sides made numbers of one shape that may be a function of what was given."""
    return is_forward_trial(trial) and trial.reference.shape == trial.candidate.shape and any(list_operands(trial))


def prove_activation(trial: Trial) -> Proof | None:
    """Return which functions of the same numbers both sides compute."""
    if has_few_numbers(trial.reference_values):
        return None
    forms = list(list_forms(trial))
    rooms = trial.measure_room(trial.reference_values), trial.measure_room(trial.candidate_values)
    for form in forms:
        ours, functions = find_functions(form, trial.reference_values, trial.gives_reference, rooms[0])
        if not ours:
            continue
        related = [other for other in forms if other is not form and _is_another_order(form, other)]
        for other in related:
            for function in functions:
                if ours != ["identity"] and trial.gives_candidate(other.run(function)):
                    return describe_order(form, other, ours)
        theirs, _ = find_functions(form, trial.candidate_values, trial.gives_candidate, rooms[1])
        if theirs and not set(ours) & set(theirs):
            names = join_variants(theirs), join_variants(ours)
            evidence = f"{names[0]} in the candidate, {names[1]} in the reference"
            if len(forms) > 1:
                evidence += f": {form.text}"
            return Proof(Cause.ACTIVATION, evidence, f"use {names[1]} in the candidate")
    return None


def _is_another_order(form: Form, other: Form) -> bool:
    """Return True for forms of the same tensors that were only split or multiplied in another order."""
    if form.is_split and other.is_split:
        return form.source[0] == other.source[0]
    return form.up is not None and form.source == other.source


def describe_order(form: Form, other: Form, functions: list[str]) -> Proof:
    """Return that gate and up are exchanged, or split in another way."""
    name = join_variants(functions)
    evidence = f"{other.text} in the candidate, {form.text} in the reference, where f is {name}"
    if not form.is_split:
        return Proof(Cause.ROLES_SWAPPED, evidence, "exchange the two in the candidate")
    if form.source == other.source:
        return Proof(Cause.HALVES_SWAPPED, evidence, "exchange the two halves in the candidate")
    return Proof(Cause.CONCATENATION, evidence, "split as the reference does")


def join_variants(names: list[str]) -> str:
    """Return names of functions that cannot be told apart here."""
    return " or ".join(names) + (" (too close to tell)" if len(names) > 1 else "")


ACTIVATION_VARIANTS = Family("activation variant", may_be_activation, prove_activation)
