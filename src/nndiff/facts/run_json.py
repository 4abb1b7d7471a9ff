"""What the comparison of training runs adds to the JSON of a result, and back; whoever wrote it may be wrong.

Steps of all candidates stand in one list. `runs` has the other facts of each candidate, and is what is read back; the
same facts of the candidate that parts first stand beside it, so that a program that knows of one candidate finds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

from nndiff.errors import ReportError
from nndiff.facts.run_summary import draw_curves
from nndiff.facts.runs import (
    ALL,
    GroupNumbers,
    Growth,
    GrowthKind,
    Jump,
    Quantity,
    RunDivergence,
    RunFacts,
    SignTest,
    StepComparison,
    StepMark,
)
from nndiff.verdict import Verdict

_E = TypeVar("_E", bound=Enum)
_T = TypeVar("_T")
_Stored = TypeVar("_Stored")


# -- writing ----------------------------------------------------------------------------------------------------------


def store_runs(runs: Sequence[RunFacts]) -> dict[str, Any]:
    """Return what kind `run` adds to a result, as plain data."""
    stored = [_store_facts(facts) for facts in runs]
    parted = [place for place, facts in enumerate(runs) if facts.first_divergence]
    data = dict(stored[parted[0] if parted else 0]) if stored else {}
    data.pop("candidate", None)
    data["steps"] = [_store_step(step) for facts in runs for step in facts.steps]
    if len(runs) > 1:
        data["partings"] = {facts.candidate: item["parting"] for facts, item in zip(runs, stored, strict=True)}
    data["runs"] = stored
    return data


def store_divergence(divergence: RunDivergence) -> dict[str, Any]:
    """Return where two runs part, as plain data."""
    mark = store_mark(divergence.mark)
    return {"candidate": divergence.candidate, "name": divergence.quantity.value, **mark, "tensor": divergence.tensor}


def store_mark(mark: StepMark) -> dict[str, Any]:
    """Return a step as plain data."""
    return {"epoch": mark.epoch, "batch": mark.batch, "step": mark.number}


def store_number(value: float | None) -> Any:
    """Return a number as JSON holds it: NaN is null, infinities are texts."""
    if value is None or math.isnan(value):
        return None
    return float(value) if math.isfinite(value) else "inf" if value > 0 else "-inf"


def _store_facts(facts: RunFacts) -> dict[str, Any]:
    """Return the facts of one candidate but its steps."""
    summary = {}
    for curve in draw_curves(facts):
        spread = curve.spread
        if spread is not None:
            summary[curve.key] = {name: _store_value(value) for name, value in vars(spread).items()}
    first = facts.first_divergence
    unknown = {quantity.value: reason for quantity, reason in facts.unknown.items()}
    for quantity in Quantity:
        if quantity not in facts.parting and quantity not in facts.first_unequal:
            unknown.setdefault(quantity.value, "")
    return {
        "candidate": facts.candidate,
        "parting": _store_parting(facts.parting),
        "first_unequal": _store_parting(facts.first_unequal),
        "unknown": unknown,
        "only_reference_steps": [_store_place(mark) for mark in facts.only_reference_steps],
        "only_candidate_steps": [_store_place(mark) for mark in facts.only_candidate_steps],
        "first_divergence": _store_optional(first, store_divergence),
        "growth": _store_optional(facts.growth, _store_fields),
        "jumps": [
            {**store_mark(jump.mark), "factor": _store_value(jump.factor), "tensor": jump.tensor}
            for jump in facts.jumps
        ],
        "leaders": [[name, store_number(share)] for name, share in facts.leaders],
        "sign_test": _store_optional(facts.sign_test, _store_fields),
        "summary": summary,
    }


def _store_parting(parting: Mapping[Quantity, StepMark | None]) -> dict[str, Any]:
    """Return a step or null for every quantity."""
    return {quantity.value: _store_optional(parting.get(quantity), store_mark) for quantity in Quantity}


def _store_place(mark: StepMark) -> list[int | None]:
    """Return [epoch, batch] where both are known, else [null, number of the step]."""
    if mark.epoch is None or mark.batch is None:
        return [None, mark.number]
    return [mark.epoch, mark.batch]


def _store_step(step: StepComparison) -> dict[str, Any]:
    return {
        "candidate": step.candidate,
        **store_mark(step.mark),
        "verdict": step.verdict.value,
        "groups": {name: _store_fields(numbers) for name, numbers in step.groups.items()},
        "gradients": _store_groups(step.gradients),
        "optimizer": _store_groups(step.optimizer),
        "scalars": {name: [store_number(value) for value in pair] for name, pair in step.scalars.items()},
        "same_data": step.same_data,
    }


def _store_groups(groups: Mapping[str, GroupNumbers] | None) -> dict[str, Any] | None:
    """Return the numbers of each group by its name, and those of all parameters directly too."""
    if groups is None:
        return None
    data: dict[str, Any] = _store_fields(groups[ALL]) if ALL in groups else {}
    for name, numbers in groups.items():
        data[name] = _store_fields(numbers)
    return data


def _store_fields(item: Any) -> dict[str, Any]:
    return {name: _store_value(value) for name, value in vars(item).items()}


def _store_value(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return store_number(value) if isinstance(value, float) else value


def _store_optional(item: _T | None, store: Callable[[_T], _Stored]) -> _Stored | None:
    return None if item is None else store(item)


# -- reading ----------------------------------------------------------------------------------------------------------


def load_runs(data: Mapping[str, Any], labels: Iterable[str]) -> tuple[RunFacts, ...]:
    """Return the facts of every candidate, in the order of the candidates, from plain data."""
    steps: dict[str, list[StepComparison]] = {}
    for item in _take_list(data, "steps"):
        step = _load_step(item)
        steps.setdefault(step.candidate, []).append(step)
    runs = []
    for item in _take_list(data, "runs"):
        candidate = _take(item, "candidate", str)
        runs.append(_load_facts(item, candidate, tuple(steps.pop(candidate, ()))))
    if [facts.candidate for facts in runs] != list(labels) or steps:
        raise ReportError("the runs are not those of the candidates")
    return tuple(runs)


def _load_facts(data: Mapping[str, Any], candidate: str, steps: tuple[StepComparison, ...]) -> RunFacts:
    jumps = []
    for item in _take_list(data, "jumps"):
        jumps.append(Jump(_load_mark(item), _take_number(item, "factor"), _take(item, "tensor", str)))
    leaders = []
    for item in _take_list(data, "leaders"):
        name, share = _check(item, "leaders", list)
        leaders.append((_check(name, "leaders", str), _load_number(share, "leaders")))
    growth = None
    if data["growth"] is not None:
        item = _take(data, "growth", dict)
        kind, first, last = (
            _load_enum(GrowthKind, item["kind"]),
            _take_number(item, "first"),
            _take_number(item, "last"),
        )
        growth = Growth(kind, first, last, _load_optional_number(item, "doubling_steps"))
    sign_test = None
    if data["sign_test"] is not None:
        item = _take(data, "sign_test", dict)
        counts = {name: _take(item, name, int) for name in ("lower_in_reference", "lower_in_candidate", "equal")}
        sign_test = SignTest(**counts, p_value=_take_number(item, "p_value"))
    unknown = {}
    for name, reason in _take(data, "unknown", dict).items():
        unknown[_load_enum(Quantity, name)] = _check(reason, "unknown", str)
    return RunFacts(
        candidate=candidate,
        steps=steps,
        parting=_load_parting(data, "parting"),
        first_unequal=_load_parting(data, "first_unequal"),
        unknown=unknown,
        only_reference_steps=_load_places(data, "only_reference_steps"),
        only_candidate_steps=_load_places(data, "only_candidate_steps"),
        first_divergence=_load_divergence(data["first_divergence"], candidate),
        growth=growth,
        jumps=tuple(jumps),
        leaders=tuple(leaders),
        sign_test=sign_test,
    )


def _load_parting(data: Mapping[str, Any], name: str) -> dict[Quantity, StepMark | None]:
    parting = {}
    for quantity, mark in _take(data, name, dict).items():
        parting[_load_enum(Quantity, quantity)] = None if mark is None else _load_mark(_check(mark, name, dict))
    return parting


def _load_divergence(data: Any, candidate: str) -> RunDivergence | None:
    if data is None:
        return None
    item = _check(data, "first_divergence", dict)
    quantity = _load_enum(Quantity, item["name"])
    return RunDivergence(candidate, quantity, _load_mark(item), _take(item, "tensor", str, type(None)))


def _load_mark(data: Mapping[str, Any]) -> StepMark:
    optional = (int, type(None))
    return StepMark(_take(data, "step", int), _take(data, "epoch", *optional), _take(data, "batch", *optional))


def _load_places(data: Mapping[str, Any], name: str) -> tuple[StepMark, ...]:
    """Return steps of one side alone; of those that are known by epoch and batch the number is not kept."""
    marks = []
    for item in _take_list(data, name):
        epoch, batch = _check(item, name, list)
        place = _check(batch, name, int)
        marks.append(StepMark(place) if epoch is None else StepMark(-1, _check(epoch, name, int), place))
    return tuple(marks)


def _load_step(data: Any) -> StepComparison:
    item = _check(data, "steps", dict)
    scalars = {}
    for name, pair in _take(item, "scalars", dict).items():
        reference, candidate = _check(pair, "scalars", list)
        scalars[name] = (_load_number(reference, name), _load_number(candidate, name))
    return StepComparison(
        candidate=_take(item, "candidate", str),
        mark=_load_mark(item),
        verdict=_load_enum(Verdict, item["verdict"]),
        scalars=scalars,
        groups={name: _load_group(numbers) for name, numbers in _take(item, "groups", dict).items()},
        gradients=_load_groups(item["gradients"]),
        optimizer=_load_groups(item["optimizer"]),
        same_data=_take(item, "same_data", bool, type(None)),
    )


def _load_groups(data: Any) -> dict[str, GroupNumbers] | None:
    """Return the numbers of each group; the numbers that stand there directly are those of one of them."""
    if data is None:
        return None
    groups = {}
    for name, numbers in _check(data, "gradients", dict).items():
        if isinstance(numbers, dict):
            groups[name] = _load_group(numbers)
    return groups


_NUMBERS = ("l2", "rel_l2", "cosine", "mean_l2", "max_l2", "error")
_NAMES = ("max_abs_name", "max_l2_name")
_COUNTS = ("tensors", "identical", "out")


def _load_group(data: Any) -> GroupNumbers:
    item = _check(data, "groups", dict)
    values: dict[str, Any] = {name: _take_number(item, name) for name in _NUMBERS}
    values |= {name: _take(item, name, str, type(None)) for name in _NAMES}
    values |= {name: _take(item, name, int) for name in _COUNTS}
    return GroupNumbers(**values, max_abs=_load_optional_number(item, "max_abs"))


def _load_optional_number(data: Mapping[str, Any], name: str) -> float | None:
    return None if data[name] is None else _take_number(data, name)


def _take_number(data: Mapping[str, Any], name: str) -> float:
    return _load_number(data[name], name)


def _load_number(value: Any, name: str) -> float:
    if value in ("inf", "-inf") or value is None:
        return math.nan if value is None else float(value)
    return float(_check(value, name, int, float))


def _take_list(data: Mapping[str, Any], name: str) -> list[Any]:
    items: list[Any] = _take(data, name, list)
    return items


def _take(data: Mapping[str, Any], name: str, *kinds: type) -> Any:
    return _check(_check(data, name, dict)[name], name, *kinds)


def _check(value: Any, name: str, *kinds: type) -> Any:
    """Return a value of one of these types; True is no number."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ReportError(f"{name[:80]!r} has the wrong type")
    return value


def _load_enum(kind: type[_E], value: Any) -> _E:
    try:
        return kind(value)
    except ValueError:
        raise ReportError(f"{str(value)[:80]!r} is not a known {kind.__name__}") from None
