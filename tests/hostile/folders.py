"""Folders and indexes that point elsewhere or at themselves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cases import CASES, Case, case, garbage
from hand_pickles import ARRAY, Name, Raw, ops, pickled
from numpy_files import npy
from safetensors_files import entry, safetensors
from torch_files import FOUR, torch_zip, view

from nndiff.recording.format.layout import VERSION


def indexed(path: Path, weight_map: Any) -> None:
    path.mkdir()
    (path / "a.safetensors").write_bytes(safetensors({"w": entry()}, b"1234"))
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


_INDEX: dict[str, tuple[str, Any]] = {
    "of_a_file_above": ("names a shard outside its own folder: '../../etc/passwd'", {"w": "../../etc/passwd"}),
    "of_an_absolute_path": ("names a shard outside its own folder: '/etc/passwd'", {"w": "/etc/passwd"}),
    "of_a_windows_path": ("names a shard outside its own folder", {"w": "..\\x"}),
    "of_a_null_byte": ("names a shard outside its own folder", {"w": "a\0b"}),
    "of_the_folder_itself": ("names a shard outside its own folder", {"w": "."}),
    "of_a_missing_shard": ("b.safetensors: no such file or directory", {"w": "b.safetensors"}),
    "of_itself": ("names an index as a shard", {"w": "model.safetensors.index.json"}),
    "of_a_number": ("its weight_map does not name a shard for every tensor", {"w": 1}),
    "of_nothing": ("its weight_map does not name a shard for every tensor", {}),
    "that_is_a_list": (r"it has no weight_map", ["w"]),
    "that_is_wrong": ("says that 'a.safetensors' holds 'v', but that file does not", {"v": "a.safetensors"}),
    "of_a_long_name": ("names a shard outside its own folder", {"w": "a" * 10_000}),
    "with_escapes": (r"'\\x1b\[2J/x'", {"w": "\x1b[2J/x"}),
}
for _name, (_trouble, _map) in _INDEX.items():
    CASES[f"index_{_name}"] = Case(
        f"index_{_name}", lambda path, payload, found=_map: indexed(path, found), "", _trouble
    )


@case(".json", "that is not valid JSON")
def index_deep(path: Path, payload: str) -> Any:
    return b'{"weight_map":' * 50_000


@case(".json", "bytes; more than .* are not read")
def index_huge(path: Path, payload: str) -> Any:
    return b'{"weight_map":' + b" " * (40 << 20) + b"{}}"


@case("", "a folder without any file nndiff can read")
def folder_empty(path: Path, payload: str) -> None:
    path.mkdir()


@case("", "x.npy: not a regular file but a named pipe")
def folder_with_a_pipe(path: Path, payload: str) -> None:
    path.mkdir()
    os.mkfifo(path / "x.npy")


def recording(path: Path, pipe: str) -> None:
    """Write a recording of one tensor; the file of this name is a named pipe nobody writes to."""
    event = {"order": 0, "kind": "tensor", "module": "", "slot": "output", "shape": [1], "dtype": "float32"}
    stored = {"keep": "full", "digest": "0" * 64, "shard": "shard-00000.safetensors", "key": "w"}
    files = {
        "manifest.json": json.dumps(
            {"format": "nndiff.recording", "version": VERSION, "complete": True, "events": 1}
        ).encode(),
        "events.jsonl": json.dumps(event | stored).encode() + b"\n",
        "shard-00000.safetensors": safetensors({"w": entry()}, b"1234"),
    }
    path.mkdir()
    for name, content in files.items():
        if name == pipe:
            os.mkfifo(path / name)
        else:
            (path / name).write_bytes(content)


@case("", "manifest.json: not a regular file but a named pipe")
def recording_with_a_pipe_for_a_manifest(path: Path, payload: str) -> None:
    recording(path, "manifest.json")


@case("", "events.jsonl: not a regular file but a named pipe")
def recording_with_a_pipe_for_events(path: Path, payload: str) -> None:
    recording(path, "events.jsonl")


@case("", "shard-00000.safetensors: not a regular file but a named pipe")
def recording_with_a_pipe_for_a_shard(path: Path, payload: str) -> None:
    recording(path, "shard-00000.safetensors")


@case("", "a folder without any file nndiff can read")
def folder_with_a_pipe_for_a_manifest(path: Path, payload: str) -> None:
    path.mkdir()
    os.mkfifo(path / "manifest.json")


@case("", "config.json: not a regular file but a named pipe|model.safetensors: not a regular file but a named pipe")
def folder_with_a_pipe_for_a_model(path: Path, payload: str) -> None:
    path.mkdir()
    os.mkfifo(path / "config.json")
    os.mkfifo(path / "model.safetensors")


@case("", "model.safetensors.index.json: not a regular file but a named pipe")
def folder_with_a_pipe_for_an_index(path: Path, payload: str) -> None:
    path.mkdir()
    os.mkfifo(path / "model.safetensors.index.json")


@case("", "hook_data.pkl: not a regular file but a named pipe")
def saved_outputs_with_a_pipe(path: Path, payload: str) -> None:
    path.mkdir()
    (path / "layer_outputs.pkl").write_bytes(pickled({"fc": ARRAY}))
    os.mkfifo(path / "hook_data.pkl")


@case("", "x.npy: not a regular file but a folder")
def folder_with_a_folder(path: Path, payload: str) -> None:
    (path / "x.npy").mkdir(parents=True)


@case("", "too many levels of symbolic links")
def folder_with_a_link_to_itself(path: Path, payload: str) -> None:
    path.mkdir()
    (path / "x.npy").symlink_to("x.npy")


@case("", "both hold 'x'")
def folder_with_two_arrays_of_one_name(path: Path, payload: str) -> None:
    path.mkdir()
    (path / "x.npy").write_bytes(npy("'<f4'", "(1,)", b"1234"))
    (path / "x.pt").write_bytes(torch_zip(ops(view()), FOUR))


@case("", "(?s)bad.*: (empty|not a)")
def folder_with_escapes_in_a_name(path: Path, payload: str) -> None:
    path.mkdir()
    (path / "bad\x1b[2J\n.npy").write_bytes(b"")


@case("", "its pickle is damaged|whose .metadata is damaged")
def folder_with_metadata_of_garbage(path: Path, payload: str) -> None:
    path.mkdir()
    (path / ".metadata").write_bytes(garbage(100))


def distributed(path: Path, size: Any, chunk: Any, place: dict[str, Any], offset: Any = (0,), held: Any = None) -> None:
    """Write metadata as torch does, and say anything in it."""
    made = "torch.distributed.checkpoint.metadata"

    def node(name: str, state: Any) -> Raw:
        return Raw(ops(Name(made, name)) + b")\x81" + ops(state) + b"b")

    chunks = [node("ChunkStorageMetadata", {"offsets": offset, "sizes": chunk})]
    properties = node("TensorProperties", (Name("torch", "float32"), None, False, None, False))
    tensor = node("TensorStorageMetadata", {"properties": properties, "size": size, "chunks": chunks})
    index = node("MetadataIndex", {"fqn": "w", "offset": offset, "index": 0})
    info = node("_StorageInfo", {"relative_path": "f.distcp", "offset": 0, "length": 1000, **place})
    path.mkdir()
    (path / "f.distcp").write_bytes(torch_zip(ops(held or view()), FOUR).ljust(1000, b"\0"))
    state = {"state_dict_metadata": {"w": tensor}, "storage_data": {index: info}}
    (path / ".metadata").write_bytes(pickled(node("Metadata", state)))


_DISTRIBUTED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "of_a_file_above": ("names a file outside its own folder", ((4,), (4,), {"relative_path": "../x"})),
    "of_an_absolute_path": ("names a file outside its own folder", ((4,), (4,), {"relative_path": "/etc/passwd"})),
    "of_a_missing_file": ("no such file or directory", ((4,), (4,), {"relative_path": "missing"})),
    "place_beyond": ("claims bytes", ((4,), (4,), {"offset": 1 << 60})),
    "place_negative": ("claims bytes", ((4,), (4,), {"offset": -8})),
    "place_of_text": ("gives 'w' no place", ((4,), (4,), {"offset": "x"})),
    "size_of_a_terabyte": ("too short for its", ((1 << 38,), (1 << 38,), {})),
    "chunk_of_another_shape": ("has another shape or dtype", ((4,), (4,), {}, (0,), view(shape=(2,)))),
    "chunk_that_is_no_tensor": ("is not a tensor", ((4,), (4,), {}, (0,), [view()])),
    "size_of_text": ("impossible shape", ("four", (4,), {})),
    "size_of_many_axes": ("impossible shape", ((1 << 59,) * 100_000, (4,), {})),
    "chunk_beyond": ("missing or does not fit", ((4,), (5,), {})),
    "chunk_missing": ("missing or does not fit|do not make up", ((4,), (4,), {}, (1,))),
    "offset_of_numbers": ("impossible shape", ((4,), (4,), {}, 7)),
    "offset_deep": ("impossible shape", ((4,), (4,), {}, Raw(b")" + b"\x85" * 100_000))),
}
for _name, (_trouble, _arguments) in _DISTRIBUTED.items():
    CASES[f"distributed_{_name}"] = Case(
        f"distributed_{_name}", lambda path, payload, given=_arguments: distributed(path, *given), "", _trouble
    )
