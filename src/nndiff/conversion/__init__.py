"""Conversion: a map of how two checkpoints are related, and one of them rewritten by the map in the other's form."""

from __future__ import annotations

from nndiff.conversion.map import ConversionMap, Entry, Missing, MissingReason, is_conversion_map, read_conversion_map
from nndiff.conversion.source import convert_source, list_unmentioned

__all__ = [
    "ConversionMap",
    "Entry",
    "Missing",
    "MissingReason",
    "convert_source",
    "is_conversion_map",
    "list_unmentioned",
    "read_conversion_map",
]
