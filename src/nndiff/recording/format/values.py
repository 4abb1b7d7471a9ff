"""Look into what modules return: tuples, lists, dicts, dataclasses, and objects that hold tensors."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain, count
from typing import Any

import numpy as np

_DEEPEST = 24
_MOST = 4096  # items of one container
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_HELD = (*_PLAIN, bytearray, np.ndarray, np.generic)  # leaves, whatever else is one
_TORCH_NAMES = ("dtype", "device", "layout", "memory_format")  # by name: torch may not be installed
TEXT_LIMIT = 1000  # characters of a text that is written out
WHOLE_BITS = 62  # of a whole number that is written out
EMPTY = "empty"

Leaf = tuple[str, Any]


@dataclass(frozen=True, slots=True)
class Unseen:
    """Stand for what was not looked into, and say what it is."""

    type: str
    note: str


def escape(key: object) -> str:
    """Return one step of a path, not empty and without dots and hashes, so that a path reads in one way only."""
    return str(key)[:200].replace("%", "%25").replace(".", "%2E").replace("#", "%23") or "%"


def steps(items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the items of a container by steps of a path, all different: `0` and `"0"` may both be keys."""
    used: set[str] = set()
    for key, each in items:
        bare = escape(key)
        step = next(free for free in chain((bare,), (f"{bare}~{number}" for number in count(1))) if free not in used)
        used.add(step)
        yield step, each


def flatten(value: Any, is_leaf: Callable[[Any], bool], objects: bool = False) -> Iterator[Leaf]:
    """Yield (path, leaf) of everything inside a value; with `objects` also the attributes of foreign objects.

    Leaves are what `is_leaf` knows (tensors), plain values, and `Unseen` for the rest.
    """
    yield from _walk(value, "", is_leaf, objects, ())


def _walk(
    value: Any, path: str, is_leaf: Callable[[Any], bool], objects: bool, above: tuple[int, ...]
) -> Iterator[Leaf]:
    if is_leaf(value) or isinstance(value, _HELD):
        yield path, value
        return
    if id(value) in above or len(above) >= _DEEPEST:
        yield path, Unseen(type(value).__name__, "holds itself" if id(value) in above else "nested too deeply")
        return
    items = _items(value)
    if items is None:
        yield from _inside(value, path, is_leaf, above) if objects else [(path, _unseen(value))]
        return
    seen = 0
    for step, each in steps(items):
        seen += 1
        if seen > _MOST:
            yield path, Unseen(type(value).__name__, f"only the first {_MOST} items were looked into")
            return
        yield from _walk(each, f"{path}.{step}" if path else step, is_leaf, objects, (*above, id(value)))
    if seen == 0:
        yield path, Unseen(type(value).__name__, EMPTY)


def _inside(value: Any, path: str, is_leaf: Callable[[Any], bool], above: tuple[int, ...]) -> list[Leaf]:
    """Return the tensors a foreign object holds (a key-value cache, a distribution), without its plain attributes."""
    if isinstance(value, (enum.Enum, type)) or callable(value) or not hasattr(value, "__dict__"):
        return [(path, _unseen(value))]
    public = {name: each for name, each in vars(value).items() if not name.startswith("_")}
    inside = _walk(public, path, is_leaf, True, (*above, id(value)))
    found = [(at, leaf) for at, leaf in inside if is_leaf(leaf) or isinstance(leaf, np.ndarray)]
    return found or [(path, _unseen(value))]


def _unseen(value: Any) -> Unseen | str:
    """Return what stands for something that holds no tensors: its text, where that says all there is."""
    cls = type(value)
    if isinstance(value, (enum.Enum, range, slice)) or (cls.__module__ == "torch" and cls.__name__ in _TORCH_NAMES):
        return str(value)
    return Unseen(type(value).__name__, "not looked into")


def _items(value: Any) -> Iterator[tuple[Any, Any]] | None:
    if isinstance(value, Mapping):
        return iter(value.items())
    if isinstance(value, (set, frozenset)) and all(isinstance(each, _PLAIN) for each in value):
        return iter(enumerate(sorted(value, key=lambda each: (type(each).__name__, repr(each)))))
    if isinstance(value, deque):
        return iter(enumerate(value))
    if isinstance(value, (tuple, list)):
        names = getattr(value, "_fields", None)
        return zip(names, value) if isinstance(names, tuple) else iter(enumerate(value))  # noqa: B905  # named tuples
    if is_dataclass(value) and not isinstance(value, type):
        return ((field.name, getattr(value, field.name, None)) for field in fields(value))
    return None


def describe(value: Any) -> tuple[str, Any, str]:
    """Return type, plain value and note of a leaf that is no tensor."""
    if isinstance(value, Unseen):
        return value.type, None, value.note
    if isinstance(value, (bytes, bytearray)):
        return type(value).__name__, None, f"{len(value)} bytes"
    if isinstance(value, np.ndarray) or (isinstance(value, np.generic) and not isinstance(value, (float, str))):
        return type(value).__name__, None, f"an array of {value.dtype} and shape {value.shape}"
    if isinstance(value, str) and len(value) > TEXT_LIMIT:
        return "str", value[:TEXT_LIMIT], f"the first of {len(value)} characters"
    if isinstance(value, complex):
        return "complex", [value.real, value.imag], ""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > WHOLE_BITS:
        return "int", str(value)[:TEXT_LIMIT] if value.bit_length() < 4096 else None, "a large number"
    return type(value).__name__, value, ""
