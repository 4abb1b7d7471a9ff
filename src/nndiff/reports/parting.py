"""Where two recordings part first, in words: every report says it the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nndiff.lost import SIDES
from nndiff.reports import wording
from nndiff.result import Comparison
from nndiff.text import first_few, printable


@dataclass(frozen=True)
class Parting:
    """Hold what is to be said about the first divergence, ready to print."""

    name: str
    facts: tuple[tuple[str, str], ...]  # label and text: what, why, look in, source, weights, settings, between

    def fact(self, label: str) -> str:
        """Return one of the texts, empty where there is none."""
        return dict(self.facts).get(label, "")


def partings(comparison: Comparison) -> tuple[Parting, ...]:
    """Return where each candidate parts first, in their order."""
    many = len(comparison.candidates) > 1
    found = [(side.label, comparison.first_divergences.get(side.label)) for side in comparison.candidates]
    return tuple(_parting(first, label if many else "") for label, first in found if first is not None)


def _parting(found: Mapping[str, Any], against: str) -> Parting:
    """Return what is said of one; the data may come from a file, so every part of it may be missing."""
    facts = [
        ("what", _what(found, against)),
        ("why", _text(found.get("why"))),
        ("look in", _look_in(found)),
        ("source", _both(found.get("source"))),
        ("weights", _weights(found.get("weights"))),
        ("settings", _settings(found.get("attributes"))),
        ("between", _between(found)),
    ]
    name = wording.name(_text(found.get("name"))) if found.get("name") else "?"
    return Parting(name, tuple((label, text) for label, text in facts if text))


def _text(value: Any) -> str:
    return printable(value) if isinstance(value, str) else ""


def _plain(value: Any) -> str:
    return wording.short(value) if isinstance(value, float) else printable(str(value))


def _what(found: Mapping[str, Any], against: str) -> str:
    size, name, other = found.get("max_abs"), found.get("name"), found.get("candidate_name")
    parts = [
        _both(found.get("class")),
        f"max abs {wording.number(float(size))}" if isinstance(size, (int, float)) else _text(found.get("verdict")),
        f"inputs {_text(found.get('inputs'))}" if found.get("inputs") and not found.get("why") else "",
        f"in the candidate {_text(other)}" if other != name else "",
        f"against {_text(against)}" if against else "",
    ]
    return ", ".join(part for part in parts if part and not part.endswith(" "))


def _both(value: Any) -> str:
    """Return a text known of both sides: once where they agree, with an arrow where not."""
    if not (isinstance(value, (list, tuple)) and len(value) == 2):
        return ""
    here, there = map(_text, value)
    return wording.both(here, there) if here and there else here or there


def _look_in(found: Mapping[str, Any]) -> str:
    """Return the module that made a gradient; its class stands beside it, as that of the name stands there."""
    kind = _both(found.get("module_class"))
    return f"{wording.name(_text(found.get('module')))}  {kind}" if kind else ""


def _weights(held: Any) -> str:
    """Say whether the module holds the same on both sides: if so, look at what it does with it."""
    if not isinstance(held, Mapping):
        return ""
    common, differing, alone = (held.get(key) for key in ("common", "differing", "alone"))
    names = [_names(differing), *(map(_names, alone) if isinstance(alone, (list, tuple)) else ())]
    told = [f"only in the {side}: {first_few(each)}" for side, each in zip(SIDES, names[1:], strict=False) if each]
    if names[0]:
        told.insert(0, f"{len(names[0]):,} of {_plain(common)} not the same: {first_few(names[0])}")
    return "; ".join(told) or "the same on both sides: look at what is done with them"


def _names(value: Any) -> list[str]:
    return [_text(name) for name in value] if isinstance(value, (list, tuple)) else []


def _settings(changes: Any) -> str:
    if not isinstance(changes, Mapping):
        return ""
    pairs = [(name, both) for name, both in changes.items() if isinstance(both, (list, tuple)) and len(both) == 2]
    return ", ".join(f"{printable(str(name))} {_plain(one)} → {_plain(other)}" for name, (one, other) in pairs)


def _between(found: Mapping[str, Any]) -> str:
    """Say at which of the calls inside a composite module the difference comes in."""
    after, before = _text(found.get("after")), _text(found.get("before"))
    if after and before:
        return f"after {after}, which agrees, and before {before}, which does not"
    if after:
        return f"after {after}, the last call inside it: all of them agree"
    first = "" if ":input" in before else ", the first call inside it"  # what a call was given is none
    return f"before {before}{first}, which does not agree" if before else ""
