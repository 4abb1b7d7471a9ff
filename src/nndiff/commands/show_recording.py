"""What nndiff show says about a recording: which model ran how, what was recorded, and whether that is all."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from nndiff.recording import Recording
from nndiff.recording.format.events import SLOTS
from nndiff.reports.figures import format_size
from nndiff.tensors import Slot
from nndiff.text import counted, plural, printable

_LOSS_ORIGINS = {
    "given": "the given loss function",
    "model": "the model's own",
    "projection": "the output projected on fixed random numbers",
}
# shown in words of their own, or too long to show
_NOT_LISTED = frozenset(
    (
        *("label", "producer", "seed", "backward", "mode", "dropout", "dropout_active", "selection", "inputs_kept"),
        *("params", "model", "flags", "environment", "modules", "shared", "warnings", "inputs", "draws", "loss"),
        *("loss_origin", "checkpoint", "never_called", "without_gradient", "changed_parameters", "self_agreement"),
        "held",
    )
)


def summarize_recording(recording: Recording) -> list[str]:
    """Return the lines that describe a recording; notes and warnings come last."""
    state = "incomplete"
    if recording.complete:
        state = "complete"
    elif recording.damaged:
        state = "damaged"
    lines = [f"{printable(recording.path)}: recording, {state}, {plural(len(recording.tensors), 'tensor')}"]
    versions = _get_object(recording.meta, "environment", "versions")
    facts = {
        "model": _describe_model(recording.meta),
        "weights": str(recording.meta.get("checkpoint", "")),
        "run": _describe_run(recording.meta),
        "loss": _describe_loss(recording),
        "modules": _describe_modules(recording),
        "tensors": count_slots(recording),
        "kept": _describe_size(recording),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "repeated": _describe_agreement(_get_object(recording.meta, "self_agreement")),
    }
    for title, text in facts.items():
        if text:
            lines.append(f"  {title:<9} {printable(text, 1000)}")
    for key, value in recording.meta.items():
        if key not in _NOT_LISTED:
            lines.append(f"  {printable(str(key), 30)}: {printable(str(value), 200)}")
    lines += [f"  note: {printable(note, 1000)}" for note in recording.notes]
    lines += [f"  warning: {printable(warning, 1000)}" for warning in recording.warnings]
    return lines


def _get_object(meta: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """Return an object inside the metadata, or an empty one: a recording may hold anything."""
    for key in keys:
        value = meta.get(key)
        meta = value if isinstance(value, dict) else {}
    return meta


def _describe_model(meta: Mapping[str, Any]) -> str:
    model = _get_object(meta, "model")
    label, class_name, parameters = str(meta.get("label", "")), str(model.get("class", "")), model.get("parameters")
    words = [label] if label else []
    if class_name and class_name != label:
        words.append(class_name)
    if type(parameters) is int:
        words.append(plural(parameters, "parameter"))
    for key in ("dtypes", "devices"):
        names = _get_object(model, key)
        if names:
            words.append(" and ".join(names))
    return ", ".join(words)


def _describe_run(meta: Mapping[str, Any]) -> str:
    words = []
    if "backward" in meta:
        words.append("forward and backward" if meta["backward"] is True else "forward")
    if "mode" in meta:
        words.append(f"{meta['mode']} mode")
    if meta.get("dropout") == "off":
        words.append("dropout off")
    if "seed" in meta:
        words.append(f"seed {meta['seed']}")
    for key, value in _get_object(meta, "selection").items():
        if value in (None, False, []):
            continue
        text = " ".join(str(pattern) for pattern in value) if isinstance(value, list) else str(value)
        words.append(f"{key} {text}")
    return ", ".join(words)


def _describe_loss(recording: Recording) -> str:
    """Return the value of the loss, and where it comes from."""
    loss = next((event for event in recording.tensors if event.site.slot is Slot.LOSS), None)
    if loss is None:
        return ""
    text = ""
    if loss.stats:
        text = "not finite" if loss.stats.nonfinite else f"{loss.stats.mean:.8g}"
    origin = recording.meta.get("loss_origin")
    if not isinstance(origin, str):
        origin = _LOSS_ORIGINS.get(str(recording.meta.get("loss")), "")
    return f"{text} ({origin})" if origin else text


def _describe_modules(recording: Recording) -> str:
    modules, never_called = recording.meta.get("modules"), recording.meta.get("never_called")
    called = {call.module for call in recording.calls}
    words = []
    if isinstance(modules, list) and modules:
        words.append(plural(len(modules), "module"))
    if called:
        words.append(f"{len(called):,} called ({plural(len(recording.calls), 'call')})")
    if isinstance(never_called, list) and never_called:
        words.append(f"never called: {counted([str(name) for name in never_called], 'module')}")
    return ", ".join(words)


def count_slots(recording: Recording) -> str:
    """Return how many tensors there are of each slot, in the order of the documentation."""
    counts = Counter(event.site.slot for event in recording.tensors)
    return ", ".join(f"{slot.value} {counts[slot]:,}" for slot in SLOTS if slot in counts)


def _describe_size(recording: Recording) -> str:
    levels = Counter(event.keep for event in recording.tensors)
    words = [f"{level} {count:,}" for level, count in levels.items()]
    bytes_on_disk = sum(entry.stat().st_size for entry in os.scandir(recording.path) if entry.is_file())
    return ", ".join([*words, f"{format_size(bytes_on_disk)} on disk"])


def _describe_agreement(agreement: Mapping[str, Any]) -> str:
    """Return whether the model gave the same results each time it was run."""
    runs, disagreeing = agreement.get("runs"), agreement.get("disagreeing")
    if type(runs) is not int or type(disagreeing) is not int:
        return ""
    result = f"differ at {plural(disagreeing, 'site')}" if disagreeing else "are equal"
    return f"{runs} runs with the same seed {result}"
