"""Verify that NeMo loads what the port saves and the port what NeMo saves, with the same names, shapes and bits."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

from nndiff.commands import main as run_nndiff

PORT = Path(__file__).resolve().parents[1] / "port.py"


def make_parser() -> ArgumentParser:
    """Return the options."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--ckpt_path", required=True, help="checkpoint of either side (.nemo or .ckpt)")
    choices = ("bidirectional", "nemo_to_local", "local_to_nemo")
    parser.add_argument("--direction", choices=choices, default=choices[0], help="default: bidirectional")
    parser.add_argument("--config", help="config of the model, instead of the one in the checkpoint")
    return parser


def main() -> int:
    """Verify; return 0 if the checkpoint is compatible, 1 if not, 2 in trouble."""
    args = make_parser().parse_args()
    words = ["verify", args.ckpt_path, "--into", str(PORT), "--direction", args.direction]
    if args.direction == "local_to_nemo":
        words[2:4] = ["--into", "nemo"]
    if args.config:
        words += ["--config", args.config]
    return run_nndiff(words)


if __name__ == "__main__":
    sys.exit(main())
