"""Every error that nndiff raises on purpose, with the exit status of the command line.

NndiffError                 the root: everything nndiff raises on purpose (exit 2)
├── UsageError              the call itself makes no sense
├── SourceError             a file or object cannot be read; names it and says why
│   ├── DamagedError        a recording or a recorded training has changed since it was written
│   └── UnsafeFileError     reading it would take too much memory, disk or trust
├── AlignmentError          naming rules do not fit these names
├── ConversionError         a map cannot be read, does not fit a checkpoint, or cannot be carried out
├── ReportError             a report cannot be written or read back
├── ModelError              a model cannot be built, fed or run
│   ├── CheckpointError     a checkpoint does not fit the model; knows whether part of it would load
│   └── UserCodeError       code of the user failed; its traceback tells more
└── MissingExtraError       an optional package is needed; carries the pip line
"""

from __future__ import annotations

import os


class NndiffError(Exception):
    """Be the root of every error nndiff raises on purpose."""

    exit_code = 2


class UsageError(NndiffError):
    """Say that the call itself makes no sense."""


class SourceError(NndiffError):
    """Say that a source cannot be read, and why."""

    def __init__(self, source: str | os.PathLike[str], trouble: str) -> None:
        self.source = os.fspath(source)
        self.trouble = trouble
        super().__init__(f"{self.source}: {trouble}")


class DamagedError(SourceError):
    """Say that a recording, or a recorded training, has changed since it was written."""


class UnsafeFileError(SourceError):
    """Say that reading a file would take too much memory, disk or trust."""


class AlignmentError(NndiffError):
    """Say that naming rules do not fit the names."""


class ConversionError(NndiffError):
    """Say that a map cannot be read, does not fit a checkpoint, or cannot be carried out."""


class ReportError(NndiffError):
    """Say that a report cannot be written or read back."""


class ModelError(NndiffError):
    """Say that a model cannot be built, fed or run."""


class CheckpointError(ModelError):
    """Say that a checkpoint does not fit the model."""

    def __init__(self, message: str, *, partial_loads: bool = False) -> None:
        self.partial_loads = partial_loads  # without the tensors that do not fit, some would be left to load
        super().__init__(message)


class UserCodeError(ModelError):
    """Say that code failed that is not nndiff's: a model, its inputs, its loss, NeMo."""

    traceback_shown = False


class MissingExtraError(NndiffError):
    """Say which optional package is missing and how to get it."""

    def __init__(self, package: str, purpose: str, extra: str) -> None:
        self.package = package
        super().__init__(f"{package} is needed {purpose} and is not installed: pip install 'nndiff[{extra}]'")
