"""What the comparison of two training runs found out: facts for every report, computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from nndiff.verdict import Verdict

ALL = "all"  # the group of all parameters
BUFFERS = "buffers"  # the group of all buffers


class Quantity(str, Enum):
    """Name what two trainings are compared by, in causal order: what comes first may cause what comes later."""

    INITIAL_WEIGHTS = "initial_weights"
    DATA = "data"
    LOSS = "loss"
    GRADIENTS = "gradients"
    WEIGHTS = "weights"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True)
class StepMark:
    """Name a step; the state before the first one has the number -1 and neither epoch nor batch."""

    number: int  # of the reference's global steps, from 0
    epoch: int | None = None
    batch: int | None = None


@dataclass(frozen=True)
class GroupNumbers:
    """Measure the distance of a group of tensors, taken as one long vector."""

    l2: float
    rel_l2: float  # l2 / the reference's norm
    cosine: float
    max_abs: float | None  # None where only sketches were kept
    max_abs_name: str | None
    mean_l2: float  # over the tensors of the group
    max_l2: float
    max_l2_name: str | None
    error: float  # one standard deviation of l2, relative: 0 where whole tensors were compared
    tensors: int
    identical: int  # tensors that are the same bit for bit
    out: int  # tensors out of tolerance


@dataclass(frozen=True)
class StepComparison:
    """Compare one step of the reference with the same step of a candidate."""

    candidate: str
    mark: StepMark
    verdict: Verdict
    scalars: Mapping[str, tuple[float, float]]  # those both sides have
    groups: Mapping[str, GroupNumbers] = field(default_factory=dict)  # of weights; empty where none were recorded
    gradients: Mapping[str, GroupNumbers] | None = None
    optimizer: Mapping[str, GroupNumbers] | None = None
    same_data: bool | None = None  # None where a side has no fingerprint of its batch


@dataclass(frozen=True)
class RunDivergence:
    """Say where two trainings part: the earliest step and, within it, the first quantity in causal order."""

    candidate: str
    quantity: Quantity
    mark: StepMark
    tensor: str | None  # the tensor that is farthest out, by the reference's name


class GrowthKind(str, Enum):
    """Say how the distance of the weights grows over the steps."""

    NONE = "none"
    CONSTANT = "constant"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"
    IRREGULAR = "irregular"


@dataclass(frozen=True)
class Growth:
    """Describe how the distance of the weights grows."""

    kind: GrowthKind
    first: float  # the first relative distance that is not zero
    last: float
    doubling_steps: float | None = None  # of exponential growth


@dataclass(frozen=True)
class Jump:
    """Name a step at which the distance of the weights suddenly grows, and the parameter that leads."""

    mark: StepMark
    factor: float  # of the increase, against the usual increase before it
    tensor: str


@dataclass(frozen=True)
class SignTest:
    """Count at how many steps one side has the lower loss."""

    lower_in_reference: int
    lower_in_candidate: int
    equal: int
    p_value: float  # of a difference at least as one-sided by chance


@dataclass(frozen=True)
class WeightDetails:
    """Hold the numbers of every parameter at every step with tensors: rows are steps, columns are parameters."""

    marks: tuple[StepMark, ...]
    names: tuple[str, ...]
    l2: NDArray[np.float64]
    rel_l2: NDArray[np.float64]
    cosine: NDArray[np.float64]
    max_abs: NDArray[np.float64]  # NaN where only sketches were kept


@dataclass(frozen=True)
class RunFacts:
    """Hold what the comparison of the reference with one candidate run found out."""

    candidate: str
    steps: tuple[StepComparison, ...]
    parting: Mapping[Quantity, StepMark | None]  # the first step at which each is out of tolerance
    first_unequal: Mapping[Quantity, StepMark | None]  # the first step at which each is not bit for bit the same
    unknown: Mapping[Quantity, str] = field(default_factory=dict)  # what could not be compared, and why
    only_reference_steps: tuple[StepMark, ...] = ()
    only_candidate_steps: tuple[StepMark, ...] = ()
    first_divergence: RunDivergence | None = None
    growth: Growth | None = None
    jumps: tuple[Jump, ...] = ()
    leaders: tuple[tuple[str, float], ...] = ()  # parameters by their share of the squared distance at the last step
    sign_test: SignTest | None = None
    details: WeightDetails | None = None  # not part of the JSON result


def count_step_verdicts(steps: Iterable[StepComparison], group: str | None = None) -> Counter[Verdict]:
    """Count the verdicts of steps, or those of the weights of one group at the steps that have it."""
    verdicts = Counter[Verdict]()
    for step in steps:
        numbers = step.groups.get(group) if group is not None else None
        if group is None:
            verdicts[step.verdict] += 1
        elif numbers is not None:
            verdicts[judge_group(numbers)] += 1
    return verdicts


def judge_group(numbers: GroupNumbers) -> Verdict:
    """Return the verdict of a group from its counts of tensors."""
    if numbers.out:
        return Verdict.DIFFERENT
    return Verdict.IDENTICAL if numbers.identical == numbers.tensors else Verdict.CLOSE
