"""nndiff verify: load a checkpoint into implementations of its model, and back again, and require the same bits."""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nndiff.align import Rename
from nndiff.commands.model_process import find_interpreter
from nndiff.commands.options import (
    CONFIG,
    EXCLUDE,
    INCLUDE,
    INPUT,
    QUIET,
    RENAME,
    SIZES,
    TOLERANCE,
    VERBOSE,
    OptionGroup,
    Subparsers,
    add_command,
    add_options,
    flag,
    option,
    parse_path,
    repeatable,
)
from nndiff.commands.verify_side import LoadOutcome, LoadTask, SideJob, run_job
from nndiff.errors import SourceError, UsageError
from nndiff.models.kinds import NEMO, RESTORED_SUFFIXES, check_name
from nndiff.models.nemo_config import is_from_nemo
from nndiff.models.rerun import choose_seed
from nndiff.plan import PairingRules
from nndiff.reports import check_specs, get_report_path
from nndiff.reports.output import Output, Sink, get_stdout_sink, write_outputs
from nndiff.sources import Source, open_source
from nndiff.tolerance import Tolerance, choose_tolerance
from nndiff.verification import (
    Check,
    CheckKind,
    Direction,
    LoadedSide,
    Verification,
    compare_outputs,
    compare_states,
)

_EXAMPLES = """\
  nndiff verify model.nemo --into port.py                       NeMo and a port; NeMo is added if it is installed
  nndiff verify model.nemo --into port.py --into nemo --python nemo-env/bin/python --forward
  nndiff verify model.nemo --into port.py --direction nemo_to_local        the port alone, without NeMo
  nndiff verify ours.nemo --direction local_to_nemo             NeMo alone
  nndiff verify last.ckpt --into port.py --config model.yaml
  nndiff verify weights.safetensors --into old.py --into new.py --forward

A Python file may define load(path), which returns a model with the checkpoint loaded, and save(model, path). Without
load, its model() gets the checkpoint by load_state_dict; without save, its state dict is saved.
Exit status: 0 compatible, 1 not compatible, 2 trouble (nothing could be compared, what was asked for is missing).
"""
_MODEL_FORMS = "file.py[:factory], package.module[:factory], hf:DIR, nemo, or x.nemo for NeMo with the config in it"
_MOST_SIDES = 2
_CHECKPOINT_LABEL = "checkpoint"
_INSTALL_NEMO = (
    'NeMo is not available: pip install "nemo_toolkit[asr]", or name an environment that has it with '
    "--into nemo --python PYTHON"
)

VERIFY = OptionGroup(
    "what is tested",
    (
        option(
            "--direction",
            choices=[direction.value for direction in Direction],
            default=Direction.BIDIRECTIONAL.value,
            help="nemo_to_local: only the implementations that are not NeMo; local_to_nemo: only NeMo (default: both)",
        ),
        CONFIG,
        flag("--forward", help="also run the models on the same input and compare layers and outputs"),
    ),
)
PAIRING = OptionGroup("names of tensors", (INCLUDE, EXCLUDE, RENAME))
FORWARD_INPUTS = OptionGroup(
    "with --forward", (INPUT, *SIZES, option("--seed", type=int, help="seed of inputs and models (default: 42)"))
)
FORWARD_TOLERANCE = OptionGroup("tolerance of --forward", TOLERANCE.options, TOLERANCE.about)
REPORT = OptionGroup(
    "reports",
    (
        repeatable("--report", metavar="json[:PATH]", help="write the result as JSON to PATH, or print it"),
        QUIET,
        VERBOSE,
    ),
)


@dataclass
class SideRequest:
    """One implementation that the user asked for, or NeMo where the checkpoint is NeMo's."""

    model: str
    python: str | None = None
    is_asked_for: bool = True

    @property
    def is_nemo(self) -> bool:
        """Return True for NeMo itself."""
        return self.model == NEMO or self.model.endswith(RESTORED_SUFFIXES)


class _SetPython(argparse.Action):
    """Give an interpreter to the --into before it."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, *_: object) -> None:
        if not namespace.into or namespace.into[-1].python is not None:
            raise argparse.ArgumentError(self, "comes after the --into that it is for")
        namespace.into[-1].python = values


def add_parser(subparsers: Subparsers, purpose: str = "") -> None:
    """Add the command to the command line."""
    parser = add_command(
        subparsers,
        "verify",
        run,
        purpose=purpose,
        description="Load a checkpoint into implementations of its model, each in its own process and in its own way; "
        "save from each, load that into the other, and require the same names, shapes and bits.",
        examples=_EXAMPLES,
    )
    parser.add_argument("checkpoint", metavar="CKPT", type=parse_path, help=".nemo, .ckpt, .pt, .safetensors, ...")
    parser.add_argument(
        "--into", metavar="MODEL", action="append", default=[], type=SideRequest, help=f"{_MODEL_FORMS}; once or twice"
    )
    parser.add_argument(
        "--python", metavar="PYTHON", action=_SetPython, help="Python interpreter or environment of the --into before"
    )
    add_options(parser, VERIFY, PAIRING, FORWARD_INPUTS, FORWARD_TOLERANCE, REPORT)


def run(args: argparse.Namespace) -> int:
    """Verify, report, and return the exit status."""
    check_specs(args.report)
    if any(spec.partition(":")[0] != "json" for spec in args.report):
        raise UsageError("nndiff verify writes json reports and prints text: give --report json[:PATH]")
    verifier = _Verifier(args)
    with tempfile.TemporaryDirectory(prefix="nndiff-verify-") as folder:
        verification = verifier.verify(Path(folder))
    _write_reports(verification, args)
    return verification.exit_code


def _write_reports(verification: Verification, args: argparse.Namespace) -> None:
    from nndiff.reports.verification import render_json, render_text

    outputs = []
    for spec in args.report:
        path = get_report_path(spec)
        sink = Sink(path) if path else get_stdout_sink()
        sink.refuse_to_overwrite([args.checkpoint], "is the checkpoint")
        outputs.append(Output(sink, render_json(verification)))
    if all(output.sink.path for output in outputs):
        text = render_text(verification, quiet=args.quiet, verbose=args.verbose)
        outputs.append(Output(get_stdout_sink(), text, for_people=True))
    write_outputs(outputs)


def choose_sides(requests: Sequence[SideRequest], checkpoint: str, direction: Direction) -> list[SideRequest]:
    """Return the implementations to test: those asked for, NeMo for a checkpoint of NeMo, less what is not asked."""
    sides = list(requests)
    if not sides and direction is not Direction.LOCAL_TO_NEMO:
        raise UsageError(f"give an implementation with --into MODEL: {_MODEL_FORMS}")
    if len(sides) > _MOST_SIDES:
        raise UsageError(f"--into was given {len(sides)} times: two implementations are verified at a time")
    has_nemo = any(side.is_nemo for side in sides)
    if len(sides) < _MOST_SIDES and not has_nemo and (is_from_nemo(checkpoint) or not sides):
        sides.append(SideRequest(NEMO, is_asked_for=direction is Direction.LOCAL_TO_NEMO))
    if direction is Direction.NEMO_TO_LOCAL:
        sides = [side for side in sides if not side.is_nemo]
    if direction is Direction.LOCAL_TO_NEMO:
        sides = [side for side in sides if side.is_nemo]
    if not sides:
        wanted = "--into nemo" if direction is Direction.LOCAL_TO_NEMO else "--into MODEL other than NeMo"
        raise UsageError(f"--direction {direction.value} needs {wanted}")
    for side in sides:
        if side.model != NEMO:
            check_name(side.model)
    return sides


def has_nemo(python: str | None) -> bool:
    """Return True if NeMo is installed where an interpreter looks for it."""
    if python is None:
        return find_spec(NEMO) is not None
    interpreter = find_interpreter(python)
    program = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({NEMO!r}) is None)"
    try:
        return subprocess.run([interpreter, "-c", program], capture_output=True, check=False).returncode == 0
    except OSError as error:
        raise UsageError(f"{interpreter} cannot be run: {(error.strerror or str(error)).lower()}") from None


@dataclass
class _Side:
    """One implementation on its way: what it is called, and what it left in its folder."""

    request: SideRequest
    label: str
    title: str
    folder: Path
    loaded: LoadOutcome = field(default_factory=LoadOutcome)

    @property
    def state(self) -> str:
        return str(self.folder / "state.pt")

    @property
    def recording(self) -> str:
        return str(self.folder / "forward.nnrec")


class _Verifier:
    """Run the implementations and compare what they leave behind."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._direction = Direction(args.direction)
        self._checkpoint: str = args.checkpoint
        self._source = open_source(args.checkpoint)
        if not self._source.tensors:
            raise SourceError(args.checkpoint, "holds no tensors")
        renames = tuple(Rename.parse(text) for text in args.rename)
        self._pairing = PairingRules(renames, include=tuple(args.include), exclude=tuple(args.exclude))
        self._tolerance: Tolerance = choose_tolerance(args.atol, args.rtol, args.tolerance, args.noise_factor)
        self._seed = choose_seed(args.seed, args.input)

    def verify(self, folder: Path) -> Verification:
        """Load, save and load again; return what was found out."""
        requests = choose_sides(self._args.into, self._checkpoint, self._direction)
        nemo_requests = [request for request in requests if request.is_nemo]
        nemo_available = has_nemo(nemo_requests[0].python if nemo_requests else None)
        untested, is_complete = "", True
        if nemo_requests and not nemo_available:
            requests = [request for request in requests if not request.is_nemo]
            untested, is_complete = _INSTALL_NEMO, not nemo_requests[0].is_asked_for
            if not requests:
                raise UsageError(f"{self._checkpoint} cannot be loaded into NeMo: {_INSTALL_NEMO}")
        sides = _name_sides(requests, folder)
        if len(sides) == 1 and self._args.forward:
            if not untested:
                raise UsageError("--forward compares two implementations, and there is only one: give --into twice")
            is_complete = False
        checks = self._verify_alone(sides[0]) if len(sides) == 1 else self._verify_pair(sides)
        return Verification(
            checkpoint=self._checkpoint,
            direction=self._direction,
            nemo_available=nemo_available,
            sides=tuple(_describe_side(side) for side in sides),
            checks=tuple(checks),
            untested=untested,
            is_complete=is_complete,
        )

    def _verify_alone(self, side: _Side) -> list[Check]:
        """Load the checkpoint into the only implementation, save it and load that."""
        side.loaded, *loaded_again = self._run(side, self._first_task(side), _reload_task(side, side))
        checks = self._compare_with_checkpoint(side)
        if not side.loaded.failure:
            outcome = loaded_again[0] if loaded_again else LoadOutcome()
            checks.append(self._compare_round_trip(side, side, outcome))
        return checks

    def _verify_pair(self, sides: Sequence[_Side]) -> list[Check]:
        """Load the checkpoint into both, and into each what the other one saves.

        NeMo is the reference and runs in one process, in the middle: importing it takes longest.
        """
        reference = next((side for side in sides if side.request.is_nemo), sides[0])
        candidate = next(side for side in sides if side is not reference)
        candidate.loaded = self._run(candidate, self._first_task(candidate))[0]
        recording = reference.recording if self._args.forward and not candidate.loaded.failure else ""
        tasks = [self._first_task(reference, recording, self._args.input)]
        if candidate.loaded.saved:
            tasks.append(_reload_task(reference, candidate))
        reference.loaded, *reference_again = self._run(reference, *tasks)
        tasks = []
        if reference.loaded.saved and not candidate.loaded.failure:
            tasks.append(_reload_task(candidate, reference))
        has_recordings = bool(recording) and not reference.loaded.failure
        if has_recordings:
            state = str(candidate.folder / "again.pt")
            tasks.append(LoadTask(self._checkpoint, state, recording=candidate.recording, inputs=(recording,)))
        candidate_again = self._run(candidate, *tasks) if tasks else []

        checks = []
        for side in sides:
            checks += self._compare_with_checkpoint(side)
        if reference.loaded.has_state and candidate.loaded.has_state:
            labels = reference.label, candidate.label
            states = open_source(reference.state), open_source(candidate.state)
            checks.append(compare_states(CheckKind.STATE_DICTS, labels, *states, self._pairing))
        if not reference.loaded.failure and not candidate.loaded.failure:
            for saver, loader, again in (
                (reference, candidate, candidate_again),
                (candidate, reference, reference_again),
            ):
                outcome = again[0] if saver.loaded.saved else LoadOutcome()
                checks.append(self._compare_round_trip(saver, loader, outcome))
        if has_recordings:
            labels = reference.label, candidate.label
            recordings = open_source(reference.recording), open_source(candidate.recording)
            checks.append(compare_outputs(labels, *recordings, self._pairing, self._tolerance))
        return checks

    def _first_task(self, side: _Side, recording: str = "", inputs: Sequence[str] = ()) -> LoadTask:
        """Return the task that loads the checkpoint and saves it again, as the same kind of file."""
        saved = str(side.folder / "saved")
        if os.path.isfile(self._checkpoint):
            saved += os.path.splitext(self._checkpoint)[1]
        return LoadTask(self._checkpoint, side.state, save=saved, recording=recording, inputs=tuple(inputs))

    def _run(self, side: _Side, *tasks: LoadTask) -> list[LoadOutcome]:
        request = side.request
        job = SideJob(
            model=request.model,
            config_source=self._checkpoint,
            tasks=tasks,
            python=request.python,
            config=self._args.config,
            seed=self._seed,
            batch_size=self._args.batch_size,
            seq_len=self._args.seq_len,
        )
        return run_job(job, side.folder, self._args.quiet)

    def _compare_with_checkpoint(self, side: _Side) -> list[Check]:
        """Return the check of what a side holds after loading the checkpoint, if it holds anything."""
        if not side.loaded.has_state:
            return []
        labels = _CHECKPOINT_LABEL, side.label
        return [compare_states(CheckKind.CHECKPOINT, labels, self._source, open_source(side.state), self._pairing)]

    def _compare_round_trip(self, saver: _Side, loader: _Side, outcome: LoadOutcome) -> Check:
        """Return the check that one side loads from the other's save what it loads from the checkpoint."""
        failure = saver.loaded.save_failure or outcome.failure
        labels = saver.label, loader.label
        if failure:
            return Check(CheckKind.ROUND_TRIP, *labels, failure=failure)
        states: list[Source] = [open_source(loader.state), open_source(_reload_task(loader, saver).state)]
        rules = PairingRules(include=self._pairing.include, exclude=self._pairing.exclude)
        return compare_states(CheckKind.ROUND_TRIP, labels, states[0], states[1], rules)


def _name_sides(requests: Sequence[SideRequest], folder: Path) -> list[_Side]:
    """Return the sides with a label and a folder each: Local Model and NeMo Model, or what the user called them."""
    local_models = [request.model for request in requests if not request.is_nemo]
    sides = []
    for number, request in enumerate(requests, 1):
        label, title = ("NeMo Model", "NEMO model") if request.is_nemo else ("Local Model", "LOCAL model")
        if len(local_models) > 1:
            label = title = request.model if len(set(local_models)) > 1 else f"{request.model} ({number})"
        side_folder = folder / str(number)
        side_folder.mkdir()
        sides.append(_Side(request, label, title, side_folder))
    return sides


def _reload_task(loader: _Side, saver: _Side) -> LoadTask:
    return LoadTask(saver.loaded.saved, str(loader.folder / "reloaded.pt"), fills_all=True)


def _describe_side(side: _Side) -> LoadedSide:
    loaded = side.loaded
    return LoadedSide(
        label=side.label,
        title=side.title,
        model=side.request.model,
        class_name=loaded.class_name,
        parameters=loaded.parameters,
        trainable=loaded.trainable,
        failure=loaded.failure,
        is_nemo=side.request.is_nemo,
    )
