"""Run code that is not nndiff's, and turn its errors into one sentence that names the place."""

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

from nndiff.errors import ModelError, NndiffError, UserCodeError
from nndiff.recording.format.folder import LeftoverNote, add_note

_NNDIFF = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_STANDARD_LIBRARY = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
_LONGEST_MESSAGE = 400  # characters


@contextmanager
def user_code(what: str, function: Any = None) -> Iterator[None]:
    """Raise a ModelError for whatever goes wrong inside; the cause stays attached for a traceback.

    `function` is the function or class that is called: its place is named if the call itself fails.
    """
    try:
        yield
    except (NndiffError, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise ModelError(f"{what} exited the program (exit status {error.code})") from error
    except Exception as error:
        sentences = [f"{what} failed{_locate_error(error, function)}: {describe_exception(error)}"]
        leftovers = []
        for note in getattr(error, "__notes__", ()):
            if isinstance(note, LeftoverNote):
                leftovers.append(note)
            else:
                sentences.append(note)
        # the place of a syntax error is all there is to know
        error_class = ModelError if isinstance(error, SyntaxError) else UserCodeError
        raised = error_class("; ".join(sentences))
        for note in leftovers:
            add_note(raised, note)
        raise raised from error


def describe_exception(error: Exception) -> str:
    """Return the class and message of an exception in one line."""
    # str() of a syntax error would name its place once more
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    text = " ".join(str(message).split())[:_LONGEST_MESSAGE]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def get_required_parameters(function: Callable[..., Any]) -> list[str]:
    """Return the parameters that a function cannot be called without."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions written in C have no signature
        return []
    any_number = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = []
    for parameter in parameters:
        if parameter.default is parameter.empty and parameter.kind not in any_number:
            names.append(parameter.name)
    return names


def locate_function(function: Any) -> str:
    """Return ` at file:line` for a function or class of the user, or else an empty text."""
    body = vars(function).get("__init__") if isinstance(function, type) else inspect.unwrap(function)
    code = getattr(body, "__code__", None)
    if code is None or not _is_user_file(code.co_filename):
        return ""
    return f" at {_shorten_path(code.co_filename)}:{code.co_firstlineno}"


def start_traceback_in_user_code(error: BaseException) -> BaseException:
    """Return an error with a traceback that leaves out nndiff's own frames at its start."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and not _is_user_file(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return error.with_traceback(trace or error.__traceback__)


def _locate_error(error: Exception, function: Any) -> str:
    """Return ` at file:line`: the innermost user code, or else the function called, or else an installed package."""
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith("<"):
        return f" at {_shorten_path(error.filename)}:{error.lineno}"
    user_place = installed_place = ""
    for frame in extract_tb(error.__traceback__):
        place = f" at {_shorten_path(frame.filename)}:{frame.lineno}"
        if _is_user_file(frame.filename):
            user_place = place
        elif _INSTALLED.match(frame.filename) and not frame.filename.startswith(_NNDIFF):
            installed_place = place
    function_place = locate_function(function) if function is not None else ""
    return user_place or function_place or installed_place


def _is_user_file(file: str) -> bool:
    """Return True if code belongs neither to nndiff nor to Python nor to an installed package."""
    return not (file.startswith((_NNDIFF, "<", *_STANDARD_LIBRARY)) or _INSTALLED.match(file))


def _shorten_path(path: str) -> str:
    """Return a path relative to site-packages or to the current folder, if it is inside."""
    installed = _INSTALLED.match(path)
    if installed:
        return path[installed.end() :]
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
