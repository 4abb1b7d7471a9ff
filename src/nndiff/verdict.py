"""The closed lists of verdicts: of one pair and of the whole."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Verdict(str, Enum):
    """Judge one pair."""

    IDENTICAL = "identical"
    CLOSE = "close"
    DIFFERENT = "different"
    SHAPE = "shape"
    NOT_FINITE = "not finite"
    NOT_COMPARED = "not compared"

    @property
    def passed(self) -> bool:
        """Tell whether the pair counts as the same."""
        return self in (Verdict.IDENTICAL, Verdict.CLOSE)


class Outcome(str, Enum):
    """Judge the whole comparison."""

    IDENTICAL = "identical"
    CLOSE = "close"
    DIFFERENT = "different"
    NOTHING = "nothing compared"

    @property
    def exit_code(self) -> int:
        """Return the exit status, as diff(1): 0 the same, 1 different, 2 trouble."""
        return {Outcome.IDENTICAL: 0, Outcome.CLOSE: 0, Outcome.DIFFERENT: 1, Outcome.NOTHING: 2}[self]


def outcome(verdicts: Iterable[Verdict], leftovers: int, compared: int) -> Outcome:
    """Judge the whole from its pairs, the tensors without a partner and the elements compared.

    A tensor without a partner is a difference. No element compared is never a pass, unless
    something is already known to differ.
    """
    seen = set(verdicts)
    if leftovers == 0 and not seen:
        return Outcome.NOTHING
    if compared == 0 and not seen & {Verdict.SHAPE, Verdict.DIFFERENT, Verdict.NOT_FINITE}:
        return Outcome.NOTHING
    if leftovers or not all(verdict.passed for verdict in seen):
        return Outcome.DIFFERENT
    return Outcome.CLOSE if Verdict.CLOSE in seen else Outcome.IDENTICAL
