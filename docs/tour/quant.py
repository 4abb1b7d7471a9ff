"""The modes of the README: the BERT of bert.py, cast and quantised."""

from __future__ import annotations

import torch
from bert import model  # noqa: F401  # the reference

from nndiff import modes as ready


def samples(count: int = 10) -> list[torch.Tensor]:
    """Return token ids, one tensor per sample."""
    return [torch.randint(0, 1000, (1, 16)) for _ in range(count)]


modes = {
    "bf16": ready.bf16,
    "int8": ready.weight_only(8, "channel"),
    "w8a8": ready.w8a8_static(percentile=99.99),
    "int4": ready.weight_only(4, "channel"),
}
