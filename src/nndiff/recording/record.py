"""Record a model: run it once and save what every layer did, forward and backward."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import torch

from nndiff.errors import ModelError, SourceError, UsageError
from nndiff.recording.capture.inputs import Inputs, as_inputs
from nndiff.recording.capture.model_description import describe_modules, find_shared_modules, summarize_model
from nndiff.recording.capture.plan import Plan, Selection, list_unused_keep_rules, make_plan
from nndiff.recording.capture.run import MOST_NAMES, RunFacts, RunOptions, run_once
from nndiff.recording.capture.sinks import DigestSink, list_disagreeing_sites
from nndiff.recording.capture.state import State
from nndiff.recording.capture.substitution import Substitution
from nndiff.recording.capture.tensors import is_tensor
from nndiff.recording.environment.dropout import active_dropout, dropout_off
from nndiff.recording.environment.modes import Mode, get_mode
from nndiff.recording.environment.randomness import preserve_randomness, seed_everything
from nndiff.recording.environment.settings import deterministic_algorithms, read_environment, read_flags
from nndiff.recording.format.folder import BEFORE, LEFT, LeftoverNote, add_note, drop_leftover_notes
from nndiff.recording.format.input_structure import describe_inputs
from nndiff.recording.format.keep_levels import Keep, parse_keep
from nndiff.recording.noise import measure_noise
from nndiff.recording.reader import Recording, open_recording
from nndiff.recording.writer import SHARD_BYTES, Writer
from nndiff.tensors import MODEL
from nndiff.text import counted, plural


@dataclass(frozen=True)
class _Settings:
    """Hold all options besides the model, its inputs and the path."""

    run: RunOptions
    selection: Selection
    mode: Mode | None
    dropout: Literal["off"] | None
    deterministic: bool
    repeat: int
    noise: int


def record(
    model: torch.nn.Module,
    inputs: Any = None,
    *,
    path: str | os.PathLike[str],
    seed: int = 42,
    backward: bool = False,
    loss: Callable[..., Any] | None = None,
    mode: Mode | None = None,
    dropout: Literal["off"] | None = None,
    keep: str | Sequence[str] | Keep = "full",
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    depth: int | None = None,
    leaves: bool = False,
    params: bool = False,
    inputs_kept: bool = False,
    repeat: int = 1,
    noise: int = 0,
    deterministic: bool = False,
    overwrite: bool = False,
    label: str = "",
    checkpoint: str = "",
    notes: Sequence[str] = (),
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[int, int | None], None] | None = None,
    substitution: Substitution | None = None,
) -> Recording:
    """Run a model and save what it did; the model, its gradients and all random states stay as they were.

    `inputs` is a tensor, a tuple of arguments, a dict of keywords, or a function that makes one of them
    (called after seeding). With `backward` the loss is `loss(model, inputs, output)` or `loss(output)`,
    else the `loss` of the output, else a projection of the output on fixed random numbers. With `noise` the model is
    run so many times more, weights and inputs moved by half a unit of rounding, to keep how far each tensor moves: its
    noise floor. `checkpoint` names the file the weights came from; `notes` are kept with the warnings.
    `progress(calls_done, calls_total)` is called after each call of a module, and in the backward pass after each
    gradient at an output; the total is None, because nobody knows it before the run is over.
    `substitution` is for `replay`.
    """
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"a model must be a torch.nn.Module, not {type(model).__name__}")
    if repeat < 1:
        raise UsageError(f"repeat must be 1 or more, not {repeat}")
    if noise < 0:
        raise UsageError(f"noise must be 0 or more draws, not {noise}")
    if mode not in (None, "train", "eval") or dropout not in (None, "off"):
        raise UsageError("mode is 'train', 'eval' or None; dropout is 'off' or None")
    call_numbers = count(1)
    on_call = None if progress is None else lambda: progress(next(call_numbers), None)
    include = (include,) if isinstance(include, str) else tuple(include)
    exclude = (exclude,) if isinstance(exclude, str) else tuple(exclude)
    settings = _Settings(
        RunOptions(seed, backward, loss, params, inputs_kept, on_call, substitution),
        Selection(include, exclude, depth, leaves),
        mode,
        dropout,
        deterministic,
        repeat,
        noise,
    )
    keep = parse_keep(keep)
    with preserve_randomness(), _prepare_model(model, settings) as state:
        plan = make_plan(model, settings.selection, backward)
        seed_everything(seed)
        call = as_inputs(inputs)
        meta = _describe_run(model, settings, label)
        meta |= {"mode": state.mode, "held": state.digests, "inputs": _predict_input_structure(call)}
        if checkpoint:
            meta["checkpoint"] = _drop_machine_path(checkpoint)
        meta["warnings"] = [*notes, *plan.notes]
        with _keep_if_useful(Writer(path, meta, keep=keep, overwrite=overwrite, shard_bytes=shard_bytes)) as writer:
            facts = run_once(model, call, writer, plan, settings.run, state)
            if repeat > 1:
                _repeat_run(model, call, writer, plan, settings, state, facts)
            if noise:
                _add_noise(model, call, writer, plan, settings, state, facts)
            _add_findings(model, writer, plan, settings, state, facts)
    return open_recording(path)


@contextlib.contextmanager
def _prepare_model(model: torch.nn.Module, settings: _Settings) -> Iterator[State]:
    """Put the model in the mode asked for, and everything back whatever happens."""
    state = State(model)
    try:
        if settings.mode is not None:
            model.train(settings.mode == "train")
        with deterministic_algorithms(settings.deterministic):
            state.mode = get_mode(model)  # before dropout modules go to eval mode
            with dropout_off(model) if settings.dropout else contextlib.nullcontext():
                yield state
    finally:
        state.restore()


@contextlib.contextmanager
def _keep_if_useful(writer: Writer) -> Iterator[Writer]:
    """Finish the recording; a failed one is kept, and the error says where, only if it holds the call of a module."""
    try:
        with writer:
            yield writer
    except BaseException as error:
        try:
            has_calls = bool(open_recording(writer.path).calls)
        except SourceError:
            has_calls = False
        if not has_calls:
            writer.discard()
            drop_leftover_notes(error)
            raise
        if not isinstance(error, SourceError):  # the error of a full disk says it already
            add_note(error, LeftoverNote(f"{LEFT} {writer.path}; --overwrite (overwrite=True) replaces it"))
        if writer.before:
            add_note(error, LeftoverNote(f"{BEFORE} {writer.before}"))
        raise


def _predict_input_structure(inputs: Inputs) -> dict[str, Any]:
    """Return the structure of the inputs before they are recorded: they come first, so their orders are known.

    A run that is cut off never writes its last manifest; without this its inputs could not be fed again.
    """
    orders = count()
    return describe_inputs(inputs.args, inputs.kwargs, lambda path, tensor: next(orders), is_tensor)


def _repeat_run(
    model: torch.nn.Module,
    inputs: Inputs,
    writer: Writer,
    plan: Plan,
    settings: _Settings,
    state: State,
    facts: RunFacts,
) -> None:
    """Run again with the same seed and note where the model does not agree with itself."""
    disagreeing: dict[str, None] = {}
    for _ in range(settings.repeat - 1):
        state.restore(keep_modes=True)
        sink = DigestSink(writer.keep)
        run_once(model, inputs, sink, plan, settings.run, state)
        disagreeing |= dict.fromkeys(list_disagreeing_sites(writer.digests, sink.digests))
    names = list(disagreeing)
    facts.meta["self_agreement"] = {
        "runs": settings.repeat,
        "agrees": not names,
        "sites": len(writer.digests),
        "disagreeing": len(names),
        "names": names[:MOST_NAMES],
    }
    if names:
        facts.warnings.append(
            f"the model does not agree with itself: {len(names):,} of {plural(len(writer.digests), 'site')} differ "
            f"between {settings.repeat} runs with the same seed, {names[0]} first; a comparison cannot be exact"
        )


def _add_noise(
    model: torch.nn.Module,
    inputs: Inputs,
    writer: Writer,
    plan: Plan,
    settings: _Settings,
    state: State,
    facts: RunFacts,
) -> None:
    """Run again with everything moved by half a unit of rounding, and keep how far each tensor moves."""
    writer.flush()
    recording = open_recording(writer.path)
    try:
        noise = measure_noise(model, inputs, recording, writer.keep, plan, settings.run, state, settings.noise)
    except Exception as error:  # the model's own code, given numbers it does not expect
        facts.meta["noise_failure"] = (
            "the noise floor was not measured: with its weights and inputs moved by half a unit of rounding the model "
            f"fails: {type(error).__name__}: {str(error)[:200]}"
        )
        facts.warnings.append(facts.meta["noise_failure"])
        return
    facts.meta["noise"] = noise


def _add_findings(
    model: torch.nn.Module, writer: Writer, plan: Plan, settings: _Settings, state: State, facts: RunFacts
) -> None:
    """Add what the run found out to the metadata, with warnings on randomness and unused options."""
    warnings: list[str] = writer.meta["warnings"]
    dropping: list[str] = []
    if facts.meta["draws"]:
        dropping = [name for name in active_dropout(model) if name not in facts.never_called]
    if dropping:
        warnings.append(
            f"train mode with active dropout in {counted([name or MODEL for name in dropping], 'module')}: a "
            "comparison means little unless both sides draw the same numbers; record with dropout='off' (--dropout "
            "off) or in eval mode"
        )
    elif facts.meta["draws"]:
        reason = "no dropout module is active (functional dropout, noise, random masks)"
        if settings.dropout == "off":
            reason = "dropout is off (noise, random masks, dropout in TorchScript or of the model's own making)"
        warnings.append(
            f"the forward pass draws random numbers though {reason}: another implementation may draw them in another "
            "order"
        )
    generators = state.generators.list_used()
    if generators:
        hint = "" if settings.repeat > 1 else "; --repeat 2 (repeat=2) tells whether the model agrees with itself"
        warnings.append(
            f"random numbers are drawn from {counted(generators, 'generator')} of the model's own, which the seed "
            f"does not reach: a comparison cannot be exact unless both sides seed it the same way{hint}"
        )
    warnings += facts.warnings
    warnings += list_unused_keep_rules(writer.keep, plan.names, writer.digests)
    writer.meta |= {**facts.meta, "dropout_active": dropping[:MOST_NAMES]}


def _drop_machine_path(label: str) -> str:
    """Return a label that can be moved to another machine: an absolute path becomes its last part."""
    scheme, path = ("hf:", label.removeprefix("hf:")) if label.startswith("hf:") else ("", label)
    return scheme + (os.path.basename(path.rstrip("/")) if os.path.isabs(path) else path)


def _describe_run(model: torch.nn.Module, settings: _Settings, label: str) -> dict[str, Any]:
    selection = settings.selection
    return {
        "label": _drop_machine_path(label) or type(model).__name__,
        "producer": "nndiff.record",
        "seed": settings.run.seed,
        "backward": settings.run.backward,
        "dropout": settings.dropout or "as is",
        "selection": {
            "include": list(selection.include),
            "exclude": list(selection.exclude),
            "depth": selection.depth,
            "leaves": selection.leaves,
        },
        "inputs_kept": settings.run.inputs_kept,
        "params": settings.run.params,
        "model": summarize_model(model),
        "flags": read_flags(),
        "environment": read_environment(),
        "modules": describe_modules(model),
        "shared": find_shared_modules(model),
    }
