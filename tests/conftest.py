"""What every test sees: helpers on the path, hypothesis without a clock."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

# The machines are noisy: a slow example is no failure. CI tries the same examples every time, a person new ones.
settings.register_profile(
    "nndiff",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=60,
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("nndiff")


@pytest.fixture
def weights_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record as other makers do, who do not tell what modules hold: then only values tell which belong together."""
    monkeypatch.setattr("nndiff.recording.capture.state.compute_state_digests", lambda model: {})


@pytest.fixture
def without_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make no experiments where nobody asks for them: these tests are about what recordings alone tell."""
    from nndiff.experiments import Wishes

    monkeypatch.setattr(Wishes, "_decide", staticmethod(lambda wish, comparison: bool(wish)))
