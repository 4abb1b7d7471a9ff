"""The result as JSON and back: format `nndiff.comparison`.

Version 1: the first. NaN is null, infinities are the strings "inf" and "-inf". Every candidate has a
first_divergence of its own; that of the result is the one of the first candidate that diverges.
A pair of recordings has a site, where it was taken on both sides. What a result needs to be judged again stands beside
its pairs: aside, the pairs that differ and were excused, and latent, findings that hold where all else agrees.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any, TypeVar

from nndiff.errors import ReportError, SourceError, UsageError
from nndiff.files import RegularFile, Window
from nndiff.result import Comparison, Finding, Leftover, Pair, PairSite, Rearranged, Side, Totals
from nndiff.metrics import ENVELOPE_RTOLS, NAN, Metrics
from nndiff.tolerance import Tolerance
from nndiff.verdict import Verdict

FORMAT = "nndiff.comparison"
VERSION = 1
_LARGEST = 1 << 30  # a pair takes some three kilobytes
_MOST_DIGITS = 300  # a float holds as many, and no count has them
_T = TypeVar("_T")


def to_dict(comparison: Comparison) -> dict[str, Any]:
    """Return the result as plain data, ready for JSON."""
    data: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "kind": comparison.kind,
        "reference": plain(dataclasses.asdict(comparison.reference)),
        "candidates": [_candidate(comparison, side) for side in comparison.candidates],
        "verdict": comparison.verdict,
        "exit_code": comparison.exit_code,
        "tolerance": dataclasses.asdict(comparison.tolerance),
        "needed_tolerance": plain(comparison.needed_tolerance),
        "totals": _totals(comparison.totals),
        "groups": {
            name: {"pattern": pattern, "totals": _totals(comparison.totals_of_group(name))}
            for name, pattern in comparison.groups.items()
        },
        "pairs": [_pair(pair) for pair in comparison.pairs],
        "only_reference": list(comparison.only_reference),
        "only_candidate": list(comparison.only_candidate),
        "leftovers": [_left(left) for left in comparison.leftovers],
        "first_divergence": plain(comparison.first_divergence),
        "findings": [plain(dataclasses.asdict(finding)) for finding in comparison.findings],
        "notes": list(comparison.notes),
    }
    if comparison.aside:
        data["aside"] = [_pair(pair) for pair in comparison.aside]
    if comparison.latent:
        data["latent"] = [plain(dataclasses.asdict(finding)) for finding in comparison.latent]
    if comparison.kind == "recording":
        _add_recording(data, comparison)
    return data


def _left(left: Leftover) -> dict[str, Any]:
    """Return a leftover as plain data; of few there is more to say than all have."""
    data: dict[str, Any] = plain(dataclasses.asdict(left))
    return data if left.aside else {key: value for key, value in data.items() if key != "aside"}


def _add_recording(data: dict[str, Any], comparison: Comparison) -> None:
    """Add match rates and the verdict of the final output, in all and of each candidate; they are never read back."""
    from nndiff.reports import recording_summary

    data["recording"] = plain(recording_summary.of_all(comparison))
    each = recording_summary.of_each(comparison)
    for side in data["candidates"]:
        side["recording"] = plain(each[side["label"]])


def dumps(comparison: Comparison) -> str:
    """Return the result as JSON text."""
    return json.dumps(to_dict(comparison), indent=1, allow_nan=False) + "\n"


def load(path: str | Path) -> Comparison:
    """Read a result back from its JSON file."""
    try:
        data = json.loads(_text(os.fspath(path)), parse_int=_whole)
    except SourceError as error:
        raise ReportError(str(error)) from None
    except _DamagedError as error:
        raise ReportError(f"{path}: {_damaged(error)}") from None
    except (ValueError, RecursionError):
        raise ReportError(f"{path}: not a saved result: no valid JSON") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ReportError(f"{path}: not a saved result: its format is not {FORMAT!r}")
    if data.get("version") != VERSION:
        raise ReportError(f"{path}: version {data.get('version')!r} of the format; this nndiff reads {VERSION}")
    try:
        return from_dict(data)
    except (_DamagedError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, UsageError) as error:
        raise ReportError(f"{path}: {_damaged(error)}") from None


def _text(path: str) -> str:
    """Return the text of a regular file that is not too large; whatever else has no end."""
    window = Window(RegularFile(path))
    if window.size > _LARGEST:
        raise SourceError(path, f"is {window.size:,} bytes; of a saved result more than {_LARGEST:,} are not read")
    return window.read(0, window.size).decode("utf-8")


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise _DamagedError(f"a whole number of {len(digits):,} digits counts nothing")
    return int(digits)


class _DamagedError(Exception):
    """Say in plain words what is wrong with saved data."""


def _damaged(error: Exception) -> str:
    return f"a saved result that is damaged: {_plainly(error)}; save it again with --report json:PATH"


def _plainly(error: Exception) -> str:
    """Return what is wrong in words that need no Python."""
    if isinstance(error, (_DamagedError, UsageError)):
        return str(error)
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} is missing"
    return "a value in it is not of the kind that belongs there"


def from_dict(data: dict[str, Any]) -> Comparison:
    """Return the result behind plain data; whoever wrote it may have been wrong about types."""
    comparison = Comparison(
        kind=str(data["kind"]),
        reference=_side(data["reference"]),
        candidates=tuple(_side(side) for side in data["candidates"]),
        tolerance=_checked(Tolerance(**data["tolerance"])),
        pairs=tuple(_pair_back(pair) for pair in data["pairs"]),
        leftovers=tuple(_leftover(left) for left in data["leftovers"]),
        findings=tuple(_finding(finding) for finding in data["findings"]),
        first_divergences=_firsts(data),
        groups={name: group["pattern"] for name, group in data["groups"].items()},
        notes=tuple(data["notes"]),
        aside=tuple(_pair_back(pair) for pair in data.get("aside", ())),
        latent=tuple(_finding(finding) for finding in data.get("latent", ())),
    )
    return _consistent(comparison)


def _consistent(comparison: Comparison) -> Comparison:
    known = {side.label for side in comparison.candidates}
    pairs = (*comparison.pairs, *comparison.aside)
    named = {pair.candidate for pair in pairs} | {left.candidate for left in comparison.leftovers}
    if named - known:
        raise _DamagedError(f"{min(named - known)!r} is not one of the candidates")
    if not all(isinstance(text, str) for text in (*comparison.notes, *comparison.groups.values())):
        raise _DamagedError("notes and patterns are texts")
    return comparison


def _firsts(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the first divergence of each candidate that has one."""
    found = {side["label"]: side.get("first_divergence") for side in data["candidates"]}
    for first in (data["first_divergence"], *found.values()):
        if not isinstance(first, (dict, type(None))):
            raise _DamagedError("first_divergence is not an object")
        if not isinstance((first or {}).get("name", ""), str):
            raise _DamagedError("the name of first_divergence is not a text")
    return {label: first for label, first in found.items() if first is not None}


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "Mapping[str, Any]": (dict,),
}
_ITEMS: dict[str, type] = {"tuple[str, ...]": str, "tuple[str, str]": str, "Shape": int}


def _checked(item: _T) -> _T:
    """Return a dataclass whose plain fields are what they are declared to be."""
    for each in dataclasses.fields(item):  # type: ignore[arg-type]  # every caller gives a dataclass
        value: Any = getattr(item, each.name)
        declared = str(each.type)
        right = declared not in _TYPES or isinstance(value, _TYPES[declared])
        if not right or (declared in _ITEMS and not all(isinstance(part, _ITEMS[declared]) for part in value)):
            raise _DamagedError(f"{each.name!r} is not of the kind that belongs there")
    return item


def _leftover(data: dict[str, Any]) -> Leftover:
    if data["side"] not in ("reference", "candidate"):
        raise _DamagedError(f"{data['side']!r} is not a side")
    return _checked(Leftover(**{**data, "shape": tuple(data["shape"])}))


def _finding(data: dict[str, Any]) -> Finding:
    return _checked(Finding(**{**data, "where": tuple(data["where"])}))


def _candidate(comparison: Comparison, side: Side) -> dict[str, Any]:
    return {
        **plain(dataclasses.asdict(side)),
        "verdict": comparison.outcome_of(side.label).value,
        "totals": _totals(comparison.totals_of(side.label)),
        "first_divergence": plain(comparison.first_divergences.get(side.label)),
    }


def _totals(totals: Totals) -> dict[str, Any]:
    return {**dataclasses.asdict(totals), "match_rate": totals.match_rate}


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "candidate": pair.candidate,
        "name": pair.name,
        "reference_name": pair.reference_name,
        "candidate_name": pair.candidate_name,
        "slot": pair.slot,
        "order": pair.order,
        "matched_by": pair.matched_by,
        "verdict": pair.verdict.value,
        "shape": [list(shape) for shape in pair.shape],
        "dtype": list(pair.dtype),
        "atol": pair.atol,
        "rtol": pair.rtol,
        "scale": pair.scale,
        "note": pair.note,
        **({} if pair.site is None else {"site": _site(pair.site)}),
        "metrics": _metrics(pair.metrics),
    }


def _site(site: PairSite) -> dict[str, Any]:
    data: dict[str, Any] = plain(dataclasses.asdict(dataclasses.replace(site, layout=None)))
    del data["layout"]
    return data if site.layout is None else {**data, "layout": _layout(site.layout)}


def _layout(layout: Rearranged) -> dict[str, Any]:
    data: dict[str, Any] = plain(dataclasses.asdict(dataclasses.replace(layout, metrics=None)))
    return {**data, "metrics": _metrics(layout.metrics)}


def _site_back(data: dict[str, Any]) -> PairSite:
    one, other = data["wholes"]
    layout = data.get("layout")
    site = PairSite(
        modules=_two_texts(data["modules"]),
        slots=_two_texts(data["slots"]),
        classes=_two_texts(data["classes"]),
        call=int(data["call"]),
        wholes=(tuple(map(int, one)), tuple(map(int, other))),
        layout=None if layout is None else _layout_back(layout),
    )
    return _checked(site)


def _two_texts(data: list[str]) -> tuple[str, str]:
    one, other = data
    return one, other


def _layout_back(data: dict[str, Any]) -> Rearranged:
    known = tuple((_number(atol), _number(rtol)) for atol, rtol in data["agrees_at"])
    return _checked(Rearranged(**{**data, "agrees_at": known, "metrics": _metrics_back(data["metrics"])}))


_METRIC_NAMES = tuple(each.name for each in dataclasses.fields(Metrics))
_WHOLE = frozenset(("count", "unequal", "mismatched", "nonfinite_ref", "nonfinite_cand", "nonfinite_unequal"))


def _metrics(metrics: Metrics | None) -> dict[str, Any] | None:
    return None if metrics is None else {name: plain(getattr(metrics, name)) for name in _METRIC_NAMES}


def _metrics_back(data: dict[str, Any] | None) -> Metrics | None:
    if data is None:
        return None
    values: dict[str, Any] = {}
    for name in _METRIC_NAMES:
        value = data[name]
        if name == "max_abs_index":
            values[name] = None if value is None else tuple(int(axis) for axis in value)
        elif name == "envelope":
            values[name] = tuple(_number(value[number]) for number in range(len(ENVELOPE_RTOLS)))
        elif name in _WHOLE:
            values[name] = None if value is None and name == "mismatched" else int(value)
        else:
            values[name] = _number(value)
    return Metrics(**values)


def _pair_back(data: dict[str, Any]) -> Pair:
    reference, candidate = data["shape"]
    first, second = data["dtype"]
    pair = Pair(
        candidate=data["candidate"],
        reference_name=data["reference_name"],
        candidate_name=data["candidate_name"],
        matched_by=data["matched_by"],
        verdict=Verdict(data["verdict"]),
        shape=(tuple(map(int, reference)), tuple(map(int, candidate))),
        dtype=(first, second),
        order=int(data["order"]),
        metrics=_metrics_back(data["metrics"]),
        atol=_number(data["atol"]),
        rtol=_number(data["rtol"]),
        scale=_number(data["scale"]),
        slot=data["slot"],
        note=data["note"],
        site=_site_back(data["site"]) if "site" in data else None,
    )
    if not 0 < pair.scale < math.inf:
        raise _DamagedError("the scale of a pair is no positive number")
    return _checked(pair)


def _side(data: dict[str, Any]) -> Side:
    fields = {each.name: data[each.name] for each in dataclasses.fields(Side)}
    return _checked(Side(**{**fields, "notes": tuple(fields["notes"])}))


def _number(value: Any) -> float:
    return NAN if value is None else float(value)


def plain(value: Any) -> Any:
    """Return plain data without the floats that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value
