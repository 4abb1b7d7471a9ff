"""The tree a pickle holds: which nodes hold tensors, and a bounded walk that gives each tensor a dotted name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from nndiff.errors import UnsafeFileError
from nndiff.sources.arrays import Array
from nndiff.sources.pickle_nodes import KEY, Global, Object, Span
from nndiff.sources.torch_objects import Scale, Tensor

_DEEPEST = 200
_MOST_NAMES = 100_000
_MOST_NAME_BYTES = 64 << 20  # a long key above many tensors is in every name
# A pickle may name one node many times: a few hundred bytes can describe more paths than atoms.
_MOST_STEPS = 2_000_000
_MOST_NUMBERS = 1000  # in one dictionary without tensors
_ATOMS = frozenset((int, float, complex, str, bool, type(None), Global, Span))  # most of a pickle
_TOO_MANY_NAMES = "holds more names of tensors than any model has; not read"

# Which plain numbers count as tensors: all in a part the user asked for, in a model those beside its tensors.
Numbers = Literal["none", "in dicts", "all"]


def is_tensor(node: Any) -> bool:
    """Return True if a node of a pickle is a tensor."""
    return isinstance(node, (Tensor, Scale)) or (isinstance(node, Array) and not node.scalar)


def is_number(node: Any) -> bool:
    """Return True for a number, Python's or NumPy's, and for plain bytes (an `_extra_state`)."""
    return isinstance(node, (bool, int, float, complex, Span, bytes)) or (isinstance(node, Array) and node.scalar)


def is_container(node: Any) -> bool:
    """Return True for a node that may hold others."""
    return isinstance(node, (dict, list, tuple, Object))


def _is_table(node: Any) -> bool:
    """Return True for a dictionary larger than any state of numbers: a vocabulary, an index."""
    return isinstance(node, dict) and len(node) > _MOST_NUMBERS


def key_text(key: Any) -> str:
    """Return a key as one part of a dotted name."""
    if isinstance(key, Object) and key.made_by == KEY:
        key = key.args
    if isinstance(key, tuple) and len(key) <= 16:
        return ",".join("…" if isinstance(item, tuple) else key_text(item) for item in key)
    if isinstance(key, str):
        return key
    if isinstance(key, (float, Global)) or (isinstance(key, int) and key.bit_length() < 128):
        return str(key)
    return type(key).__name__.lower()


def join_keys(prefix: str, key: str) -> str:
    """Return the dotted name of a key below another name."""
    return f"{prefix}.{key}" if prefix else key


def list_children(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the named children of a node; a pickled module has its parameters, buffers and modules."""
    if isinstance(node, dict):
        yield from node.items()
    elif isinstance(node, (list, tuple)):
        yield from enumerate(node)
    elif isinstance(node, Object):
        for state in node.state:
            if _is_module_state(state):
                yield from _list_module_children(state)
                continue
            for item in state if isinstance(state, tuple) else (state,):  # a class with slots: (dict, slots)
                if isinstance(item, dict):
                    yield from item.items()
                else:
                    yield "state", item
        yield from node.pairs
        yield from enumerate(node.items)
        if node.args:
            yield "args", node.args


def _is_module_state(state: Any) -> bool:
    return isinstance(state, dict) and isinstance(state.get("_parameters"), dict)


def _list_module_children(state: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    not_persistent = _list_buffers_not_saved(state)
    for kind in ("_parameters", "_buffers", "_modules"):
        named = state.get(kind)
        if isinstance(named, dict):
            for key, value in named.items():
                if kind != "_buffers" or key not in not_persistent:
                    yield key, value


def _list_buffers_not_saved(state: dict[Any, Any]) -> set[str]:
    """Return the buffers of a pickled module that are not persistent."""
    names = state.get("_non_persistent_buffers_set")
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _list_parts(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what a tensor carries beside its elements: scales, the attributes of a subclass."""
    for attributes in node.parts if isinstance(node, Tensor) else ():
        yield from attributes.items()


@dataclass(frozen=True)
class _Level:
    """Know where a walk is inside one container."""

    prefix: str
    children: Iterator[tuple[Any, Any]]
    identity: int
    numbers: Numbers


class Tree:
    """Look at the nodes of a pickle once, and know which of them hold tensors."""

    def __init__(self, path: str, root: Any) -> None:
        self.path = path
        self.root = root
        self._steps = _MOST_STEPS
        self._holding = _find_holding(root)

    def holds_tensors(self, node: Any) -> bool:
        """Return True if a node is a tensor or holds one."""
        return is_tensor(node) or id(node) in self._holding

    def walk_tensors(
        self, top: Any, numbers: Numbers = "none", skipped: frozenset[Any] = frozenset()
    ) -> Iterator[tuple[str, Any]]:
        """Yield every tensor below a node with its dotted name, and the plain numbers that count.

        `skipped` are keys of the top that are not looked at. A table of numbers is yielded as it is.
        """
        count = name_bytes = 0
        levels = [_Level("", list_children(top), id(top), numbers)]
        on_path = {id(top)}  # a node may hold itself
        while levels:
            level = levels[-1]
            child = next(level.children, None)
            self._spend_step()
            if child is None:
                levels.pop()
                on_path.discard(level.identity)
                continue
            key, node = child
            if (len(levels) == 1 and key in skipped) or (type(node) in _ATOMS and level.numbers == "none"):
                continue
            is_leaf = is_tensor(node)
            inside = self._look_inside(node, level.numbers) if id(node) not in on_path else None
            is_plain = level.numbers != "none" and (is_number(node) or _is_table(node))
            if not is_leaf and inside is None and not is_plain:
                continue
            name = join_keys(level.prefix, key_text(key))
            name_bytes += len(name)
            if is_leaf or inside is None:
                count += 1
                yield name, node
            if count > _MOST_NAMES or name_bytes > _MOST_NAME_BYTES:
                raise UnsafeFileError(self.path, _TOO_MANY_NAMES)
            if inside is None:
                continue
            if len(levels) >= _DEEPEST:
                raise UnsafeFileError(self.path, f"is nested deeper than {_DEEPEST} levels; not read")
            on_path.add(id(node))
            inner_numbers: Numbers = "none"
            if not is_leaf:
                inner_numbers = numbers_inside(node, level.numbers)
            levels.append(_Level(name, inside, id(node), inner_numbers))

    def _look_inside(self, node: Any, numbers: Numbers) -> Iterator[tuple[Any, Any]] | None:
        """Return the children of a node that are worth looking at, or None."""
        if is_tensor(node):
            return _list_parts(node)
        if id(node) in self._holding or (numbers == "all" and is_container(node)):
            return list_children(node)
        if numbers == "in dicts" and isinstance(node, dict) and not _is_table(node):
            return list_children(node)
        return None

    def find_tensors_not_saved(self, top: Any) -> Iterator[str]:
        """Yield the names of tensors of pickled modules that no state_dict would have: attributes, passing buffers."""
        # names are made for what is found, not for every node: a place is the place above it and a key
        stack: list[tuple[tuple[Any, ...], Any]] = [((), top)]
        seen = set()
        name_bytes = 0
        while stack:
            place, node = stack.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            self._spend_step()
            for state in node.state if isinstance(node, Object) else ():
                if not _is_module_state(state):
                    continue
                keys = [key for key, value in state.items() if is_tensor(value)]
                buffers = state.get("_buffers")
                if isinstance(buffers, dict):
                    keys += [key for key in sorted(_list_buffers_not_saved(state)) if is_tensor(buffers.get(key))]
                for key in keys:
                    name = _join_place((place, key))
                    name_bytes += len(name)
                    if name_bytes > _MOST_NAME_BYTES:
                        raise UnsafeFileError(self.path, _TOO_MANY_NAMES)
                    yield name
            for key, child in list_children(node):
                if child and is_container(child):
                    stack.append(((place, key), child))

    def _spend_step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise UnsafeFileError(self.path, f"takes more than {_MOST_STEPS} steps to look through; not read")


def numbers_inside(node: Any, numbers: Numbers) -> Numbers:
    """Return which numbers count inside a node: in a list or an object they are settings, not state."""
    return "none" if numbers == "in dicts" and not isinstance(node, dict) else numbers


def _join_place(place: tuple[Any, ...]) -> str:
    keys: list[str] = []
    while place and len(keys) < _DEEPEST:
        place, key = place
        keys.append(key_text(key))
    if place:
        keys.append("…")
    return ".".join(reversed(keys))


def _find_holding(root: Any) -> set[int]:
    """Return the ids of all containers from which a tensor can be reached, looking at each node once."""
    parents: dict[int, int | list[int]] = {}  # most have one, and a list takes more room than everything else
    holding_tensors: set[int] = set()
    stack: list[Any] = [root]
    while stack:
        node = stack.pop()
        for _, child in _list_parts(node) if is_tensor(node) else list_children(node):
            if type(child) in _ATOMS:
                continue
            if is_tensor(child):
                holding_tensors.add(id(node))
            elif not is_container(child):
                continue
            parent = parents.get(id(child))
            if parent is None:
                parents[id(child)] = id(node)
                stack.append(child)
            elif isinstance(parent, list):
                parent.append(id(node))
            else:
                parents[id(child)] = [parent, id(node)]
    holding: set[int] = set()
    pending = list(holding_tensors)
    while pending:
        identity = pending.pop()
        if identity in holding:
            continue
        holding.add(identity)
        above = parents.get(identity, [])
        pending.extend(above if isinstance(above, list) else [above])
    return holding
