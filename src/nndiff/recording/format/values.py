"""What modules return, taken apart: tuples, lists, dicts, dataclasses, and objects that hold tensors."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from nndiff.recording.format.events import Content

_DEEPEST = 24
_MOST_ITEMS = 4096  # of one container
_PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None))
_LEAF_TYPES = (*_PLAIN_TYPES, bytearray, np.ndarray, np.generic)
_TORCH_NAMES = ("dtype", "device", "layout", "memory_format")  # by name: torch may not be installed
TEXT_LIMIT = 1000  # characters of a text that an event holds
INTEGER_BITS = 62  # of a whole number that an event holds

Leaf = tuple[str, Any]


@dataclass(frozen=True, slots=True)
class Placeholder:
    """Stand for something that has no tensors to record, and say what it is."""

    type: str
    note: str
    content: Content = Content.UNREAD


@dataclass(frozen=True, slots=True)
class PlainValue:
    """Describe a leaf that is not a tensor, as an event holds it."""

    type: str
    value: Any = None
    note: str = ""
    content: Content = Content.PLAIN


def escape_step(key: object) -> str:
    """Return a key as one step of a path: not empty, without dots and hashes, so that paths are unambiguous."""
    return str(key)[:200].replace("%", "%25").replace(".", "%2E").replace("#", "%23") or "%"


def name_steps(items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the items of a container by distinct steps of a path: `0` and `"0"` may both be keys."""
    used: set[str] = set()
    for key, item in items:
        bare = step = escape_step(key)
        number = 0
        while step in used:
            number += 1
            step = f"{bare}~{number}"
        used.add(step)
        yield step, item


def flatten(value: Any, is_leaf: Callable[[Any], bool], objects: bool = False) -> Iterator[Leaf]:
    """Yield (path, leaf) of everything inside a value; with `objects` also the attributes of other objects.

    Leaves are what `is_leaf` accepts (tensors), plain values, and a `Placeholder` for everything else.
    """
    yield from _walk(value, "", is_leaf, objects, ())


def _walk(
    value: Any, path: str, is_leaf: Callable[[Any], bool], objects: bool, enclosing: tuple[int, ...]
) -> Iterator[Leaf]:
    if is_leaf(value) or isinstance(value, _LEAF_TYPES):
        yield path, value
        return
    type_name = type(value).__name__
    if id(value) in enclosing:
        yield path, Placeholder(type_name, "contains itself")
        return
    if len(enclosing) >= _DEEPEST:
        yield path, Placeholder(type_name, "nested too deeply")
        return
    items = _iterate_items(value)
    if items is None:
        yield from _walk_object(value, path, is_leaf, objects, enclosing)
        return
    count = 0
    for step, item in name_steps(items):
        count += 1
        if count > _MOST_ITEMS:
            yield path, Placeholder(type_name, f"only the first {_MOST_ITEMS} items were looked into")
            return
        yield from _walk(item, f"{path}.{step}" if path else step, is_leaf, objects, (*enclosing, id(value)))
    if count == 0:
        yield path, Placeholder(type_name, "empty", Content.EMPTY)


def _iterate_items(value: Any) -> Iterator[tuple[Any, Any]] | None:
    """Return the items of a container by key, or None if the value is not one."""
    if isinstance(value, Mapping):
        return iter(value.items())
    if isinstance(value, (set, frozenset)) and all(isinstance(item, _PLAIN_TYPES) for item in value):
        return iter(enumerate(sorted(value, key=lambda item: (type(item).__name__, repr(item)))))
    if isinstance(value, deque):
        return iter(enumerate(value))
    if isinstance(value, (tuple, list)):
        names = getattr(value, "_fields", None)
        return zip(names, value) if isinstance(names, tuple) else iter(enumerate(value))  # noqa: B905  # named tuples
    if is_dataclass(value) and not isinstance(value, type):
        return ((field.name, getattr(value, field.name, None)) for field in fields(value))
    return None


def _walk_object(
    value: Any, path: str, is_leaf: Callable[[Any], bool], objects: bool, enclosing: tuple[int, ...]
) -> Iterator[Leaf]:
    """Yield the tensors an object holds (a key-value cache, a distribution), or what stands for it if it has none."""
    has_attributes = hasattr(value, "__dict__") and not isinstance(value, (enum.Enum, type)) and not callable(value)
    has_tensors = False
    if objects and has_attributes:
        public = {name: attribute for name, attribute in vars(value).items() if not name.startswith("_")}
        for inner_path, leaf in _walk(public, path, is_leaf, True, (*enclosing, id(value))):
            if is_leaf(leaf) or isinstance(leaf, np.ndarray):
                has_tensors = True
                yield inner_path, leaf
    if has_tensors:
        return
    cls = type(value)
    is_torch_constant = cls.__module__ == "torch" and cls.__name__ in _TORCH_NAMES
    if isinstance(value, (enum.Enum, range, slice)) or is_torch_constant:
        yield path, str(value)  # its text is all there is to it
    else:
        yield path, Placeholder(cls.__name__, "not looked into")


def describe_value(value: Any) -> PlainValue:
    """Return a leaf that is not a tensor as an event holds it."""
    type_name = type(value).__name__
    if isinstance(value, Placeholder):
        return PlainValue(value.type, None, value.note, value.content)
    if isinstance(value, (bytes, bytearray)):
        return PlainValue(type_name, None, f"{len(value)} bytes", Content.UNREAD)
    if isinstance(value, np.ndarray) or (isinstance(value, np.generic) and not isinstance(value, (float, str))):
        return PlainValue(type_name, None, f"of dtype {value.dtype} and shape {value.shape}", Content.UNREAD)
    if isinstance(value, str) and len(value) > TEXT_LIMIT:
        note = f"the first {TEXT_LIMIT:,} of {len(value):,} characters"
        return PlainValue("str", value[:TEXT_LIMIT], note, Content.UNREAD)
    if isinstance(value, complex):
        return PlainValue("complex", [value.real, value.imag])
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > INTEGER_BITS:
        digits = str(value)[:TEXT_LIMIT] if value.bit_length() < 4096 else None
        return PlainValue("int", digits, "a large number", Content.UNREAD)
    return PlainValue(type_name, value)
