"""nndiff demo: see it all on small built-in models."""

from __future__ import annotations

import argparse

from nndiff.commands.options import Subparsers, add_command

_EXAMPLES = """\
  nndiff demo                    read along: every command is shown before it runs
  nndiff demo | less             at your own pace

Exit status: 0 if every step ended as it should, 1 if not.
"""


def add_parser(subparsers: Subparsers, purpose: str = "") -> None:
    """Add the command to the command line."""
    add_command(
        subparsers,
        "demo",
        run,
        purpose=purpose,
        description="Compare small built-in models with planted differences. Needs no network and less than a minute.",
        examples=_EXAMPLES,
    )


def run(args: argparse.Namespace) -> int:
    """Play the demo; return 0 if every step ended as it should."""
    from nndiff.commands import main
    from nndiff.demo.story import play

    return 0 if play(main) else 1
