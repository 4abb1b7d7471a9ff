"""What a pickle becomes: plain containers, and inert nodes for everything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nndiff.files import Window


@dataclass(frozen=True, slots=True)
class Global:
    """Name a class or function of the pickle; it is never looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, repr=False, slots=True)  # no repr: nodes can be deep, endless or both
class Object:
    """Stand for whatever a call or a class would have made."""

    made_by: Any  # mostly a Global
    args: Any = ()
    state: list[Any] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)
    pairs: list[tuple[Any, Any]] = field(default_factory=list)


KEY = "key"  # `made_by` of an Object that stands for a key not safe to hash


@dataclass(frozen=True, eq=False, slots=True)
class Span:
    """Name bytes of the pickle by their place, so that large ones are not copied."""

    window: Window


@dataclass(frozen=True, eq=False, slots=True)
class LongText:
    """Name text of the pickle by its place, in UTF-8."""

    window: Window


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Persistent:
    """Stand for an object stored outside the pickle."""

    id: Any


@dataclass(frozen=True)
class Loaded:
    """Hold the object of a torch file or pickle, inert, and the classes that were met and not loaded."""

    root: Any
    foreign: list[str]


class NotKnownError(TypeError):
    """Say that a pickle is sound and holds something nndiff does not know."""


Handler = Callable[[tuple[Any, ...]], Any]


class Mark:
    """Stand on the stack where a collection begins."""


MARK = Mark()


def _make_key(value: Any) -> Any:
    """Return a dictionary key that is cheap to hash.

    A deep tuple would overflow the C stack, a long one takes its length each time, and large
    numbers and tuples of numbers can be chosen so that all have one hash.
    """
    if value is None or isinstance(value, (str, float, Global)):
        return value
    if isinstance(value, int) and value.bit_length() < 60:
        return value
    return Object(KEY, value)


def add_pairs(target: Any, flat: list[Any]) -> None:
    """Put key, value, key, value, ... into a dictionary or an Object."""
    if len(flat) % 2:
        raise ValueError("odd")
    pairs = zip(flat[::2], flat[1::2], strict=True)
    if isinstance(target, dict):
        for key, value in pairs:
            target[_make_key(key)] = value
    elif isinstance(target, Object):
        target.pairs.extend(pairs)
    else:
        raise TypeError("not a dictionary")


def add_items(target: Any, items: list[Any]) -> None:
    """Append to a list or an Object."""
    if isinstance(target, list):
        target.extend(items)
    elif isinstance(target, Object):
        target.items.extend(items)
    else:
        raise TypeError("not a list")
