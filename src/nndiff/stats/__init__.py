"""All numbers of a pair in one pass: one interface, two engines behind it."""

from __future__ import annotations

from nndiff.metrics import ENVELOPE_RTOLS, Metrics
from nndiff.stats.interface import Engine, Job, Progress

__all__ = ["ENVELOPE_RTOLS", "Engine", "Job", "Metrics", "Progress"]
