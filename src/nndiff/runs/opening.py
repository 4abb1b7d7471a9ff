"""From a path to a training run: a folder of TrainingRecorder, or a folder of checkpoints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from nndiff.errors import SourceError, UsageError
from nndiff.runs.dumps import find_dumps, open_dumps
from nndiff.runs.reader import is_run, open_run
from nndiff.runs.run import Run


def is_training(side: Any) -> bool:
    """Return True for the path of a training run."""
    if not isinstance(side, (str, os.PathLike)):
        return False
    path = os.fspath(side)
    return isinstance(path, str) and os.path.isdir(path) and (is_run(path) or bool(find_dumps(path)))


def open_training(side: str | os.PathLike[str]) -> Run:
    """Return the training run at a path."""
    path = os.fspath(side)
    return open_run(path) if is_run(path) else open_dumps(path)


def are_trainings(sides: Sequence[Any]) -> bool:
    """Return True if all sides are training runs; some of them alone cannot be compared with something else."""
    trainings = [side for side in sides if is_training(side)]
    if trainings and len(trainings) < len(sides):
        others = [side for side in sides if side not in trainings]
        if isinstance(others[0], (str, os.PathLike)) and not os.path.lexists(str(others[0]).partition("::")[0]):
            raise SourceError(others[0], "no such file or folder")
        raise UsageError(
            f"{trainings[0]} is a training run and {others[0]} is not: compare two runs, or two checkpoints"
        )
    return bool(trainings)
