"""Take the native engine from another build where asked: `make test-native` watches its memory."""

from __future__ import annotations

import os

import nndiff.stats

_sanitized = os.environ.get("NNDIFF_SANITIZED")
if _sanitized:
    nndiff.stats.__path__.insert(0, os.path.join(_sanitized, "nndiff", "stats"))
    from nndiff.stats import _native

    assert _native.__file__.startswith(_sanitized), "the tests would run the plain build"
