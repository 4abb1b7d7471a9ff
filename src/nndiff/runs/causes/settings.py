"""Settings of the optimisers, as they were recorded at every step."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from nndiff.findings.causes import Cause
from nndiff.runs.case import RunCase, Where
from nndiff.runs.causes.algebra import agree_within
from nndiff.runs.causes.onset import Explanation, explain, name_side, name_step, read_scalars
from nndiff.runs.causes.parameter_steps import fit_updates
from nndiff.text import first_few

Settings = Mapping[str, float]  # {name: value} of one parameter group

CAUSES = {
    "lr": Cause.LEARNING_RATE,
    "weight_decay": Cause.WEIGHT_DECAY,
    "momentum": Cause.MOMENTUM,
    "dampening": Cause.DAMPENING,
    "nesterov": Cause.NESTEROV,
    "beta1": Cause.BETAS,
    "beta2": Cause.BETAS,
    "eps": Cause.OPTIMIZER_EPS,
    "decoupled_weight_decay": Cause.DECOUPLED_DECAY,
}
_WORDS = {"lr": "learning rate", "beta1": "beta 1", "beta2": "beta 2"}
SWITCHES = frozenset({"nesterov", "amsgrad", "maximize", "centered", "decoupled_weight_decay"})
# The other settings of PyTorch's optimisers and of transformers' Adafactor. What else has a slash in its name may be
# anything: how an optimiser computes, what a scheduler notes down, the loss of a task.
_OTHER_SETTINGS = frozenset({
    "amsgrad", "maximize", "centered", "alpha", "rho", "lambd", "t0", "lr_decay", "initial_accumulator_value",
    "etas.0", "etas.1", "step_sizes.0", "step_sizes.1", "momentum_decay", "eps.0", "eps.1", "d", "beta2_decay",
    "clip_threshold", "decay_rate", "scale_parameter", "relative_step", "warmup_init", "correct_bias", "ns_steps",
})  # fmt: skip
_BETAS = {"betas.0": "beta1", "betas.1": "beta2"}
SAME_SETTING = 1e-6  # relative: a schedule computed in float32 or in another order is the same schedule
COUPLED, DECOUPLED = "Adam", "AdamW"
_DECOUPLED_SETTING = "decoupled_weight_decay"


@dataclass(frozen=True)
class GroupPair:
    """Name the groups of both sides that hold the same parameters."""

    indices: tuple[int, int]
    parameters: tuple[str, ...]  # by the reference's names; empty if a side's groups are not known


@dataclass(frozen=True)
class SettingChange:
    """Say that a setting differs for some parameters from a place on."""

    name: str
    place: int
    values: tuple[float, float]
    groups: tuple[GroupPair, ...]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the parameters it differs for, as far as they are known."""
        return tuple(name for group in self.groups for name in group.parameters)


def pair_groups(case: RunCase) -> list[GroupPair]:
    """Return which groups of the two optimisers have parameters in common."""
    homes = [_find_homes(case, where) for where in Where]
    pairs: dict[tuple[int, int], list[str]] = {}
    for name, index in homes[0].items():
        if name in homes[1]:
            pairs.setdefault((index, homes[1][name]), []).append(name)
    if pairs:
        return [GroupPair(indices, tuple(names)) for indices, names in sorted(pairs.items())]
    counts = [len(read_groups(case, where, 0)) if case.steps else 0 for where in Where]
    if counts[0] != counts[1]:
        return []
    return [GroupPair((index, index), case.parameter_names if counts[0] == 1 else ()) for index in range(counts[0])]


def _find_homes(case: RunCase, where: Where) -> dict[str, int]:
    """Return the group of each parameter, by the reference's names."""
    names = {candidate: reference for reference, candidate in case.names.items()}
    homes = {}
    for index, members in enumerate(case.run(where).description.param_groups):
        for member in members:
            name = names.get(member) if where else member
            if name is not None and name in case.names:
                homes[name] = index
    return homes


def read_groups(case: RunCase, where: Where, place: int) -> dict[int, dict[str, float]]:
    """Return the settings of each parameter group at a step."""
    groups: dict[int, dict[str, float]] = {}
    for scalar, number in read_scalars(case, where, place).items():
        name, _, index = scalar.rpartition("/")
        name = _BETAS.get(name, name)
        if index.isdigit() and (name in CAUSES or name in _OTHER_SETTINGS):
            groups.setdefault(int(index), {})[name] = number
    return groups


def name_optimizers(case: RunCase) -> tuple[str, str]:
    """Return the classes of the optimisers without their modules."""
    return cast(tuple[str, str], tuple(case.run(where).description.optimizer.rpartition(".")[2] for where in Where))


def is_decoupled(optimizer: str, settings: Settings) -> bool:
    """Return True if weight decay shrinks the weights and stays out of the gradient."""
    return bool(settings.get(_DECOUPLED_SETTING, optimizer == DECOUPLED))


def find_settings(case: RunCase) -> Iterator[Explanation]:
    """Yield every setting that differs, from the first step on at which it does."""
    if not case.steps:
        return
    optimizers = name_optimizers(case)
    if all(optimizers) and optimizers[0] != optimizers[1] and set(optimizers) != {COUPLED, DECOUPLED}:
        evidence = f"{optimizers[0]} against {optimizers[1]} from {name_step(case, 0)} on"
        repair = "use the same optimiser on both sides"
        yield explain(case, 0, Cause.ANOTHER_OPTIMIZER, (), evidence, repair, 0.98)
        return  # settings of different optimisers do not mean the same
    yield from _find_decay_kinds(case, optimizers)
    for change in list_changes(case):
        yield _explain_change(case, change)


def _find_decay_kinds(case: RunCase, optimizers: Sequence[str]) -> Iterator[Explanation]:
    """Yield Adam against AdamW, which are the same without weight decay."""
    groups = [read_groups(case, where, 0) for where in Where]
    names: list[str] = []
    decay = 0.0
    for pair in pair_groups(case):
        settings = [groups[where].get(pair.indices[where], {}) for where in Where]
        decoupled = [is_decoupled(optimizers[where], settings[where]) for where in Where]
        decays = [values.get("weight_decay", 0.0) for values in settings]
        if decoupled[0] != decoupled[1] and decays[0] and decays[1]:
            names += pair.parameters
            decay = decay or decays[0]
    if decay:
        evidence = (
            f"{optimizers[0]} against {optimizers[1]} with weight decay {decay:g} from {name_step(case, 0)} on: one "
            "adds it to the gradient (Adam), the other shrinks the weights (AdamW)"
        )
        repair = "use Adam or AdamW on both sides"
        yield explain(case, 0, Cause.DECOUPLED_DECAY, names, evidence, repair, 0.97)


def list_changes(case: RunCase) -> list[SettingChange]:
    """Return the settings that differ, each with the first place at which it does, in order of time."""
    pairs = pair_groups(case)
    firsts: dict[tuple[str, int, float, float], list[GroupPair]] = {}
    seen: set[tuple[GroupPair, str]] = set()
    for place in range(len(case.steps)):
        groups = [read_groups(case, where, place) for where in Where]
        for pair in pairs:
            reference, candidate = (groups[where].get(pair.indices[where], {}) for where in Where)
            for name in reference:
                if name not in candidate or (pair, name) in seen or name == _DECOUPLED_SETTING:
                    continue
                if not agree_within(reference[name], candidate[name], SAME_SETTING):
                    seen.add((pair, name))
                    firsts.setdefault((name, place, reference[name], candidate[name]), []).append(pair)
    changes = []
    for (name, place, first, second), members in firsts.items():
        changes.append(SettingChange(name, place, (first, second), tuple(members)))
    order = {name: position for position, name in enumerate(CAUSES)}
    return sorted(changes, key=lambda change: (change.place, order.get(change.name, len(order))))


def _explain_change(case: RunCase, change: SettingChange) -> Explanation:
    """Return that a setting differs, and from which step on."""
    word = name_setting(change.name)
    first, second = change.values
    values = f"{word} {first:g} against {second:g}"
    if change.name in SWITCHES:
        values = f"{word} in the {name_side(Where(second != 0))} only"
    evidence = f"{values} in {_name_groups(case, change)} from {name_step(case, change.place)} on"
    cause = CAUSES.get(change.name, Cause.OPTIMIZER_SETTING)
    repair = f"set the {word} of the candidate to {first:g}, or that of the reference to {second:g}"
    if change.name == "lr":
        evidence += _describe_updates(case, change)
    if change.name == "lr" and not _has_constant_ratio(case, change):
        cause = Cause.SCHEDULE
        repair = "compare the schedules: warm-up, number of steps, when scheduler.step() is called"
        known = change.place - 1 if change.place else len(case.steps) - 1
        pair = _read_pair(case, change, known)
        evidence += f" ({pair[0]:g} against {pair[1]:g} at {name_step(case, known)})" if pair else ""
    return explain(case, change.place, cause, change.parameters, evidence, repair, 0.97)


def _describe_updates(case: RunCase, change: SettingChange) -> str:
    """Return how many times as large the first updates are, where that can be computed."""
    if not case.is_consecutive(change.place):
        return ""
    ratios = []
    for name in change.parameters:
        fit = fit_updates(case, change.place, name, has_drift=True)
        if fit is not None and fit.reproduces:
            ratios.append(float(fit.coefficients[0]))
    return f": the first updates are {statistics.median(ratios):.4g} times as large" if ratios else ""


def name_setting(name: str) -> str:
    """Return words for a setting."""
    return _WORDS.get(name, name.replace("_", " "))


def _name_groups(case: RunCase, change: SettingChange) -> str:
    """Return words for the parameters that a setting differs for: all of them, or those of some groups."""
    if len(change.groups) == len(pair_groups(case)):
        return "all parameters"
    words = []
    for group in change.groups:
        members = f" ({first_few(group.parameters)})" if group.parameters else ""
        words.append(f"group {group.indices[0]}{members}")
    return first_few(words)


def _read_pair(case: RunCase, change: SettingChange, place: int) -> tuple[float, float] | None:
    """Return both values of a setting at another step."""
    indices = change.groups[0].indices
    values = [read_scalars(case, where, place).get(f"{change.name}/{indices[where]}") for where in Where]
    return None if values[0] is None or values[1] is None else (values[0], values[1])


def _has_constant_ratio(case: RunCase, change: SettingChange) -> bool:
    """Return True if one rate is the same multiple of the other at every common step."""
    first, second = change.values
    for place in range(len(case.steps)):
        pair = _read_pair(case, change, place)
        if pair is not None and not agree_within(pair[1] * first, pair[0] * second, 10 * SAME_SETTING):
            return False
    return True
