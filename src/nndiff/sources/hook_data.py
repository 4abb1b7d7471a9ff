"""What the hooks of older scripts saved: which module, which direction, which call, in the forms such files have.

Either layer names stand above what is of each (`{"fc": {"forward_outputs": ..., "backward_output_grads": ...}}`), or
what it is stands above the layer names (`{"forward": {"fc": ...}, "backward": {"fc": ...}}`), or there is no word for
what it is: outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nndiff.sources.tree import key_text

# Words that can be nothing else, in a dict of any keys; and those that a module may return something under.
_CERTAIN = {
    "output": ("forward", "fwd", "forward_output", "forward_out"),
    "input": ("forward_input",),
    "grad_output": (
        *("backward", "bwd", "backward_grad", "backward_gradient", "backward_output", "backward_grad_output"),
        *("backward_output_grad", "backward_output_gradient", "grad_output", "output_grad", "output_gradient"),
    ),
    "grad_input": (
        *("backward_input", "backward_grad_input", "backward_input_grad", "backward_input_gradient"),
        *("grad_input", "input_grad", "input_gradient"),
    ),
}
_LIKELY = {"output": ("output", "activation"), "input": ("input",), "grad_output": ("grad", "gradient")}
_EVERY_CALL = {"all_forward_output": "output", "all_forward_input": "input"}
# One node of a pickle may stand in many places: what is looked at in each is little.
_MOST_WORDS = 32
_DEEPEST = 2


def _by_word(slots: dict[str, tuple[str, ...]]) -> dict[str, str]:
    return {word: slot for slot, words in slots.items() for word in words}


_CERTAIN_WORDS = _by_word(_CERTAIN)
_WORDS = {**_by_word(_LIKELY), **_CERTAIN_WORDS}


@dataclass(frozen=True)
class Hooked:
    """Say where a saved value was taken; an empty slot where nobody knows, `word` is what it is called there."""

    module: str
    slot: str
    call: int = 0
    word: str = ""


def hooked(root: Any) -> Iterator[tuple[Hooked, Any]]:
    """Yield the values in hook data with where each was taken, in the order of the file."""
    for key, node in _named(root):
        slot = _slot(key)
        if slot and isinstance(node, dict) and not _has_certain_words(node):
            for module, value in node.items():
                yield from _of_module(key_text(module), value, slot)
        else:
            yield from _of_module(key_text(key), node, "")


def is_named(root: Any) -> bool:
    """Tell whether hook data tells of modules by their names."""
    return isinstance(root, dict) or all(name for name, _ in _named(root))


_NAMES = ("name", "layer", "module", "layer_name", "module_name")


def _named(root: Any) -> list[tuple[Any, Any]]:
    """Return what hook data holds by name: of a dict, of a list of entries with names, of outputs and gradients."""
    if isinstance(root, dict):
        return list(root.items())
    if isinstance(root, (list, tuple)) and root:
        if len(root) == len(_DIRECTIONS) and all(isinstance(each, dict) and not _name_in(each) for each in root):
            return list(zip(_DIRECTIONS, root, strict=True))
        pairs = [_named_entry(each) for each in root]
        if all(pairs):
            return [pair for pair in pairs if pair]
    return [("", root)]


_DIRECTIONS = ("forward", "backward")


def _name_in(entry: dict[Any, Any]) -> str:
    """Return the key under which an entry of a list has its name."""
    return next((key for key in _NAMES if isinstance(entry.get(key), str)), "")


def _named_entry(entry: Any) -> tuple[Any, Any] | None:
    if isinstance(entry, dict) and _name_in(entry):
        key = _name_in(entry)
        return entry[key], {name: value for name, value in entry.items() if name != key}
    if isinstance(entry, (list, tuple)) and len(entry) > 1 and isinstance(entry[0], str):
        return entry[0], entry[1] if len(entry) == 2 else dict(zip(_DIRECTIONS, entry[1:], strict=False))
    return None


def _of_module(module: str, node: Any, slot: str, depth: int = 0) -> Iterator[tuple[Hooked, Any]]:
    """Yield what was saved of one module; `slot` is what stands above its name."""
    if depth == _DEEPEST or not _is_by_word(node):
        yield Hooked(module, slot or "output"), node
        return
    told = {_EVERY_CALL[_bare(key)] for key, value in node.items() if _bare(key) in _EVERY_CALL and value}
    for key, value in node.items():
        every, found = _EVERY_CALL.get(_bare(key)), _slot(key)
        if every:
            calls = value if isinstance(value, (list, tuple)) else ()
            yield from ((Hooked(module, every, number), each) for number, each in enumerate(calls))
        elif not found:
            yield Hooked(module, "", 0, key_text(key)), value
        elif found not in told:  # what every call gave holds the last call too
            yield from _of_module(module, value, _inside(slot, found), depth + 1)


def _inside(above: str, slot: str) -> str:
    """Return what a word means below another: the `output` under `backward` is the gradient at it."""
    backward = above.startswith("grad_") and not slot.startswith("grad_")
    return f"grad_{slot}" if backward else slot


def _is_by_word(node: Any) -> bool:
    """Tell whether a dict has what is of one module by what it is."""
    few = isinstance(node, dict) and 0 < len(node) <= _MOST_WORDS
    return few and (_has_certain_words(node) or all(map(_slot, node)))


def _has_certain_words(node: dict[Any, Any]) -> bool:
    few = len(node) <= _MOST_WORDS
    return few and any(_bare(key) in _CERTAIN_WORDS or _bare(key) in _EVERY_CALL for key in node)


def _slot(key: Any) -> str:
    return _WORDS.get(_bare(key), "")


def _bare(key: Any) -> str:
    """Return a key as the words above are written: in small letters, and one of it."""
    return key.lower().removesuffix("s") if isinstance(key, str) and len(key) < 100 else ""
