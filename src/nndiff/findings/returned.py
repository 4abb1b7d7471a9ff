"""Outputs that only one of two models returns, and the settings that may have turned them on or off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from nndiff.divergence import Run
from nndiff.findings.modules import Meta
from nndiff.lost import SIDES
from nndiff.result import Finding
from nndiff.tensors import TensorRef
from nndiff.text import first_few, plural

Settings = Mapping[str, Any]

# What settings are called that decide what a model returns (use_cache, return_dict, output_hidden_states, ...).
_ABOUT = ("cache", "return", "output", "checkpoint")
_SHOWN = 3
_UNSET = "unset"


def returned_findings(run: Run, reference: Meta, candidate: Meta) -> Iterator[Finding]:
    """Yield which outputs of the model only one side returns."""
    settings = list(_apart(reference, candidate))
    for side, tensors in zip(SIDES, run.alone, strict=True):
        if tensors:
            places = Counter(_place(tensor) for tensor in tensors)
            yield Finding(
                "outputs-missing",
                tuple(tensor.name for tensor in tensors),
                f"only the {side} returns {_listed(places)}" + (f"; {', '.join(settings)}" if settings else ""),
                _repair(places),
                1.0,
            )


def _place(tensor: TensorRef) -> str:
    """Return the part of the model's output a tensor is in, as names have it: `output.past_key_values`."""
    path = str(tensor.site.path)
    return f"output.{path.partition('.')[0]}" if path else "output"


def _listed(places: Mapping[str, int]) -> str:
    told = [f"{place} ({plural(many, 'tensor')})" if many > 1 else place for place, many in places.items()]
    return first_few(told)


def _repair(places: Mapping[str, int]) -> str:
    """Return the way out; the pattern names the gradients at these outputs too."""
    patterns = [f"--exclude '(model):*{place}*'" for place in places if place != "output"]
    left_out = f", or leave out what only one does: {' '.join(patterns[:_SHOWN])}" if patterns else ""
    return f"make both return the same{left_out}"


def _apart(reference: Meta, candidate: Meta) -> Iterator[str]:
    """Yield the settings that differ and may decide what is returned: of the call, the config, the modules."""
    for where, of in (("the call", _given), ("the config", _config), ("the model", _modules)):
        here, there = of(reference), of(candidate)
        if where == "the config" and not (here and there):
            continue  # a port has none, or has it elsewhere
        for name in dict.fromkeys((*here, *there)):
            one, other = here.get(name, _UNSET), there.get(name, _UNSET)
            if one != other and _is_switch(one, other) and any(word in name for word in _ABOUT):
                yield f"{name} of {where} is {one} against {other}"


def _is_switch(one: Any, other: Any) -> bool:
    return any(isinstance(each, bool) for each in (one, other))


def _given(meta: Meta) -> Settings:
    """Return the plain keywords a model was called with."""
    inputs = meta.get("inputs")
    given = inputs.get("kwargs") if isinstance(inputs, Mapping) else None
    if not isinstance(given, Mapping):
        return {}
    return {str(name): node["value"] for name, node in given.items() if isinstance(node, Mapping) and "value" in node}


def _config(meta: Meta) -> Settings:
    model = meta.get("model")
    config = model.get("config") if isinstance(model, Mapping) else None
    return config if isinstance(config, Mapping) else {}


def _modules(meta: Meta) -> Settings:
    """Return the attributes of all modules in one, each as the outermost that has it says."""
    modules, found = meta.get("modules"), dict[str, Any]()
    for module in modules if isinstance(modules, list) else ():
        held = module.get("attributes") if isinstance(module, Mapping) else None
        found = {**held, **found} if isinstance(held, Mapping) else found
    return found
