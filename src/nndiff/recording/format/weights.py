"""What models held when they were recorded: parameters and buffers, of which digests tell whether they are the same."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from nndiff.names import ancestors


class Held(NamedTuple):
    """Tell a tensor that a module holds from others."""

    dtype: str
    shape: tuple[int, ...]
    digest: str


def held_by(meta: Mapping[str, Any]) -> dict[str, Held]:
    """Return what a recording tells of parameters and buffers, by name; recordings of other makers may tell nothing."""
    told = meta.get("held")
    found = {name: _held(each) for name, each in told.items()} if isinstance(told, Mapping) else {}
    return {name: each for name, each in found.items() if each is not None}


def _held(told: Any) -> Held | None:
    if not isinstance(told, Mapping):
        return None
    dtype, shape, digest = (told.get(key) for key in Held._fields)
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(digest, str):
        return None
    return Held(dtype, tuple(shape), digest) if all(type(size) is int for size in shape) else None


def fingerprints(meta: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the digests of what each module holds itself, whatever it is called."""
    found: dict[str, list[str]] = {}
    for name, held in held_by(meta).items():
        found.setdefault(name.rpartition(".")[0], []).append(held.digest)
    return {module: tuple(sorted(digests)) for module, digests in found.items()}


def may_be_turned(held: Held) -> bool:
    """Tell whether a tensor of the same shape may hold the same the other way round, as other classes do."""
    sizes = [size for size in held.shape if size > 1]
    return len(sizes) > len(set(sizes))


class Unequal(NamedTuple):
    """Hold what two modules both hold, by the reference's names: how much of it, and what is not the same."""

    common: int
    differing: tuple[str, ...]
    alone: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # what only one of the two modules holds itself


def compare_held(
    sides: tuple[Mapping[str, Held], Mapping[str, Held]], modules: tuple[str, str], without: Container[str] = ()
) -> Unequal:
    """Compare what two modules hold, themselves or inside, under one name and in one form.

    What is of another shape or type may lie otherwise: nothing is known of it. Modules inside that are named in
    `without` are left out, and so are counters.
    """
    ours, theirs = (_inside(held, module) for held, module in zip(sides, modules, strict=True))
    front = f"{modules[0]}." if modules[0] else ""
    alike = [
        name
        for name, held in ours.items()
        if name in theirs and held[:2] == theirs[name][:2] and not _is_counter(held)
        if not any(front + around in without for around in ancestors(name) if around)
    ]
    differing = tuple(front + name for name in alike if ours[name].digest != theirs[name].digest)
    return Unequal(len(alike), differing, (_alone(ours, theirs, modules[0]), _alone(theirs, ours, modules[1])))


def _alone(mine: Mapping[str, Held], others: Mapping[str, Held], module: str) -> tuple[str, ...]:
    own = (name for name, held in mine.items() if "." not in name and not _is_counter(held))
    return tuple(f"{module}.{name}".lstrip(".") for name in own if name not in others)


def _inside(held: Mapping[str, Held], module: str) -> dict[str, Held]:
    front = f"{module}." if module else ""
    return {name[len(front) :]: each for name, each in held.items() if name.startswith(front)}


def _is_counter(held: Held) -> bool:
    return held.shape == () and "int" in held.dtype
