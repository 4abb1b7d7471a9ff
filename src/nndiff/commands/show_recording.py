"""What a person wants to know of a recording: which model ran how, what was heard, and whether that is all."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from nndiff.recording import Recording
from nndiff.recording.format.events import SLOTS
from nndiff.reports.figures import format_size
from nndiff.text import counted, plural, printable

_LOSSES = {
    "given": "the loss function that was given",
    "model": "the model's own",
    "projection": "the output projected on fixed random numbers",
}
# what is told in words, and what would fill the screen
_TOLD = frozenset(
    (
        *("label", "producer", "seed", "backward", "mode", "dropout", "dropout_active", "selection", "inputs_kept"),
        *("params", "model", "flags", "environment", "modules", "shared", "warnings", "inputs", "draws", "loss"),
        *("loss_origin", "checkpoint", "never_called", "without_gradient", "changed_parameters", "self_agreement"),
        "held",
    )
)


def summary(recording: Recording) -> Iterator[str]:
    """Yield the lines that describe a recording; those about what it lacks or warns of come last."""
    state = "complete" if recording.complete else "damaged" if recording.damaged else "incomplete"
    yield f"{printable(recording.path)}: recording, {state}, {plural(len(recording.tensors), 'tensor')}"
    for title, text in _facts(recording):
        if text:
            yield f"  {title:<9} {printable(text, 1000)}"
    for key, value in recording.meta.items():
        if key not in _TOLD:
            yield f"  {printable(str(key), 30)}: {printable(str(value), 200)}"
    yield from (f"  note: {printable(note, 1000)}" for note in recording.notes)
    yield from (f"  warning: {printable(warning, 1000)}" for warning in recording.warnings)


def _facts(recording: Recording) -> Iterator[tuple[str, str]]:
    meta = recording.meta
    yield "model", _model(meta)
    yield "weights", str(meta.get("checkpoint", ""))
    yield "run", _run(meta)
    yield "loss", _loss(recording)
    yield "modules", _modules(recording)
    yield "tensors", by_slot(recording)
    yield "kept", _kept(recording)
    yield "versions", ", ".join(f"{name} {version}" for name, version in _part(meta, "environment", "versions").items())
    yield "agrees", _agreement(_part(meta, "self_agreement"))


def _part(meta: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """Return an object inside the metadata, or an empty one: nobody vouches for what a recording says of itself."""
    for key in keys:
        found = meta.get(key)
        meta = found if isinstance(found, dict) else {}
    return meta


def _model(meta: Mapping[str, Any]) -> str:
    about = _part(meta, "model")
    parameters = about.get("parameters")
    parts = [
        str(meta.get("label", "")),
        str(about.get("class", "")),
        plural(parameters, "parameter") if type(parameters) is int else "",
        " and ".join(_part(about, "dtypes")),
        " and ".join(_part(about, "devices")),
    ]
    return ", ".join(dict.fromkeys(part for part in parts if part))


def _run(meta: Mapping[str, Any]) -> str:
    parts = {
        "backward": "forward and backward" if meta.get("backward") is True else "forward",
        "mode": f"{meta.get('mode')} mode",
        "dropout": "dropout off" if meta.get("dropout") == "off" else "",
        "seed": f"seed {meta.get('seed')}",
    }
    chosen = {key: value for key, value in _part(meta, "selection").items() if value not in (None, False, [])}
    said = [text for key, text in parts.items() if key in meta and text]
    return ", ".join([*said, *(f"{key} {_plain(value)}" for key, value in chosen.items())])


def _plain(value: object) -> str:
    return " ".join(str(each) for each in value) if isinstance(value, list) else str(value)


def _loss(recording: Recording) -> str:
    """Return the loss as it was, and where it came from."""
    found = next((event for event in recording.tensors if event.site.slot == "loss"), None)
    if found is None:
        return ""
    value = f"{found.stats.mean:.8g}" if found.stats and not found.stats.nonfinite else "not finite"
    said = recording.meta.get("loss_origin")
    origin = said if isinstance(said, str) else _LOSSES.get(str(recording.meta.get("loss")), "")
    return (value if found.stats else "") + (f" ({origin})" if origin else "")


def _modules(recording: Recording) -> str:
    tree, called = recording.meta.get("modules"), {call.module for call in recording.calls}
    parts = [f"{len(tree):,} in the model"] if isinstance(tree, list) and tree else []
    if called:
        parts.append(f"{len(called):,} heard in {plural(len(recording.calls), 'call')}")
    never = recording.meta.get("never_called")
    if isinstance(never, list) and never:
        parts.append(f"never called: {counted([str(name) for name in never], 'module')}")
    return ", ".join(parts)


def by_slot(recording: Recording) -> str:
    """Return how many tensors there are of each slot, in the order of the documentation."""
    found = Counter(event.site.slot for event in recording.tensors)
    known = [slot for slot in SLOTS if slot in found]
    return ", ".join(f"{slot} {found[slot]:,}" for slot in (*known, *sorted(found.keys() - SLOTS.keys())))


def _kept(recording: Recording) -> str:
    levels = Counter(event.keep for event in recording.tensors)
    disk = sum(entry.stat().st_size for entry in os.scandir(recording.path) if entry.is_file())
    return ", ".join([*(f"{level} {number:,}" for level, number in levels.items()), f"{format_size(disk)} on disk"])


def _agreement(meta: Mapping[str, Any]) -> str:
    runs, apart = meta.get("runs"), meta.get("disagreeing")
    if type(runs) is not int or type(apart) is not int:
        return ""
    return f"{runs} runs with one seed " + (f"differ at {plural(apart, 'site')}" if apart else "are the same")
