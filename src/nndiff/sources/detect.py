"""From a path or an object to an open source: by content first, by name only where content is silent."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from nndiff.errors import SourceError
from nndiff.files import RegularFile, Window
from nndiff.sources import safetensors_file
from nndiff.sources.source import Source, below

# Files people try that nndiff knows and cannot read, with the way out.
_KNOWN_STRANGERS = {
    b"GGUF": "a GGUF file, which nndiff does not read; compare the safetensors files it was made from",
    b"\x89HDF": "an HDF5 file, which nndiff does not read; save the arrays with numpy.savez",
    b"\x08\x07\x12": "an ONNX file, which nndiff does not read; save the weights with numpy.savez",
}


def open_source(value: Any, label: str = "") -> Source:
    """Open anything that holds named tensors: a path (`FILE::key` chooses a part), a mapping, a module."""
    if isinstance(value, Source):
        return value
    if callable(getattr(value, "source", None)):  # a Recording
        return _of_recording(value)
    if not isinstance(value, (str, os.PathLike)):
        from nndiff.sources.memory import open_memory

        return open_memory(value, label)
    path, part = _split(os.fspath(value))
    try:
        return _open_path(path, part)
    except RecursionError:
        raise SourceError(path, "is nested too deep to be read") from None
    except MemoryError:
        raise SourceError(path, "claims more memory than there is") from None


def _split(text: str) -> tuple[str, str]:
    """Return path and part of `FILE::key`; a file of that very name comes first."""
    path, found, part = text.rpartition("::")
    if not found or os.path.lexists(text):
        return text, ""
    return path, part


def _open_path(path: str, part: str) -> Source:
    if os.path.isdir(path):
        return _open_folder(path, part)
    if part and not os.path.lexists(path):
        raise SourceError(path, "no such file or directory")
    return _open_file(path, part)


def _open_folder(path: str, part: str) -> Source:
    from nndiff.recording.format.folder import is_recording
    from nndiff.recording.format.layout import EVENTS
    from nndiff.sources import distributed, folder, saved_outputs

    if is_recording(Path(path)) or os.path.lexists(os.path.join(path, EVENTS)):  # damaged it is still no other folder
        from nndiff.recording.reader import open_recording

        if part:
            raise SourceError(f"{path}::{part}", f"a recording has no parts: choose with --include '{part}*'")
        return _of_recording(open_recording(path))
    if saved_outputs.is_saved_outputs(path):
        return saved_outputs.open_saved_outputs(path)
    if distributed.is_distributed(path):
        return distributed.open_distributed(path, part)
    return below(folder.open_folder(path, _open_plain), part)


def _of_recording(recording: Any) -> Source:
    """Return the tensors of a recording; one that was cut off says so in its meta, for whoever judges it."""
    opened: Source = recording.source()
    if recording.complete and not recording.notes:  # notes are about what is missing
        return opened
    return replace(opened, meta={**opened.meta, "complete": False})


def _open_plain(path: str) -> Source:
    return _open_file(path, "")


def _open_file(path: str, part: str) -> Source:
    window = Window(RegularFile(path))
    head = window.head(512)
    if b'"nndiff.recording"' in head:
        raise SourceError(path, "the manifest of a recording: give the folder it is in")
    if safetensors_file.looks_like(head, window.size):
        return below(safetensors_file.open_safetensors(path), part)
    if head[:2] == b"PK":
        return _open_zip(path, window, part)
    if head[:6] == b"\x93NUMPY":
        from nndiff.sources.arrays import open_npy

        return below(open_npy(path), part)
    if head[:2] == b"\x1f\x8b" or head[257:262] == b"ustar":
        from nndiff.sources.nemo import open_nemo

        return open_nemo(path, part)
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        from nndiff.sources.torch_file import open_pickle

        return open_pickle(path, part)
    return _open_by_name(path, window, head, part)


def _open_by_name(path: str, window: Window, head: bytes, part: str) -> Source:
    from nndiff.sources import folder

    if folder.looks_like_index(head):
        return below(folder.open_index(path, _open_plain), part)
    if path.endswith(".safetensors"):
        return below(safetensors_file.open_safetensors(path), part)
    for magic, what in _KNOWN_STRANGERS.items():
        if head.startswith(magic):
            raise SourceError(path, what)
    if path.endswith((".pkl", ".pickle", ".pt", ".pth", ".ckpt")) and window.size and not _is_text(head):
        from nndiff.sources.torch_file import open_pickle

        return open_pickle(path, part)
    raise SourceError(path, "empty" if window.size == 0 else "not a file of tensors that nndiff knows")


def _is_text(head: bytes) -> bool:
    """Tell whether a file begins as prose does; pickles of the oldest protocol are text too, but no words."""
    words = head.split(None, 3)
    return len(words) > 3 and all(word.isascii() and word.strip(b".,:;!?()'\"").isalpha() for word in words[:3])


def _open_zip(path: str, window: Window, part: str) -> Source:
    from nndiff.sources.archives import Zip

    archive = Zip(window)
    if any(name == "data.pkl" or name.endswith("/data.pkl") for name in archive.names):
        from nndiff.sources.torch_file import open_torch_zip

        return open_torch_zip(path, archive, part)
    if any(name.endswith(".npy") for name in archive.names):
        from nndiff.sources.arrays import open_npz

        return below(open_npz(path, archive), part)
    from nndiff.recording.format.folder import refuse_packed

    refuse_packed(path, archive.names)
    held = ", ".join(repr(name) for name in archive.names[:5]) or "nothing"
    raise SourceError(path, f"a zip archive without tensors; it holds {held}")
