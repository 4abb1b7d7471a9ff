"""A recording as people look at it: layers in order of execution, forward and backward side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from nndiff.names import natural_key
from nndiff.result import Comparison, FirstDivergence, Leftover, LeftoverReason, Pair, Side
from nndiff.result_json import RecordingSummary, is_guess, layer_name, summarise_recording
from nndiff.tensors import Site, Slot
from nndiff.verdict import Verdict

_MOST_OUTPUTS = 20  # some models return every hidden state
_DETAILED = 3  # pairs shown with all their numbers, unless --verbose
_BEFORE = 3  # rows shown before the first divergence


def label_site(site: Site) -> str:
    """Return what a row of layers is called: the tensor's name without its slot."""
    return f"{layer_name(site)}:{site.path}" if site.path else layer_name(site)


def label_pair(pair: Pair) -> str:
    """Return what a pair is called without its slot."""
    return label_site(pair.sites[0]) if pair.sites else pair.name


@dataclass(frozen=True)
class Row:
    """Hold what is known of one output of one call: forward and backward side by side."""

    label: str
    forward: Pair | None = None
    backward: Pair | None = None
    first: bool = False  # the two runs part here

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Return what was compared."""
        return tuple(pair for pair in (self.forward, self.backward) if pair)

    @property
    def worst(self) -> Pair:
        """Return the worse of the two."""
        return max(self.pairs, key=lambda pair: pair.severity)

    @property
    def passed(self) -> bool:
        """Return True if nothing in it differs; a guessed pair proves no difference."""
        return all(pair.verdict.passed or is_guess(pair) for pair in self.pairs)


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

    def sum_up(self, pairs: Iterable[Pair | None]) -> GapSide | None:
        """Return how the pairs of one direction fared; None where there is no pair."""
        certain = [pair for pair in pairs if pair and not is_guess(pair)]
        if not certain:
            return None
        worst = max(certain, key=lambda pair: pair.severity).verdict
        return GapSide(worst, sum(not pair.verdict.passed for pair in certain), largest_difference(certain))

    @property
    def forward(self) -> GapSide | None:
        """Return how the forward pass fared in these rows."""
        return self.sum_up(row.forward for row in self.rows)

    @property
    def backward(self) -> GapSide | None:
        """Return how the backward pass fared in these rows."""
        return self.sum_up(row.backward for row in self.rows)


@dataclass(frozen=True)
class RecordingView:
    """Show the comparison of one candidate as layers."""

    candidate: Side
    pairs: tuple[Pair, ...]
    leftovers: tuple[Leftover, ...]
    first: FirstDivergence | None
    counts: RecordingSummary

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Return the layers in order of execution."""
        forward = _worst_by_label(self.pairs, Slot.OUTPUT)
        backward = _worst_by_label(self.pairs, Slot.GRAD_OUTPUT)
        rows = []
        for label in dict.fromkeys((*forward, *backward)):
            row = Row(label, forward.get(label), backward.get(label))
            first = any(self.is_first(pair) for pair in row.pairs)
            rows.append(Row(row.label, row.forward, row.backward, first))
        return tuple(rows)

    def is_first(self, pair: Pair) -> bool:
        """Return True for the pair where the two runs part."""
        return self.first is not None and pair.name == self.first.name

    @cached_property
    def model(self) -> tuple[Pair, ...]:
        """Return what went into the model and what came out of it."""
        return tuple(pair for pair in self.pairs if _is_of_model(pair))

    @cached_property
    def outputs(self) -> tuple[Pair, ...]:
        """Return the final outputs."""
        return tuple(pair for pair in self.model if pair.is_final_output)

    @cached_property
    def parameter_gradients(self) -> tuple[Pair, ...]:
        """Return the gradients of the parameters, in order."""
        return tuple(pair for pair in self.pairs if pair.slot is Slot.PARAM_GRAD)

    @cached_property
    def other_pairs(self) -> tuple[Pair, ...]:
        """Return what is neither a layer's output, nor its gradient, nor of the model."""
        shown = (Slot.OUTPUT, Slot.GRAD_OUTPUT, Slot.PARAM_GRAD)
        return tuple(pair for pair in self.pairs if pair.slot not in shown and not _is_of_model(pair))

    @cached_property
    def unreached(self) -> tuple[Leftover, ...]:
        """Return the tensors of one side that the other never came to: its recording was cut off."""
        return tuple(leftover for leftover in self.leftovers if leftover.reason is LeftoverReason.UNREACHED)

    def share_of_scale(self, pair: Pair) -> float | None:
        """Return the largest difference of a gradient as a share of the largest gradient of all."""
        scale = self.counts.gradient_scale
        return pair.metrics.max_abs / scale if pair.metrics and scale else None


def view_recordings(comparison: Comparison) -> tuple[RecordingView, ...]:
    """Return the view of every candidate."""
    views = []
    for side in comparison.candidates:
        pairs = sorted(comparison.pairs_of(side.label), key=lambda pair: pair.order)
        view = RecordingView(
            candidate=side,
            pairs=tuple(pairs),
            leftovers=tuple(comparison.leftovers_of(side.label)),
            first=comparison.first_divergences.get(side.label),
            counts=summarise_recording(comparison, side.label),
        )
        views.append(view)
    return tuple(views)


def largest_difference(pairs: Iterable[Pair]) -> float | None:
    """Return the largest difference of all pairs that have one."""
    sizes = (pair.metrics.max_abs for pair in pairs if pair.metrics and has_difference(pair))
    return max((size for size in sizes if not math.isnan(size)), default=None)


def has_difference(pair: Pair) -> bool:
    """Return False if the difference is zero only because NaN and inf are left out of it."""
    return pair.metrics is not None and not (pair.verdict is Verdict.NOT_FINITE and pair.metrics.max_abs == 0)


def _worst_by_label(pairs: Iterable[Pair], slot: Slot) -> dict[str, Pair]:
    worst: dict[str, Pair] = {}
    for pair in pairs:
        if pair.slot is slot:
            label = label_pair(pair)
            worst[label] = max(worst.get(label, pair), pair, key=lambda item: item.severity)
    return worst


def _is_of_model(pair: Pair) -> bool:
    return pair.slot is Slot.LOSS or pair.is_input or pair.is_final_output


def choose_model_rows(view: RecordingView, most: int) -> list[Pair]:
    """Return the outputs and the loss of the model, which are always shown, and at most `most` of its inputs."""
    inputs = [pair for pair in view.model if pair.is_input][:most]
    results = [pair for pair in view.model if not pair.is_input]
    worst = sorted(results, key=lambda pair: (pair.slot is Slot.LOSS, *pair.severity), reverse=True)
    chosen = {pair.order for pair in worst[: max(most, _MOST_OUTPUTS)]}
    return [*inputs, *(pair for pair in results if pair.order in chosen)]


def rank_gradients(view: RecordingView) -> list[Pair]:
    """Return the parameter gradients, mismatches first, then by their share of the scale."""

    def sort_key(pair: Pair) -> tuple[object, ...]:
        share = view.share_of_scale(pair)
        size = -share if share and not math.isnan(share) else 0.0
        return pair.verdict.passed, size, natural_key(pair.name)

    return sorted(view.parameter_gradients, key=sort_key)


def choose_details(view: RecordingView, top: int, verbose: bool = False) -> tuple[list[Pair], str]:
    """Return the pairs to show in detail (the first divergence, then the worst), and how to see the rest."""
    failing = []
    for row in view.rows:
        failing += [pair for pair in row.pairs if not pair.verdict.passed and pair.metrics and not is_guess(pair)]
    failing.sort(key=lambda pair: (view.is_first(pair), *pair.severity), reverse=True)
    shown = failing[: top if verbose else min(_DETAILED, top)]
    hidden = len(failing) - len(shown)
    options = [] if verbose else ["--verbose"]
    if len(failing) > top:
        options.append(f"--top {len(failing)}")
    return shown, f"{hidden:,} more: use {' '.join(options)}" if hidden else ""


def choose_rows(rows: Sequence[Row], most: int) -> list[Row | Gap]:
    """Return the rows around the first divergence and the worst ones, in order, with gaps for the rest."""
    if len(rows) <= most:
        return list(rows)
    wanted = dict.fromkeys((*_rows_around_first(rows, most), *_worst_rows(rows)))
    chosen = sorted([index for index in wanted if 0 <= index < len(rows)][:most])
    shown: list[Row | Gap] = []
    last = -1
    for index in [*chosen, len(rows)]:
        if index == last + 2:
            shown.append(rows[last + 1])  # a gap would take as much room
        elif index > last + 1:
            shown.append(Gap(tuple(rows[last + 1 : index])))
        if index < len(rows):
            shown.append(rows[index])
        last = index
    return shown


def _rows_around_first(rows: Sequence[Row], most: int) -> Iterator[int]:
    """Yield the rows around the first divergence, nearest first; for a composite also where it starts inside."""
    first = next((index for index, row in enumerate(rows) if row.first), None)
    if first is None:
        return
    failing = (index for index, row in enumerate(rows) if row.forward and not row.passed)
    start = min(first, next(failing, first))
    yield from (first, start, *range(start - 1, start - 1 - _BEFORE, -1))
    yield from range(start + 1, start + most // 2)


def _worst_rows(rows: Sequence[Row]) -> list[int]:
    unequal = [index for index, row in enumerate(rows) if row.worst.verdict is not Verdict.IDENTICAL]
    return sorted(unequal, key=lambda index: (not rows[index].passed, *rows[index].worst.severity), reverse=True)
