"""What a model was called with, as a structure that JSON can hold and a later run can feed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from nndiff.errors import SourceError
from nndiff.recording.format.values import escape, steps
from nndiff.tensors import TensorRef
from nndiff.text import printable

_DEEPEST = 24
_DAMAGED = "the structure of its inputs is damaged"


def describe_inputs(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], keep: Callable[[str, Any], int], is_tensor: Callable[[Any], bool]
) -> dict[str, Any]:
    """Return the structure of a call; `keep` records each tensor at its path and returns the event's order."""

    def node(value: Any, path: str) -> dict[str, Any]:
        if is_tensor(value):
            found: dict[str, Any] = {"event": keep(path, value)}
            return {**found, "grad": True} if value.requires_grad else found
        if isinstance(value, Mapping):
            named = zip(value, steps(value.items()), strict=True)
            return {"dict": {str(key): node(each, f"{path}.{step}") for key, (step, each) in named}}
        if isinstance(value, (list, tuple)):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [node(each, f"{path}.{number}") for number, each in enumerate(value)]}
        if value is None or isinstance(value, (bool, int, float, str)):
            return {"value": value}
        return {"unknown": type(value).__name__}

    return {
        "args": [node(value, str(number)) for number, value in enumerate(args)],
        "kwargs": {str(name): node(value, escape(name)) for name, value in kwargs.items()},
    }


def rebuild(where: str, spec: Any, tensors: Mapping[int, TensorRef]) -> tuple[list[Any], dict[str, Any]]:
    """Return args and kwargs of a structure, the tensors of the events put in, those that ask for a gradient marked."""
    if not isinstance(spec, dict) or not isinstance(spec.get("args"), list) or not isinstance(spec.get("kwargs"), dict):
        raise SourceError(where, "holds no inputs that could be fed again")
    args = [_rebuild(where, each, tensors, 0) for each in spec["args"]]
    return args, {name: _rebuild(where, each, tensors, 0) for name, each in spec["kwargs"].items()}


def by_names(where: str, held: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return args and kwargs of inputs whose paths alone say how they were given: by position, or by name.

    So a writer that knows nothing of structures leaves them.
    """
    if not held:
        raise SourceError(where, "holds no inputs that could be fed again")
    if [*held] == [""]:
        return [held[""]], {}
    kwargs = {path: value for path, value in held.items() if path.isidentifier()}
    places = [str(place) for place in range(len(held) - len(kwargs))]
    strange = [path for path in held if path not in kwargs and path not in places]
    if strange:
        raise SourceError(
            where,
            "holds inputs that cannot be fed again: the path of a model_input is the name of an argument, or a "
            f"position (0, 1, ... without a gap), and one is {printable(repr(strange[0]), 80)}",
        )
    return [held[place] for place in places], kwargs


def events_of(spec: Any, depth: int = 0) -> Iterator[int]:
    """Yield the orders of the events a structure refers to."""
    if depth > 3 * _DEEPEST or not isinstance(spec, (dict, list)):  # a step inwards is a dict and a list of dicts
        return
    for key, each in spec.items() if isinstance(spec, dict) else enumerate(spec):
        if key == "event" and type(each) is int:
            yield each
        else:
            yield from events_of(each, depth + 1)


def _tensor(where: str, node: dict[str, Any], tensors: Mapping[int, TensorRef]) -> TensorRef:
    order, asks = node["event"], node.get("grad", False)
    found = tensors.get(order) if type(order) is int else None
    if found is None or type(asks) is not bool or not node.keys() <= {"event", "grad"}:
        raise SourceError(where, _DAMAGED)
    if asks and found.dtype.kind not in ("float", "complex"):
        raise SourceError(where, f"{_DAMAGED}: no gradient can be asked for of {found.dtype.name}")
    return replace(found, trace=replace(found.trace, requires_grad=True)) if asks else found


def _rebuild(where: str, node: Any, tensors: Mapping[int, TensorRef], depth: int) -> Any:
    if isinstance(node, dict) and "event" in node:
        return _tensor(where, node, tensors)
    if not isinstance(node, dict) or len(node) != 1 or depth > _DEEPEST:
        raise SourceError(where, _DAMAGED)
    ((kind, body),) = node.items()
    if kind == "dict" and isinstance(body, dict):
        return {key: _rebuild(where, each, tensors, depth + 1) for key, each in body.items()}
    if kind in ("list", "tuple") and isinstance(body, list):
        built = [_rebuild(where, each, tensors, depth + 1) for each in body]
        return tuple(built) if kind == "tuple" else built
    if kind == "value" and (body is None or isinstance(body, (bool, int, float, str))):
        return body
    if kind == "unknown":
        raise SourceError(where, f"one of its inputs is a {body}, which a recording cannot hold: give the inputs again")
    raise SourceError(where, _DAMAGED)
