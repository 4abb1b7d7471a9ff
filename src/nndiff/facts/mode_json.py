"""The facts of modes as plain data and back; `result_json` writes and reads the rest of a result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from nndiff.facts.modes import (
    BlamedLayer,
    CorrelationRating,
    Direction,
    LayerFacts,
    LayerKey,
    LogitFacts,
    ModeFacts,
    ModesFacts,
    MseRating,
    Place,
    Rating,
    RatingLimits,
    RecommendedLayers,
    Threshold,
)


def add_modes(data: dict[str, Any], facts: ModesFacts) -> None:
    """Add the facts of modes to a result's plain data: to its pairs, and beside them."""
    metrics_by_key = {}
    for pair in data["pairs"]:
        key = (pair["candidate"], pair["name"])
        metrics_by_key[key] = pair["metrics"]
        layer = facts.layers.get(key)
        pair["rating"] = None if layer is None else _store(layer.rating)
        if layer is not None:
            pair["layer"] = {name: value for name, value in _store(layer).items() if name != "rating"}
    modes = []
    for mode in facts.modes:
        stored = _store(mode)
        stored |= {"output": metrics_by_key.get((mode.mode, mode.output or "")), "output_name": mode.output}
        modes.append(stored)
    data["modes"] = modes
    data["reference_mode"] = facts.reference
    data["layers"] = {"first": facts.first, "last": facts.last}
    data["rating_limits"] = _store(facts.limits)
    data["thresholds"] = [_store(threshold) for threshold in facts.thresholds]
    data["blame"] = {mode: [_store(layer) for layer in layers] for mode, layers in facts.blame.items()}
    data["recommend"] = {mode: _store(layers) for mode, layers in facts.recommend.items()}


def _store(item: Any) -> Any:
    """Return facts as plain data; NaN is null, infinities are the strings "inf" and "-inf"."""
    if dataclasses.is_dataclass(item):
        return {field.name: _store(getattr(item, field.name)) for field in dataclasses.fields(item)}
    if isinstance(item, Enum):
        return item.value
    if isinstance(item, float) and not math.isfinite(item):
        return None if math.isnan(item) else "inf" if item > 0 else "-inf"
    return [_store(part) for part in item] if isinstance(item, tuple) else item


def load_modes(data: Mapping[str, Any]) -> ModesFacts:
    """Return the facts of modes in a result's plain data; damage is a LookupError, TypeError or ValueError."""
    layers: dict[LayerKey, LayerFacts] = {}
    for pair in data["pairs"]:
        if pair.get("rating") is not None:
            layers[str(pair["candidate"]), str(pair["name"])] = _load_layer(pair["rating"], pair["layer"])
    limits = data["rating_limits"]
    blame = {}
    for mode, blamed in data["blame"].items():
        blame[str(mode)] = tuple(_load_blamed(layer) for layer in blamed)
    return ModesFacts(
        reference=str(data["reference_mode"]),
        modes=tuple(_load_mode(mode) for mode in data["modes"]),
        layers=layers,
        first=str(data["layers"]["first"]),
        last=str(data["layers"]["last"]),
        limits=RatingLimits(_load_three(limits["mse"]), _load_three(limits["correlation"])),
        thresholds=tuple(_load_threshold(threshold) for threshold in data["thresholds"]),
        blame=blame,
        recommend={str(mode): _load_recommended(layers) for mode, layers in data["recommend"].items()},
    )


def _load_number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _load_three(values: Any) -> tuple[float, float, float]:
    first, second, third = (_load_number(value) for value in values)
    return first, second, third


def _load_layer(rating: Mapping[str, Any], layer: Mapping[str, Any]) -> LayerFacts:
    return LayerFacts(
        rating=Rating(MseRating(rating["mse"]), CorrelationRating(rating["correlation"])),
        clipped=_load_number(layer["clipped"]),
        worst_channel=_load_place(layer["worst_channel"]),
        worst_token=_load_place(layer["worst_token"]),
    )


def _load_place(place: Mapping[str, Any] | None) -> Place | None:
    if place is None:
        return None
    sample = place["sample"]
    index = tuple(int(position) for position in place["index"])
    return Place(index, _load_number(place["mse"]), None if sample is None else int(sample))


def _load_threshold(threshold: Mapping[str, Any]) -> Threshold:
    return Threshold(str(threshold["metric"]), Direction(threshold["direction"]), _load_number(threshold["limit"]))


def _load_mode(mode: Mapping[str, Any]) -> ModeFacts:
    logits, perplexity, failed, output = mode["logits"], mode["perplexity"], mode["failed"], mode["output_name"]
    values = None
    if perplexity is not None:
        reference, candidate = perplexity
        values = (_load_number(reference), _load_number(candidate))
    return ModeFacts(
        mode=str(mode["mode"]),
        rank=int(mode["rank"]),
        error=_load_number(mode["error"]),
        failed=None if failed is None else str(failed),
        output=None if output is None else str(output),
        logits=None if logits is None else LogitFacts(*(_load_number(logits[key]) for key in ("kl", "top1", "top5"))),
        perplexity=values,
        unmet=tuple(_load_threshold(threshold) for threshold in mode["unmet"]),
    )


def _load_blamed(layer: Mapping[str, Any]) -> BlamedLayer:
    own, cumulative, share = (_load_number(layer[key]) for key in ("own", "cumulative", "share"))
    return BlamedLayer(str(layer["name"]), own, cumulative, share, tuple(str(name) for name in layer["together"]))


def _load_recommended(layers: Mapping[str, Any]) -> RecommendedLayers:
    keep = tuple(str(name) for name in layers["keep"])
    predicted, verified, target = (_load_number(layers[key]) for key in ("predicted", "verified", "target"))
    return RecommendedLayers(keep, predicted, verified, target, str(layers["metric"]))
