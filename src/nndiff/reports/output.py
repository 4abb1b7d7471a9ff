"""Where reports go: standard output, which may be closed, or a file, which is written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nndiff.errors import ReportError, UsageError

PLAIN_WIDTH = 100  # columns where there is no terminal: files, pipes, logs
NARROWEST = 20

# A document, a picture, or a document in parts that need not fit into memory together.
Content: TypeAlias = "str | bytes | Iterable[str]"

# What stands in for our own signs where the terminal cannot show them: one column each, so tables stay straight.
_ASCII_SIGNS = str.maketrans(
    {"✓": "+", "✗": "x", "≈": "~", "…": "~", "×": "x", "→": ">", "─": "-", "–": "-", "▶": ">", "⋮": ":"}
    | dict(zip("▁▂▃▄▅▆▇█", "_.,-=+*#", strict=True))
)


@dataclass(frozen=True)
class Sink:
    """Name a place for a report; `path` None is standard output."""

    path: str | None
    width: int = PLAIN_WIDTH
    color: bool = False

    @property
    def key(self) -> str | None:
        """Return what is equal for two spellings of one place."""
        return None if self.path is None else os.path.realpath(self.path)

    def refuse_to_overwrite(self, files: Iterable[str | os.PathLike[str]], reason: str) -> None:
        """Raise if writing here would overwrite one of these files."""
        if self.path is None:
            return
        for file in files:
            try:
                same = os.path.samefile(self.path, file)
            except (OSError, ValueError):  # a label need not be a file
                continue
            if same:
                raise UsageError(f"{self.path}: {reason}; a report would overwrite it: give another path")


def get_stdout_sink() -> Sink:
    """Return the sink of standard output, as wide and colourful as what reads it."""
    try:
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
    except ValueError:  # closed
        is_terminal = False
    width = PLAIN_WIDTH
    if is_terminal or os.environ.get("COLUMNS"):  # COLUMNS is how a person sets the width of a pipe
        width = shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns
    if os.environ.get("NO_COLOR"):
        color = False
    elif os.environ.get("FORCE_COLOR"):
        color = True
    else:
        color = is_terminal and os.environ.get("TERM") != "dumb"
    return Sink(None, max(width, NARROWEST), color)


@dataclass(frozen=True)
class Output:
    """Hold a finished document and where it goes."""

    sink: Sink
    content: Content
    for_people: bool = False  # takes the terminal's encoding; every other format is UTF-8 wherever it goes


def write_outputs(outputs: Sequence[Output]) -> None:
    """Write documents: all temporary files first, then the renames, standard output last."""
    with contextlib.ExitStack() as stack:
        staged_files = []
        for output in outputs:
            if output.sink.path is not None:
                staged_files.append(stack.enter_context(_stage_file(output.sink.path, output.content)))
        for staged in staged_files:
            staged.commit()
    for output in outputs:
        if output.sink.path is None and isinstance(output.content, str):
            print_text(output.content, output.for_people)


@dataclass
class _StagedFile:
    """Know a written temporary file and the place it is meant for."""

    path: str  # as the user spelled it, for messages
    target: str
    temporary: str | None
    content: Content

    def commit(self) -> None:
        with explain_trouble(self.path):
            if self.temporary is not None:
                os.replace(self.temporary, self.target)
                self.temporary = None
            else:
                with open(self.target, "wb") as file:
                    file.writelines(_encode_content(self.content))


@contextlib.contextmanager
def _stage_file(path: str, content: Content) -> Iterator[_StagedFile]:
    with explain_trouble(path):
        mode = _check_target(path)
        # a device or pipe cannot be replaced by a file: it is written straight
        special = mode is not None and (not stat.S_ISREG(mode) or path.startswith(("/dev/", "/proc/")))
        target = path if special else os.path.realpath(path)
        beside = os.path.join(os.path.dirname(target), f".nndiff-{os.urandom(8).hex()}.tmp")
        staged = _StagedFile(path, target, None if special else beside, content)
    try:
        if staged.temporary is not None:
            with explain_trouble(path):
                _fill_temporary(staged.temporary, content, mode)
        yield staged
    finally:
        if staged.temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(staged.temporary)


def _check_target(path: str) -> int | None:
    """Return the mode of what is at this path, or None; refuse what must not be replaced."""
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


def _fill_temporary(temporary: str, content: Content, mode: int | None) -> None:
    # os.open and not mkstemp: a new file gets the permissions the umask gives, not 0600
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    with open(descriptor, "wb") as file:
        file.writelines(_encode_content(content))
        file.flush()
        os.fsync(file.fileno())
    if mode is not None:
        os.chmod(temporary, stat.S_IMODE(mode))


@contextlib.contextmanager
def explain_trouble(path: str) -> Iterator[None]:
    """Turn an error of the operating system into one sentence about this path."""
    try:
        yield
    except OSError as error:
        trouble = (error.strerror or str(error)).lower()
        raise ReportError(f"{path}: cannot write the report: {trouble}") from None


def print_text(text: str, for_people: bool = True) -> None:
    """Write text to standard output, or raise a ReportError that says why it cannot be written."""
    stream = sys.stdout
    if stream is None or getattr(stream, "closed", False):
        raise ReportError("cannot write to standard output: it is closed")
    try:
        buffer = getattr(stream, "buffer", None)
        if buffer is None:
            stream.write(text)
        else:
            stream.flush()
            buffer.write(_encode_text(text, stream.encoding or "utf-8") if for_people else _encode_utf8(text))
        stream.flush()
    except BrokenPipeError:
        silence_stdout()  # the reader, say `head`, has seen enough
    except OSError as error:
        silence_stdout()
        trouble = (error.strerror or str(error)).lower()
        raise ReportError(f"cannot write to standard output: {trouble}") from None


def silence_stdout() -> None:
    """Discard what is still buffered; the interpreter would fail to flush it on exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _encode_text(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII_SIGNS).encode(encoding, "backslashreplace")


def _encode_content(content: Content) -> Iterator[bytes]:
    """Yield the bytes of a file, part by part."""
    if isinstance(content, bytes):
        yield content
        return
    for text in [content] if isinstance(content, str) else content:
        yield _encode_utf8(text)


def _encode_utf8(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")  # half a surrogate pair has no UTF-8
