#!/usr/bin/env python3
"""Compare the saved layers of one mode with those of the reference, in full. Exit status as diff(1)."""

from __future__ import annotations

import argparse
import sys

from nndiff.commands import main as run_nndiff


def main() -> int:
    """Run `nndiff modes --compare`; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", metavar="MODE", help="for example 2-1")
    parser.add_argument("--reference", default="fp32", help="the mode to compare with (default: fp32)")
    parser.add_argument("--output_dir", default="layer_outputs", help="where the outputs were saved")
    parser.add_argument("--save_comparison", metavar="FILE.json", help="save all numbers")
    args = parser.parse_args()
    command = ["modes", "--compare", args.output_dir, args.mode, "--reference", args.reference]
    command += ["--comparisons", "comparisons"]
    if args.save_comparison:
        command += ["--save-comparison", args.save_comparison]
    return run_nndiff(command)


if __name__ == "__main__":
    sys.exit(main())
