"""The map of a conversion: how every tensor of one checkpoint is made of those of another. Format `nndiff.map`.

Version 1: the first. `entries` says for each target which sources and operations make it, `missing` which targets
cannot be made and why, `unused` which sources no target needs.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

from nndiff.dtypes import DTYPES
from nndiff.errors import ConversionError, ReportError, SourceError
from nndiff.files import RegularFile, Window
from nndiff.relations import Operation, Relation, load_relation
from nndiff.relations.operations import describe_value
from nndiff.sources.json_text import read_json
from nndiff.tensors import MOST_AXES, Shape
from nndiff.verdict import RelationKind

FORMAT = "nndiff.map"
VERSION = 1
MOST_ELEMENTS = 1 << 40  # of a target: more than any model has in one tensor


class MissingReason(str, Enum):
    """Say why a tensor cannot be made of the other checkpoint's."""

    NO_PARTNER = "no partner"
    SHAPE = "shape"  # it has a partner of another shape, and no relation is proven
    GUESSED = "guessed"  # its partner is only guessed, and the values differ
    ONE_WAY = "one way"  # the relation holds, and cannot be turned round: rounding, folding
    COMPUTED = "computed"  # a buffer that models compute themselves: nothing is lost without it


@dataclass(frozen=True)
class Entry:
    """Say how one target is made: the operations that turn its sources into it."""

    target: str
    sources: tuple[str, ...]
    operations: tuple[Operation, ...]
    dtype: str
    shape: Shape
    kind: RelationKind | None = None  # of the relation behind it; None for a plain copy
    proven: bool = True  # the values agree; False where only names and shapes do

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "target": self.target,
            "sources": list(self.sources),
            "operations": Relation(RelationKind.LAYOUT, self.operations).to_dict()["reference"],
            "dtype": self.dtype,
            "shape": list(self.shape),
            "kind": None if self.kind is None else self.kind.value,
            "proven": self.proven,
        }


@dataclass(frozen=True)
class Missing:
    """Name a target that cannot be made, and why."""

    target: str
    reason: MissingReason
    text: str = ""  # the relation that cannot be turned round, for people

    @property
    def blocks(self) -> bool:
        """Return True if a checkpoint without it is not whole."""
        return self.reason is not MissingReason.COMPUTED

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"target": self.target, "reason": self.reason.value, "text": self.text}


@dataclass(frozen=True)
class ConversionMap:
    """Hold how the tensors of a candidate are made of those of a reference."""

    reference: str  # labels, for people
    candidate: str
    entries: tuple[Entry, ...]
    missing: tuple[Missing, ...] = ()
    unused: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "reference": {"label": self.reference},
            "candidate": {"label": self.candidate},
            "entries": [entry.to_dict() for entry in self.entries],
            "missing": [missing.to_dict() for missing in self.missing],
            "unused": list(self.unused),
        }

    def to_text(self) -> str:
        """Return it as JSON, one entry a line."""
        data = self.to_dict()
        lines = []
        for key, value in data.items():
            if isinstance(value, list) and value:
                items = ",\n  ".join(json.dumps(item) for item in value)
                lines.append(f" {json.dumps(key)}: [\n  {items}\n ]")
            else:
                lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
        return "{\n" + ",\n".join(lines) + "\n}\n"


def is_conversion_map(path: str) -> bool:
    """Return True if a file begins as maps do; False too where there is no such file."""
    try:
        return f'"{FORMAT}"'.encode() in Window(RegularFile(path)).head(512)
    except SourceError:
        return False


def read_conversion_map(path: str) -> ConversionMap:
    """Return the map of a file, every claim checked."""
    try:
        return load_conversion_map(read_json(Window(RegularFile(path)), "a map"))
    except SourceError as error:
        raise ConversionError(str(error)) from None
    except (ConversionError, ReportError) as error:
        raise ConversionError(f"{path}: {error}; make it again with nndiff map") from None


def load_conversion_map(data: dict[str, Any]) -> ConversionMap:
    """Return the map behind plain data; raise ConversionError or ReportError for what nndiff would not have written."""
    if data.get("format") != FORMAT:
        raise ConversionError(f"not a map: its format is {describe_value(data.get('format'))}, expected {FORMAT!r}")
    if data.get("version") != VERSION:
        version = describe_value(data.get("version"))
        raise ConversionError(f"a map of version {version}; this nndiff reads version {VERSION}")
    labels = []
    for side in ("reference", "candidate"):
        labels.append(_read_text(_read_object(data.get(side), side), "label", side))
    entries: dict[str, Entry] = {}
    for item in _read_list(data, "entries", "a map"):
        entry = _load_entry(_read_object(item, "an entry"))
        if entry.target in entries:
            raise ConversionError(f"{describe_value(entry.target)} has two entries")
        entries[entry.target] = entry
    missing = []
    for item in _read_list(data, "missing", "a map"):
        missing.append(_load_missing(_read_object(item, "a missing tensor"), entries))
    unused = _read_texts(data, "unused", "a map")
    return ConversionMap(labels[0], labels[1], tuple(entries.values()), tuple(missing), unused)


def _load_entry(data: dict[str, Any]) -> Entry:
    target = _read_text(data, "target", "an entry")
    where = f"the entry of {describe_value(target)}"
    dtype = _read_text(data, "dtype", where)
    if dtype not in DTYPES:
        raise ConversionError(f"{where} has the unknown dtype {describe_value(dtype)}")
    shape = data.get("shape")
    if not isinstance(shape, list) or len(shape) > MOST_AXES:
        raise ConversionError(f"{where} has the shape {describe_value(shape)}, expected a list of sizes")
    if not all(type(size) is int and 0 <= size <= MOST_ELEMENTS for size in shape) or math.prod(shape) > MOST_ELEMENTS:
        raise ConversionError(
            f"{where} has the shape {describe_value(shape)}, expected at most {MOST_ELEMENTS} elements"
        )
    sources = _read_texts(data, "sources", where)
    if not sources:
        raise ConversionError(f"{where} has no sources")
    kind = data.get("kind")
    kinds = {known.value: known for known in RelationKind}
    if kind is not None and (not isinstance(kind, str) or kind not in kinds):
        raise ConversionError(f"{where} is of the unknown kind {describe_value(kind)}")
    proven = data.get("proven")
    if not isinstance(proven, bool):
        raise ConversionError(f"{where} has 'proven' {describe_value(proven)}, expected true or false")
    stored: dict[str, Any] = {"kind": RelationKind.LAYOUT.value, "reference": data.get("operations"), "candidate": []}
    try:
        operations = load_relation(stored).reference
    except ReportError as error:
        raise ConversionError(f"{where}: {error}") from None
    return Entry(target, sources, operations, dtype, tuple(shape), kinds[kind] if kind else None, proven)


def _load_missing(data: dict[str, Any], entries: dict[str, Entry]) -> Missing:
    target = _read_text(data, "target", "a missing tensor")
    if target in entries:
        raise ConversionError(f"{describe_value(target)} is missing and has an entry")
    reasons = {reason.value: reason for reason in MissingReason}
    reason = _read_text(data, "reason", "a missing tensor")
    if reason not in reasons:
        raise ConversionError(f"{describe_value(target)} is missing for the unknown reason {describe_value(reason)}")
    return Missing(target, reasons[reason], _read_text(data, "text", "a missing tensor"))


def _read_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConversionError(f"{where} is {describe_value(value)}, expected an object")
    return value


def _read_list(data: dict[str, Any], name: str, where: str) -> list[Any]:
    value = data.get(name)
    if not isinstance(value, list):
        raise ConversionError(f"{where} has {name!r} {describe_value(value)}, expected a list")
    return value


def _read_text(data: dict[str, Any], name: str, where: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise ConversionError(f"{where} has {name!r} {describe_value(value)}, expected text")
    return value


def _read_texts(data: dict[str, Any], name: str, where: str) -> tuple[str, ...]:
    values = _read_list(data, name, where)
    for value in values:
        if not isinstance(value, str):
            raise ConversionError(f"{where} has {describe_value(value)} in {name!r}, expected names")
    return tuple(values)
