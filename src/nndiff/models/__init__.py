"""Models: from the name of one to something that runs."""

from __future__ import annotations

from nndiff.models.spec import ModelSpec, Wishes, resolve

__all__ = ["ModelSpec", "Wishes", "resolve"]
