"""Updates that differ although gradients agree: what the optimiser did, replayed from what it was given."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nndiff.findings.causes import Cause
from nndiff.runs.case import RunCase, Where
from nndiff.runs.causes.algebra import SURE, agree_within
from nndiff.runs.causes.onset import Explanation, Onset, explain, is_finite, name_side, name_step
from nndiff.runs.causes.parameter_steps import COUNTER, ParameterStep, fit_updates, read_step
from nndiff.runs.causes.rules import (
    MOMENTUM_BUFFER,
    SAME_VALUE,
    Estimate,
    Rule,
    choose_rule,
    follows_rule,
    solve_settings,
)
from nndiff.runs.causes.settings import (
    CAUSES,
    SWITCHES,
    Settings,
    is_decoupled,
    name_optimizers,
    name_setting,
    pair_groups,
    read_groups,
)
from nndiff.text import first_few

_FIRST_RATE = "first_rate"  # of a first step with momentum: Nesterov's is a plain step with a larger rate
_SMALLEST_FACTOR = 1e-3  # between updates: below it they have nothing to do with each other
_ALIKE = 0.01  # relative: factors of updates so near are one factor


@dataclass(frozen=True)
class SideStep:
    """Hold what is known of the update of one parameter in one run."""

    settings: Settings  # as recorded; empty if they were not
    follows: bool | None  # the update is the one that the recorded settings make; None: cannot be told
    solved: Mapping[str, Estimate]  # settings that reproduce the update, where the recorded ones do not

    def get_value(self, setting: str) -> Estimate | None:
        """Return a setting: as solved for, or as recorded where the update follows what was recorded."""
        if setting in self.solved:
            return self.solved[setting]
        return Estimate(self.settings[setting], 0.0) if self.follows and setting in self.settings else None


def find_updates(onset: Onset) -> Iterator[Explanation]:
    """Yield the settings by which the updates differ, other than those that were recorded as different."""
    case, place = onset.case, onset.place
    if not onset.knows_before or not all(is_finite(case, where, place) for where in Where):
        return
    later = place + 1
    if place == 0 and _has_unrecorded_momentum(case) and later < len(case.steps) and case.is_consecutive(later):
        place = later  # the first step does not tell Nesterov's momentum from a larger rate
    names = [name for name in case.parameter_names if name not in onset.noise]
    sides = _read_side(case, Where.REFERENCE, place, names), _read_side(case, Where.CANDIDATE, place, names)
    explanations: dict[str, Explanation] = {}
    compared: dict[str, Explanation] = {}
    for setting, members in _compare_values(sides).items():
        explanation = _explain_setting(onset, setting, members, sides)
        explanations[explanation.finding.cause] = explanation
    if onset.same_start and onset.same_state_before and onset.same_gradients is not False:
        for explanation in _compare_updates(onset, sides):
            compared[explanation.finding.cause] = explanation
    for cause, explanation in explanations.items():
        yield _join(case, explanation, compared[cause]) if cause in compared else explanation
    if not explanations:
        yield from compared.values()


def _join(case: RunCase, solved: Explanation, compared: Explanation) -> Explanation:
    """Return a cause that was solved for, with the parameters to which comparing updates adds it."""
    members = {*solved.finding.where, *compared.finding.where}
    names = tuple(name for name in case.parameter_names if name in members)
    return replace(solved, finding=replace(solved.finding, where=names))


def _has_unrecorded_momentum(case: RunCase) -> bool:
    """Return True if a side uses momentum, and nobody recorded which."""
    return any(MOMENTUM_BUFFER in case.state_names(where, 0) and not read_groups(case, where, 0) for where in Where)


def read_parameter_settings(case: RunCase, where: Where, place: int) -> dict[str, Settings]:
    """Return the recorded settings of each parameter, by the reference's names."""
    groups = read_groups(case, where, place)
    settings: dict[str, Settings] = {}
    for pair in pair_groups(case):
        for name in pair.parameters:
            settings[name] = groups.get(pair.indices[where], {})
    return settings


def _read_side(case: RunCase, where: Where, place: int, names: Sequence[str]) -> dict[str, SideStep]:
    """Return what is known of the updates of one run, by parameter."""
    optimizer = name_optimizers(case)[where]
    rule = choose_rule(optimizer, [state for state in case.state_names(where, place) if state != COUNTER])
    recorded = read_parameter_settings(case, where, place)
    earlier = read_parameter_settings(case, where, place - 1) if place > 0 else {}
    sides = {}
    for name in names:
        step = read_step(case, where, place, name)
        settings = recorded.get(name, {})
        if step is None or rule is None:
            sides[name] = SideStep(settings, None, {})
            continue
        follows = follows_rule(rule, optimizer, step, settings)
        if follows is False and "lr" in earlier.get(name, {}):
            # the recorder may be called after the scheduler: then the rate it sees is the next step's
            previous = {**settings, "lr": earlier[name]["lr"]}
            if follows_rule(rule, optimizer, step, previous):
                settings, follows = previous, True
        sides[name] = SideStep(settings, follows, {} if follows else _solve(rule, optimizer, step, settings))
    return sides


def _solve(rule: Rule, optimizer: str, step: ParameterStep, settings: Settings) -> dict[str, Estimate]:
    """Return the settings that reproduce an update, and whether Adam's weight decay went through the gradient."""
    solved = solve_settings(rule, step, settings)
    coupled = solved.pop("coupled_decay", None)
    if coupled is None:
        return solved
    if abs(coupled.value) > SURE * coupled.error:
        solved["decoupled_weight_decay"] = Estimate(0.0, 0.0)
        solved["weight_decay"] = coupled
    elif "weight_decay" in solved:
        decay = solved["weight_decay"]
        if abs(decay.value) > SURE * decay.error:
            solved["decoupled_weight_decay"] = Estimate(1.0, 0.0)
    elif optimizer and not is_decoupled(optimizer, settings):
        solved["weight_decay"] = coupled
    return solved


def _compare_values(sides: tuple[Mapping[str, SideStep], Mapping[str, SideStep]]) -> dict[str, list[str]]:
    """Return the settings that were solved for on a side and differ from the other's, with their parameters."""
    differences: dict[str, list[str]] = {}
    for name, reference in sides[0].items():
        candidate = sides[1][name]
        if reference.follows and candidate.follows:
            continue
        for setting in (*CAUSES, _FIRST_RATE):
            values = reference.get_value(setting), candidate.get_value(setting)
            recorded = reference.settings.get(setting), candidate.settings.get(setting)
            if values[0] is None or values[1] is None or not values[0].differs(values[1]):
                continue
            if None in recorded or recorded[0] == recorded[1]:  # else it is reported as recorded
                differences.setdefault(setting, []).append(name)
    return differences


def _explain_setting(
    onset: Onset, setting: str, names: list[str], sides: tuple[Mapping[str, SideStep], Mapping[str, SideStep]]
) -> Explanation:
    """Return that the updates can only be reproduced with different values of a setting."""
    case, place = onset.case, onset.place
    values = {name: [sides[where][name].get_value(setting) for where in Where] for name in names}
    best = min(names, key=lambda name: max(estimate.error for estimate in values[name] if estimate is not None))
    texts = [_format_estimate(estimate) for estimate in values[best] if estimate is not None]
    word = "learning rate (or Nesterov momentum)" if setting == _FIRST_RATE else name_setting(setting)
    values_text = f"{word} {texts[0]} against {texts[1]}"
    if setting in SWITCHES:
        values_text = f"{word} in the {name_side(Where(texts[1] != '0'))} only"
    evidence = (
        f"{values_text} from {name_step(case, place)} on, solved from weights, gradients and state of "
        f"{first_few(names)}, whose steps it reproduces"
    )
    for where in Where:
        side = sides[where][best]
        if side.follows is False and setting in side.settings:
            evidence += (
                f"; the {name_side(where)}'s update of {best} is not the {name_optimizers(case)[where]} step of its "
                f"gradient with the recorded {word} {side.settings[setting]:g}, it is the one with {texts[where]}"
            )
    cause = CAUSES.get(setting, Cause.LEARNING_RATE)
    if setting == "lr" and place > 0 and not sides[Where.CANDIDATE][best].settings:
        cause = Cause.SCHEDULE  # the steps before were the same
    repair = f"make the {word} of both optimisers equal"
    return explain(case, place, cause, names, evidence, repair, 0.9)


def _format_estimate(estimate: Estimate) -> str:
    return "0" if abs(estimate.value) <= SURE * estimate.error else f"{estimate.value:.4g}"


def _compare_updates(
    onset: Onset, sides: tuple[Mapping[str, SideStep], Mapping[str, SideStep]]
) -> Iterator[Explanation]:
    """Yield the factor between updates, or the decay more, of parameters whose rule cannot be replayed."""
    case, place = onset.case, onset.place
    rates: dict[str, float] = {}
    decays: dict[str, float] = {}
    alike = unlike = 0
    for name in sides[0]:
        reference, candidate = (sides[where][name] for where in Where)
        if reference.get_value("lr") is not None and candidate.get_value("lr") is not None:
            continue  # replayed on both sides
        fit = fit_updates(case, place, name, onset.has_drift)
        if fit is None or fit.is_blurred:
            continue
        if not fit.reproduces:
            unlike += 1
            continue
        alike += 1
        if abs(fit.coefficients[0]) < _SMALLEST_FACTOR:
            continue
        if {**reference.settings, "lr": 0} != {**candidate.settings, "lr": 0}:
            continue  # settings that differ explain more than a factor
        rates_recorded = reference.settings.get("lr"), candidate.settings.get("lr")
        factor = rates_recorded[1] / rates_recorded[0] if rates_recorded[0] and rates_recorded[1] else 1.0
        if fit.differs(0, factor) and not agree_within(float(fit.coefficients[0]), factor, SAME_VALUE):
            rates[name] = float(fit.coefficients[0])
        if len(fit.coefficients) > 1 and fit.differs(1, 0.0):
            decays[name] = float(fit.coefficients[1])
    if unlike > (alike if onset.has_drift else 0):
        return  # something else than a factor and weight decay is at work
    if rates:
        names, factor = _choose_alike(rates)
        rate_is_recorded = "lr" in sides[Where.CANDIDATE][names[0]].settings
        known = "weights and gradients" if onset.same_gradients else "weights"
        evidence = (
            f"{name_step(case, place)}: the candidate's updates of {first_few(names)} are {factor:.4g} times the "
            f"reference's, while {known} are equal"
        )
        repair = "compare learning rates, warm-up and per-group rates where they are set"
        cause = Cause.LEARNING_RATE if place == 0 or rate_is_recorded else Cause.SCHEDULE
        yield explain(case, place, cause, names, evidence, repair, 0.85)
    if decays:
        names, share = _choose_alike(decays)
        rate = sides[Where.CANDIDATE][names[0]].settings.get("lr")
        size = f"a weight decay of {abs(share) / rate:.4g}" if rate else f"{abs(share):.4g} of the weights"
        side = Where.CANDIDATE if share < 0 else Where.REFERENCE
        evidence = (
            f"{name_step(case, place)}: the {name_side(side)}'s updates of {first_few(names)} take {size} more off the "
            "weights than the other side's"
        )
        repair = "compare weight decay and the parameters it applies to (biases and norms are often left out)"
        yield explain(case, place, Cause.WEIGHT_DECAY, names, evidence, repair, 0.9)


def _choose_alike(values: Mapping[str, float]) -> tuple[list[str], float]:
    """Return the parameters that share the middle value, and that value."""
    middle = statistics.median_low(values.values())
    return [name for name, value in values.items() if agree_within(value, middle, _ALIKE)], middle
