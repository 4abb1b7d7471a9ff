"""Run NeMo's model once, forward and backward in train mode, and save everything for compare_with_saved_outputs.py."""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from common import MODE, add_input_options, load_nemo, run_tool
from saved_folder import save_folder

import nndiff
from nndiff.errors import ModelError

MASKS = "(model):output.2"
MOST_SEEDS = 20  # one seed in three masks nothing in a second of audio


def make_parser() -> ArgumentParser:
    """Return the options."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--ckpt_path", required=True, help="checkpoint for NeMo (.nemo or .ckpt)")
    parser.add_argument("--output_dir", required=True, help="folder to save to")
    add_input_options(parser)
    return parser


def run(args: Namespace) -> int:
    """Run and save."""
    print(f"Loading NeMo model from {args.ckpt_path}...")
    nemo = load_nemo(args.ckpt_path, args)
    inputs = nemo.inputs()
    print(f"Input shape: {inputs['input_signal'].shape}\nInput length: {inputs['input_signal_length']}")
    for seed in range(args.seed, args.seed + MOST_SEEDS):
        print(f"Running forward and backward passes (seed={seed})...")
        with tempfile.TemporaryDirectory() as folder:
            recording = nndiff.record(
                nemo.model, inputs, path=Path(folder) / "x.nnrec", seed=seed, mode=MODE, backward=True, loss=nemo.loss
            )
            if not recording.source().tensors[MASKS].numpy().any():
                print(f"  with seed {seed} no frame is masked, so there is no loss: trying the next seed")
                continue
            metadata = {"batch_size": args.batch_size, "seq_len": args.seq_len, "seed": seed, "mode": MODE}
            for name in save_folder(recording, inputs, metadata, Path(args.output_dir)):
                print(f"Saved {Path(args.output_dir) / name}")
        print(f"\n✓ All outputs saved to {args.output_dir}")
        return 0
    raise ModelError(f"no frame is masked with any of {MOST_SEEDS} seeds: give a longer --seq_len")


if __name__ == "__main__":
    sys.exit(run_tool(run, make_parser()))
