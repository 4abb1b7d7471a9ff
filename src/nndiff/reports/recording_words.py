"""What every report says of two recordings in the same words: sides, model outputs, details, summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nndiff.reports import wording
from nndiff.reports.layers import Rate, Recorded, Row, place_of
from nndiff.reports.window import Gap
from nndiff.result import Comparison, Pair, Side
from nndiff.metrics import Metrics
from nndiff.text import counted, printable
from nndiff.verdict import Outcome, Verdict

_OF_MODEL = {"model_input": "model input", "output": "final output", "loss": "loss"}
_LONGEST = 10  # of a label
_RATES = {"param_grad": "parameters", "model_input_grad": "input grad", "buffer_before": "initial"}
_MORE_THAN_A_SIGN = {Verdict.SHAPE: " shape", Verdict.NOT_FINITE: " NaN/inf"}


def side_facts(side: Side) -> list[str]:
    """Return what a recording is of and how large it is."""
    model = side.meta.get("model")
    of = model if isinstance(model, Mapping) else {}
    parameters, mode, seed = of.get("parameters"), side.meta.get("mode"), side.meta.get("seed")
    return [
        wording.plural(side.tensors, "tensor"),
        _known(of.get("class")),
        wording.plural(parameters, "parameter") if isinstance(parameters, int) else "",
        f"{_known(mode)} mode" if _known(mode) else "",
        f"seed {_known(seed)}" if _known(seed) else "",
        wording.size(side.nbytes),
    ]


def _known(value: Any) -> str:
    return printable(str(value), 60) if isinstance(value, (str, int)) else ""


def model_label(pair: Pair) -> str:
    """Return what an input or output of the model is called."""
    place = place_of(pair.name, pair.slot)
    call = place.layer.partition("@")[2] if place.of_model else ""
    kind = _OF_MODEL.get(place.slot, place.slot)
    return printable(" ".join(part for part in (kind, f"of call {call}" if call else "", place.path) if part))


def sign(pair: Pair | None, recorded_at_all: bool = True) -> str:
    """Return ✓, ≈ or ✗, with the verdict where that says too little; – where nothing was recorded."""
    if pair is None:
        return "–" if recorded_at_all else ""
    return wording.SIGNS[pair.verdict] + _MORE_THAN_A_SIGN.get(pair.verdict, "")


def gap_cells(gap: Gap, direction: str) -> tuple[str, str]:
    """Return sign and largest difference of rows that are not shown."""
    side = gap.side(direction)
    if side is None:
        return "", ""
    failing = f" {side.failing:,}" if side.failing else ""
    return wording.SIGNS[side.worst] + failing, wording.number(side.max_abs)


def max_abs(pair: Pair | None) -> str:
    """Return the largest difference of a pair."""
    if pair is None:
        return ""
    return wording.number(wording.measured(pair, "max_abs"))


def shape(row: Row) -> str:
    """Return the shape of a layer's output."""
    return wording.both(*map(wording.shape, row.pairs[0].shape))


def layer_pairing(row: Row) -> str:
    """Return how a layer was found, if not simply by its name."""
    pair = row.pairs[0]
    if pair.matched_by == "name":
        return ""
    other = place_of(pair.candidate_name, pair.slot).label
    return printable(pair.matched_by + (f": {other}" if other != row.label else ""))


def layer_counts(view: Recorded) -> str:
    """Return how many layers both sides have, and each alone."""
    alone = [(view.only_in(side), f"only in the {side}") for side in ("reference", "candidate")]
    parts = [f"{view.common:,} common", *(f"{many:,} {where}" for many, where in alone)]
    return ", ".join(parts)


def detail_title(pair: Pair) -> str:
    """Return what a pair shown in detail is: layer and direction."""
    place = place_of(pair.name, pair.slot)
    return f"{wording.name(place.label)} {'gradient' if place.slot == 'grad_output' else printable(place.slot)}"


def details(pair: Pair, view: Recorded) -> Iterator[tuple[str, str]]:
    """Yield the numbers of a mismatched pair, line by line."""
    numbers = pair.metrics
    if numbers is None:
        return
    yield "reference", _spread(numbers, "ref")
    yield "candidate", _spread(numbers, "cand")
    yield "difference", ", ".join(_difference(pair, numbers, view))
    shares = ", ".join(f"{name} {wording.number(getattr(numbers, name))}" for name in ("p50", "p90", "p95", "p99"))
    yield "percentile", shares


def _spread(numbers: Metrics, side: str) -> str:
    names = ("mean", "std", "min", "max")
    return "  ".join(f"{name} {wording.number(getattr(numbers, f'{side}_{name}')):>10}" for name in names)


def _difference(pair: Pair, numbers: Metrics, view: Recorded) -> Iterator[str]:
    where = f" at {list(numbers.max_abs_index)}" if numbers.max_abs_index is not None else ""
    yield f"max abs {max_abs(pair)}{where}"
    share = view.of_scale(pair) if pair.slot == "grad_output" else None
    if share is not None:
        yield f"{wording.number(share)} of the largest gradient"
    yield from (f"{name.replace('_', ' ')} {wording.number(getattr(numbers, name))}" for name in ("mse", "rel_l2"))
    yield f"cosine {numbers.cosine:.6f}"
    yield f"{wording.mismatched(pair)} out"


def rate_label(rate: Rate) -> str:
    """Return what a match rate is labelled with; what is longer than a label's column is named by its text alone."""
    label = _RATES.get(rate.name, printable(rate.name))
    return label if len(label) <= _LONGEST else "other"


def rate_text(rate: Rate) -> str:
    """Return `148 of 150 layers match, 98.67 %`."""
    units = rate.unit if rate.total == 1 else f"{rate.unit}s"
    verb = "matches" if rate.total == 1 else "match"
    apart = ((rate.unreached, "never reached"), (rate.missing, "missing on one side"))
    told = ", ".join(f"{many:,} {what}" for many, what in apart if many)
    counted = f"{rate.matched:,} of {rate.total:,} {printable(units)} {verb}, {rate.percent}"
    return counted + (f" ({told})" if told else "")


def final_output(view: Recorded) -> str:
    """Return whether the final output matches, and by how much not."""
    if view.unread:
        names = list(dict.fromkeys(printable(each.name, 80) for each in view.unread))
        return f"not compared: {counted(names, 'final output')}"
    if view.outputs_match is None:
        return "the final output was never reached" if view.unreached else "not recorded on both sides"
    largest = wording.largest(view.outputs)
    size = f", max abs {wording.number(largest)}" if largest is not None else ""
    return f"the final output {'matches' if view.outputs_match else 'does not match'}{size}"


def closing(comparison: Comparison, view: Recorded) -> tuple[bool, str]:
    """Return whether all is well with a candidate, and the last line to say about it."""
    outcome = comparison.outcome_of(view.candidate.label)
    if outcome.exit_code == 0:
        bits = ", bit for bit" if outcome.value == "identical" else " within tolerance"
        return True, f"all outputs match{bits}"
    if view.first is not None:
        return False, f"the first to differ is {wording.name(str(view.first))}"
    if view.unreached:
        return False, "what was recorded agrees; the rest was never reached"
    cut = comparison.cut_off(view.candidate.label)
    if cut:
        return False, f"what was recorded agrees; {wording.cut_off(cut)}"
    unread = comparison.unread(view.candidate.label)
    if unread:
        return False, f"what was compared agrees; {printable(unread[0].name, 80)} could not be"
    if outcome is Outcome.NOTHING:
        return False, "nothing that the models made was compared"
    if all(pair.verdict.passed for pair in view.pairs):
        return False, f"what was compared agrees; {alone(view)}"
    return False, "not all outputs match"


def alone(view: Recorded) -> str:
    """Return how many tensors have no partner, where that is a difference."""
    many = sum(each.counts for each in view.leftovers)
    return f"{wording.plural(many, 'tensor')} {'has' if many == 1 else 'have'} no partner"


def cut_off(view: Recorded) -> str:
    """Return how much of one side the other never came to."""
    sides = [(sum(each.side == side for each in view.unreached), side) for side in ("reference", "candidate")]
    told = [f"{wording.plural(many, 'site')} of the {side}" for many, side in sides if many]
    verb = "was" if len(view.unreached) == 1 else "were"
    return f"{' and '.join(told)} {verb} never reached: the recording was cut off"
