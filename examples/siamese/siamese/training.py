"""The training loop: SGD on shuffled pairs, every step recorded, and the five mistakes that can be made in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from siamese.batch_dumps import BatchDumps
from siamese.model import SiameseRanker, make_ranker
from siamese.photos import paint_pairs
from siamese.settings import Settings

FAULTS = ("data-order", "layer-init", "head-lr", "bn-momentum", "no-zero-grad")


def make_loader(settings: Settings, fault: str | None = None) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Return the batches of an epoch, shuffled by the seed."""
    photos = TensorDataset(*paint_pairs(settings.pairs, settings.image_size, settings.seed))
    generator = torch.Generator().manual_seed(settings.seed + (fault == "data-order"))
    return DataLoader(photos, settings.batch_size, shuffle=True, generator=generator)


def make_optimizer(model: SiameseRanker, settings: Settings) -> torch.optim.SGD:
    """Return SGD with one learning rate for the backbone and a higher one for the head."""
    rate = settings.learning_rate
    groups = [
        {"params": list(model.backbone.parameters()), "lr": rate},
        {"params": list(model.mlp.parameters()), "lr": rate * settings.head_rate},
    ]
    return torch.optim.SGD(groups, momentum=settings.momentum, weight_decay=settings.weight_decay)


def train(settings: Settings, folder: Path, fault: str | None = None) -> None:
    """Train from the start and record into a folder; a fault is one of FAULTS."""
    if fault == "head-lr":
        settings = replace(settings, head_rate=1)
    if fault == "bn-momentum":
        settings = replace(settings, batch_norm_momentum=0.01)
    model = make_ranker(settings)
    if fault == "layer-init":
        nn.init.xavier_uniform_(model.get_parameter("backbone.layer3.0.conv2.weight"))
    optimizer = make_optimizer(model, settings)
    loader = make_loader(settings, fault)
    criterion = nn.CrossEntropyLoss()
    dumps = BatchDumps(
        folder,
        model,
        optimizer,
        steps=settings.epochs * len(loader),
        interval=settings.batch_comparison_interval,
        checkpoints=settings.dump_checkpoints,
    )
    for epoch in range(settings.epochs):
        for batch, (first, second, winner) in enumerate(loader):
            if fault != "no-zero-grad":
                optimizer.zero_grad()
            logits = model(first, second)
            loss = criterion(logits, winner)
            loss.backward()
            optimizer.step()
            acc = (logits.argmax(1) == winner).float().mean()
            dumps.step(epoch, batch, (first, second, winner), loss, acc)
        print(f"epoch {epoch}: loss {loss.item():.4f}, acc {acc.item():.2f} in the last batch")
    dumps.close()
