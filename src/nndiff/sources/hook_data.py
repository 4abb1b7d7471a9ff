"""What the hooks of older scripts saved: which module, which direction, which call, in the forms such files have.

Either layer names are above what was saved of each (`{"fc": {"forward_outputs": ..., "backward_output_grads": ...}}`),
or the direction is above the layer names (`{"forward": {"fc": ...}, "backward": {"fc": ...}}`), or nothing says what
the values are: then they are outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nndiff.sources.tree import key_text
from nndiff.tensors import Slot

# Words that can mean nothing else, in a dict of any keys; and words under which a module may also return something.
# Keys are compared in lower case and without a final "s".
_CERTAIN = {
    Slot.OUTPUT: ("forward", "fwd", "forward_output", "forward_out"),
    Slot.INPUT: ("forward_input",),
    Slot.GRAD_OUTPUT: (
        *("backward", "bwd", "backward_grad", "backward_gradient", "backward_output", "backward_grad_output"),
        *("backward_output_grad", "backward_output_gradient", "grad_output", "output_grad", "output_gradient"),
    ),
    Slot.GRAD_INPUT: (
        *("backward_input", "backward_grad_input", "backward_input_grad", "backward_input_gradient"),
        *("grad_input", "input_grad", "input_gradient"),
    ),
}
_LIKELY = {
    Slot.OUTPUT: ("output", "activation"),
    Slot.INPUT: ("input",),
    Slot.GRAD_OUTPUT: ("grad", "gradient"),
}
_EVERY_CALL = {"all_forward_output": Slot.OUTPUT, "all_forward_input": Slot.INPUT}
_GRADIENT_AT = {Slot.OUTPUT: Slot.GRAD_OUTPUT, Slot.INPUT: Slot.GRAD_INPUT}
_NAME_KEYS = ("name", "layer", "module", "layer_name", "module_name")
_DIRECTIONS = ("forward", "backward")
# One node of a pickle may appear in many places, so little of each is looked at.
_MOST_WORDS = 32
_DEEPEST = 2


def _index_words(words_by_slot: dict[Slot, tuple[str, ...]]) -> dict[str, Slot]:
    slots = {}
    for slot, words in words_by_slot.items():
        for word in words:
            slots[word] = slot
    return slots


_CERTAIN_WORDS = _index_words(_CERTAIN)
_WORDS = {**_index_words(_LIKELY), **_CERTAIN_WORDS}


@dataclass(frozen=True)
class Hooked:
    """Say where a saved value was taken."""

    module: str
    slot: Slot | None  # None: nobody knows, `word` is the key it was saved under
    call: int = 0
    word: str = ""
    from_file: bool = False  # a file of its own holds it, not the hook data


def read_hook_data(root: Any) -> Iterator[tuple[Hooked, Any]]:
    """Yield the values in hook data with where each was taken, in the order of the file."""
    for key, node in _list_named(root):
        slot = _read_slot(key)
        if slot and isinstance(node, dict) and not _has_certain_words(node):
            for module, value in node.items():
                yield from _read_module(key_text(module), value, slot)
        else:
            yield from _read_module(key_text(key), node, None)


def names_modules(root: Any) -> bool:
    """Return True if hook data says which module each value was taken at."""
    return isinstance(root, dict) or all(name for name, _ in _list_named(root))


def _list_named(root: Any) -> list[tuple[Any, Any]]:
    """Return what hook data holds by name: a dict, a list of named entries, or a pair of outputs and gradients."""
    if isinstance(root, dict):
        return list(root.items())
    if not isinstance(root, (list, tuple)) or not root:
        return [("", root)]
    if len(root) == len(_DIRECTIONS) and all(isinstance(node, dict) and not _find_name_key(node) for node in root):
        return list(zip(_DIRECTIONS, root, strict=True))
    named = []
    for entry in root:
        if isinstance(entry, dict) and (name_key := _find_name_key(entry)):
            values = {key: value for key, value in entry.items() if key != name_key}
            named.append((entry[name_key], values))
        elif isinstance(entry, (list, tuple)) and len(entry) > 1 and isinstance(entry[0], str):
            name, *values_in_order = entry
            by_direction = dict(zip(_DIRECTIONS, values_in_order, strict=False))
            named.append((name, values_in_order[0] if len(values_in_order) == 1 else by_direction))
        else:
            return [("", root)]
    return named


def _find_name_key(entry: dict[Any, Any]) -> str:
    """Return the key under which an entry of a list has its name, or nothing."""
    for key in _NAME_KEYS:
        if isinstance(entry.get(key), str):
            return key
    return ""


def _read_module(module: str, node: Any, slot: Slot | None, depth: int = 0) -> Iterator[tuple[Hooked, Any]]:
    """Yield what was saved of one module; `slot` is what a key above its name says."""
    if depth == _DEEPEST or not _is_keyed_by_slot(node):
        yield Hooked(module, slot or Slot.OUTPUT), node
        return
    saved_for_every_call = set()
    for key, value in node.items():
        if value and _normalise_key(key) in _EVERY_CALL:
            saved_for_every_call.add(_EVERY_CALL[_normalise_key(key)])
    for key, value in node.items():
        every_call_slot, inner_slot = _EVERY_CALL.get(_normalise_key(key)), _read_slot(key)
        if every_call_slot:
            for call, call_value in enumerate(value if isinstance(value, (list, tuple)) else ()):
                yield Hooked(module, every_call_slot, call), call_value
        elif not inner_slot:
            yield Hooked(module, None, word=key_text(key)), value
        elif inner_slot not in saved_for_every_call:  # the values of every call include the last call
            if slot and slot.is_gradient:  # the `output` under `backward` is the gradient at it
                inner_slot = _GRADIENT_AT.get(inner_slot, inner_slot)
            yield from _read_module(module, value, inner_slot, depth + 1)


def _is_keyed_by_slot(node: Any) -> bool:
    """Return True for a dict whose keys say what was saved of a module: outputs, inputs, gradients."""
    if not isinstance(node, dict) or not 0 < len(node) <= _MOST_WORDS:
        return False
    return _has_certain_words(node) or all(_read_slot(key) for key in node)


def _has_certain_words(node: dict[Any, Any]) -> bool:
    if len(node) > _MOST_WORDS:
        return False
    return any(_normalise_key(key) in _CERTAIN_WORDS or _normalise_key(key) in _EVERY_CALL for key in node)


def _read_slot(key: Any) -> Slot | None:
    return _WORDS.get(_normalise_key(key))


def _normalise_key(key: Any) -> str:
    """Return a key as the words above are written: in lower case, singular."""
    return key.lower().removesuffix("s") if isinstance(key, str) and len(key) < 100 else ""
