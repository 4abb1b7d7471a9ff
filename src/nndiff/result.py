"""The result of a comparison: computed once, only read by whatever shows it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from nndiff.dtypes import DTYPES, DType, opaque
from nndiff.judge import UNPROVEN, passing, rejudge
from nndiff.names import matches_any
from nndiff.recorded import is_inner_slot, is_owned_slot, was_cut_off
from nndiff.stats.metrics import Metrics
from nndiff.tensors import Shape
from nndiff.tolerance import Tolerance
from nndiff.verdict import Outcome, Verdict, outcome


@dataclass(frozen=True)
class Side:
    """Describe one source that took part."""

    label: str
    kind: str
    tensors: int
    elements: int  # of all tensors: the parameter count, buffers included
    trainable: int  # elements of tensors that look like parameters
    nbytes: int
    notes: tuple[str, ...] = ()  # what the reader should know: parts of the file that were not compared, ...
    meta: Mapping[str, Any] = field(default_factory=dict)  # plain facts from the file itself


@dataclass(frozen=True)
class Rearranged:
    """Say how one side of a pair must be rearranged to agree with the other, and at which tolerances it then does."""

    cause: str
    how: str
    evidence: str
    repair: str
    confidence: float
    agrees_at: tuple[tuple[float, float], ...] = ()  # (atol, rtol); it does at larger ones too
    metrics: Metrics | None = None  # the numbers of the pair then

    def agrees(self, atol: float, rtol: float) -> bool:
        """Tell whether it is known to agree at a tolerance."""
        if any(known <= atol and relative <= rtol for known, relative in self.agrees_at):
            return True
        return self.metrics is not None and rejudge(self.metrics, True, atol, rtol)[0].passed

    def is_open(self, atol: float, rtol: float) -> bool:
        """Tell whether it is not known whether it agrees at a tolerance."""
        doubted = self.metrics is None or rejudge(self.metrics, True, atol, rtol)[1] != ""
        return doubted and not self.agrees(atol, rtol)

    def passes_at(self, scale: float, exact: bool) -> float:
        """Return the smallest t at which it is known to agree as atol = rtol = t; inf where none is."""
        known = [max(atol / scale, rtol) for atol, rtol in self.agrees_at]
        return min((*known, passing(self.metrics, scale, exact) if self.metrics else math.inf))


@dataclass(frozen=True)
class PairSite:
    """Say where the two tensors of a pair were taken, the reference's first."""

    modules: tuple[str, str]
    slots: tuple[str, str]
    classes: tuple[str, str]
    call: int  # of the reference's module
    wholes: tuple[Shape, Shape]  # shapes of what they are stretches of; their own where they are none
    layout: Rearranged | None = None

    @property
    def called(self) -> tuple[str, int]:
        """Return which call of which module it is of, by the reference."""
        return self.modules[0], self.call


@dataclass(frozen=True)
class Pair:
    """Hold two tensors that belong together, their numbers and the verdict."""

    candidate: str  # label of the candidate this pair is about
    reference_name: str
    candidate_name: str
    matched_by: str  # name, prefix, rename, map, ...
    verdict: Verdict
    shape: tuple[Shape, Shape]
    dtype: tuple[str, str]
    order: int
    metrics: Metrics | None = None
    atol: float = 0.0  # the tolerance this pair was judged at
    rtol: float = 0.0
    scale: float = 1.0  # what the tolerance's atol was multiplied with: gradients are judged on their own scale
    slot: str | None = None  # recordings: output, input, grad_output, param_grad, ...
    note: str = ""
    site: PairSite | None = None  # of recordings

    @property
    def name(self) -> str:
        """Return the name it goes by: the reference's."""
        return self.reference_name

    @property
    def inside(self) -> bool:
        """Tell whether it is of something inside the model, which another implementation may do otherwise."""
        return self.site is not None and (self.is_owned or is_inner_slot(self.slot, self.site.modules[0]))

    @property
    def is_owned(self) -> bool:
        """Tell whether it is a parameter or the gradient of one."""
        return is_owned_slot(self.slot)

    @property
    def exact(self) -> bool:
        """Tell whether both sides are whole numbers or truths, which know no rounding."""
        return all(dtype.exact for dtype in _dtypes(self))

    @property
    def passes_at(self) -> float:
        """Return the smallest t at which it is known to pass as atol = rtol = t; inf where none is."""
        if self.metrics is None:
            return math.inf
        found = passing(self.metrics, self.scale, self.exact)
        known = self.verdict.passed and self.scale > 0
        return min(found, max(self.atol / self.scale, self.rtol)) if known else found

    @property
    def is_fed(self) -> bool:
        """Tell whether it is an input of the model itself."""
        return self.slot == "model_input" or (self.slot == "input" and self._of_model)

    @property
    def is_final(self) -> bool:
        """Tell whether it is an output of the model itself."""
        return self.slot == "output" and self._of_model

    @property
    def _of_model(self) -> bool:
        return self.reference_name.startswith(("(model):", "(model)@"))  # no module goes by that name

    @property
    def severity(self) -> tuple[int, bool, float]:
        """Return a key that sorts the worst first when reversed; counters come after what is trained."""
        rank = _WORST_LAST.index(self.verdict)
        return rank, not self.exact, self.metrics.needed_tolerance if self.metrics else 0.0


_WORST_LAST = (
    Verdict.IDENTICAL,
    Verdict.CLOSE,
    Verdict.NOT_COMPARED,
    Verdict.DIFFERENT,
    Verdict.NOT_FINITE,
    Verdict.SHAPE,
)


@dataclass(frozen=True)
class Leftover:
    """Name a tensor without a partner."""

    candidate: str  # label of the candidate of the comparison it was left over in
    side: str  # "reference" or "candidate"
    name: str
    shape: Shape
    dtype: str
    hint: str = ""  # did you mean ...
    counts: bool = True  # a difference; the inner sites of a recording without a partner are only listed
    unreached: bool = False  # the recording of the other side was cut off before it
    aside: bool = False  # it was paired, and the pair was set aside


@dataclass(frozen=True)
class Unread:
    """Name an output of the model that could not be recorded, so that nobody knows whether it is the same."""

    side: str  # "reference" or "candidate"
    name: str
    what: str  # a generator, ...


@dataclass(frozen=True)
class Finding:
    """Name a cause with its evidence and, where possible, the repair."""

    cause: str
    where: tuple[str, ...]
    evidence: str
    repair: str
    confidence: float
    harmless: bool = False
    candidate: str = ""  # label of the candidate it is about


@dataclass(frozen=True)
class Totals:
    """Count verdicts."""

    pairs: int
    identical: int
    close: int
    different: int
    shape: int
    not_finite: int
    not_compared: int
    only_reference: int
    only_candidate: int
    unreached: int  # of those without a partner: the other recording was cut off before them

    @property
    def matched(self) -> int:
        """Return how many pairs are the same."""
        return self.identical + self.close

    @property
    def match_rate(self) -> float:
        """Return the share that is the same of all pairs and of what was never reached; 0 where there is nothing."""
        return self.matched / self.comparable if self.comparable else 0.0

    @property
    def comparable(self) -> int:
        """Return how many pairs there are or would have been, had no recording been cut off."""
        return self.pairs + self.unreached


@dataclass(frozen=True)
class Comparison:
    """Hold everything a comparison found out."""

    kind: str  # checkpoint, recording, run or modes
    reference: Side
    candidates: tuple[Side, ...]
    tolerance: Tolerance
    pairs: tuple[Pair, ...]
    leftovers: tuple[Leftover, ...] = ()
    findings: tuple[Finding, ...] = ()
    first_divergences: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by candidate
    groups: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    aside: tuple[Pair, ...] = ()  # pairs that differ and were excused; at another tolerance they may count
    latent: tuple[Finding, ...] = ()  # what is to be told of leftovers where all else agrees

    @property
    def verdict(self) -> str:
        """Return the verdict of the whole: identical, close, different or nothing compared."""
        return self.outcome.value

    @property
    def exit_code(self) -> int:
        """Return the exit status the comparison ends with."""
        return self.outcome.exit_code

    @property
    def outcome(self) -> Outcome:
        """Return the judgement of the whole: that of its worst candidate."""
        outcomes = [self.outcome_of(side.label) for side in self.candidates]
        if not outcomes or all(each is Outcome.NOTHING for each in outcomes):
            return Outcome.NOTHING
        if Outcome.DIFFERENT in outcomes or Outcome.NOTHING in outcomes:
            return Outcome.DIFFERENT
        return Outcome.CLOSE if Outcome.CLOSE in outcomes else Outcome.IDENTICAL

    def outcome_of(self, candidate: str) -> Outcome:
        """Return the judgement of one candidate."""
        pairs = [pair for pair in self.pairs if pair.candidate == candidate]
        leftovers = sum(left.candidate == candidate and left.counts for left in self.leftovers)
        # what both were fed is the same by construction: it says nothing of the models
        compared = sum(pair.metrics.count for pair in pairs if pair.metrics and not pair.is_fed)
        found = outcome((pair.verdict for pair in pairs), leftovers, compared)
        if found.exit_code == 0 and self.unread(candidate):
            return Outcome.DIFFERENT if any(pair.is_final for pair in pairs) else Outcome.NOTHING
        # where one was cut off nobody knows what would have come: that is no pass
        return Outcome.DIFFERENT if found.exit_code == 0 and self.cut_off(candidate) else found

    def unread(self, candidate: str) -> tuple[Unread, ...]:
        """Return the outputs of the model, of the reference and of a candidate, that could not be recorded."""
        sides = [("candidate", side) for side in self.candidates if side.label == candidate]
        return tuple(
            Unread(role, str(name), str(what))
            for role, side in (("reference", self.reference), *sides)
            for name, what in not_recorded(side.meta).items()
        )

    def cut_off(self, candidate: str) -> int:
        """Return how many of the two recordings, reference and candidate, end before their run did."""
        sides = (self.reference, *(side for side in self.candidates if side.label == candidate))
        return sum(was_cut_off(side.meta) for side in sides if side.kind == "recording")

    @property
    def most_cut_off(self) -> int:
        """Return how many recordings were cut off, the reference and a candidate: none, one or both."""
        return max((self.cut_off(side.label) for side in self.candidates), default=0)

    @property
    def first_divergence(self) -> Mapping[str, Any] | None:
        """Return where the candidate parts from the reference; of several, the first candidate that does."""
        found = (self.first_divergences.get(side.label) for side in self.candidates)
        return next((each for each in found if each is not None), None)

    @property
    def totals(self) -> Totals:
        """Return the counts over all candidates."""
        return count(self.pairs, self.leftovers)

    def totals_of(self, candidate: str) -> Totals:
        """Return the counts of one candidate."""
        return count(
            (pair for pair in self.pairs if pair.candidate == candidate),
            (left for left in self.leftovers if left.candidate == candidate),
        )

    def totals_of_group(self, group: str) -> Totals:
        """Return the counts of the tensors a group's pattern names."""
        pattern = self.groups[group]
        return count(
            (pair for pair in self.pairs if matches_any(pair.name, (pattern,))),
            (left for left in self.leftovers if matches_any(left.name, (pattern,))),
        )

    @property
    def only_reference(self) -> tuple[str, ...]:
        """Return the names found in the reference alone."""
        return tuple(dict.fromkeys(left.name for left in self.leftovers if left.side == "reference"))

    @property
    def only_candidate(self) -> tuple[str, ...]:
        """Return the names found in a candidate alone."""
        return tuple(dict.fromkeys(left.name for left in self.leftovers if left.side == "candidate"))

    @cached_property
    def needed_tolerance(self) -> float | None:
        """Return the smallest t at which all that counts passes as atol = rtol = t; None if none is known."""
        from nndiff.judging import needed_tolerance

        return needed_tolerance(self)

    def worst(self, top: int | None = None) -> list[Pair]:
        """Return the pairs that are not identical, worst first."""
        rows = [pair for pair in self.pairs if pair.verdict is not Verdict.IDENTICAL]
        return sorted(rows, key=lambda pair: pair.severity, reverse=True)[:top]

    def judged_at(self, tolerance: Tolerance) -> Comparison:
        """Return the same numbers judged at another tolerance, what is excused there excused."""
        from nndiff.first_again import told_again
        from nndiff.judging import judged_at

        return told_again(self, judged_at(self, tolerance))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data, ready for JSON."""
        from nndiff import result_json

        return result_json.to_dict(self)

    def save(self, path: str | Path) -> None:
        """Write the result as JSON, whole or not at all."""
        from nndiff.reports import write_report

        write_report(self, f"json:{path}")

    def html(self, path: str | Path) -> None:
        """Write the result as one html page, whole or not at all."""
        from nndiff.reports import write_report

        write_report(self, f"html:{path}")


def outside_agrees(pairs: Iterable[Pair]) -> bool:
    """Tell whether all that goes in and comes out of a model agrees, the final output among it."""
    outside = [pair for pair in pairs if not pair.inside]
    return any(pair.is_final for pair in outside) and all(pair.verdict.passed for pair in outside)


def count(pairs: Iterable[Pair], leftovers: Iterable[Leftover]) -> Totals:
    """Count verdicts and leftovers."""
    verdicts = Counter(pair.verdict for pair in pairs)
    sides = Counter(side for left in leftovers for side in (left.side, *(("unreached",) if left.unreached else ())))
    return Totals(
        pairs=sum(verdicts.values()),
        identical=verdicts[Verdict.IDENTICAL],
        close=verdicts[Verdict.CLOSE],
        different=verdicts[Verdict.DIFFERENT],
        shape=verdicts[Verdict.SHAPE],
        not_finite=verdicts[Verdict.NOT_FINITE],
        not_compared=verdicts[Verdict.NOT_COMPARED],
        only_reference=sides["reference"],
        only_candidate=sides["candidate"],
        unreached=sides["unreached"],
    )


def not_recorded(meta: Mapping[str, Any]) -> Mapping[Any, Any]:
    """Return the outputs of the model that a recording could not hold: {name: what it is}."""
    found = meta.get("not_recorded")
    return found if isinstance(found, Mapping) else {}


def _dtypes(pair: Pair) -> tuple[DType, DType]:
    reference, candidate = (DTYPES.get(name) or opaque(name) for name in pair.dtype)
    return reference, candidate


def tolerance_of(pair: Pair, tolerance: Tolerance) -> tuple[float, float]:
    """Return (atol, rtol) that a pair is judged with at a tolerance."""
    atol, rtol = tolerance.for_pair(*_dtypes(pair))
    return atol * pair.scale, rtol


def rejudged(pair: Pair, tolerance: Tolerance) -> Pair:
    """Return a pair judged at another tolerance; its note says where its numbers do not suffice."""
    atol, rtol = tolerance_of(pair, tolerance)
    larger, smaller = atol >= pair.atol and rtol >= pair.rtol, atol <= pair.atol and rtol <= pair.rtol
    if larger and smaller:
        return pair
    note = pair.note.removesuffix(UNPROVEN).removesuffix("; ")
    if pair.metrics is None:  # what statistics tell apart they may not at a larger tolerance
        doubted = pair.verdict is Verdict.DIFFERENT and not smaller
        return replace(pair, note=_with_doubt(note, doubted))
    verdict, doubt = rejudge(pair.metrics, pair.dtype[0] == pair.dtype[1], atol, rtol)
    if doubt and pair.verdict.passed and larger:
        verdict, doubt = Verdict.CLOSE, ""
    measured = pair.metrics.mismatched is not None
    doubted = bool(doubt) and not (measured and smaller and not pair.verdict.passed)
    metrics = replace(pair.metrics, mismatched=0 if verdict.passed else None)
    return replace(pair, verdict=verdict, metrics=metrics, atol=atol, rtol=rtol, note=_with_doubt(note, doubted))


def _with_doubt(note: str, doubted: bool) -> str:
    return "; ".join(filter(None, (note, UNPROVEN))) if doubted else note
