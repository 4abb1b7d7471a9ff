"""The story of the demo: which commands run, what they show, and how each should end."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from nndiff.demo.models import write_checkpoints, write_model_files


@dataclass(frozen=True)
class Step:
    """One command of the demo."""

    text: str
    command: str
    status: int  # the exit status it should end with


STEPS_WITH_FILES = (
    Step(
        "The same weights, saved from a wrapped model (DDP, torch.compile): names differ, values do not.",
        "diff ref.safetensors wrapped.safetensors",
        status=0,
    ),
    Step(
        "One weight changed, one norm scaled by 1.001, one bias missing. Where, and by how much?",
        "diff ref.safetensors tuned.safetensors",
        status=1,
    ),
    Step(
        "Saved as bfloat16: different at the default tolerance ...",
        "diff ref.safetensors bf16.safetensors --quiet",
        status=1,
    ),
    Step(
        "... and close at the tolerance for that dtype.",
        "diff ref.safetensors bf16.safetensors --tolerance auto --quiet",
        status=0,
    ),
)
STEPS_WITH_MODELS = (
    Step(
        "Two implementations with the same weights. One is a rewrite with a different module tree ...",
        "run ours.py rewrite.py --quiet",
        status=0,
    ),
    Step(
        "... the other is a port that loads every key and still differs. Where does it start, and why?",
        "run ours.py port.py --top 3",
        status=1,
    ),
)


def play(run_command: Callable[[Sequence[str]], int]) -> bool:
    """Run every step in a temporary folder; return True if all ended as they should."""
    has_torch = find_spec("torch") is not None
    steps = STEPS_WITH_FILES + STEPS_WITH_MODELS if has_torch else STEPS_WITH_FILES
    failures = 0
    with tempfile.TemporaryDirectory(prefix="nndiff-demo-") as folder:
        start_folder = os.getcwd()
        os.chdir(folder)  # so that the commands shown are the commands run
        try:
            write_checkpoints(Path())
            write_model_files(Path())
            for number, step in enumerate(steps, 1):
                sys.stdout.write(f"\n{number}. {step.text}\n$ nndiff {step.command}\n\n")
                sys.stdout.flush()
                status = run_command(step.command.split())
                sys.stdout.write(f"(exit status {status})\n")
                failures += status != step.status
        finally:
            os.chdir(start_folder)
    if not has_torch:
        sys.stdout.write("\nInstall torch to see two models compared layer by layer.\n")
    sys.stdout.write(
        "\nNow try your own: nndiff diff REF CAND, or nndiff run REF_MODEL CAND_MODEL. See nndiff --help.\n"
    )
    return failures == 0
