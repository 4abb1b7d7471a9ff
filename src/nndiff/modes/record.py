"""Record the reference and its modes: each once, with a fresh model, on the same samples."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nndiff.errors import ModelError, NndiffError, SourceError, UsageError
from nndiff.models.user_code import user_code
from nndiff.modes.capture import run_samples
from nndiff.modes.definition import Definition
from nndiff.modes.layers import LayerChoice, choose_layers
from nndiff.modes.layouts import (
    Layout,
    NpySink,
    OutputSink,
    RecordingSink,
    get_recording_path,
    remove_mode,
    write_stats,
)
from nndiff.recording.environment.randomness import preserve_randomness
from nndiff.sources.mode_files import find_mode_files, read_stats

Progress = Callable[[str, int, int], None]  # mode, samples done, samples in all


@dataclass(frozen=True)
class RecordSettings:
    """Say how modes are recorded; those in one folder must have been recorded alike."""

    layers: str
    layout: Layout
    seq_len: int | None = None

    def describe(self, definition: Definition, samples: Sequence[Any]) -> dict[str, Any]:
        """Return what must be the same for all modes of a folder."""
        return {
            "model": os.path.basename(definition.label),
            "layers": self.layers,
            "layout": self.layout.value,
            "samples": len(samples),
            "seq_len": self.seq_len,
            "seed": definition.seed,
            "inputs": _digest_samples(samples),
        }


@dataclass(frozen=True)
class RecordedModes:
    """Say what became of the modes that were asked for."""

    ran: tuple[str, ...]
    kept: tuple[str, ...]  # finished by an earlier run
    failed: Mapping[str, str]  # mode -> why


def record_modes(
    definition: Definition,
    reference: str,
    modes: Sequence[str],
    folder: str,
    settings: RecordSettings,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    report: Callable[[str, str], None] | None = None,
) -> RecordedModes:
    """Record the reference and its modes in a folder; a mode that fails is told and the others go on.

    `report` is called with a mode and what became of it. A reference that fails is an error: there is nothing to
    compare with.
    """
    report = report or (lambda mode, what: None)
    os.makedirs(folder, exist_ok=True)
    ran, kept, failed = [], [], {}
    with preserve_randomness():
        samples = definition.make_samples()
        described = settings.describe(definition, samples)
        waiting = []
        for mode in (reference, *modes):
            if not overwrite and _is_finished(folder, mode, described):
                kept.append(mode)
                report(mode, "recorded already")
            else:
                waiting.append(mode)
        if not waiting:
            return RecordedModes((), tuple(kept), {})
        labels = definition.make_labels() if definition.make_labels else None
        if labels is not None and len(labels) != len(samples):
            raise UsageError(f"labels() returned {len(labels)} entries for {len(samples)} samples")
        choice = choose_layers(definition.build_mode(definition.untouched, samples), settings.layers)
        for mode in waiting:
            try:
                _record_mode(definition, mode, samples, labels, choice, folder, settings, described, progress)
                ran.append(mode)
                report(mode, "recorded")
            except NndiffError as error:
                if mode == reference or isinstance(error, SourceError):  # a full disk is no fault of the mode
                    raise
                failed[mode] = str(error)
                remove_mode(folder, mode)
                write_stats(folder, mode, {"failed": str(error), "settings": described})
                report(mode, f"failed: {error}")
    return RecordedModes(tuple(ran), tuple(kept), failed)


def _record_mode(
    definition: Definition,
    mode: str,
    samples: Sequence[Any],
    labels: Sequence[Any] | None,
    choice: LayerChoice,
    folder: str,
    settings: RecordSettings,
    described: Mapping[str, Any],
    progress: Progress | None,
) -> None:
    """Run one mode and write its outputs, then its statistics: these say that it is finished."""
    model = definition.build_mode(mode, samples)
    sink = _open_sink(folder, mode, choice, settings.layout, definition)
    try:
        with user_code(f"running mode {mode!r}", type(model).forward):
            facts = run_samples(
                model,
                samples,
                choice.names,
                sink,
                seed=definition.seed,
                labels=labels,
                has_logits=definition.has_logits,
                progress=None if progress is None else lambda done, total: progress(mode, done, total),
            )
        if facts.label_trouble and mode == definition.untouched:
            raise ModelError(f"labels() of {definition.label}: {facts.label_trouble}")
        sink.finish()
    except BaseException:
        sink.discard()
        raise
    names = _find_main_names(sink)
    stats = {
        "settings": described,
        "layout": settings.layout.value,
        "first": names.get(choice.first),
        "last": names.get(choice.last),
        "output": names.get(""),
        "logits": facts.is_logits,
        "perplexity": facts.perplexity,
        "layers": {name: pooled.to_dict() for name, pooled in sink.stats.items()},
    }
    write_stats(folder, mode, stats)


def _find_main_names(sink: OutputSink) -> dict[str, str]:
    """Return the name of the main output of every module."""
    names: dict[str, str] = {}
    for name, pooled in sink.stats.items():  # the main output of a call comes first
        names.setdefault(pooled.module, name)
    return names


def _open_sink(folder: str, mode: str, choice: LayerChoice, layout: Layout, definition: Definition) -> OutputSink:
    if layout is Layout.RECORDING:
        return RecordingSink(folder, mode, {"label": f"{os.path.basename(definition.label)}@{mode}", "mode": "eval"})
    return NpySink(folder, mode, dict(zip(choice.names, choice.numbers, strict=True)), choice.blocks)


def _is_finished(folder: str, mode: str, described: Mapping[str, Any]) -> bool:
    """Return True if a mode was recorded in the same way; raise if it was recorded in another."""
    files = find_mode_files(folder).get(mode)
    if files is None or not files.stats:
        return False
    stats = read_stats(files)
    if stats.get("failed"):
        return False
    if not files.arrays and not os.path.isdir(get_recording_path(folder, mode)):
        return False
    recorded = stats.get("settings")
    if not isinstance(recorded, dict):  # another program's
        return True
    for name, value in described.items():
        if recorded.get(name) != value:
            what = "other samples" if name == "inputs" else f"{name.replace('_', '-')} {recorded.get(name)}"
            raise UsageError(
                f"{folder}: mode {mode!r} was recorded with {what}, not {'these' if name == 'inputs' else value}: "
                "give --overwrite to record it again, or another -o DIR"
            )
    return True


def _digest_samples(samples: Sequence[Any]) -> str:
    """Return a digest of all tensors of the samples."""
    from nndiff.recording.capture.tensors import is_tensor, raw_tensor
    from nndiff.recording.format.digests import measure_tensor
    from nndiff.recording.format.values import flatten

    digest = hashlib.sha256()
    for sample in samples:
        for path, leaf in flatten(sample, is_tensor):
            value = measure_tensor(raw_tensor(leaf), False).digest if is_tensor(leaf) else repr(leaf)[:200]
            digest.update(f"{path}={value}\n".encode())
    return digest.hexdigest()[:16]
