"""Train the reference model and dump its state: its own loop, wrapped in a few lines."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from reference.loop import build_sgd, run_updates
from reference.ranker import PhotoRanker
from siamese.batch_dumps import BatchDumps
from siamese.model import make_ranker
from siamese.names import rename_weights
from siamese.photos import paint_pairs
from siamese.settings import Settings, read_settings
from torch.utils.data import DataLoader


def make_loader(settings: Settings) -> DataLoader[Any]:
    """Return the same batches as in our training, in the shape that the reference takes: ((left, right), better)."""
    left, right, better = paint_pairs(settings.pairs, settings.image_size, settings.seed)
    samples: Any = [((left[number], right[number]), better[number]) for number in range(settings.pairs)]
    shuffling = torch.Generator().manual_seed(settings.seed)
    return DataLoader(samples, settings.batch_size, shuffle=True, generator=shuffling)


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output_dir", default="outputs/reference_model")
    parser.add_argument("--batch_dump_interval", type=int, default=10)
    config = "configs/siamese_e2e/resnet50.yaml"
    parser.add_argument("--config", type=read_settings, default=config, help="sizes, seed and rates")
    args = parser.parse_args()
    if Path(args.output_dir).exists():
        parser.error(f"{args.output_dir} is there already: give another --output_dir")
    settings: Settings = args.config
    network = PhotoRanker(settings.depths, settings.width, settings.mlp_width)
    network.load_state_dict(rename_weights(make_ranker(settings).state_dict()))  # both start from the same weights
    solver = build_sgd(network, settings.learning_rate, settings.momentum, settings.weight_decay)
    loader = make_loader(settings)
    dumps = BatchDumps(
        Path(args.output_dir),
        network,
        solver,
        steps=settings.epochs * len(loader),
        interval=args.batch_dump_interval,
        checkpoints=settings.dump_checkpoints,
    )
    for update in run_updates(network, solver, loader, settings.epochs):
        dumps.step(update.epoch, update.index, (*update.pair, update.better), update.nll, update.hits)
    dumps.close()
    print(f"dumps are in {args.output_dir}")


if __name__ == "__main__":
    main()
