"""Compare two trainings: python -m siamese.analyze_batch_comparisons OURS REFERENCE --filter all|mlp|backbone."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nndiff.commands import main as run_nndiff
from siamese.names import RENAMES


def main() -> int:
    """Run `nndiff diff`, which prints and writes the picture and the tables; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ours", help="output folder of siamese.train")
    parser.add_argument("reference", help="output folder of train_reference_with_dumps.py")
    parser.add_argument("--filter", choices=("all", "mlp", "backbone"), default="all", help="parameters that decide")
    parser.add_argument("--output_dir", help="for the picture and the tables; comparison/ in OURS if not given")
    args = parser.parse_args()
    output_dir = args.output_dir or str(Path(args.ours, "comparison"))
    command = ["diff", args.reference, args.ours, "--filter", args.filter, "--output-dir", output_dir]
    for rule in RENAMES:
        command += ["--rename", rule]
    return run_nndiff(command)


if __name__ == "__main__":
    sys.exit(main())
