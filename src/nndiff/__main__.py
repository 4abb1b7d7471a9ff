"""Run nndiff as `python -m nndiff`."""

from __future__ import annotations

import sys

from nndiff.commands import main

if __name__ == "__main__":
    sys.exit(main())
