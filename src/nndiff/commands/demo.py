"""nndiff demo: see it all on small built-in models."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from nndiff.commands.options import OptionGroup, Subparsers, add_command, add_options, option, parse_path
from nndiff.errors import UsageError

_EXAMPLES = """\
  nndiff demo                    read along: every command is shown before it runs
  nndiff demo | less             at your own pace
  nndiff demo -o DIR             keep its files and reports there (default: a new folder for temporary files)

Exit status: 0 if every step ended as it should, 1 if not.
"""
_OUTPUT = OptionGroup(
    "where",
    (option("-o", "--output", metavar="DIR", type=parse_path, help="a folder that is new or empty"),),
)


def add_parser(subparsers: Subparsers, purpose: str = "") -> None:
    """Add the command to the command line."""
    parser = add_command(
        subparsers,
        "demo",
        run,
        purpose=purpose,
        description="Compare small built-in models with planted differences: a checkpoint, a port, two trainings, "
        "quantised modes. Needs no network and less than a minute.",
        examples=_EXAMPLES,
    )
    add_options(parser, _OUTPUT)


def run(args: argparse.Namespace) -> int:
    """Play the demo; return 0 if every step ended as it should."""
    from nndiff.demo.story import play

    return 0 if play(run_command, make_folder(args.output), find_spec("torch") is not None) else 1


def make_folder(output: str | None) -> Path:
    """Return an empty folder: the one that was asked for, or a new one."""
    if output is None:
        return Path(tempfile.mkdtemp(prefix="nndiff-demo-"))
    folder = Path(output).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = next(folder.iterdir(), None) is None
    except OSError as error:
        raise UsageError(f"-o {output}: {(error.strerror or str(error)).lower()}") from None
    if not is_empty:
        raise UsageError(f"-o {output}: the folder is not empty; give a new one, or leave out -o")
    return folder


def run_command(words: Sequence[str]) -> int:
    """Run a command of nndiff in this process, or a Python script; return the exit status."""
    from nndiff.commands import main

    if words[0] == "nndiff":
        return main(words[1:])
    return subprocess.run([sys.executable, *words[1:]], check=False).returncode
