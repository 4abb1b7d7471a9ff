"""How a model was called: a structure that JSON can hold and a later run can use to call it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from nndiff.errors import SourceError
from nndiff.recording.format.values import escape_step, name_steps
from nndiff.tensors import TensorRef
from nndiff.text import printable

_DEEPEST = 24
_DAMAGED = "the structure of its inputs is damaged"
_NO_INPUTS = "holds no inputs that could be fed again"


def describe_inputs(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    record_tensor: Callable[[str, Any], int],
    is_tensor: Callable[[Any], bool],
) -> dict[str, Any]:
    """Return the structure of a call; `record_tensor(path, tensor)` returns the order of the tensor's event."""

    def describe_node(value: Any, path: str) -> dict[str, Any]:
        if is_tensor(value):
            node: dict[str, Any] = {"event": record_tensor(path, value)}
            if value.requires_grad:
                node["grad"] = True
            return node
        if isinstance(value, Mapping):
            nodes = {}
            for key, (step, item) in zip(value, name_steps(value.items()), strict=True):
                nodes[str(key)] = describe_node(item, f"{path}.{step}")
            return {"dict": nodes}
        if isinstance(value, (list, tuple)):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [describe_node(item, f"{path}.{number}") for number, item in enumerate(value)]}
        if value is None or isinstance(value, (bool, int, float, str)):
            return {"value": value}
        return {"unknown": type(value).__name__}

    return {
        "args": [describe_node(value, str(number)) for number, value in enumerate(args)],
        "kwargs": {str(name): describe_node(value, escape_step(name)) for name, value in kwargs.items()},
    }


def rebuild_inputs(where: str, structure: Any, tensors: Mapping[int, TensorRef]) -> tuple[list[Any], dict[str, Any]]:
    """Return args and kwargs of a structure with its tensors, marked if they require a gradient."""
    if not isinstance(structure, dict):
        raise SourceError(where, _NO_INPUTS)
    args, kwargs = structure.get("args"), structure.get("kwargs")
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise SourceError(where, _NO_INPUTS)
    return (
        [_rebuild_node(where, node, tensors, 0) for node in args],
        {name: _rebuild_node(where, node, tensors, 0) for name, node in kwargs.items()},
    )


def _rebuild_node(where: str, node: Any, tensors: Mapping[int, TensorRef], depth: int) -> Any:
    if isinstance(node, dict) and "event" in node:
        return _rebuild_tensor(where, node, tensors)
    if not isinstance(node, dict) or len(node) != 1 or depth > _DEEPEST:
        raise SourceError(where, _DAMAGED)
    ((kind, body),) = node.items()
    if kind == "dict" and isinstance(body, dict):
        return {key: _rebuild_node(where, item, tensors, depth + 1) for key, item in body.items()}
    if kind in ("list", "tuple") and isinstance(body, list):
        items = [_rebuild_node(where, item, tensors, depth + 1) for item in body]
        return tuple(items) if kind == "tuple" else items
    if kind == "value" and (body is None or isinstance(body, (bool, int, float, str))):
        return body
    if kind == "unknown":
        raise SourceError(where, f"one of its inputs is a {body}, which a recording cannot hold: give the inputs again")
    raise SourceError(where, _DAMAGED)


def _rebuild_tensor(where: str, node: dict[str, Any], tensors: Mapping[int, TensorRef]) -> TensorRef:
    order, requires_grad = node["event"], node.get("grad", False)
    tensor = tensors.get(order) if type(order) is int else None
    if tensor is None or type(requires_grad) is not bool or not node.keys() <= {"event", "grad"}:
        raise SourceError(where, _DAMAGED)
    if not requires_grad:
        return tensor
    if tensor.dtype.kind not in ("float", "complex"):
        raise SourceError(where, f"{_DAMAGED}: a tensor of {tensor.dtype.name} cannot require a gradient")
    return replace(tensor, trace=replace(tensor.trace, requires_grad=True))


def arrange_inputs(where: str, inputs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return args and kwargs of inputs without a structure, by path: positions or names of arguments.

    Writers other than `nndiff record` leave inputs like this.
    """
    if not inputs:
        raise SourceError(where, _NO_INPUTS)
    if [*inputs] == [""]:
        return [inputs[""]], {}
    kwargs = {path: value for path, value in inputs.items() if path.isidentifier()}
    positions = [str(position) for position in range(len(inputs) - len(kwargs))]
    for path in inputs:
        if path not in kwargs and path not in positions:
            raise SourceError(
                where,
                "holds inputs that cannot be fed again: the path of a model_input is the name of an argument, or a "
                f"position (0, 1, ... without a gap), but one is {printable(repr(path), 80)}",
            )
    return [inputs[position] for position in positions], kwargs


def list_input_events(structure: Any, depth: int = 0) -> Iterator[int]:
    """Yield the orders of the events a structure refers to."""
    if depth > 3 * _DEEPEST or not isinstance(structure, (dict, list)):  # a level is a dict and a list of dicts
        return
    for key, item in structure.items() if isinstance(structure, dict) else enumerate(structure):
        if key == "event" and type(item) is int:
            yield item
        else:
            yield from list_input_events(item, depth + 1)
