"""From the pairs of two recordings to what people look at: layers, model outputs, gradients, match rates."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from nndiff.names import natural_key
from nndiff.recorded import GRADIENTS
from nndiff.recording.format.events import SLOTS
from nndiff.reports import wording
from nndiff.result import Comparison, Leftover, Pair, Side, Unread
from nndiff.tensors import MODEL

_LAYER_SLOTS = ("output", "grad_output")
_MODEL_SLOTS = ("model_input", "output", "loss")
_UNITS = {
    "input": "module input",
    "grad_input": "gradient at module input",
    "param": "parameter",
    "model_input_grad": "input gradient",
    "buffer": "buffer",
    "buffer_before": "initial buffer",
    "recompute": "recomputed output",
}
_LONGEST_FIRST = "|".join(sorted((slot.value for slot in SLOTS), key=len, reverse=True))
_SITE = re.compile(rf"(.*?):({_LONGEST_FIRST})((?:[.#].*)?)", re.DOTALL)
_NTH = re.compile(r"#\d+$")
_CALL = re.compile(r"@\d+$")


@dataclass(frozen=True)
class Place:
    """Say where a recorded tensor was taken, as its name tells."""

    layer: str  # module[@call]
    slot: str
    path: str = ""  # place inside a tuple or dict

    @property
    def label(self) -> str:
        """Return what a row of layers is called: the name without its slot."""
        return f"{self.layer}:{self.path}" if self.path else self.layer

    @property
    def of_model(self) -> bool:
        """Tell whether it is of the model itself, not of a module inside."""
        return _CALL.sub("", self.layer) == MODEL


def place_of(name: str, slot: str | None = None) -> Place:
    """Return the place a name speaks of; a name of another kind is a layer of its own."""
    found = _SITE.fullmatch(name)
    if found and slot in (None, found[2]):
        layer, slot, rest = found.groups()
    else:
        slot = slot or ""
        layer, _, rest = name.partition(f":{slot}") if slot else (name, "", "")
    if slot in GRADIENTS:
        rest = _NTH.sub("", rest)  # reached twice, it is still the gradient at that output
    return Place(layer, slot, rest.removeprefix("."))


@dataclass(frozen=True)
class Row:
    """Hold what is known of one output of one call: forward and backward side by side."""

    layer: str
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
        """Tell whether both are the same."""
        return all(pair.verdict.passed for pair in self.pairs)


@dataclass(frozen=True)
class Rate:
    """Count how many of a kind match."""

    name: str  # forward, backward or a slot
    unit: str
    matched: int
    total: int  # with what was never reached and what is missing
    unreached: int = 0  # the other recording was cut off before these
    missing: int = 0  # gradients that one side lacks

    @property
    def percent(self) -> str:
        """Return the match rate in percent."""
        return wording.percent(self.matched, self.total)


@dataclass(frozen=True)
class Recorded:
    """Show the comparison of one candidate as layers; whatever it tells is derived from the pairs."""

    candidate: Side
    pairs: tuple[Pair, ...]
    leftovers: tuple[Leftover, ...]
    first: str | None  # name of the pair where the two runs part first
    unread: tuple[Unread, ...] = ()  # outputs of the model that could not be recorded

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Return the layers in order of execution."""
        forward = _worst_by_label(self.pairs, "output")
        backward = _worst_by_label(self.pairs, "grad_output")
        rows = []
        for label in dict.fromkeys((*forward, *backward)):
            sides = forward.get(label), backward.get(label)
            known = [pair for pair in sides if pair]
            layer = place_of(known[0].name, known[0].slot).layer
            rows.append(Row(layer, label, *sides, first=any(pair.name == self.first for pair in known)))
        return tuple(rows)

    @cached_property
    def model(self) -> tuple[Pair, ...]:
        """Return what went into the model and what came out of it."""
        return tuple(pair for pair in self.pairs if _is_of_model(pair))

    @cached_property
    def outputs(self) -> tuple[Pair, ...]:
        """Return the final outputs."""
        return tuple(pair for pair in self.model if pair.slot == "output")

    @property
    def outputs_match(self) -> bool | None:
        """Tell whether the final outputs match; None where none was recorded on both sides or one was cut off."""
        left = [each for each in self.leftovers if _is_final(each)]
        if self.unread and not left and all(pair.verdict.passed for pair in self.outputs):
            return None
        if not (self.outputs or left) or any(each.unreached for each in left):
            return None
        return not left and all(pair.verdict.passed for pair in self.outputs)

    @cached_property
    def gradients(self) -> tuple[Pair, ...]:
        """Return the gradients of the parameters, in order."""
        return tuple(pair for pair in self.pairs if pair.slot == "param_grad")

    @cached_property
    def others(self) -> tuple[Pair, ...]:
        """Return what is neither a layer's output, nor its gradient, nor of the model."""
        shown = {*_LAYER_SLOTS, "param_grad"}
        return tuple(pair for pair in self.pairs if pair.slot not in shown and not _is_of_model(pair))

    @cached_property
    def scale(self) -> float:
        """Return the largest value of all the reference's gradients: what each is to be measured by."""
        known = [pair.metrics for pair in self.pairs if pair.slot in GRADIENTS and pair.metrics]
        ends = [abs(end) for numbers in known for end in (numbers.ref_min, numbers.ref_max)]
        return max((end for end in ends if math.isfinite(end)), default=0.0)

    def of_scale(self, pair: Pair) -> float | None:
        """Return the largest difference of a gradient as a share of that scale."""
        return pair.metrics.max_abs / self.scale if pair.metrics and self.scale else None

    @cached_property
    def common(self) -> int:
        """Return how many layers both sides have."""
        return len({row.layer for row in self.rows})

    def only_in(self, side: str) -> int:
        """Return how many layers one side has alone."""
        pairs = [pair for pair in self.pairs if pair.slot in _LAYER_SLOTS]  # as in `common`: inputs make no layer
        paired = {place_of(pair.reference_name if side == "reference" else pair.candidate_name).layer for pair in pairs}
        places = (place_of(each.name) for each in self.leftovers if each.side == side)
        return len({place.layer for place in places if place.slot in _LAYER_SLOTS} - paired)

    @cached_property
    def rates(self) -> tuple[Rate, ...]:
        """Return the match rates: layers forward and backward, parameter gradients, then all else."""
        lost, missing = self._places(self.unreached), self._places(self._missing)
        backward = _layers(lost, "grad_output"), _layers(missing, "grad_output")
        of_parameters = [sum(each.slot == "param_grad" for each in places) for places in (lost, missing)]
        named = [
            _layer_rate("forward", [(row.layer, row.forward) for row in self.rows], _layers(lost, "output"), set()),
            _layer_rate("backward", [(row.layer, row.backward) for row in self.rows], *backward),
            _rate("param_grad", "parameter gradient", self.gradients, *of_parameters),
        ]
        return tuple(rate for rate in (*named, *self._other_rates()) if rate.total)

    def _other_rates(self) -> Iterator[Rate]:
        for slot in dict.fromkeys(pair.slot for pair in self.others):
            pairs = [pair for pair in self.others if pair.slot == slot]
            yield _rate(slot or "other", _UNITS.get(slot or "", f"{slot} tensor" if slot else "tensor"), pairs)

    @staticmethod
    def _places(leftovers: Iterable[Leftover]) -> list[Place]:
        return [place_of(each.name) for each in leftovers]

    @cached_property
    def _missing(self) -> tuple[Leftover, ...]:
        """Return the gradients one side lacks where that counts, then also those at outputs of layers both have."""
        left = [each for each in self.leftovers if place_of(each.name).slot in GRADIENTS and not each.unreached]
        if not any(each.counts for each in left):
            return ()
        common = {row.layer for row in self.rows}
        return tuple(each for each in left if each.counts or place_of(each.name).layer in common)

    @cached_property
    def unreached(self) -> tuple[Leftover, ...]:
        """Return the sites of one side that the other never came to: its recording was cut off."""
        return tuple(each for each in self.leftovers if each.unreached)


def recorded(comparison: Comparison) -> tuple[Recorded, ...]:
    """Return the view of every candidate."""
    return tuple(_view(comparison, side) for side in comparison.candidates)


def _view(comparison: Comparison, side: Side) -> Recorded:
    pairs = [pair for pair in comparison.pairs if pair.candidate == side.label]
    left = tuple(each for each in comparison.leftovers if each.candidate == side.label)
    first = comparison.first_divergences.get(side.label, {}).get("name")
    return Recorded(side, tuple(sorted(pairs, key=lambda pair: pair.order)), left, first, comparison.unread(side.label))


def _worst_by_label(pairs: Iterable[Pair], slot: str) -> dict[str, Pair]:
    found: dict[str, Pair] = {}
    for pair in pairs:
        if pair.slot == slot:
            label = place_of(pair.name, slot).label
            known = found.setdefault(label, pair)
            found[label] = max(known, pair, key=lambda each: each.severity)
    return found


def _is_of_model(pair: Pair) -> bool:
    return pair.slot == "loss" or (pair.slot in _MODEL_SLOTS and place_of(pair.name, pair.slot).of_model)


def _is_final(left: Leftover) -> bool:
    place = place_of(left.name)
    return place.slot == "output" and place.of_model


def _layers(places: Iterable[Place], slot: str) -> set[str]:
    return {place.layer for place in places if place.slot == slot}


def _rate(name: str, unit: str, pairs: Sequence[Pair], unreached: int = 0, missing: int = 0) -> Rate:
    matched = sum(pair.verdict.passed for pair in pairs)
    return Rate(name, unit, matched, len(pairs) + unreached + missing, unreached, missing)


def _layer_rate(name: str, sides: Iterable[tuple[str, Pair | None]], lost: set[str], missing: set[str]) -> Rate:
    """Count layers; one with several outputs matches if all of them do."""
    passed: dict[str, bool] = dict.fromkeys(missing, False)
    for layer, pair in sides:
        if pair:
            passed[layer] = passed.get(layer, True) and pair.verdict.passed
    unreached = len(lost - passed.keys())
    return Rate(name, "layer", sum(passed.values()), len(passed) + unreached, unreached, len(missing))


_MOST_OUTPUTS = 20  # some models return every hidden state


def model_rows(view: Recorded, most: int) -> list[Pair]:
    """Return at most so many inputs of the model, and its outputs and loss: they are the point and always shown."""
    inputs = [pair for pair in view.model if pair.slot == "model_input"][:most]
    results = [pair for pair in view.model if pair.slot != "model_input"]
    worst = sorted(results, key=lambda pair: (pair.slot == "loss", *pair.severity), reverse=True)
    chosen = {pair.order for pair in worst[: max(most, _MOST_OUTPUTS)]}
    return [*inputs, *(pair for pair in results if pair.order in chosen)]


def worst_gradients(view: Recorded) -> list[Pair]:
    """Return the gradients of the parameters, those that do not match first, then by their share of the scale."""

    def key(pair: Pair) -> tuple[object, ...]:
        share = view.of_scale(pair)
        known = share is not None and not math.isnan(share)
        return pair.verdict.passed, -share if known and share else 0.0, natural_key(pair.name)

    return sorted(view.gradients, key=key)


_DETAILED = 3


def in_detail(view: Recorded, top: int, verbose: bool = False) -> tuple[list[Pair], str]:
    """Return what is shown with all its numbers, and what is to be said of the rest."""
    found = worth_detail(view)
    shown = found[: top if verbose else min(_DETAILED, top)]
    more = len(found) - len(shown)
    options = [*([] if verbose else ["--verbose"]), *([f"--top {len(found)}"] if len(found) > top else [])]
    return shown, f"and {more:,} more; {' '.join(options)} shows them" if more else ""


def worth_detail(view: Recorded) -> list[Pair]:
    """Return the outputs and gradients worth all their numbers: where the runs part, then the worst."""
    failing = [pair for row in view.rows for pair in row.pairs if not pair.verdict.passed and pair.metrics]
    return sorted(failing, key=lambda pair: (pair.name == view.first, *pair.severity), reverse=True)
