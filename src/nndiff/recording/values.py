"""Look into what modules return: tuples, lists, dicts, dataclasses, and objects that hold tensors."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain, count
from typing import Any

_DEEPEST = 24
_MOST = 4096  # items of one container
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_TEXT_LIMIT = 1000

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
    if is_leaf(value) or isinstance(value, _PLAIN):
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
        yield path, Unseen(type(value).__name__, "empty")


def _inside(value: Any, path: str, is_leaf: Callable[[Any], bool], above: tuple[int, ...]) -> list[Leaf]:
    """Return the tensors a foreign object holds (a key-value cache, a distribution), without its plain attributes."""
    if isinstance(value, (enum.Enum, type)) or callable(value) or not hasattr(value, "__dict__"):
        return [(path, _unseen(value))]
    public = {name: each for name, each in vars(value).items() if not name.startswith("_")}
    found = [(at, leaf) for at, leaf in _walk(public, path, is_leaf, True, (*above, id(value))) if is_leaf(leaf)]
    return found or [(path, _unseen(value))]


def _unseen(value: Any) -> Unseen:
    return Unseen(type(value).__name__, "not looked into")


def _items(value: Any) -> Iterator[tuple[Any, Any]] | None:
    if isinstance(value, Mapping):
        return iter(value.items())
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
    if isinstance(value, bytes):
        return "bytes", None, f"{len(value)} bytes"
    if isinstance(value, str) and len(value) > _TEXT_LIMIT:
        return "str", value[:_TEXT_LIMIT], f"the first of {len(value)} characters"
    if isinstance(value, complex):
        return "complex", [value.real, value.imag], ""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 62:
        return "int", str(value)[:_TEXT_LIMIT] if value.bit_length() < 4096 else None, "a large number"
    return type(value).__name__, value, ""
