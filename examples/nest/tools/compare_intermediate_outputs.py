"""Compare every layer of NeMo's model with the port's: both in this process, same seed, same input, eval mode."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from common import add_input_options, add_tolerance_options, load_local, load_nemo, run_tool
from sections import list_layers, percent, print_cause, print_layers, print_mismatches, print_title, view

import nndiff


def make_parser() -> ArgumentParser:
    """Return the options."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--ckpt_path", required=True, help="local checkpoint (.nemo or .ckpt)")
    parser.add_argument("--nemo_ckpt_path", required=True, help="checkpoint for NeMo (.nemo or .ckpt)")
    add_input_options(parser)
    add_tolerance_options(parser)
    return parser


def run(args: Namespace) -> int:
    """Load, run, compare and print; return 0 if everything matches."""
    print_title("Intermediate Output Comparison")
    print(f"Local checkpoint: {args.ckpt_path}\nNeMo checkpoint: {args.nemo_ckpt_path}\nSeed: {args.seed}")
    print(f"Batch size: {args.batch_size}\nSequence length: {args.seq_len}")
    print(f"Tolerance: atol={args.atol}, rtol={args.rtol}\n{'=' * 80}")
    print("\nLoading local model...")
    local = load_local(args.ckpt_path, args.config)
    print("Loading NeMo model...")
    nemo = load_nemo(args.nemo_ckpt_path, args)
    print(f"\nCreating test input (seed={args.seed})...")
    inputs = nemo.inputs()
    print(f"Input shape: {inputs['input_signal'].shape}\nInput length: {inputs['input_signal_length']}")
    print("\nRegistering hooks on local model...\nRegistering hooks on NeMo model...")
    print("\nRunning forward pass on local model...\nRunning forward pass on NeMo model...")
    comparison = nndiff.compare(
        nemo.model, local, inputs=inputs, seed=args.seed, mode="eval", atol=args.atol, rtol=args.rtol
    )
    result = view(comparison)
    forward = result.counts.rate("forward")

    print_title("Comparing Final Outputs")
    print(f"Final output match: {result.counts.outputs_agree}")
    print_title("Comparing Intermediate Layer Outputs")
    print(f"\nLayer statistics:\n  Common layers: {result.counts.common_layers}")
    print(f"  Only in local: {result.counts.layers_only_in['candidate']}")
    print(f"  Only in NeMo: {result.counts.layers_only_in['reference']}")
    print_layers(list_layers(result))
    mismatched = forward.total - forward.matched if forward else 0
    if mismatched:
        print_title("Mismatched Layers Details")
        print_mismatches(list_layers(result))
    print_title("Summary")
    print(f"Total common layers compared: {forward.total if forward else 0}")
    print(f"Matched layers: {forward.matched if forward else 0}\nMismatched layers: {mismatched}")
    print(f"Match rate: {percent(forward)}")
    print_cause(comparison)
    return comparison.exit_code


if __name__ == "__main__":
    sys.exit(run_tool(run, make_parser()))
