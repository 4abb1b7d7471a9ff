"""Names, versions and limits of the recording format.

History: 1 the first; 2 digests by XXH3.
"""

from __future__ import annotations

import re

FORMAT = "nndiff.recording"
VERSION = 2
MANIFEST = "manifest.json"
EVENTS = "events.jsonl"
KEEP_LEVELS = ("digest", "stats", "sketch", "full")  # each holds what the ones before it hold
SHARD_NAME = re.compile(r"shard-[0-9]{5,9}\.safetensors\Z")
DIGEST = re.compile(r"[0-9a-f]{64}\Z")
LINE_LIMIT = 8 << 20
NAME_LIMIT = 4096
MANIFEST_LIMIT = 64 << 20
EVENT_LIMIT = 5_000_000


def shard_name(number: int) -> str:
    """Return the file name of a shard."""
    return f"shard-{number:05d}.safetensors"
