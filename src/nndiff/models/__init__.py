"""Models: from the name of one to something that runs."""

from __future__ import annotations

from nndiff.models.spec import BuildOptions, ModelSpec, build_model

__all__ = ["BuildOptions", "ModelSpec", "build_model"]
