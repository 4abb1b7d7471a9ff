"""What every test sees: helpers on the path, hypothesis without a clock."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

# The machines are noisy: a slow example is no failure.
settings.register_profile("nndiff", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
settings.load_profile("nndiff")
