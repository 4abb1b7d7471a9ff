"""A result judged as a whole at any tolerance: what passes, what is excused, and what the saved numbers do not tell."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from nndiff.excuses import FUSED, IDLE, IN_ANOTHER_FORM, RESTRUCTURED, Excuses, Orders, Ruling, listed, rearranged, told
from nndiff.judge import UNPROVEN
from nndiff.misnamed import MISLED, is_explained, misnamed
from nndiff.result import Comparison, Finding, Leftover, Pair, rejudged, tolerance_of
from nndiff.tolerance import Tolerance
from nndiff.verdict import Verdict

WITHOUT_EFFECT = "settings that differ, without effect"  # at the tolerance they were compared at
UNDECIDED = "whether what differs inside is excused at this tolerance"
_WAY_OUT = "the saved numbers do not tell: compare the sources again"


class Scales:
    """Know at which tolerances, atol = rtol = t, the pairs of one candidate pass and are excused."""

    def __init__(
        self, excuses: Excuses, leftovers: Sequence[Leftover], latent: Sequence[Finding] = (), misled: bool = False
    ) -> None:
        self.excuses, self._leftovers, self._latent, self._misled = excuses, leftovers, latent, misled
        self._passing = {pair.order: pair.passes_at for pair in excuses.pairs}
        self._turned = [pair for pair in excuses.pairs if pair.inside and _is_turned(pair)]

    @classmethod
    def of(cls, comparison: Comparison, candidate: str) -> Scales:
        """Take what a result holds of a candidate."""
        pairs = [pair for pair in (*comparison.pairs, *comparison.aside) if pair.candidate == candidate]
        left = [left for left in comparison.leftovers if left.candidate == candidate and not left.aside]
        latent = [each for each in comparison.latent if each.candidate == candidate]
        return cls(Excuses(pairs, left), left, latent, _misled(comparison))

    @property
    def values(self) -> set[float]:
        """Return every t at which a pair begins to pass, or to be known to agree once it is rearranged."""
        layouts = [(pair, pair.site.layout) for pair in self._turned if pair.site and pair.site.layout]
        known = (layout.passes_at(pair.scale, pair.exact) for pair, layout in layouts)
        return {value for value in (*self._passing.values(), *known) if math.isfinite(value)}

    def failing(self, t: float) -> frozenset[int]:
        """Return the pairs that do not pass."""
        return frozenset(order for order, passing in self._passing.items() if not passing <= t)

    def lying(self, t: float) -> frozenset[int]:
        """Return the pairs that are known to agree once one side is rearranged."""
        return lying(self._at(t))

    def maybe_lying(self, t: float) -> frozenset[int]:
        """Return the pairs of which that is not known."""
        return maybe_lying(self._at(t))

    def _at(self, t: float) -> Iterator[_AtTolerance]:
        return ((pair, t * pair.scale, 0.0 if pair.exact else t) for pair in self._turned)

    def passes(self, t: float) -> bool:
        """Tell whether the candidate is known to pass."""
        failing, known = self.failing(t), self.lying(t)
        ruling = self.excuses.ruling(failing, known)
        if self._misled and not is_explained(self.excuses, ruling, failing):
            return False
        return passes(self.excuses, ruling, failing, known, self._leftovers, self._latent)

    def may_agree(self, t: float) -> bool:
        """Tell whether nothing that was compared stands against it."""
        return self.excuses.ruling(self.failing(t), self.lying(t) | self.maybe_lying(t)).agreed


def _misled(comparison: Comparison) -> bool:
    """Tell whether layers were paired by what they do: that holds only as long as all of them do."""
    return any(note.startswith(MISLED) for note in comparison.notes)


_AtTolerance = tuple[Pair, float, float]


def lying(pairs: Iterable[_AtTolerance]) -> frozenset[int]:
    """Return the orders of pairs that are known to agree at a tolerance once one side is rearranged."""
    return frozenset(
        pair.order
        for pair, atol, rtol in pairs
        if pair.site and pair.site.layout and pair.site.layout.agrees(atol, rtol)
    )


def maybe_lying(pairs: Iterable[_AtTolerance]) -> frozenset[int]:
    """Return the orders of pairs that may agree at a tolerance once one side is rearranged: nobody looked."""
    return frozenset(pair.order for pair, atol, rtol in pairs if pair.inside and _may_lie(pair, atol, rtol))


_ALIKE = 0.99  # cosine: what is so much alike lies the same way


def _is_turned(pair: Pair) -> bool:
    """Tell whether one side of a pair lies otherwise, or may."""
    if pair.verdict.passed or (pair.site and pair.site.layout):
        return not pair.verdict.passed
    return not pair.metrics.cosine > _ALIKE if pair.metrics else pair.verdict is Verdict.SHAPE


def _may_lie(pair: Pair, atol: float, rtol: float) -> bool:
    if pair.site and pair.site.layout:
        return pair.site.layout.is_open(atol, rtol)
    measured = pair.metrics is None or pair.metrics.mismatched is not None
    looked_at = measured and atol <= pair.atol and rtol <= pair.rtol  # and it did not agree at a larger tolerance
    return _is_turned(pair) and not looked_at


def passes(
    excuses: Excuses,
    ruling: Ruling,
    failing: Orders,
    known: Orders,
    leftovers: Iterable[Leftover],
    latent: Iterable[Finding],
) -> bool:
    """Tell whether a candidate passes: nothing differs, or all that does is excused."""
    counting = [left for left in leftovers if left.counts or _is_reformed(left, latent)]
    if not ruling.agreed:
        return not failing and not counting
    aside = (pair for pair in excuses.pairs if pair.order in ruling.aside)
    more = (left for left in listed(aside, ruling.idle, known) if left.counts)
    return all(_is_reformed(left, latent) for left in (*counting, *more))


def _is_reformed(left: Leftover, latent: Iterable[Finding]) -> bool:
    """Tell whether a leftover is in another form on the other side, and no difference where all else agrees."""
    return any(left.name in each.where for each in latent if each.harmless)


def smallest(holds: Callable[[float], bool], values: Iterable[float]) -> float | None:
    """Return a value at which something holds while it does not at the next smaller one; None where there is none."""
    ordered = sorted(set(values))
    if not ordered or not holds(ordered[-1]):
        return None
    return ordered[bisect_left(ordered, True, key=holds)]


def needed_tolerance(comparison: Comparison) -> float | None:
    """Return the smallest t at which all that counts passes as atol = rtol = t; None if none is known."""
    cut = comparison.most_cut_off or any(comparison.unread(side.label) for side in comparison.candidates)
    if cut or all(pair.is_fed for pair in comparison.pairs):
        return None
    if comparison.kind != "recording":
        needed = max(0.0, *(pair.passes_at for pair in comparison.pairs))
        return None if needed == math.inf or any(left.counts for left in comparison.leftovers) else needed
    scales = [Scales.of(comparison, side.label) for side in comparison.candidates]
    return smallest(lambda t: all(each.passes(t) for each in scales), {t for each in scales for t in each.values})


def judged_at(comparison: Comparison, tolerance: Tolerance) -> Comparison:
    """Return a result with all its pairs judged at another tolerance, and what is excused there excused."""
    before = comparison.pairs
    if comparison.aside:
        before = tuple(sorted((*comparison.pairs, *comparison.aside), key=lambda pair: pair.order))
    bare = replace(
        comparison,
        tolerance=tolerance,
        pairs=tuple(rejudged(pair, tolerance) for pair in before),
        leftovers=tuple(left for left in comparison.leftovers if not left.aside),
        notes=tuple(_still_told(comparison, tolerance)),
        aside=(),
    )
    if comparison.kind != "recording":
        return bare
    cases = [_Case.of(bare, before, side.label) for side in comparison.candidates]
    ruled = {each.label: each.ruled() for each in cases}
    others = (each for each in bare.findings if each.candidate not in ruled)
    gone = {(label, order) for label, found in ruled.items() for order in found.ruling.aside}
    return replace(
        bare,
        pairs=tuple(pair for pair in bare.pairs if (pair.candidate, pair.order) not in gone),
        aside=tuple(pair for pair in bare.pairs if (pair.candidate, pair.order) in gone),
        leftovers=tuple(left for found in ruled.values() for left in found.leftovers),
        findings=(*others, *(each for found in ruled.values() for each in found.findings)),
        notes=(*bare.notes, *(note for found in ruled.values() for note in found.notes)),
    )


def _still_told(comparison: Comparison, tolerance: Tolerance) -> Iterator[str]:
    """Yield the notes that hold at another tolerance: what has no effect at one may have it at a smaller one."""
    before = comparison.tolerance
    smaller = tolerance.atol < before.atol or tolerance.rtol < before.rtol
    for note in comparison.notes:
        if not note.startswith(UNDECIDED) and not (smaller and WITHOUT_EFFECT in note):
            yield note


@dataclass(frozen=True)
class _Ruled:
    """Hold what became of a candidate."""

    ruling: Ruling
    leftovers: Sequence[Leftover]
    findings: Sequence[Finding]
    notes: Sequence[str]


@dataclass(frozen=True)
class _Case:
    """Hold the pairs of one candidate, judged again, and what was said of them before."""

    label: str
    tolerance: Tolerance
    excuses: Excuses
    before: Sequence[Pair]
    leftovers: Sequence[Leftover]
    findings: Sequence[Finding]
    latent: Sequence[Finding]
    misled: bool

    @classmethod
    def of(cls, bare: Comparison, before: Iterable[Pair], label: str) -> _Case:
        """Take what is of one candidate."""
        left = [each for each in bare.leftovers if each.candidate == label]
        return cls(
            label,
            bare.tolerance,
            Excuses((pair for pair in bare.pairs if pair.candidate == label), left),
            [pair for pair in before if pair.candidate == label],
            left,
            [each for each in bare.findings if each.candidate == label],
            [each for each in bare.latent if each.candidate == label],
            _misled(bare),
        )

    def ruled(self) -> _Ruled:
        """Rule, and excuse nothing where it depends on what nobody knows."""
        failing = frozenset(pair.order for pair in self.excuses.pairs if not pair.verdict.passed)
        known = lying(self._at())
        ruling = self.excuses.ruling(failing, known)
        passed = self._passes(ruling, failing, known)
        undecided = self._is_undecided(passed, failing, known)
        if undecided:
            ruling, passed = replace(ruling, agreed=False, aside=frozenset(), idle=frozenset()), False
        told_of = f"{UNDECIDED}, {_WAY_OUT}"
        return _Ruled(
            ruling,
            [*self._reformed(ruling), *self._listed(ruling, known)],
            list(self._told(ruling, known, passed)),
            [told_of] if undecided else [],
        )

    def _at(self) -> Iterator[_AtTolerance]:
        """Yield the pairs as they were, with the tolerance they are judged at now."""
        return ((pair, *tolerance_of(pair, self.tolerance)) for pair in self.before)

    def _passes(self, ruling: Ruling, failing: Orders, known: Orders) -> bool:
        return passes(self.excuses, ruling, failing, known, self.leftovers, self.latent)

    def _is_undecided(self, passed: bool, failing: frozenset[int], known: frozenset[int]) -> bool:
        """Tell whether the verdict would be another one if what is not known turned out well, or names misled."""
        doubted = {pair.order for pair in self.excuses.pairs if pair.note.endswith(UNPROVEN)}
        fewer, more = failing - doubted, known | (maybe_lying(self._at()) & failing)
        if passed:
            if self.misled and not is_explained(self.excuses, self.excuses.ruling(failing, known), failing):
                return True
            return not self._passes(self.excuses.ruling(fewer, known), fewer, known)
        if self._passes(self.excuses.ruling(fewer, known), fewer, known):
            return False  # those pairs say so themselves
        if self._passes(self.excuses.ruling(fewer, more), fewer, more):
            return True
        moved = any((atol, rtol) != (pair.atol, pair.rtol) for pair, atol, rtol in self._at())
        return moved and misnamed(self.excuses.pairs, self.leftovers) is not None

    def _reformed(self, ruling: Ruling) -> Iterator[Leftover]:
        """Yield the leftovers, those in another form counting unless all else agrees."""
        for left in self.leftovers:
            if not _is_reformed(left, self.latent):
                yield left
            elif ruling.agreed:
                yield replace(left, counts=False, hint=IN_ANOTHER_FORM)
            else:
                yield replace(left, counts=True, hint="" if left.hint == IN_ANOTHER_FORM else left.hint)

    def _listed(self, ruling: Ruling, known: Orders) -> Iterator[Leftover]:
        aside = (pair for pair in self.excuses.pairs if pair.order in ruling.aside)
        for left in listed(aside, ruling.idle, known):
            reformed = left.counts and _is_reformed(left, self.latent)
            yield replace(left, counts=False, hint=IN_ANOTHER_FORM) if reformed else left

    def _told(self, ruling: Ruling, known: Orders, passed: bool) -> Iterator[Finding]:
        """Yield what was found, as far as it holds at another tolerance, and what the ruling tells."""
        layouts = {pair.site.layout.cause for pair in self.before if pair.site and pair.site.layout}
        mine = (each for each in self.findings if each.cause not in (FUSED, IDLE, RESTRUCTURED, *layouts))
        yield from (each for each in mine if not passed or each.harmless or each.cause == "unstable")
        differing = [pair for pair in self.excuses.pairs if not pair.verdict.passed]
        found = [*(rearranged(differing, known, harmless=False) if not ruling.agreed else ())]
        found += told(self.excuses, ruling, known)
        yield from (replace(each, candidate=self.label) for each in found)
        yield from self.latent if ruling.agreed else ()
