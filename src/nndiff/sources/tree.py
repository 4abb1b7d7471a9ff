"""The tree a pickle holds: which part is the model, what else is there, and dotted names for its tensors."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from nndiff.errors import SourceError, UnsafeFileError
from nndiff.sources.pickle_nodes import KEY, Global, LongText, Object, Span
from nndiff.sources.source import shown

_DEEPEST = 200
_MOST_NAMES = 100_000
_MOST_NAME_BYTES = 64 << 20  # a long key above many tensors is in every name
# A pickle may name one node many times: a few hundred bytes can describe more paths than atoms.
_MOST_STEPS = 2_000_000
_DESCRIBED = 10_000  # tensors counted to describe a part
_OTHERS_LISTED = 1000
_MOST_NUMBERS = 1000  # in one dictionary without tensors

# Where training scripts keep the model, the most telling first.
MODEL_KEYS = ("state_dict", "model_state_dict", "model_state", "model", "module", "net", "network", "weights", "params")
# Under these there is nothing but a model, so what holds tensors beside it is no part of it.
_CERTAIN_KEYS = frozenset(("state_dict", "model_state_dict", "model_state"))
# What they keep beside it. Only these may be passed over; anything else that holds tensors is compared.
_TRAINING_KEYS = frozenset(
    (
        "amp",
        "amp_state",
        "args",
        "best_metric",
        "callbacks",
        "cfg",
        "config",
        "ema",
        "ema_state_dict",
        "epoch",
        "global_step",
        "hparams",
        "hyper_parameters",
        "iteration",
        "loops",
        "loss",
        "losses",
        "metrics",
        "model_ema",
        "random_states",
        "scaler",
        "step",
        "trainer",
    )
)
_TRAINING_WORDS = ("optim", "sched", "rng", "grad_scaler")

# Which plain numbers count as tensors: of a part asked for all, of a model those that stand beside its tensors.
Numbers = Literal["none", "in dicts", "all"]


@dataclass(frozen=True)
class Part:
    """Name the part of a tree that was chosen, and describe the rest."""

    key: str
    node: Any
    others: dict[str, str]
    left_out: frozenset[str] = frozenset()  # keys of `node` that are not the model
    beside: dict[Any, Any] = field(default_factory=dict)  # what stands beside `node` and holds tensors too


@dataclass(frozen=True)
class Nodes:
    """Tell the nodes apart that are no containers."""

    is_leaf: Callable[[Any], bool]
    is_number: Callable[[Any], bool]
    attributes: Callable[[Any], Iterator[tuple[Any, Any]]]  # what a leaf carries beside its elements


class Tree:
    """Look at the nodes of a pickle once, and know which of them hold tensors."""

    def __init__(self, path: str, root: Any, nodes: Nodes) -> None:
        self.path = path
        self.root = root
        self._nodes = nodes
        self._is_leaf = nodes.is_leaf
        self._steps = _MOST_STEPS
        self._holding = _holding(root, nodes)

    def holds(self, node: Any) -> bool:
        """Tell whether a node is a tensor or holds one."""
        return self._is_leaf(node) or id(node) in self._holding

    def choose(self, wanted: str = "") -> Part:
        """Return the part asked for, or the one that is the model."""
        if wanted:
            return Part(wanted, self._find(wanted), {})
        part = Part("", self.root, {})
        for _ in range(4):
            deeper = self._model_below(part)
            if deeper is None:
                break
            part = deeper
        return part

    def _model_below(self, part: Part) -> Part | None:
        node = part.node
        if not isinstance(node, dict) or part.left_out or part.beside:
            return None
        holding = [key for key, value in node.items() if self.holds(value)]
        models = [key for key in holding if isinstance(key, str) and key in MODEL_KEYS and not self._is_leaf(node[key])]
        unknown = [key for key in holding if key not in models and not is_training(key)]
        training = [key for key in node if is_training(key)]
        if len(models) == 1 and (not unknown or training or models[0] in _CERTAIN_KEYS):
            beside = {key: node[key] for key in unknown}
            others = [key for key in node if key != models[0] and key not in beside]
            described = {**part.others, **self._described(part.key, node, others)}
            return Part(_join(part.key, models[0]), node[models[0]], described, beside=beside)
        if not training or not (models or unknown) or any(self._is_leaf(node[key]) for key in unknown):
            return None
        described = {**part.others, **self._described(part.key, node, training)}
        return Part(part.key, node, described, frozenset(training))

    def _described(self, prefix: str, node: dict[Any, Any], keys: list[Any]) -> dict[str, str]:
        listed = {_join(prefix, key_text(key)): self.describe(node[key]) for key in keys[:_OTHERS_LISTED]}
        return {**listed, **dict.fromkeys((key_text(key) for key in keys[_OTHERS_LISTED:]), "…")}

    def _find(self, wanted: str) -> Any:
        node, rest = self.root, wanted
        while rest:
            children = {key_text(key): value for key, value in _children(node)}
            fitting = [key for key in children if rest == key or rest.startswith(key + ".")]
            if not fitting:
                close = difflib.get_close_matches(rest, list(children)[:2000], 3) or list(children)[:8]
                names = ", ".join(shown(key) for key in close) or "nothing"
                raise SourceError(self.path, f"has no part {shown(wanted)}; at that place there is {names}")
            key = max(fitting, key=len)
            node, rest = children[key], rest[len(key) + 1 :]
        return node

    def leaves(self, part: Part, numbers: Numbers) -> Iterator[tuple[str, Any]]:
        """Yield every tensor below a part with its dotted name, and plain numbers where they are asked for."""
        if self._is_leaf(part.node) or self._nodes.is_number(part.node):
            name = part.key.rsplit(".", 1)[-1] or "tensor"
            yield from self._walk({name: part.node}, frozenset(), "all")
            return
        if self.holds(part.node) or numbers == "all" or isinstance(part.node, dict):
            yield from self._walk(part.node, part.left_out, numbers if isinstance(part.node, dict) else _below(numbers))
        yield from self._walk(part.beside, frozenset(), numbers)

    def aside(self, part: Part) -> Iterator[tuple[str, str]]:
        """Yield the tensors of pickled modules that are no part of their state: no state_dict would have them."""
        stack: list[tuple[_Place, Any]] = [((), part.node)]  # names are made for what is found, not for every node
        seen = set()
        length = 0
        while stack:
            place, node = stack.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            self._step()
            for key in self._attributes(node):
                name = _path((place, key))
                length += len(name)
                if length > _MOST_NAME_BYTES:
                    raise UnsafeFileError(self.path, "holds more names of tensors than any model has; not read")
                yield name, "a tensor, but not of the state"
            stack.extend(((place, key), child) for key, child in _children(node) if child and _is_container(child))

    def _attributes(self, node: Any) -> Iterator[Any]:
        for state in node.state if isinstance(node, Object) else ():
            if not (isinstance(state, dict) and isinstance(state.get("_parameters"), dict)):
                continue
            yield from (key for key, value in state.items() if self._is_leaf(value))
            buffers = state.get("_buffers")
            if isinstance(buffers, dict):
                yield from (key for key in sorted(_passing(state)) if self._is_leaf(buffers.get(key)))

    def _walk(self, top: Any, left_out: frozenset[str], numbers: Numbers) -> Iterator[tuple[str, Any]]:
        found = length = 0
        stack = [_Level("", _children(top), id(top), numbers)]
        on_path = {id(top)}
        while stack:
            level = stack[-1]
            key, value = next(level.children, (None, _END))
            self._step()
            if value is _END:
                stack.pop()
                on_path.discard(level.identity)
                continue
            if (len(stack) == 1 and key in left_out) or (type(value) in _ATOMS and level.numbers == "none"):
                continue
            leaf = self._is_leaf(value)
            inside = self._inside(value, level.numbers) if id(value) not in on_path else None
            plain = level.numbers != "none" and (self._nodes.is_number(value) or _is_table(value))
            if not leaf and inside is None and not plain:
                continue
            name = _join(level.prefix, key_text(key))
            length += len(name)
            if leaf or inside is None:
                found += 1
                yield name, value
            if found > _MOST_NAMES or length > _MOST_NAME_BYTES:
                raise UnsafeFileError(self.path, "holds more names of tensors than any model has; not read")
            if inside is not None:
                if len(stack) >= _DEEPEST:
                    raise UnsafeFileError(self.path, f"is nested deeper than {_DEEPEST} levels; not read")
                on_path.add(id(value))
                numbers = "none" if leaf else level.numbers if isinstance(value, dict) else _below(level.numbers)
                stack.append(_Level(name, inside, id(value), numbers))

    def _inside(self, node: Any, numbers: Numbers) -> Iterator[tuple[Any, Any]] | None:
        """Return the children worth looking at, or None."""
        if self._is_leaf(node):
            return self._nodes.attributes(node)
        if id(node) in self._holding or (numbers == "all" and _is_container(node)):
            return _children(node)
        looked_at = numbers == "in dicts" and isinstance(node, dict) and not _is_table(node)
        return _children(node) if looked_at else None

    def _step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise UnsafeFileError(self.path, f"takes more than {_MOST_STEPS} steps to look through; not read")

    def describe(self, node: Any) -> str:
        """Say in a few words what a node is."""
        if self._is_leaf(node):
            return "a tensor"
        if isinstance(node, str):
            return repr(node if len(node) <= 40 else node[:39] + "…")
        if node is None or isinstance(node, (bool, int, float)):
            return repr(node) if not isinstance(node, int) or node.bit_length() < 128 else "a large number"
        if isinstance(node, (Span, LongText)):
            return f"{node.window.size} bytes"
        return self._describe_container(node)

    def _describe_container(self, node: Any) -> str:
        count = self._count(node) if self.holds(node) else 0
        if count:
            return f"{'at least ' if count == _DESCRIBED else ''}{count} tensor{'s' if count > 1 else ''}"
        if isinstance(node, Object):
            return f"an object of {node.made_by}" if isinstance(node.made_by, Global) else "an object"
        return f"{len(node)} entries" if isinstance(node, (dict, list, tuple)) else "something else"

    def _count(self, node: Any) -> int:
        try:
            return sum(1 for _ in islice(self._walk(node, frozenset(), "none"), _DESCRIBED))
        except UnsafeFileError:
            return _DESCRIBED


@dataclass(frozen=True)
class _Level:
    prefix: str
    children: Iterator[tuple[Any, Any]]
    identity: int
    numbers: Numbers


def _below(numbers: Numbers) -> Numbers:
    """Return which numbers count inside a list or an object: there they are settings, not state."""
    return "all" if numbers == "all" else "none"


def _is_table(node: Any) -> bool:
    """Tell whether a node is a dictionary larger than any state of numbers: a vocabulary, an index."""
    return isinstance(node, dict) and len(node) > _MOST_NUMBERS


_Place = tuple[Any, ...]  # of a node: nothing for the top, else the place above and the key


def _path(place: _Place) -> str:
    keys: list[str] = []
    while place and len(keys) < _DEEPEST:
        place, key = place
        keys.append(key_text(key))
    return ".".join(["…", *keys[::-1]] if place else keys[::-1])


_ATOMS = frozenset((int, float, complex, str, bool, type(None), Global, Span))  # most of a pickle


class _End:
    pass


_END = _End()


def _is_container(node: Any) -> bool:
    return isinstance(node, (dict, list, tuple, Object))


def _children(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the named children of a node; a pickled module shows its parameters, buffers and modules."""
    if isinstance(node, dict):
        yield from node.items()
    elif isinstance(node, (list, tuple)):
        yield from enumerate(node)
    elif isinstance(node, Object):
        yield from _object_children(node)


def _object_children(node: Object) -> Iterator[tuple[Any, Any]]:
    for state in node.state:
        if isinstance(state, dict) and isinstance(state.get("_parameters"), dict):
            yield from _module_children(state)
        elif isinstance(state, tuple):
            for each in state:
                yield from _children(each) if isinstance(each, dict) else [("state", each)]
        else:
            yield from _children(state) if isinstance(state, dict) else [("state", state)]
    yield from node.pairs
    yield from enumerate(node.items)
    if node.args:
        yield "args", node.args


def _passing(state: dict[Any, Any]) -> set[str]:
    """Return the buffers of a pickled module that are not persistent."""
    passing = state.get("_non_persistent_buffers_set")
    return {each for each in passing if isinstance(each, str)} if isinstance(passing, list) else set()


def _module_children(state: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    left_out = _passing(state)
    for kind in ("_parameters", "_buffers", "_modules"):
        part = state.get(kind)
        if isinstance(part, dict):
            yield from ((key, value) for key, value in part.items() if not (kind == "_buffers" and key in left_out))


def _holding(root: Any, nodes: Nodes) -> set[int]:
    """Return the ids of all containers from which a tensor can be reached, looking at each node once."""
    parents: dict[int, int | list[int]] = {}  # most have one, and a list takes more room than all the rest
    leaves: set[int] = set()
    stack: list[Any] = [root]
    while stack:
        node = stack.pop()
        for _, child in nodes.attributes(node) if nodes.is_leaf(node) else _children(node):
            if type(child) in _ATOMS:
                continue
            if nodes.is_leaf(child):
                leaves.add(id(node))
            if nodes.is_leaf(child) or _is_container(child):
                before = parents.get(id(child))
                if before is None:
                    parents[id(child)] = id(node)
                    stack.append(child)
                elif isinstance(before, list):
                    before.append(id(node))
                else:
                    parents[id(child)] = [before, id(node)]
    holding: set[int] = set()
    todo = list(leaves)
    while todo:
        identity = todo.pop()
        if identity not in holding:
            holding.add(identity)
            above = parents.get(identity, [])
            todo.extend(above if isinstance(above, list) else [above])
    return holding


def is_training(key: Any) -> bool:
    """Tell whether a key is one of those that training scripts keep beside the model."""
    if not isinstance(key, str) or len(key) > 100:
        return False
    return key.lower() in _TRAINING_KEYS or any(word in key.lower() for word in _TRAINING_WORDS)


def key_text(key: Any) -> str:
    """Return a key as a part of a dotted name."""
    if isinstance(key, Object) and key.made_by == KEY:
        key = key.args
    if isinstance(key, tuple) and len(key) <= 16:
        return ",".join("…" if isinstance(each, tuple) else key_text(each) for each in key)
    if isinstance(key, str):
        return key
    if isinstance(key, (float, Global)) or (isinstance(key, int) and key.bit_length() < 128):
        return str(key)
    return type(key).__name__.lower()


def shortened(others: dict[str, str]) -> dict[str, str]:
    """Return what else is in a file, as much of it as anybody reads."""
    left = len(others) - _OTHERS_LISTED
    listed = dict(islice(others.items(), _OTHERS_LISTED))
    return {**listed, "…": f"{left} more"} if left > 0 else listed


def _join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key
