"""The command line: one file per command, and here only how they are found and how trouble ends."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import nndiff
from nndiff.errors import NndiffError
from nndiff.names import printable

COMMANDS = ("diff", "record", "run", "show", "report", "demo")

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
        sys.stdout.write(line + "\n")
        parser.exit(0)


class _Parser(argparse.ArgumentParser):
    """Say what is wrong in one sentence, and where help is."""

    def error(self, message: str) -> None:  # type: ignore[override]  # argparse's never returns either
        self.exit(2, f"{self.prog}: {printable(message)}; `{self.prog} --help` shows how it is used\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = _Parser(
        prog="nndiff",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version (with -v: the engine too)")
    parser.add_argument("-v", "--verbose", action="store_true", dest="more", help=argparse.SUPPRESS)
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for name in COMMANDS:
        import_module(f"nndiff.commands.{name}").add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    args = build_parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except NndiffError as error:
        return _trouble(str(error), error.exit_code)
    except BrokenPipeError:
        # The reader has gone (`| head`): nothing more can be said, and Python must not try at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except KeyboardInterrupt:
        return _trouble("interrupted", 130)
    except MemoryError:
        return _trouble("out of memory", 2)


def _trouble(sentence: str, status: int) -> int:
    sys.stderr.write(f"nndiff: {printable(sentence, 2000)}\n")
    return status
