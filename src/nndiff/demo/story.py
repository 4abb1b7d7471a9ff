"""The story of the demo: its chapters, the commands of each, and how every command should end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nndiff.demo.models import write_checkpoints, write_model_files, write_modes_file, write_training_file

REPORTS = "reports"
Runner = Callable[[Sequence[str]], int]  # runs a command of nndiff or python, returns its exit status


@dataclass(frozen=True)
class Step:
    """One command of the demo."""

    text: str
    command: str
    status: int  # the exit status it should end with


@dataclass(frozen=True)
class Chapter:
    """One question that users come with."""

    title: str
    write_files: Callable[[Path], None]
    steps: tuple[Step, ...]
    needs_torch: bool = True


def make_checkpoint_chapter() -> Chapter:
    """Return the chapter about a checkpoint that was converted wrongly, and is repaired."""
    return Chapter(
        "I converted a checkpoint",
        write_checkpoints,
        (
            Step(
                "Saved from a wrapped model (DDP, torch.compile): names differ, values do not.",
                "nndiff diff ref.safetensors wrapped.safetensors --quiet",
                status=0,
            ),
            Step(
                "Converted by a script. Every key loads and every shape fits, yet the model talks nonsense.",
                f"nndiff diff ref.safetensors converted.safetensors --report html:{REPORTS}/checkpoint.html",
                status=1,
            ),
            Step(
                "Which operations turn it into what it should be? Each is proven on every element.",
                "nndiff map converted.safetensors ref.safetensors -o map.json",
                status=0,
            ),
            Step(
                "Repair it. The map also repairs every other checkpoint that this script converted.",
                "nndiff convert converted.safetensors --map map.json -o repaired.safetensors --force",
                status=0,
            ),
            Step(
                "Is it right now?",
                f"nndiff diff ref.safetensors repaired.safetensors --quiet --report html:{REPORTS}/repaired.html",
                status=0,
            ),
        ),
        needs_torch=False,
    )


def make_port_chapter() -> Chapter:
    """Return the chapter about a port with a bug."""
    return Chapter(
        "I ported a model",
        write_model_files,
        (
            Step(
                "A rewrite with another module tree: the same weights, the same numbers.",
                "nndiff run ours.py rewrite.py --quiet",
                status=0,
            ),
            Step(
                "A port that loads every key and is a little off. Where does it start, and why?",
                f"nndiff run ours.py port.py --top 1 --report html:{REPORTS}/port.html",
                status=1,
            ),
        ),
    )


def make_training_chapter() -> Chapter:
    """Return the chapter about two trainings that part."""
    return Chapter(
        "I retrained it, and the loss is different",
        write_training_file,
        (
            Step(
                "One model, trained twice; nndiff.TrainingRecorder writes down every step.",
                "python train.py",
                status=0,
            ),
            Step(
                "At which step do they part, and what differs first?",
                f"nndiff diff runs/reference runs/ours --top 4 --report html:{REPORTS}/training.html",
                status=1,
            ),
        ),
    )


def make_modes_chapter() -> Chapter:
    """Return the chapter about quantised modes."""
    return Chapter(
        "I quantised it",
        write_modes_file,
        (
            Step(
                "Four modes against FP32. Which is good enough, which layers hurt, and which to keep for 30 dB?",
                "nndiff modes quantised.py -o modes --blame --recommend sqnr=30 --top 3 "
                f"--report html:{REPORTS}/modes.html",
                status=1,
            ),
        ),
    )


CHAPTERS = (make_checkpoint_chapter(), make_port_chapter(), make_training_chapter(), make_modes_chapter())


def play(run_command: Runner, folder: Path, has_torch: bool) -> bool:
    """Run every chapter inside a folder; return True if all commands ended as they should."""
    start = time.monotonic()
    chapters = [chapter for chapter in CHAPTERS if has_torch or not chapter.needs_torch]
    start_folder = os.getcwd()
    failures = 0
    sys.stdout.write(f"{len(chapters)} chapters, less than a minute, no network. Everything is written to {folder}\n")
    os.chdir(folder)  # so that the commands shown are the commands run
    try:
        Path(REPORTS).mkdir()
        for number, chapter in enumerate(chapters, 1):
            sys.stdout.write(f"\n{'─' * 80}\n{number}. {chapter.title}\n{'─' * 80}\n")
            chapter.write_files(Path())
            for step in chapter.steps:
                failures += not run_step(step, run_command)
    finally:
        os.chdir(start_folder)
    if not has_torch:
        sys.stdout.write("\nInstall torch to see ports, trainings and quantised models compared, layer by layer.\n")
    names = ", ".join(sorted(path.name for path in (folder / REPORTS).iterdir()))
    sys.stdout.write(f"\n{'─' * 80}\nDone in {time.monotonic() - start:.0f} s. Open the reports in {folder / REPORTS}")
    sys.stdout.write(f":\n  {names}\nEvery command can be typed again after: cd {folder}\n")
    sys.stdout.write("Now try your own: nndiff diff REF CAND, or nndiff run REF_MODEL CAND_MODEL.\n")
    return failures == 0


def run_step(step: Step, run_command: Runner) -> bool:
    """Show a command and run it; return True if it ended as it should."""
    sys.stdout.write(f"\n{step.text}\n$ {step.command}\n\n")
    sys.stdout.flush()
    status = run_command(step.command.split())
    if status != step.status:
        sys.stdout.write(f"this should have ended with exit status {step.status}, not {status}\n")
    return status == step.status
