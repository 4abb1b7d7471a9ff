"""The tree a pickle holds: which part is the model, what else is there, and dotted names for its tensors."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from nndiff.errors import SourceError, UnsafeFileError
from nndiff.sources.pickle_vm import Global, Object, Span

_DEEPEST = 200
_MOST_NAMES = 500_000

# Where training scripts keep the model, the most telling first.
MODEL_KEYS = ("state_dict", "model_state_dict", "model_state", "model", "module", "net", "network", "weights", "params")
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


@dataclass(frozen=True)
class Part:
    """Name the part of a tree that was chosen, and describe the rest."""

    key: str
    node: Any
    others: dict[str, str]
    left_out: frozenset[str] = frozenset()  # keys of `node` that are not the model


IsLeaf = Callable[[Any], bool]


class Tree:
    """Look at the nodes of a pickle once, and know which of them hold tensors."""

    def __init__(self, path: str, root: Any, is_leaf: IsLeaf) -> None:
        self.path = path
        self.root = root
        self._is_leaf = is_leaf
        self._holding = _holding(root, is_leaf)

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
        if not isinstance(node, dict) or part.left_out:
            return None
        holding = [key for key, value in node.items() if isinstance(key, str) and self.holds(value)]
        if any(self._is_leaf(node[key]) for key in holding if not _is_training(key)):
            return None
        models = sorted((key for key in holding if key in MODEL_KEYS), key=MODEL_KEYS.index)
        unknown = [key for key in holding if key not in MODEL_KEYS and not _is_training(key)]
        if models and not unknown:
            chosen = models[0]
            others = {_text(key): self.describe(value) for key, value in node.items() if key != chosen}
            return Part(_join(part.key, chosen), node[chosen], {**part.others, **_prefixed(part.key, others)})
        training = [key for key in node if isinstance(key, str) and _is_training(key)]
        if not training or not (models or unknown):
            return None
        others = {key: self.describe(node[key]) for key in training}
        return Part(part.key, node, {**part.others, **_prefixed(part.key, others)}, frozenset(training))

    def _find(self, wanted: str) -> Any:
        node, rest = self.root, wanted
        while rest:
            children = {_text(key): value for key, value in _children(node)}
            fitting = [key for key in children if rest == key or rest.startswith(key + ".")]
            if not fitting:
                close = difflib.get_close_matches(rest, list(children)[:2000], 3) or list(children)[:8]
                names = ", ".join(repr(key) for key in close) or "nothing"
                raise SourceError(self.path, f"has no part {wanted!r}; at that place there is {names}")
            key = max(fitting, key=len)
            node, rest = children[key], rest[len(key) + 1 :]
        return node

    def leaves(self, part: Part, with_numbers: bool = False) -> Iterator[tuple[str, Any]]:
        """Yield every tensor below a part with its dotted name, and plain numbers too if asked."""
        if self._is_leaf(part.node):
            yield part.key.rsplit(".", 1)[-1] or "tensor", part.node
            return
        found = 0
        stack: list[tuple[str, Iterator[tuple[Any, Any]], int]] = [("", _children(part.node), id(part.node))]
        on_path = {id(part.node)}
        while stack:
            prefix, children, identity = stack[-1]
            key, value = next(children, (None, _END))
            if value is _END:
                stack.pop()
                on_path.discard(identity)
                continue
            if len(stack) == 1 and key in part.left_out:
                continue
            name = _join(prefix, _text(key))
            if self._is_leaf(value) or (with_numbers and isinstance(value, (int, float, complex))):
                found += 1
                if found > _MOST_NAMES:
                    raise UnsafeFileError(self.path, f"holds more than {_MOST_NAMES} tensors; not read")
                yield name, value
            elif (id(value) in self._holding or (with_numbers and _is_container(value))) and id(value) not in on_path:
                if len(stack) >= _DEEPEST:
                    raise UnsafeFileError(self.path, f"is nested deeper than {_DEEPEST} levels; not read")
                on_path.add(id(value))
                stack.append((name, _children(value), id(value)))

    def describe(self, node: Any) -> str:
        """Say in a few words what a node is."""
        if self._is_leaf(node):
            return "a tensor"
        if isinstance(node, str):
            return repr(node if len(node) <= 40 else node[:39] + "…")
        if node is None or isinstance(node, (bool, int, float)):
            return repr(node) if not isinstance(node, int) or node.bit_length() < 128 else "a large number"
        if isinstance(node, Span):
            return f"{node.window.size} bytes"
        return self._describe_container(node)

    def _describe_container(self, node: Any) -> str:
        count = sum(1 for _ in _limited(self.leaves(Part("", node, {})))) if self.holds(node) else 0
        if count:
            return f"{count} tensor{'s' if count > 1 else ''}"
        if isinstance(node, Object):
            return f"an object of {node.made_by}" if isinstance(node.made_by, Global) else "an object"
        return f"{len(node)} entries" if isinstance(node, (dict, list, tuple)) else "something else"


class _End:
    pass


_END = _End()


def _limited(leaves: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for _, leaf in zip(range(100_000), leaves, strict=False):
        yield leaf


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


def _module_children(state: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    passing = state.get("_non_persistent_buffers_set")
    left_out = {each for each in passing if isinstance(each, str)} if isinstance(passing, list) else set()
    for kind in ("_parameters", "_buffers", "_modules"):
        part = state.get(kind)
        if isinstance(part, dict):
            yield from ((key, value) for key, value in part.items() if not (kind == "_buffers" and key in left_out))


def _holding(root: Any, is_leaf: IsLeaf) -> set[int]:
    """Return the ids of all containers from which a tensor can be reached, looking at each node once."""
    parents: dict[int, list[int]] = {}
    leaves: set[int] = set()
    stack: list[Any] = [root]
    seen = {id(root)}
    while stack:
        node = stack.pop()
        for _, child in _children(node):
            if is_leaf(child):
                leaves.add(id(node))
            elif _is_container(child):
                parents.setdefault(id(child), []).append(id(node))
                if id(child) not in seen:
                    seen.add(id(child))
                    stack.append(child)
    holding: set[int] = set()
    todo = list(leaves)
    while todo:
        identity = todo.pop()
        if identity not in holding:
            holding.add(identity)
            todo.extend(parents.get(identity, ()))
    return holding


def _is_training(key: str) -> bool:
    return key.lower() in _TRAINING_KEYS or any(word in key.lower() for word in _TRAINING_WORDS)


def _text(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, tuple):
        return ",".join(_text(each) for each in key)
    if isinstance(key, (int, float, Global)):
        return str(key)
    return type(key).__name__.lower()


def _join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key


def _prefixed(prefix: str, others: dict[str, str]) -> dict[str, str]:
    return {_join(prefix, key): value for key, value in others.items()}
