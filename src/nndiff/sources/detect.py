"""From a path or an object to an open source: by content first, by file name only where content does not tell."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from nndiff.errors import SourceError
from nndiff.files import RegularFile, Window
from nndiff.sources.safetensors_file import looks_like_safetensors, open_safetensors
from nndiff.sources.source import Source, select_part

# Formats that people try and nndiff cannot read, with the way out.
_UNREADABLE_FORMATS = {
    b"GGUF": "a GGUF file, which nndiff does not read; compare the safetensors files it was made from",
    b"\x89HDF": "an HDF5 file, which nndiff does not read; save the arrays with numpy.savez",
    b"\x08\x07\x12": "an ONNX file, which nndiff does not read; save the weights with numpy.savez",
}
_PICKLE_SUFFIXES = (".pkl", ".pickle", ".pt", ".pth", ".ckpt")


def open_source(value: Any, label: str = "") -> Source:
    """Open anything that holds named tensors: a path or pattern (`FILE::key` chooses a part), a mapping, a module."""
    if isinstance(value, Source):
        return value
    if callable(getattr(value, "source", None)):  # a Recording
        return _open_recorded(value)
    if not isinstance(value, (str, os.PathLike)):
        from nndiff.sources.memory import open_memory

        return open_memory(value, label)
    path, part_key = _split_part(os.fspath(value))
    try:
        if not os.path.lexists(path):  # `DIR/mode_X` stands for the files mode_X_layer_N.npy
            from nndiff.sources.mode_files import is_mode_prefix, open_mode_prefix

            if is_mode_prefix(path):
                return select_part(open_mode_prefix(path), part_key)
            from nndiff.sources.shards import is_pattern, open_pattern

            if is_pattern(path):
                return open_pattern(path, part_key, _open_file)
        return _open_folder(path, part_key) if os.path.isdir(path) else _open_file(path, part_key)
    except RecursionError:
        raise SourceError(path, "is nested too deep to be read") from None
    except MemoryError:
        raise SourceError(path, "claims more memory than there is") from None


def _split_part(text: str) -> tuple[str, str]:
    """Return path and part of `FILE::key`; a file of exactly that name comes first."""
    path, separator, part_key = text.rpartition("::")
    if not separator or os.path.lexists(text):
        return text, ""
    return path, part_key


def _open_folder(path: str, part_key: str) -> Source:
    from nndiff.recording.format.folder import is_recording
    from nndiff.recording.format.layout import EVENTS
    from nndiff.sources import distributed, folder, saved_outputs

    # a folder with events is a recording even if its manifest is damaged
    if is_recording(Path(path)) or os.path.lexists(os.path.join(path, EVENTS)):
        from nndiff.recording.reader import open_recording

        if part_key:
            raise SourceError(
                f"{path}::{part_key}", f"a recording has no parts; choose tensors with --include '{part_key}*'"
            )
        return _open_recorded(open_recording(path))
    if saved_outputs.is_saved_outputs(path):
        return saved_outputs.open_saved_outputs(path)
    if distributed.is_distributed(path):
        return distributed.open_distributed(path, part_key)
    return select_part(folder.open_folder(path, _open_file), part_key)


def _open_recorded(recording: Any) -> Source:
    """Return the tensors of a recording; metadata marks one that was cut off, for the judgement."""
    source: Source = recording.source()
    if recording.complete and not recording.notes:  # notes are about what is missing
        return source
    return replace(source, meta={**source.meta, "complete": False})


def _open_file(path: str, part_key: str = "") -> Source:
    window = Window(RegularFile(path))
    head = window.head(512)
    if b'"nndiff.recording"' in head:
        raise SourceError(path, "is the manifest of a recording; give the folder it is in")
    if looks_like_safetensors(head, window.size):
        return select_part(open_safetensors(path), part_key)
    if head[:2] == b"PK":
        return _open_zip(path, window, part_key)
    if head[:6] == b"\x93NUMPY":
        from nndiff.sources.arrays import open_npy

        return select_part(open_npy(path), part_key)
    if head[:2] == b"\x1f\x8b" or head[257:262] == b"ustar":
        from nndiff.sources.nemo import open_nemo

        return open_nemo(path, part_key)
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        from nndiff.sources.torch_file import open_pickle

        return open_pickle(path, part_key)
    return _open_by_file_name(path, window, head, part_key)


def _open_zip(path: str, window: Window, part_key: str) -> Source:
    from nndiff.sources.archives import Zip

    archive = Zip(window)
    if any(name == "data.pkl" or name.endswith("/data.pkl") for name in archive.names):
        from nndiff.sources.torch_file import open_torch_zip

        return open_torch_zip(path, archive, part_key)
    if any(name.endswith(".npy") for name in archive.names):
        from nndiff.sources.arrays import open_npz

        return select_part(open_npz(path, archive), part_key)
    from nndiff.recording.format.folder import refuse_packed

    refuse_packed(path, archive.names)
    contents = ", ".join(repr(name) for name in archive.names[:5]) or "nothing"
    raise SourceError(path, f"a zip archive without tensors; it holds {contents}")


def _open_by_file_name(path: str, window: Window, head: bytes, part_key: str) -> Source:
    """Open a file whose first bytes are not those of a known format."""
    if head.lstrip()[:1] == b"{":
        from nndiff.sources.folder import open_index

        return select_part(open_index(path, _open_file), part_key)
    if path.endswith(".safetensors"):
        return select_part(open_safetensors(path), part_key)
    for magic, trouble in _UNREADABLE_FORMATS.items():
        if head.startswith(magic):
            raise SourceError(path, trouble)
    if window.size == 0:
        raise SourceError(path, "empty")
    if path.endswith(_PICKLE_SUFFIXES) and not _looks_like_prose(head):
        from nndiff.sources.torch_file import open_pickle

        return open_pickle(path, part_key)
    raise SourceError(path, "not a file of tensors that nndiff knows")


def _looks_like_prose(head: bytes) -> bool:
    """Return True if a file begins with words; pickles of the oldest protocol are text too, but not words."""
    words = head.split(None, 3)
    if len(words) <= 3:
        return False
    return all(word.isascii() and word.strip(b".,:;!?()'\"").isalpha() for word in words[:3])
