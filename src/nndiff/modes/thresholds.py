"""Requirements on the output of modes, and where ratings end: what --fail-under, --fail-over and --rate say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from nndiff.errors import UsageError
from nndiff.facts.modes import CORRELATION_LIMITS, MSE_LIMITS, Direction, ModeFacts, RatingLimits, Threshold
from nndiff.metrics import Metrics

_METRICS = {
    "sqnr": "sqnr_db",
    "mse": "mse",
    "rmse": "rmse",
    "mae": "mean_abs",
    "max_abs": "max_abs",
    "rel_mse": "rel_mse",
    "rel_mae": "rel_mae",
    "cosine": "cosine",
    "correlation": "correlation",
}
_LOGITS = ("kl", "top1", "top5")
PERPLEXITY = "perplexity"  # by how much it grows
TARGET_METRICS = ("sqnr", "mse", "top1")  # of --recommend; only of the mse is less better
METRIC_NAMES = (*_METRICS, *_LOGITS, PERPLEXITY)


def parse_threshold(text: str, direction: Direction) -> Threshold:
    """Return the requirement that `METRIC=NUMBER` says."""
    metric, limit = parse_number(text, f"--fail-{direction.value}", METRIC_NAMES)
    return Threshold(metric, direction, limit)


def parse_number(text: str, option: str, metrics: Sequence[str]) -> tuple[str, float]:
    """Return metric and number of `METRIC=NUMBER`."""
    metric, equals, digits = text.partition("=")
    try:
        limit = float(digits) if equals else math.nan
    except ValueError:
        limit = math.nan
    if metric not in metrics or math.isnan(limit):
        raise UsageError(f"{option} {text!r} is not METRIC=NUMBER, for example sqnr=20; metrics: {', '.join(metrics)}")
    return metric, limit


def parse_limits(texts: Sequence[str]) -> RatingLimits:
    """Return where ratings end: `mse=1e-4,1e-3,1e-2`, `correlation=0.9999,0.999,0.99`."""
    limits = {"mse": MSE_LIMITS, "correlation": CORRELATION_LIMITS}
    for text in texts:
        metric, _, numbers = text.partition("=")
        try:
            first, second, third = (float(number) for number in numbers.split(","))
        except ValueError:
            first = second = third = math.nan
        is_ordered = first < second < third if metric == "mse" else first > second > third
        if metric not in limits or not is_ordered:
            raise UsageError(
                f"--rate {text!r} is not mse=A,B,C with A < B < C, or correlation=A,B,C with A > B > C: the best "
                "rating ends at A"
            )
        limits[metric] = (first, second, third)
    return RatingLimits(limits["mse"], limits["correlation"])


def get_number(metric: str, output: Metrics | None, mode: ModeFacts) -> float:
    """Return a number of a mode's output by the name it has on the command line; NaN where there is none."""
    if metric in _METRICS:
        return math.nan if output is None else float(getattr(output, _METRICS[metric]))
    if metric == PERPLEXITY:
        return mode.perplexity_change
    return math.nan if mode.logits is None else float(getattr(mode.logits, metric))


def check_metric(option: str, metric: str, modes: Iterable[ModeFacts]) -> None:
    """Refuse a requirement on a number that none of the modes that ran has: it could never be met."""
    numbers = [get_number(metric, None, mode) for mode in modes if mode.failed is None]
    if metric in _METRICS or not numbers or not all(math.isnan(number) for number in numbers):
        return
    need = "labels()" if metric == PERPLEXITY else "outputs that are logits (`logits = True` in FILE.py)"
    raise UsageError(f"{option} {metric} needs {need}")
