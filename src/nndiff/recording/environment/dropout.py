"""Dropout: where it is at work, and how it is switched off for a while, wherever it hides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import overrides
from torch.nn import functional
from torch.nn.modules.dropout import _DropoutNd

from nndiff.recording.capture.state import is_training

_WORDS = ("dropout", "drop_prob", "droppath", "drop_path", "drop_rate", "layerdrop", "attn_drop", "proj_drop")
_CLASSES = ("dropout", "droppath", "dropblock", "stochasticdepth", "layerdrop")  # of modules that only drop
_THEIR_RATES = ("p", "prob", "rate")
_SCRIPTED = frozenset(cls.__name__ for cls in _DropoutNd.__subclasses__())

_Call = tuple[tuple[Any, ...], dict[str, Any]]


@contextmanager
def dropout_off(model: torch.nn.Module) -> Iterator[None]:
    """Switch dropout off while it lasts.

    Dropout modules go to eval mode, and what functions drop inside a forward they drop no more. Dropout that a
    model draws by itself is reached by its rate: attributes of modules, and of the `config` they carry, whose
    name speaks of dropout and whose value is a number between 0 and 1 become 0.
    """
    at_work = [module for module in model.modules() if _is_dropout(module) and is_training(module)]
    rates = list(_rates(model))
    try:
        for module in at_work:
            module.training = False
        for held, name, _ in rates:
            held[name] = 0.0
        with _functions_off():
            yield
    finally:
        for module in at_work:
            module.training = True
        for held, name, rate in rates:
            held[name] = rate


def active_dropout(model: torch.nn.Module) -> list[str]:
    """Return the modules that would drop at random in the mode they are in."""
    return [name for name, module in model.named_modules() if is_training(module) and _drops(module)]


def _drops(module: torch.nn.Module) -> bool:
    if _is_dropout(module):
        return bool(getattr(module, "p", 1) > 0)  # TorchScript may have it as a constant out of reach
    if isinstance(module, torch.nn.RNNBase) and module.num_layers == 1:
        return False  # it drops between its layers only
    return any(_is_rate(module, *each) for each in vars(module).items())


def _is_dropout(module: torch.nn.Module) -> bool:
    """Tell whether a module is torch's own dropout, as it is or in TorchScript."""
    if isinstance(module, torch.jit.ScriptModule):
        return getattr(module, "original_name", "") in _SCRIPTED
    return isinstance(module, _DropoutNd)


def _rates(model: torch.nn.Module) -> Iterator[tuple[MutableMapping[str, Any], str, float]]:
    """Yield where each rate stands: written there directly, a config that is frozen or checks itself is no obstacle."""
    seen: set[int] = set()
    for module in model.modules():
        if _is_dropout(module):
            continue
        for holder in (module, getattr(module, "config", None)):
            held = getattr(holder, "__dict__", None)
            if not isinstance(held, dict) or id(held) in seen:
                continue
            seen.add(id(held))
            yield from ((held, name, value) for name, value in list(held.items()) if _is_rate(holder, name, value))


def _is_rate(holder: Any, name: str, value: Any) -> bool:
    if type(value) is not float or not 0 < value <= 1:
        return False
    kind = type(holder).__name__.lower()
    return any(word in name.lower() for word in _WORDS) or (
        name in _THEIR_RATES and any(word in kind for word in _CLASSES)
    )


def _without_flag(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    """Return the call of a dropout function as eval mode would make it."""
    if len(args) > 2:
        return (*args[:2], False, *args[3:]), kwargs
    return args, {**kwargs, "train" if "train" in kwargs else "training": False}


def _without_share(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    """Return the call of attention without dropout."""
    if len(args) > 4:
        return (*args[:4], 0.0, *args[5:]), kwargs
    return args, {**kwargs, "dropout_p": 0.0} if "dropout_p" in kwargs else kwargs


def _without_layers_dropout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    """Return the call of a recurrent layer without dropout; it stands two behind has_biases, the first flag."""
    flag = next((number for number, each in enumerate(args) if isinstance(each, bool)), None)
    if flag is None or len(args) <= flag + 2:
        return args, kwargs
    return (*args[: flag + 2], 0.0, *args[flag + 3 :]), kwargs


def _not_training(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    """Return the call of multi-head attention as eval mode would make it; training means nothing else there."""
    return args, {**kwargs, "training": False}


_Rule = Callable[[tuple[Any, ...], dict[str, Any]], _Call]
_PLAIN = ("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
_RULES: dict[str, _Rule] = {
    **{name + ending: _without_flag for name in _PLAIN for ending in ("", "_")},
    "native_dropout": _without_flag,
    "scaled_dot_product_attention": _without_share,
    "multi_head_attention_forward": _not_training,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _without_layers_dropout),
}


def _rules_by_function() -> Iterator[tuple[Any, _Rule]]:
    """Yield every function that goes by one of the names, and the operators behind them."""
    for name, rule in _RULES.items():
        for home in (torch, functional, torch.ops.aten):
            found: Any = getattr(home, name, None)
            if found is None:
                continue
            yield found, rule
            for overload in found.overloads() if home is torch.ops.aten else ():
                yield getattr(found, overload), rule


class _Still(overrides.TorchFunctionMode):
    """Hear every call of a torch function and take the dropout out of those that have some."""

    rules: ClassVar[dict[Any, _Rule]] = dict(_rules_by_function())

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = self.rules.get(func)  # nothing more, or torch.compile could not follow
        if rule is not None:
            args, kwargs = rule(args, kwargs)
        return func(*args, **kwargs)


# Who asks whether torch functions are overridden, and does something else if they are: the fused paths of
# transformer layers are left, and a backward pass is handed over whole, so that what is computed again inside
# of it (activation checkpointing) would not be heard. To them the mode is not there.
_ASKING = (
    (overrides, "has_torch_function"),
    (torch.autograd, "has_torch_function"),
    (torch._tensor, "has_torch_function_unary"),
)


@contextmanager
def _functions_off() -> Iterator[None]:
    mode = _Still()
    asked = [(module, name, getattr(module, name)) for module, name in _ASKING if hasattr(module, name)]
    try:
        for module, name, original in asked:
            setattr(module, name, _not_counting(mode, original))
        with mode:
            yield
    finally:
        for module, name, original in asked:
            setattr(module, name, original)


def _not_counting(mode: _Still, original: Callable[..., bool]) -> Callable[..., bool]:
    """Return the question with the answer it would have without the mode."""

    def asked(*args: Any) -> bool:
        if overrides._get_current_function_mode() is not mode:  # type: ignore[no-untyped-call]
            return original(*args)
        with overrides._pop_mode_temporarily():
            return original(*args)

    return asked
