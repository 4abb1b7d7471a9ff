"""The command line: one file per command, and here only how they are found and how trouble ends."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Container, Iterable, Sequence
from importlib import import_module
from typing import Any, NoReturn

import nndiff
from nndiff.errors import NndiffError
from nndiff.text import printable

# What each command is for, so that only the one that was asked for need be imported.
COMMANDS = {
    "diff": "compare a reference with one or more candidates",
    "record": "run a model once and save what every layer did, forward and backward",
    "run": "record two models, each in its own process, and compare what every layer did",
    "show": "what is inside: names, shapes, dtypes, statistics",
    "report": "render a saved result again, in any format, at any tolerance",
    "demo": "the whole story on small built-in models",
}

_WITHOUT_MODELS = ("diff", "run", "show", "report")  # in this process

_DESCRIPTION = """\
nndiff is diff for neural networks: where two models stop being the same, whether it matters, and why.
"""
_EPILOG = """\
examples:
  nndiff diff ref.safetensors cand.pt              any two checkpoints
  nndiff diff a.nemo b.ckpt --report md:diff.md    with a table for the pull request
  nndiff show model.ckpt                           what is inside
  nndiff demo                                      the whole story on small built-in models

Exit status, as diff(1): 0 the same, 1 different, 2 trouble. `nndiff COMMAND --help` says more.
"""


class _Version(argparse.Action):
    """Print the version and, after -v or --verbose, which engine computes the numbers."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        line = f"nndiff {nndiff.__version__}"
        if {"-v", "--verbose"} & set(sys.argv[1:]):
            from nndiff.stats import describe_engine

            line += f"\nengine: {describe_engine()}\npython: {sys.version.split()[0]}"
        _print(line + "\n")
        parser.exit(0)


class _Parser(argparse.ArgumentParser):
    """Say what is wrong in one sentence, and where help is."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {printable(message)}; `{self.prog} --help` shows how it is used\n")

    def print_help(self, file: Any = None) -> None:
        _print(self.format_help())  # argparse would say nothing where it cannot be printed

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        # here and not in parse_args, so that a command's own parser answers for its options
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown))
        return found, unknown

    def _unknown(self, words: Sequence[str]) -> str:
        option = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
        if option is None:
            return f"unexpected argument {words[0]!r}"
        return f"unknown option {option}{_meant(option, self._option_string_actions)}"


def _print(text: str) -> None:
    from nndiff.reports.output import print_text

    print_text(text)


def _meant(word: str, known: Iterable[str]) -> str:
    """Return the question whether a name that is close was meant, or nothing."""
    from difflib import get_close_matches

    bare = {name.lstrip("-"): name for name in known}
    close = get_close_matches(word.lstrip("-"), bare, 1)
    return f" (did you mean {bare[close[0]]}?)" if close else ""


def build_parser(full: Container[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of all commands; those not in `full` are named in its help and have no options."""
    parser = _Parser(
        prog="nndiff",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version (with -v: the engine too)")
    parser.add_argument("-v", "--verbose", action="store_true", dest="more", help=argparse.SUPPRESS)
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for name, purpose in COMMANDS.items():
        if name in full:
            import_module(f"nndiff.commands.{name}").add_parser(subparsers, purpose)
        else:
            subparsers.add_parser(name, help=purpose)
    return parser


def _import_numpy() -> None:
    """Import NumPy without the threads of its linear algebra: they begin by spinning, and comparing needs none."""
    name = "OPENBLAS_NUM_THREADS"
    if name in os.environ:
        return
    os.environ[name] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        del os.environ[name]  # models run in other processes, with all that they are used to


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command that was asked for; only its module is imported."""
    command = next((word for word in words if not word.startswith("-")), "")
    if command in _WITHOUT_MODELS:
        _import_numpy()
    parser = build_parser(full=(command,))
    if command not in COMMANDS and words[:1] == [command]:
        parser.error(f"unknown command {command!r}{_meant(command, COMMANDS)}")
    return parser.parse_args(words)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    if argv is None:
        gc.set_threshold(50_000, 20, 100)  # what a command makes mostly lives as long as the command
    try:
        try:
            args = _parsed(sys.argv[1:] if argv is None else list(argv))
            return int(args.run(args))
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where trouble can still be told
    except NndiffError as error:
        return _trouble("; ".join([str(error), *getattr(error, "__notes__", ())]), error.exit_code)
    except OSError as error:
        return _not_written(error)
    except KeyboardInterrupt:
        return _trouble("interrupted", 130)
    except MemoryError:
        return _trouble("out of memory", 2)
    except Exception as error:  # Python would end with 1, which says that models differ
        return _fault(error)


def _not_written(error: OSError) -> int:
    """Answer for what could not be read or written; without a name that is standard output."""
    from nndiff.reports.output import silence_stdout

    if error.filename is None:
        silence_stdout()
    if isinstance(error, BrokenPipeError):  # the reader has gone (`| head`): nothing more can be said
        return 2
    return _trouble(f"{error.filename or 'standard output'}: {(error.strerror or str(error)).lower()}", 2)


def _fault(error: Exception) -> int:
    """Answer for what nobody foresaw: nothing was found out about the models."""
    if os.environ.get("NNDIFF_TRACEBACK"):
        import traceback

        traceback.print_exception(error)
        where = ""
    else:
        where = "; NNDIFF_TRACEBACK=1 in the environment shows where, for a report of it"
    said = " ".join(str(error).split())
    return _trouble(f"{type(error).__name__}{': ' if said else ''}{said}: this is a fault of nndiff{where}", 2)


def _trouble(sentence: str, status: int) -> int:
    sys.stderr.write(f"nndiff: {printable(sentence, 2000)}\n")
    return status
