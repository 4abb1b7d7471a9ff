"""Run the port as save_nemo_outputs.py ran NeMo, and compare outputs, gradients and every layer in between."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from common import MODE, add_tolerance_options, compute_loss, load_local, run_tool
from saved_folder import check_folder
from sections import (
    list_layers,
    percent,
    print_both_directions,
    print_cause,
    print_gradients,
    print_rate,
    print_title,
    view,
)

import nndiff


def make_parser() -> ArgumentParser:
    """Return the options."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--ckpt_path", required=True, help="local checkpoint (.nemo or .ckpt)")
    parser.add_argument("--saved_outputs_dir", required=True, help="folder that save_nemo_outputs.py wrote")
    add_tolerance_options(parser)
    return parser


def run(args: Namespace) -> int:
    """Load, run, compare and print; return 0 if everything matches."""
    local = load_local(args.ckpt_path, args.config)
    check_folder(args.saved_outputs_dir)
    comparison = nndiff.compare(
        args.saved_outputs_dir, local, loss=compute_loss, mode=MODE, backward=True, atol=args.atol, rtol=args.rtol
    )
    result = view(comparison)
    counts = result.counts

    print_title("Comparing Final Forward Output")
    print(f"Forward output match: {counts.outputs_agree}")
    print_title("Comparing Parameter Gradients")
    print_gradients(result.parameter_gradients)
    print_title("Comparing Intermediate Layer Outputs")
    print(f"\nCommon layers: {counts.common_layers}")
    print_both_directions(list_layers(result))
    print_title("Summary")
    print(f"Forward output match: {counts.outputs_agree}")
    gradients, forward, backward = (counts.rate(name) for name in ("param_grad", "forward", "backward"))
    print("\nParameter gradients:")
    print_rate("Matched", gradients)
    print(f"  Match rate: {percent(gradients)}")
    print("\nIntermediate layers:")
    print_rate("Forward matches", forward)
    print_rate("Backward matches", backward)
    print(f"  Forward match rate: {percent(forward)}\n  Backward match rate: {percent(backward)}")
    print_cause(comparison)
    print("\n✓ All outputs match!" if comparison.exit_code == 0 else "\n✗ Some outputs do not match!")
    return comparison.exit_code


if __name__ == "__main__":
    sys.exit(run_tool(run, make_parser()))
