"""All numbers of a pair in one pass: one interface, two engines behind it."""

from __future__ import annotations

from nndiff.stats.interface import Engine, Job, Progress
from nndiff.stats.metrics import ENVELOPE_RTOLS, Metrics

__all__ = ["ENVELOPE_RTOLS", "Engine", "Job", "Metrics", "Progress", "get_engine"]


def get_engine() -> Engine:
    """Return the fastest engine this installation has."""
    from nndiff.stats.numpy_engine import NumpyEngine

    return NumpyEngine()
