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
        """Return True if the pair counts as the same."""
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


def worst_outcome(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the outcome of several together; where one of them compared nothing, that is no pass."""
    seen = set(outcomes)
    if not seen or seen == {Outcome.NOTHING}:
        return Outcome.NOTHING
    if seen & {Outcome.DIFFERENT, Outcome.NOTHING}:
        return Outcome.DIFFERENT
    return Outcome.CLOSE if Outcome.CLOSE in seen else Outcome.IDENTICAL


class RelationKind(str, Enum):
    """Say what kind of operation turns one tensor into the other."""

    LAYOUT = "layout"  # axes permuted, split or merged; order; fused, stacked, reshaped, repeated
    CAST = "cast"
    SCALE = "scale"  # one factor for all elements, or for each place along an axis
    SHIFT = "shift"  # one number added to all elements, or for each place along an axis: zero-centred norms
    FOLD = "fold"  # batch norm, weight norm, LoRA
    VOCAB = "vocab"  # rows added
    TIED = "tied"  # one tensor under two names
    QUANTISED = "quantised"  # rounded to few levels for each group of elements, packed with their scales or not
    MASK = "mask"  # a boolean mask and the additive mask of the same places


class Judge(str, Enum):
    """Say what counts for the verdict of a recording."""

    ALL = "all"  # what goes in and comes out, and every certain pair inside
    OUTPUTS = "outputs"  # what goes in and comes out alone


# What --accept takes beside the kinds of relations.
EXTRA_OUTPUTS = "extra"  # outputs that only one side returns
