"""The manifest of a recording: written, read, and checked against its folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from nndiff.errors import SourceError, UnsafeFileError
from nndiff.files import RegularFile, Window
from nndiff.recording.format.layout import FORMAT, MANIFEST, MANIFEST_LIMIT, SHARD_NAME, VERSION
from nndiff.recording.format.lines import dump_json, parse_json_object
from nndiff.recording.format.noise import read_noise_floors
from nndiff.sources.source import quote_name
from nndiff.text import plural, printable


def dump_manifest(body: dict[str, object], meta: dict[str, object]) -> str:
    """Return the manifest's text, one line per item: the format comes first, so that a glance recognises it.

    There is no indent: with one, json uses its encoder in Python, which is slow for a model of many modules.
    """
    lines = [f" {json.dumps(key)}: {dump_json(value)}" for key, value in body.items()]
    meta_lines = []
    for key, value in meta.items():
        text = dump_json(value)
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            text = "[\n" + ",\n".join(f"   {dump_json(row)}" for row in value) + "\n  ]"
        meta_lines.append(f"  {json.dumps(key)}: {text}")
    lines.append(' "meta": {\n' + ",\n".join(meta_lines) + "\n }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a recording; raise SourceError if this nndiff cannot read the recording."""
    path = os.fspath(folder / MANIFEST)
    window = Window(RegularFile(path))
    if window.size > MANIFEST_LIMIT:
        raise UnsafeFileError(path, f"has {window.size:,} bytes; nndiff reads at most {MANIFEST_LIMIT:,}")
    manifest = parse_json_object(path, window.read(0, window.size))
    if manifest.get("format") != FORMAT:
        raise SourceError(path, f"the format is {printable(repr(manifest.get('format')), 80)}, not {FORMAT!r}")
    version = manifest.get("version")
    if type(version) is not int or version < 1:
        raise SourceError(path, "the version is not a whole number of one or more")
    if version > VERSION:
        raise SourceError(path, f"has version {version}, this nndiff reads up to {VERSION}: update nndiff")
    if version < VERSION:
        raise SourceError(path, f"has version {version}, which used other digests: record it again")
    _check_fields(path, manifest)
    for shard in manifest.get("shards", []):
        _check_shard(folder, shard)
    return manifest


def _check_fields(path: str, manifest: dict[str, Any]) -> None:
    if not isinstance(manifest.get("meta", {}), dict):
        raise SourceError(path, "'meta' is not an object")
    read_noise_floors(path, manifest.get("meta", {}))
    if not isinstance(manifest.get("complete", False), bool):
        raise SourceError(path, "'complete' is neither true nor false")
    events = manifest.get("events", 0)
    if type(events) is not int or events < 0:
        raise SourceError(path, "'events' is not a whole number of zero or more")
    shards = manifest.get("shards", [])
    if not isinstance(shards, list) or not all(isinstance(shard, dict) for shard in shards):
        raise SourceError(path, "'shards' is not a list of objects")


def _check_shard(folder: Path, shard: dict[str, Any]) -> None:
    """Raise SourceError if a shard of the manifest is missing or too short."""
    manifest_path, name, claimed = folder / MANIFEST, shard.get("file"), shard.get("bytes")
    if not isinstance(name, str) or not SHARD_NAME.match(name):
        raise SourceError(manifest_path, f"{quote_name(name)} in 'shards' is not the name of a shard")
    if type(claimed) is not int or claimed < 0:
        raise SourceError(manifest_path, f"'bytes' of {name} is not a whole number of zero or more")
    try:
        size = os.stat(folder / name).st_size
    except OSError:
        raise SourceError(folder / name, "is missing, but the manifest names it; copy or record it again") from None
    if size < claimed:  # of its elements; a header comes before them
        raise SourceError(
            folder / name,
            f"has {plural(size, 'byte')}, fewer than the {claimed:,} that the manifest claims; copy or record it again",
        )
