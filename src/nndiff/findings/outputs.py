"""Outputs that only one model returns, or that it returns in another form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from nndiff.diagnosis.modules import Meta, get_settings
from nndiff.findings.case import Case
from nndiff.findings.causes import Cause
from nndiff.result import SIDES, Finding, Leftover, Note, NoteSlug
from nndiff.text import first_few, plural
from nndiff.verdict import EXTRA_OUTPUTS

# What settings are called that decide what a model returns (use_cache, return_dict, output_hidden_states, ...).
_ABOUT_OUTPUTS = ("cache", "return", "output", "checkpoint")
_UNSET = "unset"


def find_missing_outputs(case: Case) -> Iterator[Finding]:
    """Yield the outputs of the model that only one side returns."""
    if case.passed:
        return
    settings = list(_list_output_settings(case))
    for side in SIDES:
        extra = [leftover for leftover in case.run.extra_outputs if leftover.side == side]
        if not extra:
            continue
        counts = Counter(_get_place(leftover) for leftover in extra)
        places = [f"{place} ({plural(count, 'tensor')})" if count > 1 else place for place, count in counts.items()]
        yield Finding(
            Cause.OUTPUTS_MISSING,
            tuple(leftover.name for leftover in extra),
            f"only the {side} returns {first_few(places)}" + (f"; {', '.join(settings)}" if settings else ""),
            f"make both return the same, or pass --accept {EXTRA_OUTPUTS}",
            1.0,
        )


def _get_place(leftover: Leftover) -> str:
    """Return the part of the model's output a tensor is in, as names have it: `output.past_key_values`."""
    path = leftover.site.path if leftover.site else ""
    return f"output.{path.partition('.')[0]}" if path else "output"


def _list_output_settings(case: Case) -> Iterator[str]:
    """Yield the switches that differ and may decide what is returned: of the call, the config, the modules."""
    readers = (("the call", _read_keywords), ("the config", _read_config), ("the model", _read_attributes))
    for owner, read_settings in readers:
        reference, candidate = read_settings(case.reference), read_settings(case.candidate)
        if read_settings is _read_config and not (reference and candidate):
            continue  # a port has none, or has it elsewhere
        for name in dict.fromkeys((*reference, *candidate)):
            values = reference.get(name, _UNSET), candidate.get(name, _UNSET)
            is_switch = any(isinstance(value, bool) for value in values)
            if read_settings is _read_attributes and values in ((False, _UNSET), (_UNSET, False)):
                continue  # a switch that a module does not have is off
            if is_switch and values[0] != values[1] and any(word in name for word in _ABOUT_OUTPUTS):
                yield f"{name} of {owner} is {values[0]} against {values[1]}"


def _read_keywords(meta: Meta) -> Mapping[str, Any]:
    """Return the plain keywords a model was called with."""
    inputs = meta.get("inputs")
    nodes = inputs.get("kwargs") if isinstance(inputs, Mapping) else None
    keywords = {}
    for name, node in nodes.items() if isinstance(nodes, Mapping) else ():
        if isinstance(node, Mapping) and "value" in node:
            keywords[str(name)] = node["value"]
    return keywords


def _read_config(meta: Meta) -> Mapping[str, Any]:
    model = meta.get("model")
    config = model.get("config") if isinstance(model, Mapping) else None
    return config if isinstance(config, Mapping) else {}


def _read_attributes(meta: Meta) -> Mapping[str, Any]:
    """Return the attributes of all modules together, each as the outermost that has it says."""
    attributes: dict[str, Any] = {}
    modules = meta.get("modules")
    for module in modules if isinstance(modules, list) else ():
        for name, value in get_settings(module).items() if isinstance(module, Mapping) else ():
            attributes.setdefault(name, value)
    return attributes


def note_output_form(case: Case) -> Iterator[Note]:
    """Yield a note where final outputs are at another place of what the candidate returns."""
    finals = sorted((site for site in case.run.pairs if site.pair.is_final_output), key=lambda site: site.order)
    moved = []
    for site in finals:
        if site.reference.site.path != site.candidate.site.path:
            paths = [f"output.{tensor.site.path}".rstrip(".") for tensor in site.tensors]
            moved.append(" -> ".join(paths))
    if not moved:
        return
    orders = [site.orders[1] for site in finals]
    form = (
        "in another form" if orders == sorted(orders) else "in another order, so code that takes them by place breaks"
    )
    yield Note(NoteSlug.OUTPUT_FORM, f"final outputs are returned {form} (reference -> candidate): {first_few(moved)}")
