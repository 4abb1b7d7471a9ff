"""Dropout: where it is active, and how it is switched off for a while, wherever it hides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import overrides
from torch.nn import functional
from torch.nn.modules.dropout import _DropoutNd

from nndiff.recording.environment.modes import is_training

# Words in the names of attributes that hold a rate, and in the classes of modules that do nothing but drop.
_RATE_WORDS = ("dropout", "drop_prob", "droppath", "drop_path", "drop_rate", "layerdrop", "attn_drop", "proj_drop")
_DROPPING_CLASS_WORDS = ("dropout", "droppath", "dropblock", "stochasticdepth", "layerdrop")
_RATE_NAMES_IN_DROPPING_CLASSES = ("p", "prob", "rate")
_SCRIPTED_DROPOUT_NAMES = frozenset(cls.__name__ for cls in _DropoutNd.__subclasses__())

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_ArgumentsRule = Callable[[tuple[Any, ...], dict[str, Any]], _Arguments]


@contextmanager
def dropout_off(model: torch.nn.Module) -> Iterator[None]:
    """Switch dropout off inside the block.

    Dropout modules go to eval mode, and calls of dropout functions drop nothing. Dropout that a model draws by
    itself is switched off by its rate: attributes of modules, and of the `config` they carry, whose name speaks of
    dropout and whose value is a number between 0 and 1 become 0.
    """
    active_modules = [module for module in model.modules() if _is_dropout_module(module) and is_training(module)]
    rates = list(_find_rates(model))
    try:
        for module in active_modules:
            module.training = False
        for attributes, name, _ in rates:
            attributes[name] = 0.0
        with _dropout_functions_off():
            yield
    finally:
        for module in active_modules:
            module.training = True
        for attributes, name, rate in rates:
            attributes[name] = rate


def active_dropout(model: torch.nn.Module) -> list[str]:
    """Return the modules that drop at random in their current mode."""
    return [name for name, module in model.named_modules() if is_training(module) and _has_dropout(module)]


def _has_dropout(module: torch.nn.Module) -> bool:
    if _is_dropout_module(module):
        return bool(getattr(module, "p", 1) > 0)  # in TorchScript it may be a constant out of reach
    if isinstance(module, torch.nn.RNNBase) and module.num_layers == 1:
        return False  # it drops only between its layers
    return any(_is_rate(module, name, value) for name, value in vars(module).items())


def _is_dropout_module(module: torch.nn.Module) -> bool:
    """Return True for torch's own dropout modules, also in TorchScript."""
    if isinstance(module, torch.jit.ScriptModule):
        return getattr(module, "original_name", "") in _SCRIPTED_DROPOUT_NAMES
    return isinstance(module, _DropoutNd)


def _find_rates(model: torch.nn.Module) -> Iterator[tuple[MutableMapping[str, Any], str, float]]:
    """Yield the attributes, name and value of each rate.

    Rates are written straight into the attributes, so that a frozen or checked config is no obstacle.
    """
    visited: set[int] = set()
    for module in model.modules():
        if _is_dropout_module(module):
            continue
        for holder in (module, getattr(module, "config", None)):
            attributes = getattr(holder, "__dict__", None)
            if not isinstance(attributes, dict) or id(attributes) in visited:
                continue
            visited.add(id(attributes))
            for name, value in list(attributes.items()):
                if _is_rate(holder, name, value):
                    yield attributes, name, value


def _is_rate(holder: Any, name: str, value: Any) -> bool:
    if type(value) is not float or not 0 < value <= 1:
        return False
    if any(word in name.lower() for word in _RATE_WORDS):
        return True
    class_name = type(holder).__name__.lower()
    return name in _RATE_NAMES_IN_DROPPING_CLASSES and any(word in class_name for word in _DROPPING_CLASS_WORDS)


def _clear_training_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
    """Change the call of a dropout function (input, p, training) to eval mode."""
    if len(args) > 2:
        return (*args[:2], False, *args[3:]), kwargs
    return args, {**kwargs, "train" if "train" in kwargs else "training": False}


def _clear_attention_dropout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
    """Change the call of scaled_dot_product_attention, whose fifth argument is dropout_p."""
    if len(args) > 4:
        return (*args[:4], 0.0, *args[5:]), kwargs
    return args, {**kwargs, "dropout_p": 0.0} if "dropout_p" in kwargs else kwargs


def _clear_recurrent_dropout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
    """Change the call of a recurrent layer: dropout is two behind has_biases, the first flag."""
    for position, value in enumerate(args):
        if isinstance(value, bool):
            dropout = position + 2
            return ((*args[:dropout], 0.0, *args[dropout + 1 :]) if len(args) > dropout else args), kwargs
    return args, kwargs


def _clear_training_keyword(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
    """Change the call of multi_head_attention_forward, where training decides nothing but dropout."""
    return args, {**kwargs, "training": False}


_DROPOUT_FUNCTIONS = (
    *("dropout", "dropout1d", "dropout2d", "dropout3d"),
    *("feature_dropout", "alpha_dropout", "feature_alpha_dropout"),
)
_RULES: dict[str, _ArgumentsRule] = {
    **dict.fromkeys(_DROPOUT_FUNCTIONS, _clear_training_argument),
    **dict.fromkeys((f"{name}_" for name in _DROPOUT_FUNCTIONS), _clear_training_argument),
    "native_dropout": _clear_training_argument,
    "scaled_dot_product_attention": _clear_attention_dropout,
    "multi_head_attention_forward": _clear_training_keyword,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _clear_recurrent_dropout),
}


def _find_ruled_functions() -> dict[Any, _ArgumentsRule]:
    """Return the rule of every function that goes by one of the names, and of the operators behind them."""
    rules: dict[Any, _ArgumentsRule] = {}
    for name, rule in _RULES.items():
        for namespace in (torch, functional, torch.ops.aten):
            function: Any = getattr(namespace, name, None)
            if function is None:
                continue
            rules[function] = rule
            if namespace is torch.ops.aten:
                for overload in function.overloads():
                    rules[getattr(function, overload)] = rule
    return rules


class _DropoutOffMode(overrides.TorchFunctionMode):
    """Intercept every call of a torch function and take the dropout out of those that have some."""

    rules: ClassVar[dict[Any, _ArgumentsRule]] = _find_ruled_functions()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = self.rules.get(func)  # nothing more, or torch.compile could not follow
        if rule is not None:
            args, kwargs = rule(args, kwargs)
        return func(*args, **kwargs)


# Functions that tell whether torch functions are overridden. Their callers behave differently if so: transformer
# layers leave their fused paths, and a backward pass is handed over as a whole, so that recomputation inside it
# (activation checkpointing) would not be recorded. The mode is hidden from them.
_OVERRIDE_QUERIES = (
    (overrides, "has_torch_function"),
    (torch.autograd, "has_torch_function"),
    (torch._tensor, "has_torch_function_unary"),
)


@contextmanager
def _dropout_functions_off() -> Iterator[None]:
    mode = _DropoutOffMode()
    originals = []
    for module, name in _OVERRIDE_QUERIES:
        if hasattr(module, name):
            originals.append((module, name, getattr(module, name)))
    try:
        for module, name, original in originals:
            setattr(module, name, _hide_mode(mode, original))
        with mode:
            yield
    finally:
        for module, name, original in originals:
            setattr(module, name, original)


def _hide_mode(mode: _DropoutOffMode, query: Callable[..., bool]) -> Callable[..., bool]:
    """Return the query with the answer it would give without the mode."""

    def query_without_mode(*args: Any) -> bool:
        if overrides._get_current_function_mode() is not mode:  # type: ignore[no-untyped-call]
            return query(*args)
        with overrides._pop_mode_temporarily():
            return query(*args)

    return query_without_mode
