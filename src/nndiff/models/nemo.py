"""NeMo models: `x.nemo`, or a Lightning `.ckpt` with --config, restored by NeMo where NeMo is installed."""

from __future__ import annotations

import os
from importlib.util import find_spec

from nndiff.errors import ModelError
from nndiff.models.spec import ModelSpec, Wishes


def build(path: str, wishes: Wishes) -> ModelSpec:
    """Build the model of a .nemo file."""
    if not os.path.isfile(path):
        raise ModelError(f"{path}: no such file")
    if find_spec("nemo") is None:
        raise ModelError(
            f"{path}: NeMo is needed to run it and is not installed: pip install 'nemo_toolkit[asr]'; to compare its "
            "weights alone, `nndiff diff` needs no NeMo"
        )
    raise ModelError(f"{path}: running NeMo models is not built in yet")
