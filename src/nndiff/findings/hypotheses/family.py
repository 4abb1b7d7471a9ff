"""What a family of hypotheses is: when it is tried, and how it is proven."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nndiff.diagnosis.trials import Trial
from nndiff.findings.causes import Cause


@dataclass(frozen=True)
class Proof:
    """Hold a cause that reproduces the candidate's numbers from the reference's."""

    cause: Cause
    evidence: str  # with the numbers: "eps is 1.0e-06 in the candidate, 1.0e-05 in the reference"
    repair: str


@dataclass(frozen=True)
class Family:
    """Hold hypotheses of one kind."""

    name: str  # what is ruled out where none holds: "activation variant"
    applies: Callable[[Trial], bool]  # cheap: by shapes, classes and what was given
    prove: Callable[[Trial], Proof | None]
