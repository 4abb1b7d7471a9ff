"""What every report says about modes: the headline, the summary table, the sections of a layer, blame."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nndiff.facts.modes import Direction, LayerFacts, ModeFacts, ModesFacts, Place, Threshold
from nndiff.metrics import Metrics
from nndiff.modes.thresholds import get_number
from nndiff.reports.figures import NOTHING
from nndiff.result import Comparison, Pair
from nndiff.tensors import MODEL
from nndiff.text import plural, printable
from nndiff.verdict import Outcome

_NUMBERED = re.compile(r"(?:.*\.|layer_)(\d+)")
_FIRST, _LAST = "First Layer", "Last Layer"


def get_modes(comparison: Comparison) -> ModesFacts:
    """Return the facts of a comparison of modes."""
    assert comparison.modes is not None  # its kind is modes
    return comparison.modes


def label_layer(name: str) -> str:
    """Return what a layer is called in titles: `Layer 23`, `model.layers.0.mlp`, `output`."""
    if name.startswith("layer_"):
        number, _, part = name.removeprefix("layer_").partition("_")
        return f"Layer {number} {part}".strip()
    if name.startswith(f"{MODEL}:"):
        return name.removeprefix(f"{MODEL}:")
    return name.removesuffix(":output")


def title_layer(facts: ModesFacts, name: str) -> str:
    """Return the title of a layer's sections: `Layer 0` for a block, with its path where that is another name."""
    label = label_layer(name)
    is_block = label.rpartition(".")[0] == label_layer(facts.first).rpartition(".")[0]
    number = number_layer(name)
    if number == _FIRST or not is_block:
        return f"{label} - Comparison Results"
    return f"{number} - Comparison Results" + ("" if label == number else f" ({label})")


def number_layer(name: str) -> str:
    """Return `Layer 0` for a numbered block, else `First Layer`."""
    match = _NUMBERED.fullmatch(label_layer(name) if ":" in name else name)
    return f"Layer {match[1]}" if match else _FIRST


# -- the headline -----------------------------------------------------------------------------------------------------


def describe_modes(comparison: Comparison) -> str:
    """Return what became of all modes, in one line."""
    facts = get_modes(comparison)
    failed = [mode for mode in facts.modes if mode.failed is not None]
    ran = [mode for mode in facts.modes if mode.failed is None]
    parts = [f"{plural(len(facts.modes), 'mode')} against {printable(facts.reference)}"]
    if facts.thresholds:
        unmet = [mode for mode in ran if mode.unmet]
        asked = " and ".join(describe_threshold(threshold) for threshold in facts.thresholds)
        if unmet:
            verb = "misses" if len(unmet) == 1 else "miss"
            parts.append(f"{len(unmet)} of {len(facts.modes)} {verb} {asked}")
        elif ran:
            parts.append(f"all that ran meet {asked}" if failed else f"all meet {asked}")
    elif comparison.outcome is Outcome.IDENTICAL:
        parts.append("all outputs are identical")
    if ran:
        best = ran[0]
        parts.append(f"best {printable(best.mode)} ({describe_error(comparison, best)})")
    if failed:
        names = ", ".join(printable(mode.mode) for mode in failed[:5]) + (", ..." if len(failed) > 5 else "")
        parts.append(f"{len(failed)} failed ({names})")
    return "; ".join(parts)


def describe_threshold(threshold: Threshold) -> str:
    """Return a requirement as a person would write it: `sqnr >= 20`."""
    sign = ">=" if threshold.direction is Direction.UNDER else "<="
    return f"{threshold.metric} {sign} {threshold.limit:.15g}"


def describe_error(comparison: Comparison, mode: ModeFacts) -> str:
    """Return how far the output of a mode is off."""
    metrics = get_output(comparison, mode)
    if metrics is None:
        return "no output"
    return f"MSE {metrics.mse:.3e}, SQNR {format_decibels(metrics.sqnr_db)}"


def get_output(comparison: Comparison, mode: ModeFacts) -> Metrics | None:
    """Return the numbers of the output of a mode."""
    return get_metrics(comparison, mode.mode, mode.output or "")


def get_metrics(comparison: Comparison, mode: str, name: str) -> Metrics | None:
    """Return the numbers of one layer of a mode."""
    for pair in comparison.pairs:
        if pair.candidate == mode and pair.name == name:
            return pair.metrics
    return None


def format_decibels(value: float) -> str:
    """Return a ratio in decibels."""
    return NOTHING if math.isnan(value) else f"{value:.2f} dB"


# -- the summary table ------------------------------------------------------------------------------------------------


def list_summary_titles(comparison: Comparison) -> list[str]:
    """Return the titles of the summary table."""
    facts = get_modes(comparison)
    first = number_layer(facts.first) if facts.first else _FIRST
    return [
        "Mode",
        f"{first} MSE",
        f"{first} MAE",
        f"{_LAST} MSE",
        f"{_LAST} MAE",
        "Avg Corr",
        "SQNR",
        "Top-1",
    ]


def list_summary_rows(comparison: Comparison) -> list[list[str]]:
    """Return the rows of the summary table by rank: a mode that failed says so behind its numbers."""
    facts = get_modes(comparison)
    rows = []
    for mode in facts.modes:
        row = [printable(mode.mode)]
        for name in (facts.first, facts.last):
            metrics = get_metrics(comparison, mode.mode, name)
            row.append(NOTHING if metrics is None else _format(metrics.mse, ".6e"))
            row.append(NOTHING if metrics is None else _format(metrics.mean_abs, ".6f"))
        row.append(_format(average_correlation(comparison, mode.mode), ".6f"))
        output = get_output(comparison, mode)
        row.append(NOTHING if output is None else format_decibels(output.sqnr_db))
        row.append(NOTHING if mode.logits is None else f"{100 * mode.logits.top1:.2f}%")
        rows.append(row)
    return rows


def average_correlation(comparison: Comparison, mode: str) -> float:
    """Return the mean correlation of a mode's layers; NaN where one is undefined or there is none."""
    values = [pair.metrics.correlation for pair in comparison.pairs_of(mode) if pair.metrics is not None]
    return math.fsum(values) / len(values) if values else math.nan


def _format(value: float, style: str) -> str:
    return NOTHING if math.isnan(value) else format(value, style)


def list_mode_notes(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Yield (mode, what to say about it): why it failed, which requirements it misses, what it lacks."""
    for mode in get_modes(comparison).modes:
        if mode.failed is not None:
            yield printable(mode.mode), f"failed: {printable(mode.failed)}"
        for threshold in mode.unmet:
            number = get_number(threshold.metric, get_output(comparison, mode), mode)
            value = "it has none" if math.isnan(number) else f"it is {number:.4g}"
            yield printable(mode.mode), f"misses {describe_threshold(threshold)}: {value}"
        missing = [leftover.name for leftover in comparison.leftovers_of(mode.mode)]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            yield printable(mode.mode), f"without a partner: {printable(missing[0])}{more}"
        elif mode.perplexity is not None:
            before, after = mode.perplexity
            yield printable(mode.mode), f"perplexity {before:.4f} → {after:.4f} ({mode.perplexity_change:+.4f})"


# -- the sections of one layer ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerSection:
    """Hold a title and its lines, (label, text)."""

    title: str
    lines: tuple[tuple[str, str], ...]
    is_narrow: bool = False  # labels are short


def list_layer_sections(comparison: Comparison, pair: Pair) -> list[LayerSection]:
    """Return the sections about one layer of one mode."""
    facts = get_modes(comparison)
    metrics, layer = pair.metrics, facts.layers.get((pair.candidate, pair.name))
    if metrics is None or layer is None:
        shapes = f"{list(pair.shape[0])} in the reference, {list(pair.shape[1])} in the mode"
        return [LayerSection("❌ Not comparable:", (("Shapes", shapes),))]
    reference = printable(facts.reference).upper()
    sections = [
        LayerSection(f"📊 {reference} Reference Statistics:", _describe_side(metrics, "ref"), is_narrow=True),
        LayerSection("📊 Mode Output Statistics:", _describe_side(metrics, "cand"), is_narrow=True),
        LayerSection(f"📏 Difference (Mode - {reference}):", _describe_difference(metrics)),
        LayerSection("❌ Error Metrics:", _describe_errors(metrics, layer)),
        LayerSection("📈 Relative Metrics:", _describe_relative(metrics, layer)),
        LayerSection("📊 Absolute Difference Percentiles:", _describe_percentiles(metrics)),
        LayerSection("📍 Worst Places:", _describe_places(layer)),
    ]
    mode = facts.get_mode(pair.candidate)
    if mode.logits is not None and mode.output == pair.name:
        sections.append(LayerSection("🎯 Logits:", _describe_logits(mode)))
    return sections


def _describe_side(metrics: Metrics, side: str) -> tuple[tuple[str, str], ...]:
    mean, std, least, most = (getattr(metrics, f"{side}_{name}") for name in ("mean", "std", "min", "max"))
    return (("Mean", f"{mean:9.6f}"), ("Std", f"{std:9.6f}"), ("Range", f"[{least:9.6f}, {most:9.6f}]"))


def _describe_difference(metrics: Metrics) -> tuple[tuple[str, str], ...]:
    return (
        ("Mean Diff", f"{metrics.diff_mean:9.6f}"),
        ("Std Diff", f"{metrics.diff_std:9.6f}"),
        ("Mean Abs Diff", f"{metrics.mean_abs:9.6f}"),
        ("Max Abs Diff", f"{metrics.max_abs:9.6f}"),
    )


def _describe_errors(metrics: Metrics, layer: LayerFacts) -> tuple[tuple[str, str], ...]:
    return (
        ("MSE", f" {metrics.mse:.6e}  ({layer.rating.mse.value})"),
        ("RMSE", f"{metrics.rmse:9.6f}"),
        ("MAE", f"{metrics.mean_abs:9.6f}"),
        ("SQNR", f" {format_decibels(metrics.sqnr_db)}"),
    )


def _describe_relative(metrics: Metrics, layer: LayerFacts) -> tuple[tuple[str, str], ...]:
    return (
        ("Relative MSE", f" {metrics.rel_mse:.6e} ({100 * metrics.rel_mse:6.3f}%)"),
        ("Relative MAE", f" {metrics.rel_mae:.6e} ({100 * metrics.rel_mae:6.3f}%)"),
        ("Correlation", f"{metrics.correlation:9.6f}  ({layer.rating.correlation.value})"),
        ("Cosine", f"{metrics.cosine:9.6f}"),
    )


def _describe_percentiles(metrics: Metrics) -> tuple[tuple[str, str], ...]:
    labels = (("50th (Median)", metrics.p50), ("90th", metrics.p90), ("95th", metrics.p95), ("99th", metrics.p99))
    return tuple((label, f"{value:9.6f}") for label, value in labels)


def _describe_places(layer: LayerFacts) -> tuple[tuple[str, str], ...]:
    return (
        ("Channel", " " + describe_place(layer.worst_channel)),
        ("Token", " " + describe_place(layer.worst_token)),
        ("Clipped", f" {100 * layer.clipped:.3f}% of the values"),
    )


def describe_place(place: Place | None) -> str:
    """Return where a place is and its error."""
    if place is None:
        return NOTHING
    index = ", ".join(map(str, place.index)) or "0"
    where = index if place.sample is None else f"{index} of sample {place.sample}"
    return f"{where}  (MSE {place.mse:.6e})"


def _describe_logits(mode: ModeFacts) -> tuple[tuple[str, str], ...]:
    assert mode.logits is not None  # asked before
    lines = [
        ("KL Divergence", f" {mode.logits.kl:.6e}"),
        ("Top-1 Agreement", f" {100 * mode.logits.top1:.2f}%"),
    ]
    if not math.isnan(mode.logits.top5):
        lines.append(("Top-5 Agreement", f" {100 * mode.logits.top5:.2f}%"))
    if mode.perplexity is not None:
        before, after = mode.perplexity
        lines.append(("Perplexity", f" {before:.4f} → {after:.4f} ({mode.perplexity_change:+.4f})"))
    return tuple(lines)


# -- blame and recommendation -----------------------------------------------------------------------------------------


def list_blame_rows(facts: ModesFacts, mode: str) -> list[list[str]]:
    """Return one row for each layer to blame, ranked by its share."""
    rows = []
    for layer in facts.blame[mode]:
        share = NOTHING if math.isnan(layer.share) else f"{100 * layer.share:.1f}%"
        errors = _format(layer.own, ".3e"), _format(layer.cumulative, ".3e")
        rows.append([printable(layer.name or MODEL), share, *errors])
    return rows


def describe_recommendation(facts: ModesFacts, mode: str) -> str:
    """Return which layers to keep, in one sentence."""
    advice = facts.recommend[mode]
    unit = " dB" if advice.metric == "sqnr" else ""
    target = f"{advice.metric} {advice.target:.15g}{unit}"
    verified = f"{advice.verified:.4g}{unit}"
    if not advice.keep:
        return f"{target} is met already: {verified}"
    layers = plural(len(advice.keep), "layer")
    return (
        f"keep {layers} at {facts.reference} for {target}: predicted {advice.predicted:.4g}{unit}, verified {verified}"
    )


def write_snippet(keep: Sequence[str]) -> str:
    """Return Python that names the layers to keep."""
    return f"KEEP = {list(keep)!r}"
