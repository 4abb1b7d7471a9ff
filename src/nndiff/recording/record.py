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
from nndiff.recording import describe
from nndiff.recording.call import Inputs, as_inputs
from nndiff.recording.check import Digests, disagreeing
from nndiff.recording.determinism import deterministic_algorithms, flags, kept_randomness, seed_everything
from nndiff.recording.dropout import active_dropout, dropout_off
from nndiff.recording.folder import BEFORE, LEFT, LeftoverNote
from nndiff.recording.inputs import describe_inputs
from nndiff.recording.keep import Keep, parse_keep
from nndiff.recording.plan import Plan, make_plan
from nndiff.recording.reader import Recording, open_recording
from nndiff.recording.run import Facts, Wanted, run_once
from nndiff.recording.selection import Selection, keep_notes
from nndiff.recording.state import Mode, State, in_mode, mode_of
from nndiff.recording.torch_tensors import is_tensor
from nndiff.recording.writer import SHARD_BYTES, Writer
from nndiff.tensors import MODEL
from nndiff.text import counted, plural

_MANY = 1000


@dataclass(frozen=True)
class _Setting:
    """Hold everything that was asked for beside the model and its inputs."""

    wanted: Wanted
    selection: Selection
    mode: Mode | None
    dropout: Literal["off"] | None
    deterministic: bool
    repeat: int


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
    deterministic: bool = False,
    overwrite: bool = False,
    label: str = "",
    checkpoint: str = "",
    notes: Sequence[str] = (),
    progress: Callable[[int, int | None], None] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Recording:
    """Run a model and save what it did; the model, its gradients and all random states stay as they were.

    `inputs` is a tensor, a tuple of arguments, a dict of keywords, or a function that makes one of them
    (called after seeding). With `backward` the loss is `loss(model, inputs, output)` or `loss(output)`,
    else the `loss` of the output, else a projection of the output on fixed random numbers. `checkpoint` is the
    file the weights came from, to be told with the model; `notes` are kept with the warnings. `progress` is called
    after every finished call of a module with the number of calls so far and their total, None if that is unknown.
    """
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"a model must be a torch.nn.Module, not {type(model).__name__}")
    if repeat < 1:
        raise UsageError(f"repeat must be 1 or more, not {repeat}")
    if mode not in (None, "train", "eval") or dropout not in (None, "off"):
        raise UsageError("mode is 'train', 'eval' or None; dropout is 'off' or None")
    wanted = Wanted(seed, backward, loss, params, inputs_kept, progress)
    selection = Selection(_several(include), _several(exclude), depth, leaves)
    setting = _Setting(wanted, selection, mode, dropout, deterministic, repeat)
    rules = parse_keep(keep)
    with kept_randomness(), _prepared(model, setting) as state:
        plan = make_plan(model, setting.selection, backward)
        seed_everything(seed)
        made = as_inputs(inputs)
        meta = _meta(model, setting, plan, label)
        meta |= {"mode": state.mode, "held": state.digests, "inputs": _inputs_to_come(made)}
        if checkpoint:
            meta["checkpoint"] = _relocatable(checkpoint)
        meta["warnings"] = [*notes, *meta["warnings"]]
        with _worth_keeping(Writer(path, meta, keep=rules, overwrite=overwrite, shard_bytes=shard_bytes)) as writer:
            _run_all(model, made, writer, plan, setting, state)
    return open_recording(path)


@contextlib.contextmanager
def _worth_keeping(writer: Writer) -> Iterator[Writer]:
    """Finish the recording; one that fails is kept, and says so, if a layer was heard, else nothing of it is left."""
    try:
        with writer:
            yield writer
    except BaseException as error:
        if not _heard(writer):
            writer.discard()
        else:
            said = list(_about_what_is_left(writer, error))
            vars(error)["__notes__"] = [*getattr(error, "__notes__", ()), *said]  # add_note, before Python 3.11 too
        raise


def _about_what_is_left(writer: Writer, error: BaseException) -> Iterator[str]:
    if not isinstance(error, SourceError):  # a full disk has said it
        yield LeftoverNote(f"{LEFT} {writer.path}; --overwrite (overwrite=True) replaces it")
    if writer.before:
        yield LeftoverNote(f"{BEFORE} {writer.before}")


def _heard(writer: Writer) -> bool:
    try:
        return bool(open_recording(writer.path).calls)
    except SourceError:
        return False


def _inputs_to_come(inputs: Inputs) -> dict[str, Any]:
    """Return the structure of the inputs before they are recorded: they come first, so their orders are known.

    A run that is cut off never writes its last manifest, and its inputs could not be fed again.
    """
    orders = count()
    return describe_inputs(inputs.args, inputs.kwargs, lambda path, tensor: next(orders), is_tensor)


def _several(patterns: str | Sequence[str]) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


@contextlib.contextmanager
def _prepared(model: torch.nn.Module, setting: _Setting) -> Iterator[State]:
    """Put the model in the mode asked for, and everything back whatever happens."""
    state = State(model)
    off = dropout_off(model) if setting.dropout else contextlib.nullcontext()
    try:
        with in_mode(model, setting.mode), deterministic_algorithms(setting.deterministic):
            state.mode = mode_of(model)  # before dropout modules leave it
            with off:
                yield state
    finally:
        state.restore()


def _run_all(
    model: torch.nn.Module, inputs: Inputs, writer: Writer, plan: Plan, setting: _Setting, state: State
) -> None:
    facts = run_once(model, inputs, writer, plan, setting.wanted, state)
    if setting.repeat > 1:
        _repeat(model, inputs, writer, plan, setting, state, facts)
    dropping = [name for name in active_dropout(model) if name not in facts.never_called] if facts.meta["draws"] else []
    writer.meta |= {**facts.meta, "dropout_active": dropping[:_MANY]}
    writer.meta["warnings"] += [
        *_about_dropout(dropping),
        *_about_draws(facts, dropping, setting),
        *_about_generators(state.generators.used(), setting),
        *facts.warnings,
        *keep_notes(writer.keep, plan.names, writer.digests),
    ]


def _about_dropout(dropping: Sequence[str]) -> Iterator[str]:
    if dropping:
        yield (
            f"train mode with dropout at work in {counted([name or MODEL for name in dropping], 'module')}: a "
            "comparison means little unless both sides draw the same numbers; record with dropout='off' (--dropout "
            "off) or in eval mode"
        )


def _about_draws(facts: Facts, dropping: Sequence[str], setting: _Setting) -> Iterator[str]:
    """Yield a warning where a model draws random numbers and no dropout module is at work that would explain it."""
    if not facts.meta["draws"] or dropping:
        return
    known, what = "no dropout module is at work", "functional dropout, noise, random masks"
    if setting.dropout == "off":
        known, what = "dropout is off", "noise, random masks, dropout in TorchScript or of the model's own making"
    yield (
        f"the forward pass draws random numbers though {known} ({what}): another implementation may draw them in "
        "another order"
    )


def _about_generators(names: list[str], setting: _Setting) -> Iterator[str]:
    """Yield a warning where numbers came from a generator that the seed does not reach."""
    if names:
        told = "" if setting.repeat > 1 else "; --repeat 2 (repeat=2) tells whether the model agrees with itself"
        yield (
            f"random numbers are drawn from {counted(names, 'generator')} of the model's own, which no seed of ours "
            f"reaches: a comparison cannot be exact unless both sides seed it alike{told}"
        )


def _repeat(
    model: torch.nn.Module,
    inputs: Inputs,
    writer: Writer,
    plan: Plan,
    setting: _Setting,
    state: State,
    facts: Facts,
) -> None:
    """Run again with the same seed and note where the model does not agree with itself."""
    different: dict[str, None] = {}
    for _ in range(setting.repeat - 1):
        state.restore(keep_modes=True)
        again = Digests(writer.keep)
        run_once(model, inputs, again, plan, setting.wanted, state)
        different |= dict.fromkeys(disagreeing(writer.digests, again.digests))
    names = list(different)
    facts.meta["self_agreement"] = {
        "runs": setting.repeat,
        "agrees": not names,
        "sites": len(writer.digests),
        "disagreeing": len(names),
        "names": names[:_MANY],
    }
    if names:
        facts.warnings.append(
            f"the model does not agree with itself: of {plural(len(writer.digests), 'site')} {len(names):,} differ "
            f"between {setting.repeat} runs with one seed, {names[0]} first; a comparison cannot be exact"
        )


def _relocatable(label: str) -> str:
    """Return a label that knows nothing of the machine: a path from the root becomes its last part."""
    scheme, colon, rest = label.rpartition(":") if label.startswith("hf:") else ("", "", label)
    return scheme + colon + (os.path.basename(rest.rstrip("/")) if os.path.isabs(rest) else rest)


def _meta(model: torch.nn.Module, setting: _Setting, plan: Plan, label: str) -> dict[str, Any]:
    wanted, selection = setting.wanted, setting.selection
    return {
        "label": _relocatable(label) or type(model).__name__,
        "producer": "nndiff.record",
        "seed": wanted.seed,
        "backward": wanted.backward,
        "dropout": setting.dropout or "as is",
        "selection": {
            "include": list(selection.include),
            "exclude": list(selection.exclude),
            "depth": selection.depth,
            "leaves": selection.leaves,
        },
        "inputs_kept": wanted.inputs_kept,
        "params": wanted.params,
        "model": describe.summary(model),
        "flags": flags(),
        "environment": describe.environment(),
        "modules": describe.module_tree(model),
        "shared": describe.shared_modules(model),
        "warnings": list(plan.notes),
    }
