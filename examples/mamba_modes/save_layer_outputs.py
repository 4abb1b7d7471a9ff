#!/usr/bin/env python3
"""Save what the first and last layer of Mamba return in one mode, or in several: --mode fp32,0,2-1."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from nndiff.errors import NndiffError, UsageError

HERE = Path(__file__).parent


def parse_arguments() -> argparse.Namespace:
    """Return the options; they are named as in the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    known = sorted(path.name for path in (HERE / "configs").iterdir())
    parser.add_argument("model", metavar="MODEL", choices=known, help=" or ".join(known))
    parser.add_argument("--pretrained_dir", help="a Hugging Face folder with weights (default: drawn from a seed)")
    parser.add_argument("--mode", required=True, help="fp32, fp16, 0, 2-0, 2-1, 2-2, 2-3, 2-4 or 3")
    parser.add_argument("--quantize", action="store_true", help="needed for all modes but fp32 and fp16")
    parser.add_argument("--output_dir", default="layer_outputs")
    parser.add_argument("--calib_data_num", type=int, default=10, help="number of samples (default: 10)")
    parser.add_argument("--calib_seqlen", type=int, default=512, help="tokens of a sample (default: 512)")
    parser.add_argument("--layers", default="first,last", help="first,last (default), all, or patterns of modules")
    parser.add_argument("--overwrite", action="store_true", help="record finished modes again")
    return parser.parse_args()


def main() -> int:
    """Record the modes; return the exit status."""
    args = parse_arguments()
    os.environ["MAMBA_MODEL"] = args.model
    os.environ["MAMBA_PRETRAINED_DIR"] = args.pretrained_dir or ""
    from nndiff.modes.definition import SampleOptions, load_definition  # with torch: --help need not wait for it
    from nndiff.modes.layouts import Layout
    from nndiff.modes.record import RecordSettings, record_modes

    try:
        definition = load_definition(str(HERE / "mamba.py"), SampleOptions(args.calib_data_num, args.calib_seqlen))
        # the label is kept with the outputs, so that those of other weights are never taken for these
        definition = replace(definition, label=Path(args.pretrained_dir or args.model).resolve().name)
        first, *others = args.mode.split(",")
        for mode in (first, *others):
            definition.check_mode(mode)
            if not args.quantize and not definition.is_floating_point(mode):
                raise UsageError(f"mode {mode} is quantised: add --quantize")
        settings = RecordSettings(args.layers, Layout.NPY, args.calib_seqlen)
        options = {"overwrite": args.overwrite, "report": partial(print, "mode")}
        recorded = record_modes(definition, first, others, args.output_dir, settings, **options)
    except NndiffError as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        return error.exit_code
    print(f"Saved in {args.output_dir}")
    return 1 if recorded.failed else 0


if __name__ == "__main__":
    sys.exit(main())
