"""What a manifest claims, held against its folder: a damaged one is trouble, no difference."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from nndiff.errors import SourceError
from nndiff.recording.format.lines import MANIFEST, SHARD
from nndiff.sources.source import shown
from nndiff.text import plural


def check_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Refuse a manifest whose fields are not what they should be, or that tells of other shards than there are."""
    where = folder / MANIFEST
    if not isinstance(manifest.get("meta", {}), dict):
        raise SourceError(where, "'meta' is not an object")
    if not isinstance(manifest.get("complete", False), bool):
        raise SourceError(where, "'complete' is neither true nor false")
    events = manifest.get("events", 0)
    if type(events) is not int or events < 0:
        raise SourceError(where, "'events' is not a whole number of zero or more")
    shards = manifest.get("shards", [])
    if not isinstance(shards, list) or not all(isinstance(each, dict) for each in shards):
        raise SourceError(where, "'shards' is not a list of objects")
    for shard in shards:
        _check_shard(folder, shard)


def _check_shard(folder: Path, shard: dict[str, Any]) -> None:
    where, name, claimed = folder / MANIFEST, shard.get("file"), shard.get("bytes")
    if not isinstance(name, str) or not SHARD.match(name):
        raise SourceError(where, f"{shown(name)} in 'shards' is not the name of a shard")
    if type(claimed) is not int or claimed < 0:
        raise SourceError(where, f"'bytes' of {name} is not a whole number of zero or more")
    try:
        size = os.stat(folder / name).st_size
    except OSError:
        raise SourceError(folder / name, "is missing though the manifest names it; copy or record it again") from None
    if size < claimed:  # of its elements; a header comes before them
        raise SourceError(
            folder / name,
            f"has {plural(size, 'byte')}, too few for the {claimed:,} of elements that the manifest tells of; copy or "
            "record it again",
        )
