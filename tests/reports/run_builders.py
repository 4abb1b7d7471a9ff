"""Comparisons of training runs built by hand, so that reports are tested without one step being trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from report_builders import HOSTILE

from nndiff.facts.runs import (
    ALL,
    BUFFERS,
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
    WeightDetails,
)
from nndiff.result import CANDIDATE, REFERENCE, Comparison, Finding, Judgement, Leftover, LeftoverReason, Side
from nndiff.tolerance import Tolerance
from nndiff.verdict import Outcome, Verdict

TENSORS = ("conv1.weight", "layer4.2.bn3.weight", "layer4.2.bn3.bias", "fc.weight", "fc.bias")
BATCHES = 20  # of an epoch


def mark(number: int) -> StepMark:
    """Return a step by its number."""
    return StepMark(number, number // BATCHES, number % BATCHES)


def numbers(apart: float, tensor: str = TENSORS[1], sketched: bool = True, **more: object) -> GroupNumbers:
    """Return plausible numbers of a group whose relative distance is `apart`."""
    values: dict[str, object] = {
        "l2": apart * 40,
        "rel_l2": apart,
        "cosine": 1 - min(1.0, apart * apart / 2),
        "max_abs": None if sketched else apart * 3,
        "max_abs_name": None if sketched else tensor,
        "mean_l2": apart * 8,
        "max_l2": apart * 30,
        "max_l2_name": tensor if apart else None,
        "error": 0.0156 if sketched and apart else 0.0,
        "tensors": 161,
        "identical": 0 if apart else 161,
        "out": 12 if apart > 1e-5 else 0,
    }
    return GroupNumbers(**{**values, **more})  # type: ignore[arg-type]


def step(
    number: int, apart: float, candidate: str = "runs/ours", groups: tuple[str, ...] = (ALL, BUFFERS), **more: object
) -> StepComparison:
    """Return one step at which the weights are so far apart, relatively."""
    verdict = Verdict.IDENTICAL if apart == 0 else Verdict.CLOSE if apart <= 1e-5 else Verdict.DIFFERENT
    loss, accuracy = 2.3 * math.exp(-number / 30), 1 - 0.9 * math.exp(-number / 20)
    values: dict[str, object] = {
        "candidate": candidate,
        "mark": mark(number),
        "verdict": verdict,
        "scalars": {
            "loss": (loss, loss * (1 - apart / 3)),
            "acc": (accuracy, accuracy - apart / 3),
            "lr/0": (0.1, 0.1),
        },
        "groups": {name: numbers(apart * {BUFFERS: 0.1, "mlp": 3}.get(name, 1)) for name in groups},
        "gradients": {name: numbers(apart * 5) for name in groups if name != BUFFERS},
        "optimizer": {ALL: numbers(apart * 2)},
        "same_data": True,
    }
    return StepComparison(**{**values, **more})  # type: ignore[arg-type]


def details(steps: tuple[StepComparison, ...], names: tuple[str, ...] = TENSORS) -> WeightDetails:
    """Return numbers of every parameter at every step."""
    apart = np.array([item.groups[ALL].rel_l2 for item in steps]).reshape(-1, 1)
    share = np.arange(1, len(names) + 1).reshape(1, -1) / len(names)
    distances = apart * share
    nothing = np.full(distances.shape, math.nan)
    return WeightDetails(
        tuple(item.mark for item in steps), names, distances * 40, distances, 1 - distances**2 / 2, nothing
    )


def parting(**marks: int | None) -> dict[Quantity, StepMark | None]:
    """Return marks by quantity; those not named have none."""
    return {quantity: _place(marks.get(quantity.value)) for quantity in Quantity}


def _place(number: int | None) -> StepMark | None:
    if number is None:
        return None
    return StepMark(-1) if number < 0 else mark(number)


def side(label: str, steps: int, **more: object) -> Side:
    """Return a run of ResNet-50."""
    meta = {"steps": steps, "keep": "sketch", "model": "ResNet", "optimizer": "SGD"}
    values: dict[str, object] = {
        "label": label,
        "kind": "run",
        "tensors": 267,
        "elements": 25_557_032,
        "trainable": 25_557_032,
        "nbytes": 61_204_480,
        "meta": meta,
    }
    return Side(**{**values, **more})  # type: ignore[arg-type]


def comparison(
    *runs: RunFacts, outcome: Outcome = Outcome.DIFFERENT, outcomes: Mapping[str, Outcome] | None = None, **more: object
) -> Comparison:
    """Return a comparison of these runs with the reference."""
    values: dict[str, object] = {
        "kind": "run",
        "reference": side("runs/ref", 43),
        "candidates": tuple(side(facts.candidate, len(facts.steps)) for facts in runs),
        "tolerance": Tolerance(1e-5, 1e-5, "default"),
        "pairs": (),
        "judgements": {facts.candidate: Judgement((outcomes or {}).get(facts.candidate, outcome)) for facts in runs},
        "run": runs,
    }
    return Comparison(**{**values, **more})  # type: ignore[arg-type]


def distance(number: int) -> float:
    """Return how far apart the weights are: equal, then growing exponentially, with a jump at step 25."""
    return 0.0 if number < 7 else min(2e-7 * 1.4 ** min(number - 7, 60) * (20 if number >= 25 else 1), 0.9)


def facts_of(candidate: str = "runs/ours", count: int = 40) -> RunFacts:
    """Return a training that parts at epoch 0, batch 10 by its gradients."""
    steps = tuple(step(number, distance(number), candidate, (ALL, "mlp", BUFFERS)) for number in range(count))
    return RunFacts(
        candidate=candidate,
        steps=steps,
        parting=parting(loss=20, gradients=10, weights=19, optimizer=17),
        first_unequal=parting(loss=8, gradients=7, weights=7, optimizer=7),
        only_reference_steps=tuple(mark(number) for number in range(count, count + 3)),
        first_divergence=RunDivergence(candidate, Quantity.GRADIENTS, mark(10), "layer4.2.bn3.weight"),
        growth=Growth(GrowthKind.EXPONENTIAL, 2e-7, distance(count - 1), 2.06),
        jumps=(Jump(mark(25), 48.6, "fc.weight"),),
        leaders=(("fc.weight", 0.612), ("layer4.2.bn3.weight", 0.207), ("conv1.weight", 0.0503)),
        sign_test=SignTest(2, 30, 8, 2.5e-7),
        details=details(steps),
    )


def finding(candidate: str = "runs/ours", **more: object) -> Finding:
    """Return a cause with its evidence."""
    values: dict[str, object] = {
        "cause": "clipping",
        "where": ("layer4.2.bn3.weight",),
        "evidence": "from epoch 0, batch 10 on every gradient of the candidate has the norm 1",
        "repair": "clip both, or neither",
        "confidence": 0.95,
        "candidate": candidate,
    }
    return Finding(**{**values, **more})  # type: ignore[arg-type]


def run_different() -> Comparison:
    """Return a training that parts, with a cause."""
    return comparison(facts_of(), findings=(finding(),), groups={"mlp": "*mlp*"})


def run_rounding() -> Comparison:
    """Return trainings that part by rounding alone."""
    rounding = finding(
        cause="rounding",
        where=(),
        evidence="the distance starts at rounding size",
        repair="",
        harmless=True,
        confidence=0.9,
    )
    return comparison(facts_of(), findings=(rounding,))


def run_identical() -> Comparison:
    """Return equal trainings."""
    steps = tuple(step(number, 0.0) for number in range(40))
    facts = RunFacts(
        "runs/ours",
        steps,
        parting(),
        parting(),
        growth=Growth(GrowthKind.NONE, 0.0, 0.0),
        sign_test=SignTest(0, 0, 40, 1.0),
    )
    return comparison(facts, outcome=Outcome.IDENTICAL)


def run_close() -> Comparison:
    """Return trainings that stay within tolerance."""
    steps = tuple(step(number, 0.0 if number < 4 else 1e-9 * number) for number in range(30))
    facts = RunFacts(
        "runs/ours",
        steps,
        parting(),
        parting(gradients=4, weights=4),
        growth=Growth(GrowthKind.LINEAR, 4e-9, 2.9e-8),
        sign_test=SignTest(12, 14, 4, 0.85),
    )
    return comparison(facts, outcome=Outcome.CLOSE)


def run_nothing() -> Comparison:
    """Return runs without a common step."""
    reasons = {Quantity.WEIGHTS: "no step in common"}
    facts = RunFacts("runs/ours", (), {}, {}, reasons, (mark(0), mark(1)), (mark(40),))
    return comparison(facts, outcome=Outcome.NOTHING)


def run_dumps() -> Comparison:
    """Return old dumps: no batches, gradients or initial weights, epochs alone, a NaN, one step known by number."""
    why = "the dumps hold no such tensors"
    unknown = {Quantity.INITIAL_WEIGHTS: why, Quantity.DATA: "the dumps hold no batches", Quantity.GRADIENTS: why}
    steps = (
        StepComparison(
            "old", StepMark(0, 0, None), Verdict.CLOSE, {"train_loss": (1.5, 1.5)}, {ALL: numbers(1e-7, sketched=False)}
        ),
        StepComparison(
            "old", StepMark(1), Verdict.DIFFERENT, {"train_loss": (1.25, 1.0)}, {ALL: numbers(0.25, sketched=False)}
        ),
        StepComparison(
            "old",
            StepMark(2),
            Verdict.NOT_FINITE,
            {"train_loss": (1.1, math.nan)},
            {ALL: numbers(math.nan, l2=math.inf, max_l2_name="fc.weight")},
        ),
        StepComparison("old", StepMark(3), Verdict.NOT_COMPARED, {}),
    )
    facts = RunFacts(
        "old",
        steps,
        {Quantity.LOSS: StepMark(1), Quantity.WEIGHTS: StepMark(1), Quantity.OPTIMIZER: None},
        {Quantity.LOSS: StepMark(1), Quantity.WEIGHTS: StepMark(0, 0), Quantity.OPTIMIZER: None},
        unknown,
        first_divergence=RunDivergence("old", Quantity.LOSS, StepMark(1), None),
        growth=Growth(GrowthKind.IRREGULAR, 1e-7, math.inf),
    )
    return comparison(facts)


def run_several() -> Comparison:
    """Return three candidates: equal, parting from the start, parting by its data."""
    equal = RunFacts("runs/a", tuple(step(number, 0.0, "runs/a") for number in range(3)), parting(), parting())
    start = RunFacts(
        "runs/b",
        tuple(step(number, 0.5, "runs/b") for number in range(3)),
        parting(initial_weights=-1, loss=0, gradients=0, weights=0),
        parting(initial_weights=-1, loss=0, gradients=0, weights=0),
        first_divergence=RunDivergence("runs/b", Quantity.INITIAL_WEIGHTS, StepMark(-1), "fc.weight"),
        growth=Growth(GrowthKind.CONSTANT, 0.5, 0.5),
    )
    data = RunFacts(
        "runs/c",
        (step(0, 0.0, "runs/c"), step(1, 0.01, "runs/c", same_data=False), step(2, 0.02, "runs/c", same_data=None)),
        parting(data=1, loss=1, gradients=1, weights=1),
        parting(data=1, loss=1, gradients=1, weights=1),
        only_candidate_steps=(StepMark(7),),
        first_divergence=RunDivergence("runs/c", Quantity.DATA, mark(1), None),
    )
    outcomes = {"runs/a": Outcome.IDENTICAL}
    found = (finding("runs/c", cause="shuffled", where=(), evidence="the same samples in another order"),)
    return comparison(equal, start, data, outcomes=outcomes, findings=found)


def run_one_step() -> Comparison:
    """Return one step that differs by its weights."""
    facts = RunFacts(
        "runs/ours",
        (step(0, 0.3, scalars={}, gradients=None, optimizer=None, same_data=None),),
        {**parting(weights=0)},
        {**parting(weights=0)},
        {Quantity.LOSS: "no common scalar"},
        first_divergence=RunDivergence("runs/ours", Quantity.WEIGHTS, mark(0), "fc.bias"),
    )
    return comparison(facts)


def run_leftovers() -> Comparison:
    """Return equal steps of models of which each has a tensor that the other lacks."""
    steps = tuple(step(number, 0.0) for number in range(3))
    alone = (
        Leftover("runs/ours", REFERENCE, "aux.weight", (10, 4), "float32", LeftoverReason.NO_PARTNER),
        Leftover("runs/ours", CANDIDATE, "extra.bias", (10,), "float32", LeftoverReason.NO_PARTNER),
    )
    return comparison(RunFacts("runs/ours", steps, parting(), parting()), leftovers=alone)


def run_long() -> Comparison:
    """Return 2,000 steps."""
    return comparison(facts_of(count=2000))


def run_hostile() -> Comparison:
    """Return a candidate for every hostile name, with that name everywhere."""
    runs, found = [], []
    for text in HOSTILE.values():
        steps = (
            StepComparison(
                text, mark(0), Verdict.IDENTICAL, {text: (1.0, 1.0), "loss": (1.0, 1.0)}, {ALL: numbers(0.0)}
            ),
            StepComparison(
                text,
                mark(1),
                Verdict.DIFFERENT,
                {text: (1.0, 2.0), "loss": (1.0, 2.0)},
                {ALL: numbers(0.5, text), text: numbers(0.25, text)},
                {ALL: numbers(0.5, text)},
            ),
        )
        runs.append(
            RunFacts(
                text,
                steps,
                parting(gradients=1),
                parting(gradients=1),
                {Quantity.DATA: text},
                first_divergence=RunDivergence(text, Quantity.GRADIENTS, mark(1), text),
                jumps=(Jump(mark(1), 3.0, text),),
                leaders=((text, 1.0),),
                details=details(steps, (text, f"{text} ")),
            )
        )
        found.append(finding(text, cause=text, where=(text,), evidence=text, repair=text))
    return comparison(*runs, findings=tuple(found), groups={"x": "*"})


CASES: dict[str, Callable[[], Comparison]] = {
    "run": run_different,
    "run-rounding": run_rounding,
    "run-same": run_identical,
    "run-close": run_close,
    "run-nothing": run_nothing,
    "run-dumps": run_dumps,
    "run-several": run_several,
    "run-one": run_one_step,
    "run-leftovers": run_leftovers,
    "run-hostile": run_hostile,
}
