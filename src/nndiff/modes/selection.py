"""Which modes are run: all, those of a preset, or those that are named."""

from __future__ import annotations

from collections.abc import Sequence

from nndiff.errors import UsageError
from nndiff.modes import library
from nndiff.modes.definition import Definition, suggest_name

ALL, FP_ONLY, QUANT_ONLY, STANDARD = "all", "fp_only", "quant_only", "standard"


def choose_reference(definition: Definition, reference: str | None) -> str:
    """Return the mode that all others are compared with."""
    if reference is None:
        return definition.untouched
    definition.check_mode(reference)
    return reference


def choose_modes(definition: Definition, reference: str, only: Sequence[str], preset: str | None) -> list[str]:
    """Return the modes to compare with the reference, in order; none where only the reference is asked for."""
    if only and preset is not None:
        raise UsageError(f"--preset {preset} and modes by name exclude each other: give one of them")
    names = only or _list_preset(definition, reference, preset)
    for name in names:
        definition.check_mode(name)
    return [name for name in dict.fromkeys(names) if name != reference]


def _list_preset(definition: Definition, reference: str, preset: str | None) -> list[str]:
    """Return the modes of a preset; those of the file come before those that are built in."""
    if preset is not None and preset in definition.presets:
        return [str(name) for name in definition.presets[preset]]
    own = [definition.untouched, *definition.modes]
    standard = [definition.untouched, *library.STANDARD]
    everything = own if definition.modes else standard
    built_in = {
        ALL: everything,
        FP_ONLY: [reference],
        QUANT_ONLY: [name for name in everything if not definition.is_floating_point(name)],
        STANDARD: standard,
    }
    chosen = ALL if preset is None else preset
    if chosen not in built_in:
        known = [*definition.presets, *(name for name in built_in if name not in definition.presets)]
        advice = f": add presets = {{{chosen!r}: [...]}} to it" if chosen == "essential" else ""
        raise UsageError(f"{definition.label} has no preset {chosen!r}{advice or suggest_name(chosen, known)}")
    return built_in[chosen]
