"""Noise floors in the metadata of a recording: how far rounding alone moves each tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nndiff.errors import SourceError


def read_noise_floors(where: str, meta: Mapping[str, Any]) -> dict[str, float]:
    """Return the noise floor of every site that has one, by name; raise SourceError if they are no floors."""
    noise = meta.get("noise")
    if noise is None:
        return {}
    draws = noise.get("draws") if isinstance(noise, dict) else None
    listed = noise.get("floors") if isinstance(noise, dict) else None
    if type(draws) is not int or draws < 1 or not isinstance(listed, dict):
        raise SourceError(where, "'noise' is not an object with 'draws', one or more, and an object 'floors'")
    floors = {}
    for name, floor in listed.items():
        if floor == "inf":
            floor = math.inf
        elif type(floor) not in (int, float) or not floor >= 0:
            raise SourceError(where, "a floor of 'noise' is neither a number of zero or more nor 'inf'")
        floors[name] = float(floor)
    return floors
