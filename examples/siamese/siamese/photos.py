"""Pairs of photos of one scene, painted on the spot: one is sharp, the other is blurred, dark and noisy."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

BLOBS = 6  # of light in a scene


def paint_scene(size: int, generator: torch.Generator) -> Tensor:
    """Return a photo [3, size, size] of blobs of light on a sky of stripes."""
    rows, columns = torch.meshgrid(torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij")
    frequency, angle = 4 + 20 * torch.rand(2, generator=generator)
    photo = 0.2 * torch.sin(frequency * rows + angle * columns).expand(3, size, size).clone()
    for _ in range(BLOBS):
        row, column, radius, *color = torch.rand(6, generator=generator).tolist()
        distance = (rows - row).square() + (columns - column).square()
        light = torch.exp(-distance / (0.02 * radius + 0.001))
        photo += torch.tensor(color)[:, None, None] * light
    return photo


def paint_pairs(count: int, size: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return first photos, second photos, and which of each pair is the better one (0 or 1)."""
    generator = torch.Generator().manual_seed(seed)
    sharp = torch.stack([paint_scene(size, generator) for _ in range(count)])
    blurred = functional.avg_pool2d(sharp, 3, stride=1, padding=1)
    poor = 0.8 * blurred + 0.1 * torch.randn(sharp.shape, generator=generator)
    winner = torch.randint(0, 2, (count,), generator=generator)
    is_second = winner.bool()[:, None, None, None]
    return torch.where(is_second, poor, sharp), torch.where(is_second, sharp, poor), winner
