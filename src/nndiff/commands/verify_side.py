"""One implementation in a process of its own: loads checkpoints, keeps state dicts, saves, runs."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nndiff.commands.model_process import ParentPipe, run_module
from nndiff.commands.progress import ProgressBar
from nndiff.commands.record import format_cause
from nndiff.commands.trouble import describe_error, wants_traceback
from nndiff.errors import MissingExtraError, NndiffError, UsageError


@dataclass(frozen=True)
class LoadTask:
    """Say which checkpoint to load, and what to do with the model."""

    checkpoint: str  # empty: what the task before saved
    state: str  # where the state dict goes
    fills_all: bool = False  # the checkpoint was saved from the whole model
    save: str = ""  # where the implementation saves it; the suffix is up to the implementation
    recording: str = ""  # where a forward pass is recorded
    inputs: tuple[str, ...] = ()  # as --input takes them


@dataclass(frozen=True)
class LoadOutcome:
    """Say what became of a task."""

    class_name: str = ""
    parameters: int = 0
    trainable: int = 0
    failure: str = ""  # why it could not be loaded
    has_state: bool = False
    saved: str = ""
    save_failure: str = ""


@dataclass(frozen=True)
class SideJob:
    """Say which implementation does which tasks."""

    model: str
    config_source: str  # the checkpoint that is verified: it may hold the config of NeMo's model
    tasks: tuple[LoadTask, ...]
    python: str | None = None
    config: str | None = None
    seed: int = 42
    batch_size: int | None = None
    seq_len: int | None = None


def run_job(job: SideJob, folder: Path, quiet: bool = False) -> list[LoadOutcome]:
    """Do the tasks of a job in a process of its own; return what became of each."""
    order, answer = folder / "job.json", folder / "outcomes.json"
    order.write_text(json.dumps(asdict(job)))
    words = ["nndiff.commands.verify_side", str(order), str(answer)]
    end = run_module(job.python, words, ProgressBar(f"loading into {job.model}", quiet))
    if end.status != 0:
        interpreter = f" (with {end.python})" if job.python else ""
        raise end.make_error(f"--into {job.model}{interpreter}: {end.reason}")
    if not answer.is_file():
        raise UsageError(f"{end.python} ran but did nothing: is it a Python interpreter?")
    return [LoadOutcome(**fields) for fields in json.loads(answer.read_text())]


def main(words: Sequence[str]) -> int:
    """Do the tasks of a job file and write what became of them: JOB OUTCOMES --report-to DESCRIPTOR."""
    pipe = ParentPipe(int(words[3]))
    try:
        fields = json.loads(Path(words[0]).read_text())
        job = SideJob(**{**fields, "tasks": tuple(LoadTask(**task) for task in fields["tasks"])})
        outcomes = [asdict(outcome) for outcome in do_tasks(job)]
        Path(words[1]).write_text(json.dumps(outcomes))
        return 0
    except BaseException as error:
        if not isinstance(error, SystemExit):
            pipe.send_trouble(describe_error(error, with_traceback=wants_traceback()), format_cause(error))
        raise


def do_tasks(job: SideJob) -> list[LoadOutcome]:
    """Do the tasks of a job in this process; return what became of each."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise MissingExtraError("torch", "to run a model", "torch")
    from nndiff.models.implementations import find_implementation
    from nndiff.models.spec import BuildOptions

    options = BuildOptions(job.seed, job.config, job.batch_size, job.seq_len)
    implementation = find_implementation(job.model, job.config_source, options)
    outcomes: list[LoadOutcome] = []
    for task in job.tasks:
        if task.checkpoint:
            outcomes.append(_do_task(implementation, task, job))
        elif outcomes[-1].saved:
            outcomes.append(_do_task(implementation, replace(task, checkpoint=outcomes[-1].saved), job))
    return outcomes


def _do_task(implementation: Any, task: LoadTask, job: SideJob) -> LoadOutcome:
    import torch

    from nndiff.models.user_code import user_code
    from nndiff.recording.environment.randomness import seed_everything

    seed_everything(job.seed)  # what is not loaded depends on the seed alone
    model = implementation.build(task.checkpoint)
    failure = ""
    try:
        model = implementation.load(model, task.checkpoint, task.fills_all)
    except (MissingExtraError, UsageError):
        raise  # says nothing about the checkpoint
    except NndiffError as error:
        failure = str(error)
    if model is None:
        return LoadOutcome(failure=failure)
    # a state dict of which a part was loaded shows which names and shapes do not fit
    with user_code(f"saving the state dict of {job.model}"):
        torch.save({"state_dict": dict(model.state_dict())}, task.state)
    saved = save_failure = ""
    if task.save and not failure:
        try:
            saved = implementation.save(model, task.save)
        except NndiffError as error:
            save_failure = str(error)
    parameters = list(model.parameters())
    outcome = LoadOutcome(
        class_name=type(model).__name__,
        parameters=sum(parameter.numel() for parameter in parameters),
        trainable=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        failure=failure,
        has_state=True,
        saved=saved,
        save_failure=save_failure,
    )
    if task.recording and not failure:
        _record_forward(implementation.make_runnable(model), task, job)
    return outcome


def _record_forward(spec: Any, task: LoadTask, job: SideJob) -> None:
    from nndiff.models.prepare import prepare_model
    from nndiff.models.user_code import user_code
    from nndiff.recording.record import record

    options = Namespace(ckpt=None, partial=False, input=list(task.inputs), dtype=None, device=None)
    options.batch_size, options.seq_len = job.batch_size, job.seq_len
    ready = prepare_model(spec, options)
    with user_code(f"running {job.model}", type(ready.model).forward):
        record(ready.model, ready.inputs, path=task.recording, seed=job.seed, mode="eval", label=ready.label)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
