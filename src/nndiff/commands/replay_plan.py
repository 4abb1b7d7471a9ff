"""The plan of a replay, as a file: what one process wants another to hand to which module."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nndiff.errors import UsageError

if TYPE_CHECKING:
    from nndiff.recording.capture.substitution import Substitution


def write_plan(path: Path, reference: str, partners: Mapping[str, str]) -> None:
    """Write which recording is the reference, and which of its sites belongs to which of the candidate."""
    path.write_text(json.dumps({"reference": reference, "partners": dict(partners)}))


def read_substitution(path: str) -> Substitution:
    """Return the reference's tensors by the candidate's sites."""
    from nndiff.recording.reader import open_recording
    from nndiff.recording.replay import make_substitution

    try:
        plan = json.loads(Path(path).read_text())
        reference, partners = plan["reference"], dict(plan["partners"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is not the plan of a replay") from None
    return make_substitution(open_recording(reference), partners)
