"""Models in Python: a file or an importable module that defines model(), and maybe inputs(), loss() and variants."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from itertools import count
from types import ModuleType
from typing import Any

import torch

from nndiff.errors import ModelError, UsageError
from nndiff.models.kinds import FORMS
from nndiff.models.spec import ModelSpec, Wishes
from nndiff.models.user_code import place_of, required, user_code
from nndiff.recording.capture.losses import takes_output_alone

_numbers = count()


def build(name: str, wishes: Wishes) -> ModelSpec:
    """Build the model of `file.py[:factory]` or `package.module[:factory]`."""
    target, _, factory = name.rpartition(":") if ":" in name else (name, "", "")
    module = load(target)
    variants = getattr(module, "variants", {})
    if not isinstance(variants, Mapping):
        raise ModelError(f"{target}: `variants` is a {type(variants).__name__}, not a dict of named modes")
    made = _variant(target, variants, wishes.variant) or _attribute(module, target, factory or "model")
    model = _make(made, f"{target}:{factory or 'model'}")
    loss = getattr(module, "loss", None)
    if loss is not None and not callable(loss):
        raise ModelError(f"{target}: `loss` is not a function")
    return ModelSpec(
        model=model,
        label=name + (f"@{wishes.variant}" if wishes.variant else ""),
        inputs=_inputs(module, wishes),
        loss=_guarded(loss),
        variants=variants,
    )


def load(target: str) -> ModuleType:
    """Import a file or a module by its dotted name."""
    if target.endswith(".py") or os.sep in target:
        return _load_file(target)
    if not all(part.isidentifier() for part in target.split(".")):
        raise UsageError(f"{target!r} is no model: give {FORMS}")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    with user_code(f"importing {target}"):
        try:
            return importlib.import_module(target)
        except ModuleNotFoundError as error:
            missing = error.name or target
            if f"{target}.".startswith(f"{missing}."):  # the module itself, not one that it imports
                raise ModelError(f"{target}: {_not_found(missing)}") from error
            raise


def _not_found(module: str) -> str:
    package, _, name = module.rpartition(".")
    paths = getattr(sys.modules.get(package), "__path__", ()) if package else (os.getcwd(),)
    near = get_close_matches(name, [each.name for each in pkgutil.iter_modules(paths)], 1)
    meant = f" (did you mean {package}{'.' if package else ''}{near[0]}?)" if near else ""
    return f"no file or folder of that name, and no Python module {module!r}{meant}; a model is {FORMS}"


def _load_file(path: str) -> ModuleType:
    if not os.path.isfile(path):
        raise ModelError(f"{path}: no such file")
    stem = os.path.basename(path).removesuffix(".py")
    # Two files of one name may be at hand, so the name in sys.modules is unique.
    spec = importlib.util.spec_from_file_location(f"_nndiff_model_{next(_numbers)}", path)
    if spec is None or spec.loader is None:
        raise ModelError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    module.__dict__["__nndiff_name__"] = stem
    folder = os.path.dirname(os.path.abspath(path))
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python file.py` would: its neighbours can be imported
    sys.modules[spec.name] = module
    with user_code(f"importing {path}"):
        spec.loader.exec_module(module)
    return module


def _attribute(module: ModuleType, target: str, name: str) -> Any:
    found = getattr(module, name, None)
    if found is not None:
        return found
    public = [key for key, value in vars(module).items() if not key.startswith("_") and _is_maker(module, value)]
    close = get_close_matches(name, public, 1) or (public if len(public) == 1 else [])
    hint = f"; did you mean {target}:{close[0]}" if close else ""
    known = f" (it defines {', '.join(sorted(public)[:8])})" if public and not close else ""
    raise ModelError(f"{target} defines no {name!r}{hint}{known}")


def _is_maker(module: ModuleType, value: Any) -> bool:
    own = getattr(value, "__module__", None) == module.__name__
    return isinstance(value, torch.nn.Module) or (callable(value) and own)


def _variant(target: str, variants: Mapping[str, Any], name: str | None) -> Any:
    if name is None:
        return None
    if name not in variants:
        raise ModelError(f"{target} has no variant {name!r}; it has {', '.join(map(str, variants)) or 'none'}")
    return variants[name]


def _make(maker: Any, what: str) -> torch.nn.Module:
    made = maker
    if not isinstance(maker, torch.nn.Module) and callable(maker):
        asked = required(maker)
        if asked:
            raise ModelError(
                f"{what}{place_of(maker)} cannot be called without {', '.join(asked)}: give defaults, or name a "
                "function that needs no arguments"
            )
        with user_code(f"{what}()", maker):
            made = maker()
    if not isinstance(made, torch.nn.Module):
        raise ModelError(f"{what} gives a {type(made).__name__}, not a torch.nn.Module")
    return made


def _inputs(module: ModuleType, wishes: Wishes) -> Any:
    maker = getattr(module, "inputs", None)
    if maker is None or not callable(maker):
        return maker
    asked = {"batch_size": wishes.batch_size, "seq_len": wishes.seq_len, "seed": wishes.seed}
    known = inspect.signature(maker).parameters
    given = {name: value for name, value in asked.items() if name in known and value is not None}

    def make() -> Any:
        missing = [name for name in required(maker) if name not in given]
        if missing:
            options = [f"--{name.replace('_', '-')}" for name in missing if name in asked]
            way = f"give {' and '.join(options)}, or defaults" if len(options) == len(missing) else "give defaults"
            raise ModelError(f"inputs(){place_of(maker)} cannot be called without {', '.join(missing)}: {way}")
        with user_code("inputs()", maker):
            return maker(**given)

    return make


def _guarded(loss: Callable[..., Any] | None) -> Callable[..., Any] | None:
    if loss is None:
        return None

    def guarded(model: Any, inputs: Any, output: Any) -> Any:
        with user_code("loss()", loss):
            return loss(output) if takes_output_alone(loss) else loss(model, inputs, output)

    return guarded
