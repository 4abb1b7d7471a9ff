"""Recordings: what a run left behind, written while it goes, read without torch.

`nndiff.record`, in record.py, needs torch; nothing here does.
"""

from __future__ import annotations

from nndiff.recording.reader import Recording, open_recording
from nndiff.recording.writer import Writer

__all__ = ["Recording", "Writer", "open_recording"]
