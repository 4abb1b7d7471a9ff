"""The recording format, version 2, as JSON: events to lines and lines to events, every claim checked.

History: 1 the first; 2 digests by XXH3.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, cast

from nndiff.errors import SourceError
from nndiff.recording.format.events import LINKS, CallEvent, Event, TensorEvent, ValueEvent
from nndiff.tensors import Link, Phase, Site, Slot, Stats

FORMAT = "nndiff.recording"
VERSION = 2
MANIFEST = "manifest.json"
EVENTS = "events.jsonl"
SUFFIX = ".nnrec"
KEEP_LEVELS = ("digest", "stats", "sketch", "full")  # each holds what the ones before it hold

SHARD = re.compile(r"shard-[0-9]{5,9}\.safetensors\Z")
DIGEST = re.compile(r"[0-9a-f]{64}\Z")
LINE_LIMIT = 8 << 20
NAME_LIMIT = 4096
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_BIGGEST = 1 << 62


def shard_name(number: int) -> str:
    """Return the file name of a shard."""
    return f"shard-{number:05d}.safetensors"


def plain(value: Any) -> Any:
    """Return a value as plain JSON has it: NaN and infinities as text, tuples as lists, what is foreign as its repr."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return str(value)


def dumps(value: Any, indent: int | None = None) -> str:
    """Return plain JSON text on one line, or indented."""
    separators = (",", ":") if indent is None else (",", ": ")
    try:
        return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=separators, indent=indent)
    except (TypeError, ValueError):  # seldom: something that JSON lacks
        return json.dumps(plain(value), ensure_ascii=True, allow_nan=False, separators=separators, indent=indent)


def to_line(event: Event) -> str:
    """Return an event as one line of JSON without what is empty."""
    body = {name: getattr(event, name) for name in event.__slots__ if name not in ("site", "cls")}
    if isinstance(event, CallEvent):
        body |= {"class": event.cls, "inputs": [_link(link) for link in event.inputs]}
        return dumps({"kind": "call", **_full(body, ("order", "entered", "module", "call"))}) + "\n"
    if isinstance(event, TensorEvent):
        body["stats"] = _fields_of(event.stats) if event.stats else None
    kind = "tensor" if isinstance(event, TensorEvent) else "value"
    return (
        dumps({"kind": kind, **_site(event.site), **_full(body, ("order", "shape", "dtype", "type", "value"))}) + "\n"
    )


def _fields_of(record: Stats | Link) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


def _site(site: Site) -> dict[str, Any]:
    fields = {"class": site.cls, "call": site.call, "path": site.path, "tensor": site.tensor, "nth": site.nth}
    return {"module": site.module, "slot": site.slot, **{key: value for key, value in fields.items() if value}}


def _link(link: Link) -> dict[str, Any]:
    body = _fields_of(link)
    return _full(body, ("path", "how", "value") if link.how == "value" else ("path", "how"))


def _full(body: dict[str, Any], always: tuple[str, ...]) -> dict[str, Any]:
    """Leave out what says nothing: None, empty text, empty lists, the usual phase."""
    return {
        key: value
        for key, value in body.items()
        if key in always or not (value in (None, "", (), []) or (key == "phase" and value == "forward"))
    }


def parse(where: str, text: bytes | str) -> dict[str, Any]:
    """Return a JSON object, or say that it is none."""
    try:
        found = json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise SourceError(where, "not valid JSON") from None
    if not isinstance(found, dict):
        raise SourceError(where, "not a JSON object")
    return found


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def from_line(where: str, line: bytes) -> Event:
    """Return the event of one line."""
    fields = Fields(where, parse(where, line))
    kind = fields.text("kind")
    if kind == "call":
        return _call(fields)
    if kind == "tensor":
        return _tensor(fields)
    if kind == "value":
        return ValueEvent(
            order=fields.whole("order"),
            site=_read_site(fields),
            type=fields.text("type"),
            value=fields.body.get("value"),
            note=fields.text("note", ""),
            phase=_phase(fields),
        )
    raise SourceError(where, f"an event of the unknown kind {kind!r}")


class Fields:
    """Take typed fields out of an object that nobody vouches for."""

    def __init__(self, where: str, body: dict[str, Any]) -> None:
        self.where = where
        self.body = body

    def trouble(self, name: str, wanted: str) -> SourceError:
        """Return the error that names the field."""
        return SourceError(self.where, f"{name!r} of an event is not {wanted}")

    def text(self, name: str, default: str | None = None) -> str:
        """Return a field that must be text."""
        value = self.body.get(name, default)
        if not isinstance(value, str) or len(value) > NAME_LIMIT:
            raise self.trouble(name, f"text of at most {NAME_LIMIT} characters")
        return value

    def whole(self, name: str, default: int | None = None) -> int:
        """Return a field that must be a whole number of zero or more."""
        value = self.body.get(name, default)
        if type(value) is not int or not 0 <= value < _BIGGEST:
            raise self.trouble(name, "a whole number of zero or more")
        return value

    def maybe(self, name: str) -> int | None:
        """Return a field that may be absent and must else be a whole number."""
        return None if self.body.get(name) is None else self.whole(name)

    def number(self, name: str) -> float:
        """Return a field that must be a number, or text for one that JSON lacks."""
        value = self.body.get(name)
        if isinstance(value, str) and value in _SPECIAL:
            return _SPECIAL[value]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.trouble(name, "a number")
        try:
            return float(value)
        except OverflowError:
            raise self.trouble(name, "a number") from None

    def wholes(self, name: str, limit: int) -> tuple[int, ...]:
        """Return a field that must be a list of whole numbers."""
        value = self.body.get(name, [])
        if not isinstance(value, list) or len(value) > limit:
            raise self.trouble(name, f"a list of at most {limit} whole numbers")
        if not all(type(each) is int and 0 <= each < _BIGGEST for each in value):
            raise self.trouble(name, "a list of whole numbers of zero or more")
        return tuple(value)

    def match(self, name: str, pattern: re.Pattern[str]) -> str | None:
        """Return a field that may be absent and must else have a form."""
        value = self.body.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not pattern.match(value):
            raise self.trouble(name, f"of the form {pattern.pattern!r}")
        return value


def _read_site(fields: Fields) -> Site:
    return Site(
        module=fields.text("module"),
        slot=_read_slot(fields),
        call=fields.whole("call", 0),
        path=fields.text("path", ""),
        tensor=fields.text("tensor", ""),
        cls=fields.text("class", ""),
        nth=fields.whole("nth", 0),
    )


def _read_slot(fields: Fields) -> Slot:
    try:
        return Slot(fields.text("slot"))
    except ValueError:
        raise fields.trouble("slot", "a slot of docs/recording-format.md") from None


def _phase(fields: Fields) -> Phase:
    phase = fields.text("phase", "forward")
    if phase not in ("forward", "backward", "recompute"):
        raise fields.trouble("phase", "forward, backward or recompute")
    return cast(Phase, phase)


def _tensor(fields: Fields) -> TensorEvent:
    keep = fields.text("keep")
    if keep not in KEEP_LEVELS:
        raise fields.trouble("keep", "one of " + ", ".join(KEEP_LEVELS))
    digest = fields.match("digest", DIGEST)
    if digest is None:
        raise fields.trouble("digest", "given")
    stats = fields.body.get("stats")
    if stats is not None and not isinstance(stats, dict):
        raise fields.trouble("stats", "an object")
    return TensorEvent(
        order=fields.whole("order"),
        site=_read_site(fields),
        shape=fields.wholes("shape", 64),
        dtype=fields.text("dtype"),
        keep=keep,
        digest=digest,
        stats=_stats(Fields(fields.where, stats)) if stats else None,
        shard=fields.match("shard", SHARD),
        key=fields.text("key") if "key" in fields.body else None,
        sketch=fields.text("sketch") if "sketch" in fields.body else None,
        sketch_digest=fields.match("sketch_digest", DIGEST),
        same=fields.maybe("same"),
        forward=fields.maybe("forward"),
        over=fields.maybe("over"),
        phase=_phase(fields),
    )


def _stats(fields: Fields) -> Stats:
    numbers = {name: fields.number(name) for name in ("mean", "std", "min", "max", "abs_max", "l2")}
    return Stats(count=fields.whole("count"), nonfinite=fields.whole("nonfinite"), **numbers)


def _call(fields: Fields) -> CallEvent:
    inputs = fields.body.get("inputs", [])
    if not isinstance(inputs, list) or not all(isinstance(each, dict) for each in inputs):
        raise fields.trouble("inputs", "a list of objects")
    return CallEvent(
        order=fields.whole("order"),
        entered=fields.whole("entered"),
        module=fields.text("module"),
        call=fields.whole("call", 0),
        cls=fields.text("class", ""),
        parent=fields.maybe("parent"),
        inputs=tuple(_read_link(Fields(fields.where, each)) for each in inputs),
        outputs=fields.wholes("outputs", 1 << 20),
        phase=_phase(fields),
    )


def _read_link(fields: Fields) -> Link:
    how = fields.text("how")
    if how not in LINKS:
        raise fields.trouble("how", "one of " + ", ".join(LINKS))
    return Link(
        path=fields.text("path"),
        how=how,
        event=fields.maybe("event"),
        value=fields.body.get("value"),
        type=fields.text("type", ""),
    )
