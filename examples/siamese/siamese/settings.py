"""The settings of a training, read from a YAML file."""

from __future__ import annotations

from argparse import ArgumentTypeError
from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Settings:
    """Hold what a config file says."""

    seed: int
    output_dir: str
    batch_comparison_interval: int
    dump_checkpoints: bool
    depths: list[int]
    width: int
    mlp_width: int
    pairs: int
    image_size: int
    batch_size: int
    epochs: int
    learning_rate: float
    head_rate: float
    momentum: float
    weight_decay: float
    batch_norm_momentum: float


def read_settings(path: str) -> Settings:
    """Return the settings in a file; the type of the option --config."""
    try:
        return Settings(**yaml.safe_load(Path(path).read_text()))
    except (OSError, TypeError, yaml.YAMLError) as error:
        raise ArgumentTypeError(f"cannot read settings: {error}") from error
