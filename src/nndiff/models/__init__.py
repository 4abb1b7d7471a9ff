"""Models: from the name of one to something that runs."""

from __future__ import annotations

from nndiff.models.build import build_model
from nndiff.models.spec import BuildOptions, ModelSpec

__all__ = ["BuildOptions", "ModelSpec", "build_model"]
