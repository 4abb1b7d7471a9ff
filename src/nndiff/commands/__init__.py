"""The command line: finds the command that was asked for, runs it, and turns trouble into one sentence."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Container, Iterable, Sequence
from importlib import import_module
from typing import Any, NoReturn

import nndiff
from nndiff.text import printable

# The purpose of each command is told here, so that only the command that runs is imported.
COMMANDS = {
    "diff": "compare a reference with one or more candidates",
    "run": "record two models, each in its own process, and compare them layer by layer",
    "record": "run a model once and save what every layer did, forward and backward",
    "verify": "load a checkpoint into implementations of its model, and back again, and require the same bits",
    "map": "say how two checkpoints are related, as names and operations",
    "convert": "rewrite a checkpoint in another one's names and layout",
    "modes": "record every mode of a model (quantised, cast, ...) and compare them with the reference",
    "show": "show what is inside: names, shapes, dtypes, statistics",
    "report": "render a saved result again, in any format, at any tolerance",
    "prune": "thin out a recorded training",
    "demo": "see it all on small built-in models",
}

_RUN_NO_MODELS = ("diff", "run", "verify", "map", "convert", "show", "report", "prune")  # in this process
_USAGE_ERROR = 2

_DESCRIPTION = """\
nndiff is diff for neural networks: where two models stop being the same, whether it matters, and why.
"""
_EPILOG = """\
examples:
  nndiff diff ref.safetensors cand.pt              compare two checkpoints
  nndiff diff a.nemo b.ckpt --report md:diff.md    write a table for the pull request
  nndiff run ours.py theirs.py                     run two models on the same inputs, compare every layer
  nndiff record model.py -o ref.nnrec --backward   save what every layer did ...
  nndiff diff ref.nnrec port.py                    ... and compare another model with it
  nndiff map a.pt b.safetensors -o map.json        how is one made of the other ...
  nndiff convert a.pt --map map.json -o b.safetensors   ... and do it
  nndiff verify model.nemo --into port.py          does the checkpoint load into both, bit for bit
  nndiff modes quantised.py -o layer_outputs       one reference, many modes: which is good enough
  nndiff show model.ckpt                           list what is inside
  nndiff demo                                      see it all on small built-in models

Exit status, as diff(1): 0 the same, 1 different, 2 trouble. `nndiff COMMAND --help` tells more.
"""


class _PrintVersion(argparse.Action):
    """Print the version and, with -v or --verbose, which engine computes the numbers."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        text = f"nndiff {nndiff.__version__}\n"
        if {"-v", "--verbose"} & set(sys.argv[1:]):
            from nndiff.stats.engine import describe_engine

            text += f"engine: {describe_engine()}\npython: {sys.version.split()[0]}\n"
        _print_text(text)
        parser.exit(0)


class _Parser(argparse.ArgumentParser):
    """Report a usage error in one sentence that says where the help is."""

    def error(self, message: str) -> NoReturn:
        self.exit(_USAGE_ERROR, f"{self.prog}: {printable(message)}; see `{self.prog} --help`\n")

    def print_help(self, file: Any = None) -> None:
        _print_text(self.format_help())  # argparse stays silent if stdout cannot be written

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        # not in parse_args: the parser of the sub-command must answer for its own options
        parsed, unknown_words = super().parse_known_args(args, namespace)
        for word in unknown_words:
            if word.startswith("-"):
                name = word.partition("=")[0]
                self.error(f"unknown option {name}{_suggest_name(name, self._option_string_actions)}")
        words: list[str] | None = getattr(parsed, "more_words", None)
        if words is not None:  # argparse takes positionals in one place only, not also behind the next option
            words += unknown_words
            return parsed, []
        if unknown_words:
            self.error(f"unexpected argument {unknown_words[0]!r}")
        return parsed, unknown_words


def _print_text(text: str) -> None:
    from nndiff.reports.output import print_text

    print_text(text)


def _suggest_name(word: str, names: Iterable[str]) -> str:
    """Return ` (did you mean NAME?)`, or an empty text if no name is close."""
    from difflib import get_close_matches

    names_without_dashes = {name.lstrip("-"): name for name in names}
    close = get_close_matches(word.lstrip("-"), names_without_dashes, 1)
    return f" (did you mean {names_without_dashes[close[0]]}?)" if close else ""


def _suggest_command(words: Sequence[str]) -> str:
    """Return ` (did you mean ...?)` for words whose first is no command: another command, or one for these paths."""
    from nndiff.models.kinds import looks_like_model, looks_like_path

    if len(words) < 2 or not (looks_like_path(words[0]) and looks_like_path(words[1])):
        return _suggest_name(words[0], COMMANDS)
    are_models = looks_like_model(words[0]) and looks_like_model(words[1])
    return f" (did you mean `nndiff {'run' if are_models else 'diff'} {words[0]} {words[1]}`?)"


def build_parser(full: Container[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of all commands; commands that are not in `full` get no options of their own."""
    parser = _Parser(
        prog="nndiff",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version (with -v: the engine too)")
    parser.add_argument("-v", "--verbose", action="store_true", dest="verbose_version", help=argparse.SUPPRESS)
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for name, purpose in COMMANDS.items():
        if name in full:
            import_module(f"nndiff.commands.{name}").add_parser(subparsers, purpose)
        else:
            subparsers.add_parser(name, help=purpose)
    return parser


def _import_numpy() -> None:
    """Import NumPy without the threads of its linear algebra: they spin at the start, and comparing needs none."""
    name = "OPENBLAS_NUM_THREADS"
    if name in os.environ:
        return
    os.environ[name] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        del os.environ[name]  # models run in other processes, which keep their threads


def _parse_words(words: Sequence[str]) -> argparse.Namespace:
    """Return the parsed command line; only the module of the command that was asked for is imported."""
    plain_words = [word for word in words if not word.startswith("-")]
    command = plain_words[0] if plain_words else ""
    if command in _RUN_NO_MODELS:
        _import_numpy()
    parser = build_parser(full=(command,))
    if not words:
        parser.print_help()
        parser.error("no command given")
    if command not in COMMANDS and words[0] == command:
        parser.error(f"unknown command {command!r}{_suggest_command(plain_words)}")
    return parser.parse_args(words)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    if argv is None:
        gc.set_threshold(50_000, 20, 100)  # most objects of a command live as long as the command
    try:
        try:
            args = _parse_words(sys.argv[1:] if argv is None else list(argv))
            return int(args.run(args))
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # now, while trouble can still be reported
    except (Exception, KeyboardInterrupt) as error:  # Python would exit with 1, which means that models differ
        return _report_error(error)


def _report_error(error: BaseException) -> int:
    """Say on stderr what went wrong and return the exit status."""
    from nndiff.commands.trouble import describe_error, print_trouble, wants_traceback
    from nndiff.errors import NndiffError

    if isinstance(error, OSError) and error.filename is None:
        from nndiff.reports.output import silence_stdout

        silence_stdout()
        if isinstance(error, BrokenPipeError):  # the reader is gone (`| head`), as it may
            return 2
    shown = wants_traceback()
    if shown and not isinstance(error, (NndiffError, OSError, KeyboardInterrupt, MemoryError)):
        import traceback

        traceback.print_exception(error)
    trouble = describe_error(error, with_traceback=shown or getattr(error, "traceback_shown", False))
    print_trouble(trouble.sentence, *trouble.notes, trouble.hint.value)
    return trouble.status
