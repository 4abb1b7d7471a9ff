"""Compare two trainings: python -m siamese.analyze_batch_comparisons OURS REFERENCE --filter all|mlp|backbone."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import nndiff
from nndiff.reports.run_files import write_run_files
from siamese.names import RENAMES


def main() -> int:
    """Print the comparison, write the picture and the tables, and return 0 for the same and 1 for different."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ours", help="output folder of siamese.train")
    parser.add_argument("reference", help="output folder of train_reference_with_dumps.py")
    parser.add_argument("--filter", choices=("all", "mlp", "backbone"), default="all", help="parameters that decide")
    parser.add_argument("--output_dir", help="for the picture and the tables; comparison/ in OURS if not given")
    args = parser.parse_args()
    try:
        comparison = nndiff.compare(args.reference, args.ours, rename=RENAMES, filter=args.filter)
        print(comparison)
        for path in write_run_files(comparison, args.output_dir or str(Path(args.ours, "comparison"))):
            print(f"wrote {path}")
    except nndiff.NndiffError as error:
        print(error, file=sys.stderr)
        return 2
    return comparison.exit_code


if __name__ == "__main__":
    sys.exit(main())
