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
from nndiff.models.kinds import FORMS, is_dotted_name, split_factory
from nndiff.models.spec import BuildOptions, ModelSpec
from nndiff.models.user_code import get_required_parameters, locate_function, user_code
from nndiff.recording.capture.losses import takes_output_alone
from nndiff.text import listed

_module_numbers = count()


def build_python_model(name: str, options: BuildOptions) -> ModelSpec:
    """Build the model of `file.py[:factory]` or `package.module[:factory]`."""
    target, factory = split_factory(name)
    factory = factory or "model"
    module = import_target(target)
    variants = getattr(module, "variants", {})
    if not isinstance(variants, Mapping):
        raise ModelError(f"{target}: `variants` is a {type(variants).__name__}, not a dict of names and factories")
    loss = getattr(module, "loss", None)
    if loss is not None and not callable(loss):
        raise ModelError(f"{target}: `loss` is not a function")
    label = name
    if options.variant is None:
        maker = get_factory(module, target, factory)
    elif options.variant in variants:
        maker = variants[options.variant]
        label += f"@{options.variant}"
    else:
        names = ", ".join(str(variant) for variant in variants)
        raise ModelError(f"{target} has no variant {options.variant!r}; it has {names or 'none'}")
    return ModelSpec(
        model=call_factory(maker, f"{target}:{factory}"),
        label=label,
        inputs=get_inputs(module, options),
        loss=_guard_loss(loss),
        variants=variants,
    )


def import_target(target: str) -> ModuleType:
    """Import a file, or a module by its dotted name."""
    if target.endswith(".py") or os.sep in target:
        return _import_file(target)
    if not is_dotted_name(target):
        raise UsageError(f"{target!r} is not a model: give {FORMS}")
    current_folder = os.getcwd()
    if current_folder not in sys.path:
        sys.path.insert(0, current_folder)
    with user_code(f"importing {target}"):
        try:
            return importlib.import_module(target)
        except ModuleNotFoundError as error:
            missing = error.name or target
            if not f"{target}.".startswith(f"{missing}."):  # a module that the target imports
                raise
            raise ModelError(f"{target}: {_describe_missing_module(missing)}") from error


def _describe_missing_module(name: str) -> str:
    package, _, last_name = name.rpartition(".")
    search_path = getattr(sys.modules.get(package), "__path__", ()) if package else (os.getcwd(),)
    neighbours = [module.name for module in pkgutil.iter_modules(search_path)]
    close = get_close_matches(last_name, neighbours, 1)
    suggestion = ""
    if close:
        suggestion = f" (did you mean {f'{package}.{close[0]}' if package else close[0]}?)"
    return f"no such file or folder, and no Python module {name!r}{suggestion}; a model is {FORMS}"


def _import_file(path: str) -> ModuleType:
    if not os.path.isfile(path):
        raise ModelError(f"{path}: no such file")
    # numbered, because two files of the same name may be imported
    spec = importlib.util.spec_from_file_location(f"_nndiff_model_{next(_module_numbers)}", path)
    if spec is None or spec.loader is None:
        raise ModelError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    module.__dict__["__nndiff_name__"] = os.path.basename(path).removesuffix(".py")
    folder = os.path.dirname(os.path.abspath(path))
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python file.py` does, for the modules beside it
    sys.modules[spec.name] = module
    with user_code(f"importing {path}"):
        spec.loader.exec_module(module)
    return module


def get_factory(module: ModuleType, target: str, name: str) -> Any:
    """Return what a module defines under a name; if it is not there, say what is."""
    factory = getattr(module, name, None)
    if factory is not None:
        return factory
    factories = []
    for key, value in vars(module).items():
        is_defined_here = getattr(value, "__module__", None) == module.__name__
        if not key.startswith("_") and (isinstance(value, torch.nn.Module) or (callable(value) and is_defined_here)):
            factories.append(key)
    close = get_close_matches(name, factories, 1)
    if not close and len(factories) == 1:
        close = factories
    if close:
        raise ModelError(f"{target} defines no {name!r}; did you mean {target}:{close[0]}?")
    defined = f" (it defines {listed(sorted(factories), 8)})" if factories else ""
    raise ModelError(f"{target} defines no {name!r}{defined}")


def call_factory(maker: Any, what: str) -> torch.nn.Module:
    """Return a model that is there, or the one that a function or class makes."""
    model = maker
    if not isinstance(maker, torch.nn.Module) and callable(maker):
        required = get_required_parameters(maker)
        if required:
            raise ModelError(
                f"{what}{locate_function(maker)} cannot be called without {', '.join(required)}: give them defaults, "
                "or name a function that needs no arguments"
            )
        with user_code(f"{what}()", maker):
            model = maker()
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"{what} is a {type(model).__name__}, not a torch.nn.Module")
    return model


def get_inputs(module: ModuleType, options: BuildOptions) -> Any:
    """Return the `inputs` of a module; a function is wrapped so that it gets the sizes that it asks for."""
    maker = getattr(module, "inputs", None)
    if maker is None or not callable(maker):
        return maker
    sizes = {"batch_size": options.batch_size, "seq_len": options.seq_len, "seed": options.seed}
    parameters = inspect.signature(maker).parameters
    arguments = {}
    for name, value in sizes.items():
        if name in parameters and value is not None:
            arguments[name] = value

    def make_inputs() -> Any:
        missing = [name for name in get_required_parameters(maker) if name not in arguments]
        if missing:
            way_out = "give them defaults"
            if all(name in sizes for name in missing):
                flags = [f"--{name.replace('_', '-')}" for name in missing]
                way_out = f"give {' and '.join(flags)}, or give them defaults"
            raise ModelError(
                f"inputs(){locate_function(maker)} cannot be called without {', '.join(missing)}: {way_out}"
            )
        with user_code("inputs()", maker):
            return maker(**arguments)

    return make_inputs


def _guard_loss(loss: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Return a loss whose failure is told as the user's."""
    if loss is None:
        return None

    def compute_loss(model: Any, inputs: Any, output: Any) -> Any:
        with user_code("loss()", loss):
            return loss(output) if takes_output_alone(loss) else loss(model, inputs, output)

    return compute_loss
