"""The update rules of SGD, Adam and AdamW: the step they should make, and the settings that explain the one made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from nndiff.runs.causes.algebra import ROUNDINGS, SINGLE_ROUNDOFF, SURE, Fit, Row, agree_within, fit_columns
from nndiff.runs.causes.parameter_steps import ParameterStep
from nndiff.runs.causes.settings import COUPLED, DECOUPLED, Settings, is_decoupled

MOMENTUM_BUFFER, MEAN, SQUARES, LARGEST_SQUARES = "momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"
SAME_VALUE = 1e-4  # relative: settings that were solved for and agree so far are the same
_DEFAULT_EPS = 1e-8  # of Adam, where no other is recorded


class Rule(Enum):
    """Name an update rule that can be replayed."""

    SGD = "SGD"
    ADAM = "Adam"


@dataclass(frozen=True)
class Estimate:
    """Hold the value of a setting that was solved for."""

    value: float
    error: float  # one standard error

    def differs(self, partner: Estimate) -> bool:
        """Return True if two values are surely not the same."""
        distance = abs(self.value - partner.value)
        if distance <= SURE * math.hypot(self.error, partner.error):
            return False
        return not agree_within(self.value, partner.value, SAME_VALUE)


def choose_rule(optimizer: str, states: Sequence[str]) -> Rule | None:
    """Return the rule of an optimiser by its class or, where that is not known, by the state it keeps."""
    if optimizer in (COUPLED, DECOUPLED):
        return Rule.ADAM
    if optimizer:
        return Rule.SGD if optimizer == "SGD" else None
    if MEAN in states and SQUARES in states:
        return Rule.ADAM
    return Rule.SGD if set(states) <= {MOMENTUM_BUFFER} else None


def predict_update(rule: Rule, optimizer: str, step: ParameterStep, settings: Settings) -> Row | None:
    """Return the update that the settings make of the recorded gradient and state; None if that is not known."""
    if step.gradient is None or "lr" not in settings:
        return None
    rate, decay = settings["lr"], settings.get("weight_decay", 0.0)
    gradient = -step.gradient if settings.get("maximize") else step.gradient
    if rule is Rule.SGD:
        direction = gradient + decay * step.weight
        if settings.get("momentum"):
            if MOMENTUM_BUFFER not in step.after:
                return None
            momentum = step.after[MOMENTUM_BUFFER]
            direction = direction + settings["momentum"] * momentum if settings.get("nesterov") else momentum
        return -rate * direction
    direction_of_adam = compute_direction(step, settings, settings.get("eps", _DEFAULT_EPS))
    if direction_of_adam is None:
        return None
    update = -rate * direction_of_adam
    return update - rate * decay * step.weight if is_decoupled(optimizer, settings) else update


def compute_direction(step: ParameterStep, settings: Settings, eps: float) -> Row | None:
    """Return Adam's step for a rate of 1, from the state after it; on sketches there is no square root to take."""
    squares = step.after.get(LARGEST_SQUARES if settings.get("amsgrad") else SQUARES)
    if not step.is_exact or squares is None or MEAN not in step.after or not step.count:
        return None
    if "beta1" not in settings or "beta2" not in settings:
        return None
    mean = step.after[MEAN] / (1 - settings["beta1"] ** step.count)
    root = np.sqrt(squares / (1 - settings["beta2"] ** step.count)) + eps
    direction: Row = np.divide(mean, root, out=np.zeros_like(mean), where=root > 0)
    return direction


def predict_state(rule: Rule, optimizer: str, step: ParameterStep, settings: Settings) -> dict[str, Row]:
    """Return the state that the settings make of the recorded gradient and the state before, as far as it is known."""
    if step.gradient is None:
        return {}
    gradient = -step.gradient if settings.get("maximize") else step.gradient
    if not is_decoupled(optimizer, settings):
        gradient = gradient + settings.get("weight_decay", 0.0) * step.weight
    state = {}
    if rule is Rule.SGD and settings.get("momentum"):
        buffer = step.before.get(MOMENTUM_BUFFER)
        share = 1 - settings.get("dampening", 0.0)
        state[MOMENTUM_BUFFER] = gradient if buffer is None else settings["momentum"] * buffer + share * gradient
    if rule is Rule.ADAM and "beta1" in settings and "beta2" in settings:
        zeros = np.zeros_like(gradient)
        beta1, beta2 = settings["beta1"], settings["beta2"]
        state[MEAN] = beta1 * step.before.get(MEAN, zeros) + (1 - beta1) * gradient
        if step.is_exact:
            state[SQUARES] = beta2 * step.before.get(SQUARES, zeros) + (1 - beta2) * np.square(gradient)
    return state


def follows_rule(rule: Rule, optimizer: str, step: ParameterStep, settings: Settings) -> bool | None:
    """Return True if a step is the one its settings make of its gradient and state; None if that cannot be told."""
    verdicts: list[bool] = []
    for name, predicted in predict_state(rule, optimizer, step, settings).items():
        if name in step.after and step.gradient is not None:
            length = float(np.linalg.norm(predicted) + np.linalg.norm(step.after[name]))
            length += 0.0 if name == SQUARES else float(np.linalg.norm(step.gradient))
            residual = float(np.linalg.norm(step.after[name] - predicted))
            verdicts.append(residual <= ROUNDINGS * SINGLE_ROUNDOFF * length)
    predicted_update = predict_update(rule, optimizer, step, settings)
    if predicted_update is not None:
        residual = float(np.linalg.norm(step.update - predicted_update))
        rounding = step.rounding + ROUNDINGS * SINGLE_ROUNDOFF * float(np.linalg.norm(predicted_update))
        verdicts.append(residual <= rounding)
    if False in verdicts:
        return False
    return None if predicted_update is None else True


def solve_settings(rule: Rule, step: ParameterStep, settings: Settings) -> dict[str, Estimate]:
    """Return the settings that reproduce a step of a parameter, by least squares; {} if none do."""
    if step.gradient is None or not step.gradient.any() or not step.update.any():
        return {}
    if settings.get("maximize"):
        step = replace(step, gradient=-step.gradient)
    solved = _solve_sgd(step) if rule is Rule.SGD else _solve_adam(step, settings)
    is_possible = all(_is_possible(name, estimate) for name, estimate in solved.items())
    return solved if is_possible else {}


def _is_possible(name: str, estimate: Estimate) -> bool:
    """Return False for a value that no optimiser takes: then what was fitted is something else."""
    slack = SURE * estimate.error
    if name in ("beta1", "beta2", "momentum"):
        return -slack <= estimate.value < 1
    return estimate.value >= -slack


def _solve_sgd(step: ParameterStep) -> dict[str, Estimate]:
    """Return rate, decay and momentum: momentum = m * before + (1 - dampening) * (g + decay * w), and so on."""
    gradient = step.gradient
    if gradient is None:
        return {}
    buffer = step.after.get(MOMENTUM_BUFFER)
    if buffer is None:
        fit = _fit_named(step.update, {"gradient": gradient, "weight": step.weight}, step.rounding)
        if "gradient" not in fit or fit["gradient"].value >= 0:
            return {}
        rate = -fit["gradient"].value
        estimates = {"lr": Estimate(rate, fit["gradient"].error), "momentum": Estimate(0, 0)}
        if "weight" in fit:
            estimates["weight_decay"] = Estimate(-fit["weight"].value / rate, fit["weight"].error / rate)
        return estimates
    columns = {"gradient": gradient, "weight": step.weight}
    if MOMENTUM_BUFFER in step.before:
        columns = {"before": step.before[MOMENTUM_BUFFER], **columns}
    lengths = sum(float(np.linalg.norm(row)) for row in (buffer, *columns.values()))
    state = _fit_named(buffer, columns, ROUNDINGS * SINGLE_ROUNDOFF * lengths)
    if "gradient" not in state or state["gradient"].value <= 0:
        return {}
    share = state["gradient"]
    estimates = {}
    if "before" in state:
        estimates["momentum"] = state["before"]
        estimates["dampening"] = Estimate(1 - share.value, share.error)
    if "weight" in state:
        estimates["weight_decay"] = Estimate(state["weight"].value / share.value, state["weight"].error / share.value)
    update = _fit_named(step.update, {"buffer": buffer, "gradient": gradient, "weight": step.weight}, step.rounding)
    if "gradient" not in update and "before" not in state:
        # in the first step the buffer is the gradient: Nesterov's step is then one with a larger rate
        plain = _fit_named(step.update, {"buffer": buffer}, step.rounding)
        if "buffer" in plain:
            estimates["first_rate"] = Estimate(-plain["buffer"].value, plain["buffer"].error)
    elif "gradient" in update:
        gradient_part, buffer_part = update["gradient"], update["buffer"]
        nesterov = abs(gradient_part.value) > SURE * gradient_part.error
        rate_part = gradient_part if nesterov else buffer_part
        estimates["lr"] = Estimate(-rate_part.value, rate_part.error)
        estimates["nesterov"] = Estimate(float(nesterov), 0)
    return estimates


def _solve_adam(step: ParameterStep, settings: Settings) -> dict[str, Estimate]:
    """Return betas, rate, decay and eps: mean = b1 * before + (1 - b1) * (g + decay * w), and so on."""
    gradient, mean = step.gradient, step.after.get(MEAN)
    if gradient is None or mean is None:
        return {}
    columns = {"gradient": gradient, "weight": step.weight}
    if MEAN in step.before:
        columns = {"before": step.before[MEAN], **columns}
    lengths = float(
        np.linalg.norm(mean) + sum(np.linalg.norm(row) for row in columns.values() if row is not step.weight)
    )
    fit = _fit_named(mean, columns, ROUNDINGS * SINGLE_ROUNDOFF * lengths)
    estimates: dict[str, Estimate] = {}
    coupled = 0.0
    if "gradient" in fit and fit["gradient"].value > 0:
        share = fit["gradient"]
        estimates["beta1"] = Estimate(1 - share.value, share.error)
        if "weight" in fit:
            decay = Estimate(fit["weight"].value / share.value, fit["weight"].error / share.value)
            estimates["coupled_decay"] = decay
            coupled = decay.value if abs(decay.value) > SURE * decay.error else 0.0
    used = {name: estimate.value for name, estimate in estimates.items() if name == "beta1"}
    squares = _solve_beta2(step, coupled)
    if squares is not None:
        estimates["beta2"] = squares
        used["beta2"] = squares.value
    estimates |= _solve_rate(step, {**used, **settings}) or _solve_rate(step, {**settings, **used})
    return estimates


def _solve_beta2(step: ParameterStep, coupled: float) -> Estimate | None:
    """Return beta 2 from the elements, or from their means where only sketches were kept."""
    squares = step.after.get(SQUARES)
    if squares is None or step.gradient is None:
        return None
    if step.is_exact:
        columns = {"gradient": np.square(step.gradient + coupled * step.weight)}
        if SQUARES in step.before:
            columns["before"] = step.before[SQUARES]
        lengths = float(np.linalg.norm(squares) + sum(np.linalg.norm(row) for row in columns.values()))
        fit = _fit_named(squares, columns, ROUNDINGS * SINGLE_ROUNDOFF * lengths)
        return Estimate(1 - fit["gradient"].value, fit["gradient"].error) if "gradient" in fit else None
    if coupled or not step.mean_square:
        return None
    # after = before + (1 - beta2) * (square - before), which holds for the means of the elements too
    before, after = step.means[SQUARES]
    way = step.mean_square - before
    error = ROUNDINGS * SINGLE_ROUNDOFF * (before + after + (after - before) / way * step.mean_square) / abs(way)
    share = (after - before) / way
    return Estimate(1 - share, abs(error)) if 0 < share < 1 else None


def _solve_rate(step: ParameterStep, settings: Settings) -> dict[str, Estimate]:
    """Return rate, decoupled decay and, if the recorded one does not fit, eps."""
    eps = settings.get("eps", _DEFAULT_EPS)
    for solved_eps in (None, _solve_eps(step, settings)):
        direction = compute_direction(step, settings, eps if solved_eps is None else solved_eps.value)
        if direction is None:
            return {}
        rounding = step.rounding + ROUNDINGS * SINGLE_ROUNDOFF * float(np.linalg.norm(step.update))
        fit = _fit_named(step.update, {"direction": direction, "weight": step.weight}, rounding)
        if "direction" not in fit or fit["direction"].value >= 0:
            continue
        rate = -fit["direction"].value
        estimates = {"lr": Estimate(rate, fit["direction"].error)}
        if "weight" in fit:
            estimates["weight_decay"] = Estimate(-fit["weight"].value / rate, fit["weight"].error / rate)
        estimates["eps"] = solved_eps or Estimate(eps, _measure_eps_error(step, settings, rate))
        return estimates
    return {}


def _measure_eps_error(step: ParameterStep, settings: Settings, rate: float) -> float:
    """Return by how much eps could be another without a trace in the update."""
    direction, mean = compute_direction(step, settings, 0.0), step.after[MEAN]
    if direction is None or not step.count:
        return math.inf
    is_moved = direction != 0
    root = mean[is_moved] / (1 - settings["beta1"] ** step.count) / direction[is_moved]
    slope = float(np.linalg.norm(rate * direction[is_moved] / root))
    return step.rounding / ROUNDINGS / slope if slope else math.inf


def _solve_eps(step: ParameterStep, settings: Settings) -> Estimate | None:
    """Return eps from -update * (root + eps) = rate * mean, which is linear in eps, rate and the decay's part."""
    direction = compute_direction(step, settings, 0.0)
    mean = step.after.get(MEAN)
    if direction is None or mean is None or not step.count:
        return None
    corrected = mean / (1 - settings["beta1"] ** step.count)
    with np.errstate(all="ignore"):
        root = np.nan_to_num(corrected / direction, posinf=0.0)
    # update * root = -rate * mean - eps * update  (decay * weight * (root + eps) is left out: it is verified later)
    rounding = step.rounding * float(np.max(np.abs(root), initial=0.0))
    fit = fit_columns(step.update * root, [corrected, step.update], rounding)
    if fit is None or fit.coefficients[1] >= 0:
        return None
    return Estimate(-float(fit.coefficients[1]), float(fit.errors[1]))


def _fit_named(target: Row, columns: Mapping[str, Row], rounding: float) -> dict[str, Estimate]:
    """Return the coefficient of each column if they reproduce the target; columns of zeros are left out."""
    used = {name: column for name, column in columns.items() if column.any()}
    fit: Fit | None = fit_columns(target, list(used.values()), rounding) if used else None
    if fit is None or not fit.reproduces:
        return {}
    pairs = zip(used, fit.coefficients, fit.errors, strict=True)
    return {name: Estimate(float(value), float(error)) for name, value, error in pairs}
