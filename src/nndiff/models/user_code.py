"""Run code that is not ours, and turn its troubles into one sentence with the place."""

from __future__ import annotations

import inspect
import os
import re
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import extract_tb
from types import TracebackType
from typing import Any

from nndiff.errors import ModelError, NndiffError

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_STANDARD = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")


@contextmanager
def user_code(what: str, about: Any = None) -> Iterator[None]:
    """Raise a ModelError for whatever goes wrong inside; the cause stays attached for a traceback.

    `about` is the function or class that is called: its place is told where a call fails at its door.
    """
    try:
        yield
    except (NndiffError, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise ModelError(f"{what} ended the program (exit {error.code})") from error
    except Exception as error:
        said = [_sentence(error), *getattr(error, "__notes__", ())]
        raise ModelError(f"{what} failed{_place(error, about)}: {'; '.join(said)}") from error


def required(function: Callable[..., Any]) -> list[str]:
    """Return the parameters a function cannot be called without."""
    try:
        known = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some that are written in C do not tell
        return []
    return [each.name for each in known if each.default is each.empty and each.kind not in _ANY_NUMBER]


_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def place_of(function: Any) -> str:
    """Return where a function or class begins, as ` at file:line`, or nothing where it is not the user's own."""
    held = vars(function).get("__init__") if isinstance(function, type) else inspect.unwrap(function)
    code = getattr(held, "__code__", None)
    return f" at {_short(code.co_filename)}:{code.co_firstlineno}" if code and _is_users(code.co_filename) else ""


def without_ours(error: BaseException) -> BaseException:
    """Return an error whose traceback begins where the user's code does."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and not _is_users(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return error.with_traceback(trace or error.__traceback__)


def _place(error: Exception, about: Any) -> str:
    """Return the innermost place in the user's code, else where what was called stands, else the innermost of all."""
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith("<"):
        return f" at {_short(error.filename)}:{error.lineno}"
    frames = [(frame.filename, frame.lineno) for frame in extract_tb(error.__traceback__)]
    own = [frame for frame in frames if _is_users(frame[0])]
    called = place_of(about) if about is not None and not own else ""
    foreign = [frame for frame in frames if _is_installed(frame[0])]
    if called or not (own or foreign):
        return called
    file, line = (own or foreign)[-1]
    return f" at {_short(file)}:{line}"


def _is_users(file: str) -> bool:
    """Tell whether code is neither ours nor Python's nor of an installed package."""
    return not (file.startswith((_OURS, "<", *_STANDARD)) or _INSTALLED.match(file))


def _is_installed(file: str) -> bool:
    """Tell whether code is of an installed package; those may lie in a folder of Python's own."""
    return _INSTALLED.match(file) is not None and not file.startswith(_OURS)


def _short(path: str) -> str:
    installed = _INSTALLED.match(path)
    if installed:
        return path[installed.end() :]
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _sentence(error: Exception) -> str:
    # a syntax error would name its place once more
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return f"{type(error).__name__}: {text[:400]}" if text else type(error).__name__
