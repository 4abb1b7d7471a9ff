"""A port fed what a recording holds, in the mode and with the seed of that recording, and compared with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nndiff
from nndiff.models import build_model
from nndiff.models.inputs import load_inputs
from nndiff.recording import open_recording

# of what a module holds itself: its weights have no layer that would tell which is which
RENAMED = r"^blocks\.(\d+)\.att\.bias_=>encoder.layers.\1.self_attn.pos_bias_"


def replay(reference: Path, port: str, out: Path, **options: Any) -> nndiff.Comparison:
    """Record a port, as `file.py:factory`, as the reference was recorded, and compare the two."""
    meta = open_recording(reference).meta
    made = build_model(port)
    nndiff.record(
        made.model,
        load_inputs(str(reference), made.model).inputs,
        path=out,
        backward=True,
        loss=made.loss,
        mode=meta["mode"],
        seed=meta["seed"],
    )
    return nndiff.compare(reference, out, **options)
