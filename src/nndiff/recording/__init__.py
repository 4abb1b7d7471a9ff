"""Recordings: what a run left behind, written while it goes, read without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nndiff.recording.reader import Recording, open_recording
from nndiff.recording.writer import Writer

if TYPE_CHECKING:
    from nndiff.recording.record import record

__all__ = ["Recording", "Writer", "open_recording", "record"]


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is asked for."""
    if name == "record":
        from nndiff.recording.record import record

        return record
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
