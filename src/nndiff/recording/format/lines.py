"""Events as lines of JSON, and back; every claim of a line is checked."""

from __future__ import annotations

import json
import math
import re
from typing import Any, cast

from nndiff.errors import SourceError
from nndiff.recording.format.events import LINKS, SLOTS, CallEvent, Content, Event, TensorEvent, ValueEvent
from nndiff.recording.format.layout import DIGEST, KEEP_LEVELS, NAME_LIMIT, SHARD_NAME
from nndiff.tensors import Link, Phase, Site, Slot, Stats

_SPECIAL_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_NUMBER_LIMIT = 1 << 62
_AXES_LIMIT = 64
_OUTPUTS_LIMIT = 1 << 20


def to_plain_json(value: Any) -> Any:
    """Return a value as plain JSON: NaN and infinities as text, tuples as lists, unknown objects as their text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, dict):
        return {str(key): to_plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain_json(item) for item in value]
    return str(value)


def dump_json(value: Any) -> str:
    """Return plain JSON text on one line."""
    try:
        return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError):  # rare: something that JSON lacks
        return json.dumps(to_plain_json(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def parse_json_object(where: str, text: bytes | str) -> dict[str, Any]:
    """Return the JSON object in a text; raise SourceError if it holds anything else, or a key twice."""

    def refuse_constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            raise ValueError("duplicate key")
        return members

    try:
        parsed = json.loads(text, parse_constant=refuse_constant, object_pairs_hook=refuse_duplicates)
    except (ValueError, RecursionError):
        raise SourceError(where, "not valid JSON") from None
    if not isinstance(parsed, dict):
        raise SourceError(where, "not a JSON object")
    return parsed


def event_to_line(event: Event) -> str:
    """Return an event as one line of JSON, without its empty fields."""
    body: dict[str, Any]
    if isinstance(event, CallEvent):
        body = {"kind": "call", "order": event.order, "entered": event.entered, "module": event.module}
        body["call"] = event.call
        _add_fields(body, {"class": event.cls, "parent": event.parent})
        _add_fields(body, {"inputs": [_link_to_json(link) for link in event.inputs], "outputs": event.outputs})
    elif isinstance(event, TensorEvent):
        body = {"kind": "tensor", **_site_to_json(event.site)}
        body |= {"order": event.order, "shape": event.shape, "dtype": event.dtype, "keep": event.keep}
        body["digest"] = event.digest
        if event.stats:
            body["stats"] = {name: getattr(event.stats, name) for name in event.stats.__slots__}
        _add_fields(body, {"shard": event.shard, "key": event.key, "sketch": event.sketch})
        _add_fields(body, {"sketch_digest": event.sketch_digest, "same": event.same})
        _add_fields(body, {"forward": event.forward, "over": event.over})
    else:
        body = {"kind": "value", **_site_to_json(event.site)}
        body |= {"order": event.order, "type": event.type, "value": event.value}
        _add_fields(body, {"note": event.note})
        if event.note or not event.is_plain:
            body["content"] = event.content
    if event.phase != "forward":
        body["phase"] = event.phase
    return dump_json(body) + "\n"


def _add_fields(body: dict[str, Any], fields: dict[str, Any]) -> None:
    """Add the fields that are not empty; zero is a number like any other."""
    for name, value in fields.items():
        if value not in (None, "", (), []):
            body[name] = value


def _site_to_json(site: Site) -> dict[str, Any]:
    body: dict[str, Any] = {"module": site.module, "slot": site.slot}
    fields = {"class": site.cls, "call": site.call, "path": site.path, "tensor": site.tensor, "nth": site.nth}
    for name, value in fields.items():
        if value:
            body[name] = value
    return body


def _link_to_json(link: Link) -> dict[str, Any]:
    body: dict[str, Any] = {"path": link.path, "how": link.how}
    _add_fields(body, {"event": link.event, "type": link.type})
    if link.how == "value" or link.value not in (None, "", (), []):
        body["value"] = link.value
    return body


def line_to_event(where: str, line: bytes) -> Event:
    """Return the event of one line."""
    fields = Fields(where, parse_json_object(where, line))
    kind = fields.get_text("kind")
    if kind == "call":
        return _read_call(fields)
    if kind == "tensor":
        return _read_tensor(fields)
    if kind == "value":
        return _read_value(fields)
    raise SourceError(where, f"an event of the unknown kind {kind!r}")


class Fields:
    """Take typed fields out of a JSON object that nobody vouches for."""

    def __init__(self, where: str, body: dict[str, Any]) -> None:
        self.where = where
        self.body = body

    def make_error(self, name: str, expected: str) -> SourceError:
        """Return the error that names the field."""
        return SourceError(self.where, f"{name!r} of an event is not {expected}")

    def get_text(self, name: str, default: str | None = None) -> str:
        """Return a field that must be text."""
        value = self.body.get(name, default)
        if not isinstance(value, str) or len(value) > NAME_LIMIT:
            raise self.make_error(name, f"text of at most {NAME_LIMIT} characters")
        return value

    def get_optional_text(self, name: str) -> str | None:
        """Return a field that must be text if it is there."""
        return self.get_text(name) if name in self.body else None

    def get_integer(self, name: str, default: int | None = None) -> int:
        """Return a field that must be a whole number of zero or more."""
        value = self.body.get(name, default)
        if type(value) is not int or not 0 <= value < _NUMBER_LIMIT:
            raise self.make_error(name, "a whole number of zero or more")
        return value

    def get_optional_integer(self, name: str) -> int | None:
        """Return a field that must be a whole number if it is there."""
        return None if self.body.get(name) is None else self.get_integer(name)

    def get_number(self, name: str) -> float:
        """Return a field that must be a number, or the text for one that JSON lacks."""
        value = self.body.get(name)
        if isinstance(value, str) and value in _SPECIAL_NUMBERS:
            return _SPECIAL_NUMBERS[value]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.make_error(name, "a number")
        try:
            return float(value)
        except OverflowError:
            raise self.make_error(name, "a number") from None

    def get_integers(self, name: str, limit: int) -> tuple[int, ...]:
        """Return a field that must be a list of whole numbers."""
        numbers = self.body.get(name, [])
        if not isinstance(numbers, list) or len(numbers) > limit:
            raise self.make_error(name, f"a list of at most {limit} whole numbers")
        for number in numbers:
            if type(number) is not int or not 0 <= number < _NUMBER_LIMIT:
                raise self.make_error(name, "a list of whole numbers of zero or more")
        return tuple(numbers)

    def get_match(self, name: str, pattern: re.Pattern[str]) -> str | None:
        """Return a field that must match a pattern if it is there."""
        value = self.body.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not pattern.match(value):
            raise self.make_error(name, f"of the form {pattern.pattern!r}")
        return value


def _read_site(fields: Fields) -> Site:
    slot = fields.get_text("slot")
    if slot not in SLOTS:
        raise fields.make_error("slot", "a slot of docs/recording-format.md")
    return Site(
        module=fields.get_text("module"),
        slot=Slot(slot),
        call=fields.get_integer("call", 0),
        path=fields.get_text("path", ""),
        tensor=fields.get_text("tensor", ""),
        cls=fields.get_text("class", ""),
        nth=fields.get_integer("nth", 0),
    )


def _read_phase(fields: Fields) -> Phase:
    phase = fields.get_text("phase", "forward")
    if phase not in ("forward", "backward", "recompute"):
        raise fields.make_error("phase", "forward, backward or recompute")
    return cast(Phase, phase)


def _read_tensor(fields: Fields) -> TensorEvent:
    keep = fields.get_text("keep")
    if keep not in KEEP_LEVELS:
        raise fields.make_error("keep", "one of " + ", ".join(KEEP_LEVELS))
    digest = fields.get_match("digest", DIGEST)
    if digest is None:
        raise fields.make_error("digest", "given")
    return TensorEvent(
        order=fields.get_integer("order"),
        site=_read_site(fields),
        shape=fields.get_integers("shape", _AXES_LIMIT),
        dtype=fields.get_text("dtype"),
        keep=keep,
        digest=digest,
        stats=_read_stats(fields),
        shard=fields.get_match("shard", SHARD_NAME),
        key=fields.get_optional_text("key"),
        sketch=fields.get_optional_text("sketch"),
        sketch_digest=fields.get_match("sketch_digest", DIGEST),
        same=fields.get_optional_integer("same"),
        forward=fields.get_optional_integer("forward"),
        over=fields.get_optional_integer("over"),
        phase=_read_phase(fields),
    )


def _read_stats(fields: Fields) -> Stats | None:
    body = fields.body.get("stats")
    if body is not None and not isinstance(body, dict):
        raise fields.make_error("stats", "an object")
    if not body:
        return None
    inner = Fields(fields.where, body)
    return Stats(
        count=inner.get_integer("count"),
        nonfinite=inner.get_integer("nonfinite"),
        mean=inner.get_number("mean"),
        std=inner.get_number("std"),
        min=inner.get_number("min"),
        max=inner.get_number("max"),
        abs_max=inner.get_number("abs_max"),
        l2=inner.get_number("l2"),
    )


def _read_value(fields: Fields) -> ValueEvent:
    note = fields.get_text("note", "")
    content = fields.get_text("content", (Content.UNREAD if note else Content.PLAIN).value)
    try:
        known_content = Content(content)
    except ValueError:
        raise fields.make_error("content", "one of " + ", ".join(Content)) from None
    return ValueEvent(
        order=fields.get_integer("order"),
        site=_read_site(fields),
        type=fields.get_text("type"),
        value=fields.body.get("value"),
        note=note,
        content=known_content,
        phase=_read_phase(fields),
    )


def _read_call(fields: Fields) -> CallEvent:
    inputs = fields.body.get("inputs", [])
    if not isinstance(inputs, list) or not all(isinstance(body, dict) for body in inputs):
        raise fields.make_error("inputs", "a list of objects")
    links = []
    for body in inputs:
        link = Fields(fields.where, body)
        how = link.get_text("how")
        if how not in LINKS:
            raise link.make_error("how", "one of " + ", ".join(LINKS))
        path, event, kind = link.get_text("path"), link.get_optional_integer("event"), link.get_text("type", "")
        links.append(Link(path, how, event, body.get("value"), kind))
    return CallEvent(
        order=fields.get_integer("order"),
        entered=fields.get_integer("entered"),
        module=fields.get_text("module"),
        call=fields.get_integer("call", 0),
        cls=fields.get_text("class", ""),
        parent=fields.get_optional_integer("parent"),
        inputs=tuple(links),
        outputs=fields.get_integers("outputs", _OUTPUTS_LIMIT),
        phase=_read_phase(fields),
    )
