"""What `nndiff modes` runs: Mamba, its samples and its modes. MAMBA_MODEL and MAMBA_PRETRAINED_DIR choose the model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from quantized_mamba.mixer import replace_mixers
from quantized_mamba.modes import RECIPES, make_mode

from nndiff.errors import UsageError
from nndiff.models.huggingface import build_hugging_face_model, read_class
from nndiff.models.spec import BuildOptions
from nndiff.modes import fp16

CONFIGS = Path(__file__).with_name("configs")
KEPT_LOGITS = 32  # of the last tokens: all of 130M's would be 1 GB per mode


def find_folder() -> str:
    """Return the folder with the model's config.json; without weights in it they are drawn from the seed."""
    pretrained = os.environ.get("MAMBA_PRETRAINED_DIR")
    if pretrained and not Path(pretrained, "config.json").is_file():
        raise UsageError(f"{pretrained} has no config.json: give a Hugging Face folder, or leave it out")
    return pretrained or str(CONFIGS / os.environ.get("MAMBA_MODEL", "mamba-small"))


def model() -> torch.nn.Module:
    """Return the reference: transformers' Mamba with mixers that modes can take apart."""
    return replace_mixers(build_hugging_face_model(find_folder(), BuildOptions()).model)


def samples(count: int = 10, seq_len: int = 512) -> list[dict[str, Any]]:
    """Return sequences of random tokens; put your own text here to judge trained weights."""
    _, config = read_class(find_folder())
    sequences = [torch.randint(0, config.vocab_size, (1, seq_len)) for _ in range(count)]
    return [{"input_ids": ids, "use_cache": False, "logits_to_keep": KEPT_LOGITS} for ids in sequences]


modes = {name: make_mode(recipe) for name, recipe in RECIPES.items()} | {"fp16": fp16}
presets = {"essential": ["fp32", "0", "2-1", "2-2", "2-4"]}
reference = "fp32"
