"""Record a model in a process of its own, by any Python interpreter: two models need not share an environment."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import nndiff
from nndiff.commands.progress import ProgressBar
from nndiff.commands.replay_plan import write_plan
from nndiff.commands.trouble import Hint, Trouble, wants_traceback
from nndiff.errors import ModelError, UsageError, UserCodeError
from nndiff.experiments import LiveModels
from nndiff.recording.format.folder import BEFORE, put_aside
from nndiff.sources import Source, open_source

_SECONDS_BETWEEN_UPDATES = 0.1
_KILLED = -9
# Of a model that is run again everything is kept, once.
_NOT_AGAIN = ("--keep", "--repeat", "--params", "--inputs")


@dataclass(frozen=True)
class RecordingJob:
    """Which model to record where, and how."""

    model: str
    output: str
    side: str  # reference or candidate, for messages
    python: str | None = None  # None: the interpreter that runs now
    options: Sequence[str] = field(default_factory=tuple)  # as `nndiff record` takes them
    variant: str | None = None
    is_kept: bool = False  # the output outlives the command
    doing: str = "recording"  # what the progress bar says

    @property
    def label(self) -> str:
        """Return what reports call the model."""
        return self.model if self.variant is None else f"{self.model}@{self.variant}"


class ParentPipe:
    """The end of the pipe in the process that records: tells the parent how far it is, and why it failed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._last_update = 0.0
        # a wrapper around the interpreter (conda run, docker) may have closed the pipe
        try:
            self._is_open = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
        except OSError:
            self._is_open = False
        if self._is_open:
            os.set_inheritable(descriptor, False)  # processes that the model starts would keep it open

    def send_progress(self, done: int, total: int | None) -> None:
        """Tell how many calls are finished, a few times a second."""
        now = time.monotonic()
        if now - self._last_update >= _SECONDS_BETWEEN_UPDATES:
            self._last_update = now
            self._send({"done": done, "total": total})

    def send_trouble(self, trouble: Trouble, traceback: str) -> None:
        """Tell why recording failed."""
        self._send(
            {
                "sentence": trouble.sentence,
                "notes": list(trouble.notes),
                "hint": trouble.hint.name,
                "traceback": traceback,
            }
        )

    def _send(self, message: dict[str, Any]) -> None:
        if self._is_open:
            with contextlib.suppress(OSError):  # the parent is gone
                os.write(self._descriptor, json.dumps(message).encode() + b"\n")


@dataclass
class _Listener:
    """The end of the pipe in the parent."""

    bar: ProgressBar
    trouble: Trouble | None = None
    traceback: str = ""

    def read_messages(self, pipe: IO[bytes]) -> None:
        """Read until the process that records is gone."""
        for line in pipe:
            message = json.loads(line)
            if "done" in message:
                self.bar(message["done"], message["total"])
            else:
                self.trouble = Trouble(message["sentence"], notes=tuple(message["notes"]), hint=Hint[message["hint"]])
                self.traceback = message["traceback"]


@dataclass(frozen=True)
class ProcessEnd:
    """Say how a process ended, and why if it failed."""

    python: str
    status: int
    stderr: str
    trouble: Trouble | None = None  # as the process reported it

    @property
    def reason(self) -> str:
        """Return why it failed, in one sentence."""
        if self.trouble is not None:
            return self.trouble.sentence
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        last_line = lines[-1] if lines else "it printed nothing"
        if self.status < 0:
            guess = " (out of memory?)" if self.status == _KILLED else ""
            return f"its process was killed by signal {-self.status}{guess}: {last_line}"
        return f"its process ended with status {self.status}: {last_line}"

    def make_error(self, sentence: str) -> ModelError:
        """Return the error to raise, which suggests a traceback if the process did."""
        if self.trouble is not None and self.trouble.hint is Hint.TRACEBACK:
            return UserCodeError(sentence)
        return ModelError(sentence)


def run_module(python: str | None, words: Sequence[str], bar: ProgressBar) -> ProcessEnd:
    """Run a module of this very nndiff, as `python -m WORDS`, in its own process and with any interpreter.

    Each model gets its own process even if both use one interpreter: two folders may both hold a `layers.py`,
    and a second import would silently return the first one.
    """
    interpreter = find_interpreter(python)
    listener = _Listener(bar)
    with tempfile.TemporaryDirectory(prefix="nndiff-path-") as folder, bar:
        bar.open()  # at once: importing torch alone takes seconds
        try:
            status, stderr = _run_command([interpreter, "-m", *words], _make_environment(folder), listener)
        except OSError as error:
            raise UsageError(f"{interpreter} cannot be run: {(error.strerror or str(error)).lower()}") from None
    if status != 0 and wants_traceback():
        sys.stderr.write(listener.traceback)
    return ProcessEnd(interpreter, status, stderr, listener.trouble)


def record_in_process(job: RecordingJob, quiet: bool = False) -> Source:
    """Run `nndiff record` in its own process and open the recording, or raise with the reason in one sentence."""
    words = ["nndiff", "record", job.model, "-o", job.output, "--overwrite", *job.options]
    if job.variant is not None:
        words += ["--variant", job.variant]
    end = run_module(job.python, words, ProgressBar(f"{job.doing} the {job.side} {job.model}", quiet))
    if end.status != 0:
        raise _make_error(job, end)
    if not os.path.isdir(job.output):
        raise UsageError(f"{end.python} ran but recorded nothing: is it a Python interpreter?")
    return replace(open_source(job.output), label=job.label)


def make_live_models(
    reference: RecordingJob, candidates: Mapping[int, RecordingJob], folder: str, quiet: bool, is_live: bool = True
) -> LiveModels:
    """Return the models of jobs that were recorded, to be run again in processes of their own.

    `candidates` are by their number; recordings go to `folder`. The reference may be a recording alone.
    """

    def record_reference(draws: int) -> str:
        options = [*_drop_options(reference.options, "--input="), f"--input={reference.output}"]
        options = [*_drop_options(options, *_NOT_AGAIN), "--params", "--inputs"]
        if draws:
            options.append(f"--noise={draws}")
        output = os.path.join(folder, "reference-again")
        doing = "measuring noise of" if draws else "recording once more"
        again = replace(reference, output=output, options=options, is_kept=False, doing=doing)
        record_in_process(again, quiet)
        return output

    def make_replay(number: int, job: RecordingJob) -> Callable[[str, Mapping[str, str]], str]:
        def replay(recording: str, partners: Mapping[str, str]) -> str:
            plan = Path(folder, f"replay-{number}.json")
            write_plan(plan, recording, partners)
            options = [*_drop_options(job.options, "--input=", *_NOT_AGAIN), f"--input={job.output}"]
            options += ["--params", "--inputs", f"--replay={plan}"]
            output = os.path.join(folder, f"replay-{number}")
            record_in_process(replace(job, output=output, options=options, is_kept=False, doing="replaying"), quiet)
            return output

        return replay

    return LiveModels(
        reference=reference.output,
        record_reference=record_reference if is_live else None,
        replay_candidates={number: make_replay(number, job) for number, job in candidates.items()},
    )


def _drop_options(options: Sequence[str], *beginnings: str) -> list[str]:
    return [option for option in options if not option.startswith(beginnings)]


def find_interpreter(path: str | None) -> str:
    """Return the path of an interpreter: that of an environment's folder, or the one that runs now if none is given."""
    if path is None:
        return sys.executable
    path = os.path.expanduser(path)
    if not os.path.isdir(path):
        return path
    for inside in (("bin", "python"), ("Scripts", "python.exe")):
        candidate = os.path.join(path, *inside)
        if os.path.isfile(candidate):
            return candidate
    raise UsageError(f"{path} is a folder but no Python environment: it has no {os.path.join('bin', 'python')}")


def _make_environment(folder: str) -> dict[str, str]:
    """Return an environment in which this very nndiff is found, and nothing else of where it is installed."""
    package = Path(nndiff.__file__).resolve().parent
    (Path(folder) / "nndiff").symlink_to(package, target_is_directory=True)
    search_path = folder
    if os.environ.get("PYTHONPATH"):
        search_path += os.pathsep + os.environ["PYTHONPATH"]
    return {**os.environ, "PYTHONPATH": search_path}


def _run_command(command: list[str], environment: dict[str, str], listener: _Listener) -> tuple[int, str]:
    """Run a command that reports through a pipe; return its exit status and what it wrote to stderr."""
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as pipe:
        try:
            process = subprocess.Popen(
                [*command, "--report-to", str(write_end)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                pass_fds=(write_end,),
            )
        finally:
            os.close(write_end)
        reader = threading.Thread(target=listener.read_messages, args=(pipe,), daemon=True)
        reader.start()
        with process:
            try:
                _, stderr = process.communicate()
            except BaseException:
                process.kill()
                raise
        reader.join()
    return process.returncode, stderr


def _make_error(job: RecordingJob, end: ProcessEnd) -> ModelError:
    """Return the error to raise for a recording that failed; it says only of what is on disk what stays there."""
    notes = end.trouble.notes if end.trouble is not None else ()
    if not job.is_kept:
        notes = ()
    elif not notes:
        aside = put_aside(job.output)
        notes = (f"{BEFORE} {aside}",) if aside else ()
    interpreter = f" with {end.python}" if job.python else ""
    reasons = "; ".join([end.reason, *notes])
    return end.make_error(f"the {job.side} {job.model} could not be recorded{interpreter}: {reasons}")
