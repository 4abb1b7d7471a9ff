"""Which part of a pickle is the model: found by the keys training scripts use, or named by the user."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from nndiff.errors import SourceError, UnsafeFileError
from nndiff.sources.pickle_nodes import Global, LongText, Object, Span
from nndiff.sources.source import OtherEntry, quote_name
from nndiff.sources.tree import (
    Numbers,
    Tree,
    is_number,
    is_tensor,
    join_keys,
    key_text,
    list_children,
    numbers_inside,
)

_DEEPEST_MODEL = 4  # keys around a model
_MOST_COUNTED = 10_000  # tensors counted to describe a part
_MOST_LISTED = 1000  # entries beside the model

# Where training scripts keep the model, the most telling first.
MODEL_KEYS = ("state_dict", "model_state_dict", "model_state", "model", "module", "net", "network", "weights", "params")
# Under these there is nothing but a model, so tensors beside it are not part of it.
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


@dataclass(frozen=True)
class Part:
    """Name the part of a tree that was chosen, and describe the rest."""

    key: str
    node: Any
    others: dict[str, OtherEntry] = field(default_factory=dict)
    skipped: frozenset[Any] = frozenset()  # keys of `node` that are not the model
    beside: dict[Any, Any] = field(default_factory=dict)  # nodes beside `node` that hold tensors too


def choose_part(tree: Tree, wanted: str = "") -> Part:
    """Return the part that the user named, or the one that is the model."""
    if wanted:
        return Part(wanted, _find_node(tree, wanted))
    chosen = Part("", tree.root)
    for _ in range(_DEEPEST_MODEL):
        inner = _find_model_inside(tree, chosen)
        if inner is None:
            break
        chosen = inner
    return chosen


def _find_node(tree: Tree, wanted: str) -> Any:
    """Return the node of a dotted name; keys may have dots themselves, and the longest that fits is taken."""
    node, name = tree.root, wanted
    while name:
        children = {key_text(key): child for key, child in list_children(node)}
        fitting = [key for key in children if name == key or name.startswith(key + ".")]
        if not fitting:
            close = difflib.get_close_matches(name, list(children)[:2000], 3)
            names = ", ".join(quote_name(key) for key in close or list(children)[:8]) or "nothing"
            hint = f"did you mean {names}?" if close else f"there it holds {names}"
            raise SourceError(tree.path, f"has no part {quote_name(wanted)}; {hint}")
        key = max(fitting, key=len)
        node, name = children[key], name[len(key) + 1 :]
    return node


def _find_model_inside(tree: Tree, outer: Part) -> Part | None:
    """Return the model under a key of a part, or the part without the keys of training, or None."""
    node = outer.node
    if not isinstance(node, dict) or outer.skipped or outer.beside:
        return None
    models, training, unknown = [], [], []
    for key, value in node.items():
        is_training = is_training_key(key)
        if is_training:
            training.append(key)
        if not tree.holds_tensors(value):
            continue
        if isinstance(key, str) and key in MODEL_KEYS and not is_tensor(value):
            models.append(key)
        elif not is_training:
            unknown.append(key)
    if len(models) == 1 and (not unknown or training or models[0] in _CERTAIN_KEYS):
        beside = {key: node[key] for key in unknown}
        passed_over = [key for key in node if key != models[0] and key not in beside]
        other_entries = {**outer.others, **_describe_entries(tree, outer.key, node, passed_over)}
        return Part(join_keys(outer.key, models[0]), node[models[0]], other_entries, beside=beside)
    if not training or not (models or unknown) or any(is_tensor(node[key]) for key in unknown):
        return None
    other_entries = {**outer.others, **_describe_entries(tree, outer.key, node, training)}
    return Part(outer.key, node, other_entries, frozenset(training))


def is_training_key(key: Any) -> bool:
    """Return True for the keys that training scripts keep beside the model."""
    if not isinstance(key, str) or len(key) > 100:
        return False
    return key.lower() in _TRAINING_KEYS or any(word in key.lower() for word in _TRAINING_WORDS)


def walk_part(tree: Tree, chosen: Part, numbers: Numbers) -> Iterator[tuple[str, Any]]:
    """Yield every tensor of a part with its dotted name, and the plain numbers that count."""
    if is_tensor(chosen.node) or is_number(chosen.node):
        name = chosen.key.rsplit(".", 1)[-1] or "tensor"
        yield from tree.walk_tensors({name: chosen.node}, "all")
        return
    if tree.holds_tensors(chosen.node) or numbers == "all" or isinstance(chosen.node, dict):
        yield from tree.walk_tensors(chosen.node, numbers_inside(chosen.node, numbers), chosen.skipped)
    yield from tree.walk_tensors(chosen.beside, numbers)


def _describe_entries(tree: Tree, prefix: str, node: dict[Any, Any], keys: list[Any]) -> dict[str, OtherEntry]:
    entries = {}
    for number, key in enumerate(keys):
        is_listed = number < _MOST_LISTED
        entries[join_keys(prefix, key_text(key))] = (
            describe_node(tree, node[key]) if is_listed else OtherEntry.of_value("…")
        )
    return entries


def describe_node(tree: Tree, node: Any) -> OtherEntry:
    """Describe a node in a few words."""
    if is_tensor(node):
        return OtherEntry.of_tensors(1)
    if tree.holds_tensors(node):
        try:
            count = sum(1 for _ in islice(tree.walk_tensors(node), _MOST_COUNTED))
        except UnsafeFileError:
            count = _MOST_COUNTED
        if count:
            return OtherEntry.of_tensors(count, at_least=count == _MOST_COUNTED)
    return OtherEntry.of_value(_describe_value(node))


def _describe_value(node: Any) -> str:
    if isinstance(node, str):
        return repr(node if len(node) <= 40 else node[:39] + "…")
    if isinstance(node, int) and node.bit_length() >= 128:
        return "a large number"
    if node is None or isinstance(node, (bool, int, float)):
        return repr(node)
    if isinstance(node, (Span, LongText)):
        return OtherEntry.of_bytes(node.window.size).text
    if isinstance(node, Object):
        return f"an object of {node.made_by}" if isinstance(node.made_by, Global) else "an object"
    return f"{len(node)} entries" if isinstance(node, (dict, list, tuple)) else "something else"


def shorten_entries(entries: dict[str, OtherEntry]) -> dict[str, OtherEntry]:
    """Return the first entries, and how many more there are."""
    listed = dict(islice(entries.items(), _MOST_LISTED))
    if len(entries) > _MOST_LISTED:
        listed["…"] = OtherEntry.of_value(f"{len(entries) - _MOST_LISTED} more")
    return listed
