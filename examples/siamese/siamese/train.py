"""Train the ranker and dump its state: python -m siamese.train --config configs/siamese_e2e/resnet50.yaml."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path

from siamese.settings import Settings, read_settings
from siamese.training import FAULTS, train


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=read_settings, default="configs/siamese_e2e/resnet50.yaml")
    parser.add_argument("--run_name", help="folder in the config's output_dir; the time if not given")
    parser.add_argument("--fault", choices=FAULTS, help="train with this mistake, for nndiff to find")
    args = parser.parse_args()
    settings: Settings = args.config
    folder = Path(settings.output_dir, args.run_name or datetime.now().strftime("%Y%m%d_%H%M%S"))
    if folder.exists():
        parser.error(f"{folder} is there already: give another --run_name")
    train(settings, folder, args.fault)
    print(f"dumps are in {folder}")


if __name__ == "__main__":
    main()
