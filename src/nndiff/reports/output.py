"""Writing reports: whole or not at all, beside the target and then renamed; standard output that may be closed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nndiff.errors import ReportError
from nndiff.reports.sink import Sink

# What stands in for our own signs where the terminal cannot show them: one column each, so tables stay straight.
_PLAIN = str.maketrans({"✓": "+", "✗": "x", "≈": "~", "…": "~", "×": "x", "→": ">", "─": "-", "–": "-"})


@dataclass(frozen=True)
class Output:
    """Hold a finished document and where it goes."""

    sink: Sink
    text: str
    for_people: bool = False  # takes the terminal's encoding; every other format is UTF-8 wherever it goes


def write_outputs(outputs: Sequence[Output]) -> None:
    """Write documents: all temporary files first, then the renames, standard output last."""
    with contextlib.ExitStack() as stack:
        files = [output for output in outputs if output.sink.path is not None]
        staged = [stack.enter_context(_staged(str(output.sink.path), output.text)) for output in files]
        for each in staged:
            each.commit()
    for output in outputs:
        if output.sink.path is None:
            print_text(output.text, output.for_people)


@dataclass
class _Staged:
    """Know a written temporary file and the place it is meant for."""

    path: str  # as the user spelled it, for messages
    target: str
    temporary: str | None
    text: str

    def commit(self) -> None:
        with _troubles(self.path):
            if self.temporary is not None:
                os.replace(self.temporary, self.target)
                self.temporary = None
            else:
                with open(self.target, "wb") as file:
                    file.write(_utf8(self.text))


@contextlib.contextmanager
def _staged(path: str, text: str) -> Iterator[_Staged]:
    with _troubles(path):
        mode = _mode(path)
        # a device or pipe cannot be replaced by a file: it is written straight
        special = mode is not None and (not stat.S_ISREG(mode) or path.startswith(("/dev/", "/proc/")))
        target = path if special else os.path.realpath(path)
        staged = _Staged(path, target, None if special else _temporary(target), text)
    try:
        if staged.temporary is not None:
            with _troubles(path):
                _fill(staged.temporary, text, mode)
        yield staged
    finally:
        if staged.temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(staged.temporary)


def _mode(path: str) -> int | None:
    """Return the mode of what is there, or None; refuse what must not be replaced."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        parent = os.path.dirname(os.path.realpath(path))
        if not os.path.isdir(parent):
            raise ReportError(f"{path}: cannot write the report: there is no folder {parent}") from None
        return None
    if stat.S_ISDIR(mode):
        raise ReportError(f"{path}: cannot write the report: it is a folder; name a file in it")
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return mode


def _temporary(target: str) -> str:
    return os.path.join(os.path.dirname(target), f".nndiff-{os.urandom(8).hex()}.tmp")


def _fill(temporary: str, text: str, mode: int | None) -> None:
    # os.open and not mkstemp: a new file gets the permissions the umask gives, not 0600
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    with open(descriptor, "wb") as file:
        file.write(_utf8(text))
        file.flush()
        os.fsync(file.fileno())
    if mode is not None:
        os.chmod(temporary, stat.S_IMODE(mode))


@contextlib.contextmanager
def _troubles(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        trouble = (error.strerror or str(error)).lower()
        raise ReportError(f"{path}: cannot write the report: {trouble}") from None


def print_text(text: str, for_people: bool = True) -> None:
    """Write text to standard output, or say in a sentence why that cannot be."""
    stream = sys.stdout
    if stream is None or getattr(stream, "closed", False):
        raise ReportError("cannot write to standard output: it is closed")
    try:
        buffer = getattr(stream, "buffer", None)
        if buffer is None:
            stream.write(text)
        else:
            stream.flush()
            buffer.write(_encoded(text, for_people, stream.encoding or "utf-8"))
        stream.flush()
    except BrokenPipeError:
        silence_stdout()  # the reader, say `head`, has seen enough
    except OSError as error:
        silence_stdout()
        trouble = (error.strerror or str(error)).lower()
        raise ReportError(f"cannot write to standard output: {trouble}") from None


def _encoded(text: str, for_people: bool, encoding: str) -> bytes:
    if not for_people:
        return _utf8(text)
    try:
        return text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "backslashreplace")


def silence_stdout() -> None:
    """Let what is still buffered go nowhere, or the interpreter would complain at its end."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")  # half a surrogate pair has no UTF-8
