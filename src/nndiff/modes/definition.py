"""What is run: a model, its samples and the modes to try on it, from a Python file or from any other MODEL."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from types import ModuleType
from typing import Any

import torch

from nndiff.errors import ModelError, UsageError
from nndiff.models.build import build_model
from nndiff.models.inputs import make_token_drawer
from nndiff.models.kinds import HUGGING_FACE, RESTORED_SUFFIXES, split_factory
from nndiff.models.python_file import call_factory, get_factory, import_target
from nndiff.models.spec import BuildOptions
from nndiff.models.user_code import get_required_parameters, locate_function, user_code
from nndiff.modes import library
from nndiff.recording.capture.inputs import as_inputs
from nndiff.recording.environment.randomness import seed_everything
from nndiff.text import listed

DEFAULT_REFERENCE = "fp32"
DEFAULT_SAMPLES = 10
DEFAULT_SEQ_LEN = 512  # tokens
_FLOATING_POINT = re.compile(r"(fp|float|bf|bfloat|tf)(16|32|64)")
_FILE_NAME = re.compile(r"[^/\\\0\s]+")


@dataclass(frozen=True)
class SampleOptions:
    """Say how many samples there are and how they are made."""

    count: int = DEFAULT_SAMPLES
    seq_len: int | None = None
    seed: int = 42


@dataclass(frozen=True)
class Definition:
    """Hold what can be run: everything is made afresh for every run, from the same seed."""

    label: str
    make_model: Callable[[], torch.nn.Module]
    make_samples: Callable[[], list[Any]]
    modes: Mapping[str, Callable[..., Any]]  # of the file
    presets: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of the file
    untouched: str = DEFAULT_REFERENCE  # the name of the untouched model
    make_labels: Callable[[], list[torch.Tensor]] | None = None
    has_logits: bool | None = None  # None: told by the output
    seed: int = 42

    @property
    def names(self) -> list[str]:
        """Return the names of all modes, the untouched model first, ready modes last."""
        return list(dict.fromkeys([self.untouched, *self.modes, *library.READY_MODES]))

    def check_mode(self, name: str) -> None:
        """Refuse a mode that there is not."""
        if name not in self.names:
            raise UsageError(f"{self.label} has no mode {name!r}{suggest_name(name, self.names)}")

    def is_floating_point(self, name: str) -> bool:
        """Return True for the untouched model and for modes of a plain float type."""
        return name == self.untouched or _FLOATING_POINT.fullmatch(name) is not None

    def build_mode(self, name: str, samples: Sequence[Any]) -> torch.nn.Module:
        """Return a fresh model with a mode applied, ready to run."""
        seed_everything(self.seed)
        model = self.make_model()
        if name in self.modes or name != self.untouched:
            function = self.modes[name] if name in self.modes else library.READY_MODES[name]()
            with user_code(f"mode {name!r}", function):
                copies = [copy_sample(sample) for sample in samples]
                changed = function(model, copies) if _takes_samples(function) else function(model)
            model = model if changed is None else changed  # None: changed in place
        if not isinstance(model, torch.nn.Module):
            raise ModelError(f"mode {name!r} returned a {type(model).__name__}, not a torch.nn.Module")
        return model.eval()


def load_definition(name: str, options: SampleOptions) -> Definition:
    """Return what a MODEL defines; one without `modes` of its own has the ready ones."""
    target, factory = split_factory(name)
    if name.startswith(HUGGING_FACE) or target.endswith(RESTORED_SUFFIXES):
        return _define_built_model(name, options)
    module = import_target(target)
    modes, presets = getattr(module, "modes", {}), getattr(module, "presets", {})
    reference = getattr(module, "reference", DEFAULT_REFERENCE)
    _check_names(target, modes, presets, reference)
    maker = get_factory(module, target, factory or "model")
    if isinstance(maker, torch.nn.Module):
        raise ModelError(f"{target}: `{factory or 'model'}` is a model; define a function that makes a fresh one")
    labels = getattr(module, "labels", None)
    return Definition(
        label=name,
        make_model=lambda: call_factory(maker, f"{target}:{factory or 'model'}"),
        make_samples=lambda: _make_samples(module, target, options),
        modes=modes,
        presets=presets,
        untouched=reference,
        make_labels=None if labels is None else lambda: _call_with_count("labels", labels, options),
        has_logits=getattr(module, "logits", None),
        seed=options.seed,
    )


def copy_sample(sample: Any) -> Any:
    """Return a copy of a sample: models and modes may write to it."""
    return as_inputs(sample).fresh().data


def suggest_name(name: str, names: Sequence[str]) -> str:
    """Return what to say about a name that there is not: the one that was probably meant, or all."""
    close = get_close_matches(name, names, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; it has {listed(names, 20)}"


def _define_built_model(name: str, options: SampleOptions) -> Definition:
    """Return the definition of a model that comes without a file: drawn inputs, ready modes."""
    build_options = BuildOptions(seed=options.seed, batch_size=1, seq_len=options.seq_len)

    def make_samples() -> list[Any]:
        spec = build_model(name, build_options)
        inputs = spec.inputs or make_token_drawer(spec.model, 1, options.seq_len)
        if options.seq_len is None and getattr(spec.model, "main_input_name", "") == "input_ids":
            inputs = _make_long_input_maker(spec.model, build_options)
        if inputs is None:
            raise ModelError(f"{name} has no inputs: write a file with model() and samples()")
        seed_everything(options.seed)
        return [as_inputs(inputs).data for _ in range(options.count)]

    return Definition(name, lambda: build_model(name, build_options).model, make_samples, {}, seed=options.seed)


def _make_long_input_maker(model: torch.nn.Module, options: BuildOptions) -> Callable[[], Any]:
    """Return a function that draws text of the default length, or as long as a Hugging Face model takes it."""
    from nndiff.models.huggingface import make_input_maker

    config: Any = model.config
    longest = getattr(config, "max_position_embeddings", None)
    length = min(DEFAULT_SEQ_LEN, longest) if isinstance(longest, int) and longest > 0 else DEFAULT_SEQ_LEN
    return make_input_maker(model, config, replace(options, seq_len=length))


def _make_samples(module: ModuleType, target: str, options: SampleOptions) -> list[Any]:
    """Return the samples of a file; one that only has inputs() has one sample."""
    if hasattr(module, "samples"):
        return _call_with_count("samples", module.samples, options)
    if hasattr(module, "inputs"):
        return [_call_with_count("inputs", lambda: [module.inputs()], options)[0]]
    raise ModelError(f"{target} defines neither samples() nor inputs(): define samples(count=10), a list of inputs")


def _call_with_count(what: str, maker: Any, options: SampleOptions) -> list[Any]:
    """Return what a function of the user makes, given the number of samples and the other sizes that it takes."""
    seed_everything(options.seed)
    made = maker
    if callable(maker):
        sizes = {"count": options.count, "seq_len": options.seq_len, "seed": options.seed}
        parameters = list(inspect.signature(maker).parameters)
        arguments = {name: sizes[name] for name in parameters if sizes.get(name) is not None}
        missing = [name for name in get_required_parameters(maker) if name not in arguments]
        if missing:
            raise ModelError(
                f"{what}(){locate_function(maker)} cannot be called without {', '.join(missing)}: give them defaults"
            )
        with user_code(f"{what}()", maker):
            made = maker(**arguments)
    if isinstance(made, (torch.Tensor, Mapping)):
        raise ModelError(f"{what}() returned a {type(made).__name__}; it must return a list, one entry per sample")
    try:
        entries = list(made)[: options.count]
    except TypeError:
        raise ModelError(f"{what}() returned a {type(made).__name__}; it must return a list") from None
    if not entries:
        raise ModelError(f"{what}() returned nothing: it must return a list of one sample or more")
    return entries


def _check_names(target: str, modes: Any, presets: Any, reference: Any) -> None:
    """Refuse modes, presets and a reference that are not what they must be."""
    if not isinstance(modes, Mapping) or not all(callable(function) for function in modes.values()):
        raise ModelError(f"{target}: `modes` must be a dict of names and functions that take a model")
    if not isinstance(presets, Mapping) or not all(isinstance(names, (list, tuple)) for names in presets.values()):
        raise ModelError(f"{target}: `presets` must be a dict of names and lists of modes")
    for name in (reference, *modes):
        if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
            raise ModelError(f"{target}: {name!r} cannot name a mode: names become file names, without / and blanks")


def _takes_samples(function: Callable[..., Any]) -> bool:
    """Return True for a mode that takes the samples too, for calibration."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [item for item in parameters if item.kind in positional and item.default is item.empty]
    return len(required) == 2 or any(item.name == "samples" for item in parameters)
