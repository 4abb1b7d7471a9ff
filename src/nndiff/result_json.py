"""The result as JSON and back: format `nndiff.comparison`. NaN is null, infinities are the strings "inf" and "-inf".

Version 1: the first.
Version 2: facts are typed: method, certain, decides, relation and sites of a pair, reason of a leftover, first
divergence, notes with a slug; judgements and rules stand beside the pairs.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from nndiff.errors import ReportError, SourceError, UsageError
from nndiff.facts import mode_json
from nndiff.facts.run_json import load_runs, store_divergence, store_runs
from nndiff.facts.runs import RunDivergence
from nndiff.files import RegularFile, Window
from nndiff.metrics import ENVELOPE_RTOLS, NAN, Metrics
from nndiff.result import (
    CANDIDATE,
    REFERENCE,
    SIDES,
    Comparison,
    Finding,
    FirstDivergence,
    InputState,
    Judgement,
    Leftover,
    LeftoverReason,
    Method,
    Note,
    NoteSlug,
    OwnError,
    Pair,
    PartingReason,
    Related,
    Relation,
    Rules,
    SettingDifference,
    Side,
    Totals,
    WeightsAtSite,
)
from nndiff.tensors import Site, Slot
from nndiff.tolerance import Override, Tolerance
from nndiff.verdict import Judge, Outcome, Verdict

FORMAT = "nndiff.comparison"
VERSION = 2
LoadRelation = Callable[[dict[str, Any]], Relation]

_LARGEST_FILE = 1 << 30  # a pair takes some three kilobytes
_MOST_DIGITS = 300  # a float holds as many, and no count has them
_T = TypeVar("_T")
_E = TypeVar("_E", bound=Enum)


# -- what a recording's result says in numbers: read by the reports, written into the JSON, never read back ----------


@dataclass(frozen=True)
class Rate:
    """Count how many of a kind match; guessed pairs are evidence and counted apart."""

    name: str  # forward, backward or a slot
    matched: int
    total: int  # with what was never reached and what is missing
    unreached: int = 0  # the other recording was cut off before these
    missing: int = 0  # gradients that one side lacks
    guessed: int = 0
    guessed_matched: int = 0


@dataclass(frozen=True)
class RecordingSummary:
    """Hold the counts of one candidate's recording."""

    outputs_agree: bool | None  # of the outputs both sides return; None where that cannot be said
    output_max_abs: float | None
    extra_outputs: tuple[Leftover, ...]  # outputs that only one side returns
    common_layers: int
    layers_only_in: Mapping[str, int]  # by side
    rates: tuple[Rate, ...]
    gradient_scale: float  # the largest value of all gradients of the reference
    unreached: int

    def rate(self, name: str) -> Rate | None:
        """Return the rate of this name, if anything of that kind was compared."""
        return next((rate for rate in self.rates if rate.name == name), None)


def is_guess(pair: Pair) -> bool:
    """Return True for a guessed pair that is evidence only."""
    return not (pair.certain or pair.decides)


@lru_cache(maxsize=1 << 17)
def layer_name(site: Site) -> str:
    """Return the module and call a tensor was taken at, `encoder.ffn@2`; of a parameter, its name."""
    whole_output = dataclasses.replace(site, path="", nth=0)
    return whole_output.name.removesuffix(f":{site.slot.value}")


def summarise_recording(comparison: Comparison, candidate: str) -> RecordingSummary:
    """Return the counts of one candidate: outputs, layers, match rates."""
    pairs, leftovers = comparison.pairs_of(candidate), comparison.leftovers_of(candidate)
    outputs = [pair for pair in pairs if pair.is_final_output]
    differences = [pair.metrics.max_abs for pair in outputs if pair.metrics and not math.isnan(pair.metrics.max_abs)]
    unread = bool(comparison.unread_outputs(candidate))
    return RecordingSummary(
        outputs_agree=_compare_outputs(outputs, leftovers, unread),
        output_max_abs=max(differences, default=None),
        extra_outputs=tuple(leftover for leftover in leftovers if leftover.is_extra_output),
        common_layers=len(_layers_of_pairs(pairs, 0)),
        layers_only_in={
            side: len(_layers_left_over(leftovers, side) - _layers_of_pairs(pairs, SIDES.index(side))) for side in SIDES
        },
        rates=_count_rates(pairs, leftovers),
        gradient_scale=_gradient_scale(pairs),
        unreached=sum(item.reason is LeftoverReason.UNREACHED for item in leftovers),
    )


def _compare_outputs(outputs: Sequence[Pair], leftovers: Sequence[Leftover], unread: bool) -> bool | None:
    """Return whether the outputs that both sides return agree."""
    if any(not pair.verdict.passed for pair in outputs):
        return False
    for leftover in leftovers:
        if leftover.site is None or not leftover.site.is_final_output:
            continue
        if leftover.reason is LeftoverReason.UNREACHED:
            return None
        if leftover.reason is LeftoverReason.NO_PARTNER:
            return False
    return True if outputs and not unread else None


def _layers_of_pairs(pairs: Iterable[Pair], side: int) -> set[str]:
    """Return the layers inside the model whose outputs or their gradients were compared."""
    sites = (pair.sites[side] for pair in pairs if pair.sites)
    return {layer_name(site) for site in sites if _is_layer_output(site)}


def _layers_left_over(leftovers: Iterable[Leftover], side: str) -> set[str]:
    sites = (leftover.site for leftover in leftovers if leftover.site and leftover.side == side)
    return {layer_name(site) for site in sites if _is_layer_output(site)}


def _is_layer_output(site: Site) -> bool:
    return bool(site.module) and site.slot in (Slot.OUTPUT, Slot.GRAD_OUTPUT)


def _count_rates(pairs: Sequence[Pair], leftovers: Sequence[Leftover]) -> tuple[Rate, ...]:
    """Return the match rates: layers forward and backward, parameter gradients, then everything else by slot."""
    pairs_by_slot: dict[Slot, list[Pair]] = {Slot.OUTPUT: [], Slot.GRAD_OUTPUT: [], Slot.PARAM_GRAD: []}
    for pair in pairs:
        of_model = pair.is_input or pair.is_final_output or pair.slot is Slot.LOSS
        if pair.slot is not None and not of_model:
            pairs_by_slot.setdefault(pair.slot, []).append(pair)
    leftovers_by_slot: dict[Slot, list[Leftover]] = {}
    for leftover in leftovers:
        if leftover.site is not None and not leftover.site.is_final_output:
            leftovers_by_slot.setdefault(leftover.site.slot, []).append(leftover)
    rates = [_count_rate(slot, group, leftovers_by_slot.get(slot, ())) for slot, group in pairs_by_slot.items()]
    return tuple(rate for rate in rates if rate.total or rate.guessed)


def _count_rate(slot: Slot, pairs: Iterable[Pair], leftovers: Iterable[Leftover]) -> Rate:
    """Count the layers or tensors of one slot; a layer with several outputs matches if all of them do."""
    by_layer = slot in (Slot.OUTPUT, Slot.GRAD_OUTPUT)
    certain: dict[str, bool] = {}
    guessed: dict[str, bool] = {}
    for pair in pairs:
        key = layer_name(pair.sites[0]) if by_layer and pair.sites else pair.name
        matches = guessed if is_guess(pair) else certain
        matches[key] = matches.get(key, True) and pair.verdict.passed
    unreached, missing = set[str](), set[str]()
    for leftover in leftovers:
        key = layer_name(leftover.site) if by_layer and leftover.site else leftover.name
        if leftover.reason is LeftoverReason.UNREACHED:
            unreached.add(key)
        elif slot.is_gradient and leftover.counts:
            missing.add(key)
    certain.update(dict.fromkeys(missing, False))
    unreached -= certain.keys()
    for layer in certain:
        guessed.pop(layer, None)
    return Rate(
        name={Slot.OUTPUT: "forward", Slot.GRAD_OUTPUT: "backward"}.get(slot, slot.value),
        matched=sum(certain.values()),
        total=len(certain) + len(unreached),
        unreached=len(unreached),
        missing=len(missing),
        guessed=len(guessed),
        guessed_matched=sum(guessed.values()),
    )


def _gradient_scale(pairs: Iterable[Pair]) -> float:
    largest = 0.0
    for pair in pairs:
        if pair.slot and pair.slot.is_gradient and pair.metrics:
            for value in (abs(pair.metrics.ref_min), abs(pair.metrics.ref_max)):
                largest = max(largest, value if math.isfinite(value) else 0.0)
    return largest


# -- writing ----------------------------------------------------------------------------------------------------------


def to_dict(comparison: Comparison) -> dict[str, Any]:
    """Return the result as plain data, ready for JSON."""
    candidates = []
    for side in comparison.candidates:
        candidate = {
            **_store_fields(side),
            "verdict": comparison.outcome_of(side.label).value,
            "totals": _store_totals(comparison.totals_of(side.label)),
            "first_divergence": _store_divergence(comparison.first_divergences.get(side.label)),
        }
        if comparison.kind == "recording":
            candidate["recording"] = _store_summaries([summarise_recording(comparison, side.label)])
        for facts in comparison.run:
            if facts.candidate == side.label:
                candidate["first_divergence"] = _store_divergence(facts.first_divergence)
        candidates.append(candidate)
    groups = {}
    for name, pattern in comparison.groups.items():
        groups[name] = {"pattern": pattern, "totals": _store_totals(comparison.totals_of_group(name))}
    data: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "kind": comparison.kind,
        "reference": _store_fields(comparison.reference),
        "candidates": candidates,
        "verdict": comparison.verdict,
        "exit_code": comparison.exit_code,
        "tolerance": _store_tolerance(comparison.tolerance),
        "rules": {**_store_fields(comparison.rules), "accept": sorted(comparison.rules.accept)},
        "judgements": {label: _store_fields(judgement) for label, judgement in comparison.judgements.items()},
        "needed_tolerance": plain(comparison.needed_tolerance),
        "totals": _store_totals(comparison.totals),
        "groups": groups,
        "pairs": [_store_pair(pair) for pair in comparison.pairs],
        "only_reference": list(comparison.only_reference),
        "only_candidate": list(comparison.only_candidate),
        "leftovers": [_store_fields(leftover) for leftover in comparison.leftovers],
        "first_divergence": _store_divergence(comparison.first_divergence),
        "findings": [_store_fields(finding) for finding in comparison.findings],
        "notes": [_store_fields(note) for note in comparison.notes],
    }
    if comparison.kind == "checkpoint":
        data["settings"] = [_store_fields(setting) for setting in comparison.settings]
    if comparison.kind == "recording":
        summaries = [summarise_recording(comparison, side.label) for side in comparison.candidates]
        data["recording"] = _store_summaries(summaries)
        data["own_errors"] = [_store_fields(error) for error in comparison.own_errors]
    if comparison.kind == "run":
        data.update(store_runs(comparison.run))
    if comparison.modes is not None:
        mode_json.add_modes(data, comparison.modes)
    return data


def dumps(comparison: Comparison) -> str:
    """Return the result as JSON text."""
    return json.dumps(to_dict(comparison), indent=1, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """Return plain data that JSON can hold: no enums, no tuples, no floats that JSON does not have."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (str, int, bool)) else str(value)


def _store_fields(item: Any) -> dict[str, Any]:
    """Return a dataclass of plain facts as plain data."""
    stored: dict[str, Any] = plain(dataclasses.asdict(item))
    return stored


def _store_totals(totals: Totals) -> dict[str, Any]:
    return {**_store_fields(totals), "match_rate": totals.match_rate}


def _store_summaries(summaries: Sequence[RecordingSummary]) -> dict[str, Any]:
    """Return the counts of one candidate, or of several together."""
    rates: dict[str, dict[str, Any]] = {}
    for name in ("forward", "backward", Slot.PARAM_GRAD.value):
        rates[name] = dict.fromkeys(("matched", "total", "guessed"), 0)
    for summary in summaries:
        for rate in summary.rates:
            counts = rates.setdefault(rate.name, dict.fromkeys(("matched", "total", "guessed"), 0))
            counts["matched"] += rate.matched
            counts["total"] += rate.total
            counts["guessed"] += rate.guessed
    for counts in rates.values():
        counts["match_rate"] = counts["matched"] / counts["total"] if counts["total"] else None
    agreements = [summary.outputs_agree for summary in summaries if summary.outputs_agree is not None]
    differences = [summary.output_max_abs for summary in summaries if summary.output_max_abs is not None]
    extra = dict.fromkeys(leftover.name for summary in summaries for leftover in summary.extra_outputs)
    final_output = {
        "match": all(agreements) if agreements else None,
        "max_abs": plain(max(differences, default=None)),
        "extra": list(extra),
    }
    return {
        "final_output": final_output,
        "layers": {
            "common": sum(summary.common_layers for summary in summaries),
            "only_reference": sum(summary.layers_only_in[REFERENCE] for summary in summaries),
            "only_candidate": sum(summary.layers_only_in[CANDIDATE] for summary in summaries),
        },
        "rates": rates,
        "gradient_scale": max((summary.gradient_scale for summary in summaries), default=0.0),
        "unreached": sum(summary.unreached for summary in summaries),
    }


def _store_tolerance(tolerance: Tolerance) -> dict[str, Any]:
    data = _store_fields(tolerance)
    if tolerance.origin != "noise":
        del data["noise_factor"]
    return data


# Names of the first divergence in JSON where they are not those of its fields.
_DIVERGENCE_KEYS = {"classes": "class", "module_classes": "module_class", "sources": "source"}


def _store_divergence(divergence: FirstDivergence | RunDivergence | None) -> dict[str, Any] | None:
    if divergence is None:
        return None
    if isinstance(divergence, RunDivergence):
        return store_divergence(divergence)
    return {_DIVERGENCE_KEYS.get(name, name): value for name, value in _store_fields(divergence).items()}


def _store_pair(pair: Pair) -> dict[str, Any]:
    related = pair.related
    data: dict[str, Any] = {
        "candidate": pair.candidate,
        "name": pair.name,
        "reference_name": pair.reference_name,
        "candidate_name": pair.candidate_name,
        "slot": plain(pair.slot),
        "order": pair.order,
        "method": pair.method.value,
        "certain": pair.certain,
        "decides": pair.decides,
        "relation": None if related is None else plain(related.relation.to_dict()),
        "verdict": pair.verdict.value,
        "shape": plain(pair.shape),
        "dtype": list(pair.dtype),
        "atol": pair.atol,
        "rtol": pair.rtol,
        "scale": pair.scale,
        "notes": [_store_fields(note) for note in pair.notes],
        "sites": None if pair.sites is None else [_store_fields(site) for site in pair.sites],
        "metrics": _store_metrics(pair.metrics),
    }
    if pair.noise is not None:
        data |= {"noise": plain(pair.noise), "times_noise": plain(pair.times_noise)}
    if pair.own is not None:
        data |= {"own": plain(pair.own), "own_times_noise": plain(pair.own_times_noise)}
    if related is not None:
        data["related"] = {"accepted": related.accepted, "text": related.relation.text}
        if related.accepted:
            data["stored"] = _store_metrics(pair.stored)  # the numbers after the relation are those judged
        else:
            data["related"]["metrics"] = _store_metrics(related.metrics)
    return data


_METRIC_NAMES = tuple(field.name for field in dataclasses.fields(Metrics))
_COUNTS = frozenset(("count", "unequal", "mismatched", "nonfinite_ref", "nonfinite_cand", "nonfinite_unequal"))


def _store_metrics(metrics: Metrics | None) -> dict[str, Any] | None:
    return None if metrics is None else {name: plain(getattr(metrics, name)) for name in _METRIC_NAMES}


# -- reading: whoever wrote the file may be wrong about anything ------------------------------------------------------


class _DamagedError(Exception):
    """Say in plain words what is wrong with saved data."""


def load(path: str | Path, load_relation: LoadRelation) -> Comparison:
    """Read a result back from its JSON file."""
    try:
        data = json.loads(_read_text(os.fspath(path)), parse_int=_parse_int)
    except SourceError as error:
        raise ReportError(str(error)) from None
    except _DamagedError as error:
        raise ReportError(f"{path}: {_describe_damage(error)}") from None
    except (ValueError, RecursionError):
        raise ReportError(f"{path}: not a saved result: not valid JSON") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ReportError(f"{path}: not a saved result: its format is not {FORMAT!r}")
    if data.get("version") != VERSION:
        raise ReportError(f"{path}: format version {data.get('version')!r}; this nndiff reads version {VERSION}")
    try:
        return from_dict(data, load_relation)
    except RecursionError:
        raise ReportError(f"{path}: not a saved result: nested too deeply") from None
    except (
        *(_DamagedError, UsageError, ReportError),
        *(LookupError, TypeError, ValueError, AttributeError, ArithmeticError),
    ) as error:
        raise ReportError(f"{path}: {_describe_damage(error)}") from None


def _read_text(path: str) -> str:
    """Return the text of a regular file that is not too large; other kinds of files may never end."""
    window = Window(RegularFile(path))
    if window.size > _LARGEST_FILE:
        raise SourceError(path, f"is {window.size:,} bytes; nndiff reads saved results of up to {_LARGEST_FILE:,}")
    return window.read(0, window.size).decode("utf-8")


def _parse_int(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise _DamagedError(f"an integer of {len(digits):,} digits")
    return int(digits)


def _describe_damage(error: Exception) -> str:
    return f"damaged result: {_describe_cause(error)}; save it again with --report json:PATH"


def _describe_cause(error: Exception) -> str:
    """Return what is wrong in words that need no Python."""
    if isinstance(error, (_DamagedError, UsageError, ReportError)):
        return str(error)
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else "a value has the wrong type"


def from_dict(data: dict[str, Any], load_relation: LoadRelation) -> Comparison:
    """Return the result behind plain data."""
    candidates = tuple(_load_side(side) for side in data["candidates"])
    labels = {side.label for side in candidates}
    comparison = Comparison(
        kind=_load_text(data["kind"]),
        reference=_load_side(data["reference"]),
        candidates=candidates,
        tolerance=_load_tolerance(data["tolerance"]),
        pairs=tuple(_load_pair(pair, load_relation) for pair in data["pairs"]),
        judgements={label: _load_judgement(judgement) for label, judgement in data["judgements"].items()},
        leftovers=tuple(_load_leftover(leftover) for leftover in data["leftovers"]),
        findings=tuple(_load_finding(finding) for finding in data["findings"]),
        first_divergences={} if data["kind"] == "run" else _load_divergences(data),
        groups={name: _load_text(group["pattern"]) for name, group in data["groups"].items()},
        notes=_load_notes(data["notes"]),
        rules=_load_rules(data["rules"]),
        own_errors=tuple(_load_own_error(error) for error in data.get("own_errors", ())),
        run=load_runs(data, [side.label for side in candidates]) if data["kind"] == "run" else (),
        modes=mode_json.load_modes(data) if data["kind"] == "modes" else None,
        settings=tuple(_load_setting(setting) for setting in data.get("settings", ())),
    )
    named = {pair.candidate for pair in comparison.pairs} | set(comparison.judgements)
    named |= {leftover.candidate for leftover in comparison.leftovers}
    named |= {setting.candidate for setting in comparison.settings}
    if named - labels:
        raise _DamagedError(f"{min(named - labels)!r} is not one of the candidates")
    if labels - set(comparison.judgements):
        raise _DamagedError(f"there is no judgement of {min(labels - set(comparison.judgements))!r}")
    return comparison


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "bool": (bool,),
    "Mapping[str, Any]": (dict,),
}
_ITEM_TYPES: dict[str, type] = {
    "tuple[str, ...]": str,
    "tuple[str, str]": str,
    "tuple[str, str] | None": str,
    "Shape": int,
    "Shape | None": int,
}


def _check_types(item: _T) -> _T:
    """Return a dataclass whose plain fields are what they are declared to be."""
    for field in dataclasses.fields(item):  # type: ignore[arg-type]  # every caller gives a dataclass
        value: Any = getattr(item, field.name)
        declared = str(field.type)
        fits = declared not in _TYPES or isinstance(value, _TYPES[declared])
        if value is not None and declared in _ITEM_TYPES:
            fits = all(isinstance(part, _ITEM_TYPES[declared]) for part in value)
        if not fits:
            raise _DamagedError(f"{field.name!r} has the wrong type")
    return item


def _load_enum(kind: type[_E], value: Any) -> _E:
    try:
        return kind(value)
    except ValueError:
        raise _DamagedError(f"{str(value)[:80]!r} is not a known {kind.__name__}") from None


def _load_optional(value: Any, load_value: Callable[[Any], _T]) -> _T | None:
    return None if value is None else load_value(value)


def _load_text(value: Any) -> str:
    if not isinstance(value, str):
        raise _DamagedError("a value that should be text is not")
    return value


def _load_number(value: Any) -> float:
    return NAN if value is None else float(value)


def _load_texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _DamagedError("a value that should be a list of texts is not")
    return tuple(_load_text(item) for item in value)


def _load_two_texts(value: Any) -> tuple[str, str]:
    first, second = _load_texts(value)
    return first, second


def _load_shape(value: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in value)


def _load_side(data: dict[str, Any]) -> Side:
    values = {field.name: data[field.name] for field in dataclasses.fields(Side)}
    return _check_types(Side(**{**values, "notes": _load_texts(values["notes"])}))


def _load_tolerance(data: dict[str, Any]) -> Tolerance:
    overrides = tuple(_check_types(Override(**override)) for override in data.get("overrides", ()))
    return _check_types(Tolerance(**{**data, "overrides": overrides}))


def _load_rules(data: dict[str, Any]) -> Rules:
    accept = frozenset(_load_texts(data["accept"]))
    return _check_types(Rules(accept, _load_enum(Judge, data["judge"]), data["strict_dtype"]))


def _load_judgement(data: dict[str, Any]) -> Judgement:
    judgement = Judgement(
        outcome=_load_enum(Outcome, data["outcome"]),
        outside=_load_optional(data["outside"], lambda outcome: _load_enum(Outcome, outcome)),
        inside_compared=data["inside_compared"],
        inside_different=data["inside_different"],
    )
    return _check_types(judgement)


def _load_notes(data: Any) -> tuple[Note, ...]:
    if not isinstance(data, list):
        raise _DamagedError("'notes' is not a list")
    return tuple(Note(_load_enum(NoteSlug, note["slug"]), _load_text(note["text"])) for note in data)


def _load_site(data: dict[str, Any]) -> Site:
    return _check_types(Site(**{**data, "slot": _load_enum(Slot, data["slot"])}))


def _load_leftover(data: dict[str, Any]) -> Leftover:
    if data["side"] not in SIDES:
        raise _DamagedError(f"{str(data['side'])[:80]!r} is not a side")
    values = {
        **data,
        "shape": _load_shape(data["shape"]),
        "reason": _load_enum(LeftoverReason, data["reason"]),
        "site": _load_optional(data["site"], _load_site),
        "near_shape": _load_optional(data["near_shape"], _load_shape),
    }
    return _check_types(Leftover(**values))


def _load_setting(data: dict[str, Any]) -> SettingDifference:
    reference, candidate = (_load_optional(value, _load_text) for value in data["values"])
    return _check_types(SettingDifference(**{**data, "values": (reference, candidate)}))


def _load_finding(data: dict[str, Any]) -> Finding:
    return _check_types(Finding(**{**data, "where": _load_texts(data["where"])}))


def _load_own_error(data: dict[str, Any]) -> OwnError:
    values = {
        **data,
        "slot": _load_enum(Slot, data["slot"]),
        "classes": _load_two_texts(data["classes"]),
        "max_abs": _load_number(data["max_abs"]),
        "times_noise": _load_optional(data["times_noise"], _load_number),
        "inherited": _load_optional(data["inherited"], _load_number),
        "given": _load_texts(data["given"]),
        "also": _load_texts(data["also"]),
    }
    return _check_types(OwnError(**values))


def _load_metrics(data: dict[str, Any] | None) -> Metrics | None:
    if data is None:
        return None
    values: dict[str, Any] = {}
    for name in _METRIC_NAMES:
        value = data[name]
        if name == "max_abs_index":
            values[name] = _load_optional(value, _load_shape)
        elif name == "envelope":
            values[name] = tuple(_load_number(value[position]) for position in range(len(ENVELOPE_RTOLS)))
        elif name in _COUNTS:
            values[name] = None if value is None and name == "mismatched" else int(value)
        else:
            values[name] = _load_number(value)
    return Metrics(**values)


def _load_pair(data: dict[str, Any], load_relation: LoadRelation) -> Pair:
    reference_shape, candidate_shape = data["shape"]
    stored = metrics = _load_metrics(data["metrics"])
    related = None
    if data["relation"] is not None:
        accepted = data["related"]["accepted"]
        if accepted:
            stored = _load_metrics(data["stored"])
        after = metrics if accepted else _load_metrics(data["related"]["metrics"])
        if after is None:
            raise _DamagedError("a relation without numbers")
        related = _check_types(Related(load_relation(data["relation"]), after, accepted))
    sites = None
    if data["sites"] is not None:
        reference_site, candidate_site = data["sites"]
        sites = (_load_site(reference_site), _load_site(candidate_site))
    pair = Pair(
        candidate=data["candidate"],
        reference_name=data["reference_name"],
        candidate_name=data["candidate_name"],
        method=_load_enum(Method, data["method"]),
        certain=data["certain"],
        verdict=_load_enum(Verdict, data["verdict"]),
        shape=(_load_shape(reference_shape), _load_shape(candidate_shape)),
        dtype=_load_two_texts(data["dtype"]),
        order=int(data["order"]),
        stored=stored,
        atol=_load_number(data["atol"]),
        rtol=_load_number(data["rtol"]),
        scale=_load_number(data["scale"]),
        sites=sites,
        related=related,
        notes=_load_notes(data["notes"]),
        noise=_load_optional(data.get("noise"), _load_number),
        own=_load_optional(data.get("own"), _load_number),
    )
    if not 0 < pair.scale < math.inf:
        raise _DamagedError("the scale of a pair is not a positive number")
    return _check_types(pair)


def _load_divergences(data: dict[str, Any]) -> dict[str, FirstDivergence]:
    """Return the first divergence of each candidate that has one."""
    divergences = {}
    for candidate in data["candidates"]:
        divergence = candidate.get("first_divergence")
        if divergence is not None:
            divergences[candidate["label"]] = _load_divergence(divergence)
    return divergences


def _load_divergence(data: Any) -> FirstDivergence:
    try:
        values: dict[str, Any] = {}
        for field in dataclasses.fields(FirstDivergence):
            if field.name != "times_noise":  # results saved before it was known lack it
                values[field.name] = data[_DIVERGENCE_KEYS.get(field.name, field.name)]
        values.update(
            slot=_load_optional(values["slot"], lambda slot: _load_enum(Slot, slot)),
            reason=_load_enum(PartingReason, values["reason"]),
            verdict=_load_optional(values["verdict"], lambda verdict: _load_enum(Verdict, verdict)),
            max_abs=_load_optional(values["max_abs"], float),
            times_noise=_load_optional(data.get("times_noise"), _load_number),
            classes=_load_two_texts(values["classes"]),
            module_classes=_load_optional(values["module_classes"], _load_two_texts),
            inputs=_load_optional(values["inputs"], lambda inputs: _load_enum(InputState, inputs)),
            sources=_load_two_texts(values["sources"]),
            settings={str(name): (reference, candidate) for name, (reference, candidate) in values["settings"].items()},
            weights=_load_optional(values["weights"], _load_weights),
        )
        return _check_types(FirstDivergence(**values))
    except (_DamagedError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise _DamagedError(f"first_divergence: {_describe_cause(error)}") from None


def _load_weights(data: dict[str, Any]) -> WeightsAtSite:
    names = {name: _load_texts(data[name]) for name in ("differing", "only_reference", "only_candidate")}
    return _check_types(WeightsAtSite(data["common"], **names))
