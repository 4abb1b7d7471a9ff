"""The reference's training loop: a generator that yields after every update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from reference.ranker import PhotoRanker

Pair = tuple[tuple[Tensor, Tensor], Tensor]  # left and right photos, and which is better


@dataclass(frozen=True)
class Update:
    """Say what one update was made with and how it went."""

    epoch: int
    index: int
    pair: tuple[Tensor, Tensor]
    better: Tensor
    nll: Tensor
    hits: Tensor


def build_sgd(network: PhotoRanker, base_rate: float, momentum: float, decay: float) -> torch.optim.SGD:
    """Return SGD that trains the new layers ten times as fast as the trunk."""
    new_layers = [*network.fc1.parameters(), *network.fc2.parameters()]
    groups: list[dict[str, Any]] = [
        {"params": network.trunk.parameters()},
        {"params": new_layers, "lr": 10 * base_rate},
    ]
    return torch.optim.SGD(groups, lr=base_rate, momentum=momentum, weight_decay=decay)


def run_updates(
    network: PhotoRanker, solver: torch.optim.Optimizer, loader: Iterable[Pair], epochs: int
) -> Iterator[Update]:
    """Train, and yield every update right after it was made."""
    network.train()
    for epoch in range(epochs):
        for index, (pair, better) in enumerate(loader):
            scores = network(pair)
            nll = functional.nll_loss(scores, better)
            network.zero_grad()
            torch.autograd.backward(nll)
            solver.step()
            hits = scores.detach().max(dim=1).indices.eq(better).float().mean()
            yield Update(epoch, index, pair, better, nll.detach(), hits)
