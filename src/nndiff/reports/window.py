"""Which rows of many layers a report shows: those about the first divergence and the worst, the rest summed up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nndiff.reports import wording
from nndiff.reports.layers import Row
from nndiff.verdict import Verdict


@dataclass(frozen=True)
class GapSide:
    """Sum up one direction of rows that are not shown."""

    worst: Verdict
    failing: int
    max_abs: float | None


@dataclass(frozen=True)
class Gap:
    """Stand for rows that are not shown."""

    rows: tuple[Row, ...]

    @property
    def text(self) -> str:
        """Return how many there are."""
        return f"⋮ {len(self.rows):,} more"

    def side(self, direction: str) -> GapSide | None:
        """Return how one direction fared; None where there is no pair."""
        pairs = [pair for row in self.rows if (pair := getattr(row, direction))]
        if not pairs:
            return None
        worst = max(pairs, key=lambda pair: pair.severity).verdict
        return GapSide(worst, sum(not pair.verdict.passed for pair in pairs), wording.largest(pairs))


_BEFORE = 3  # rows shown before the first divergence


def window(rows: Sequence[Row], most: int) -> list[Row | Gap]:
    """Return at most so many rows in order: those around the first divergence and the worst; gaps for the rest."""
    if len(rows) <= most:
        return list(rows)
    chosen = _chosen(rows, most)
    shown: list[Row | Gap] = []
    last = -1
    for index in [*sorted(chosen), len(rows)]:
        if index == last + 2:
            shown.append(rows[last + 1])  # a gap would take as much room
        elif index > last + 1:
            shown.append(Gap(tuple(rows[last + 1 : index])))
        if index < len(rows):
            shown.append(rows[index])
        last = index
    return shown


def _chosen(rows: Sequence[Row], most: int) -> set[int]:
    wanted = dict.fromkeys(index for index in (*_around(rows, most), *_worst(rows)) if 0 <= index < len(rows))
    return set(list(wanted)[:most])


def _around(rows: Sequence[Row], most: int) -> Iterator[int]:
    """Yield the rows about the first divergence, the nearest first; of a composite also where it starts inside."""
    first = next((index for index, row in enumerate(rows) if row.first), None)
    if first is None:
        return
    failing = (index for index, row in enumerate(rows) if row.forward and not row.forward.verdict.passed)
    start = min(first, next(failing, first))
    yield from (first, start, *range(start - 1, start - 1 - _BEFORE, -1))
    yield from range(start + 1, start + most // 2)


def _worst(rows: Sequence[Row]) -> list[int]:
    odd = [index for index, row in enumerate(rows) if row.worst.verdict is not Verdict.IDENTICAL]
    return sorted(odd, key=lambda index: rows[index].worst.severity, reverse=True)
